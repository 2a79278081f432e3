"""Stage `chain`: a policy for each agent of MAPS, in the paper's order (sections 3.2 to 3.4).

1. `debate` gathers pools for training questions, and validates them.
2. `answer-1` and `answer-2` train the answer agent by GRPO, the second with more passages a search.
3. `query` trains the query extension agent by GRPO, to ask what improves the answer agent's answer.
4. `label` has the answer agent say which pools suffice, and `judge` imitates it.
5. `evaluate` compares what each step has left.

A step is another stage under settings of its own. It publishes the set of policies from which the next one starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, cast

from typing_extensions import Doc

from dragoman import tracking
from dragoman.core.errors import UserError
from dragoman.core.identity import content_hash
from dragoman.pipeline import debate, evaluate, label, rl, sft, validate
from dragoman.pipeline.debate import SNAPSHOTS, SYSTEM
from dragoman.pipeline.project import Project
from dragoman.registry.policy import POINTER
from dragoman.rollout.results import SAMPLES
from dragoman.systems import build
from dragoman.systems.maps.system import MAPS
from dragoman.training.settings import TRAINED, ChainParams, ChainStep

_GRPO: Mapping[str, Any] = {
    "rl.own_weights": True,
    "rl.shaping": None,  # equations 4, 5 and 7, and nothing beside them
    "rl.price": 0.0,
    "rl.exploration.answers": True,
}
_ANSWER: Mapping[str, Any] = {
    **_GRPO,
    "rl.roles": ["answer"],
    f"{SYSTEM}.rounds": "drawn",  # section 3.2: pools of one search, and of more
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one step of the chain has of its own."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Those that hold in it alone."""
    start: ChainStep | None = None
    """Whose policy it starts from; None for `chain.start`, or the proxy's base."""
    reward: Callable[[ChainParams, MAPS], str] | None = None
    """Of GRPO: what the actions of its `rl.roles` are compared by."""


CHAIN: Mapping[ChainStep, Step] = {
    "debate": Step(),
    "answer-1": Step(
        settings={**_ANSWER, f"{SYSTEM}.k": 3},
        reward=lambda chain, _: (  # eq. 4
            f"em + {chain.alpha:g} * precision_ratio + length_penalty(words={chain.words})"
        ),
    ),
    "answer-2": Step(
        start="answer-1",
        settings=_ANSWER,
        reward=lambda chain, _: (  # eq. 5
            f"em + {chain.alpha:g} * f1 + length_penalty(words={chain.words})"
        ),
    ),
    "query": Step(
        start="answer-2",
        settings={
            **_GRPO,
            "rl.roles": ["query"],
            f"{SYSTEM}.rounds": "fixed",  # section 3.3: one query after the question's own search
            f"{SYSTEM}.max_rounds": 1,
        },
        reward=lambda _, maps: (  # eq. 7
            f"delta_f1(first={maps.k}, passage_words={maps.passage_words}, answer_tokens={maps.answer_tokens})"
        ),
    ),
    "label": Step(  # section 3.4
        start="query",
        settings={"label.score": "em", "allow_mismatch": True},  # that policy has learnt under its fixed rounds
    ),
    "judge": Step(start="query", settings={"sft.roles": ["judge"], "sft.rounds": 0, "sft.shaping": None}),
    "evaluate": Step(settings={"allow_mismatch": True}),
}
"""The steps in the paper's order. `_do` says which stage each one is."""
STEPS = tuple(CHAIN)
COMMON: Mapping[str, Any] = {"train.system": SYSTEM, "train.algorithm": "grpo", f"{SYSTEM}.answers": "agent"}
"""The settings of all steps."""
COMPARED = ("standard", SYSTEM)
"""What the last step evaluates beside the policies of the chain and `chain.start`: standard RAG, and MAPS untrained."""
SECTIONS = ("seed", "train", "chain", "debate", "label", "rl", "sft", "index", "llm", "proxy")
"""Those sections of the settings, beside MAPS's own, that make a chain another one."""


@dataclass(frozen=True, kw_only=True)
class Options:
    steps: Annotated[tuple[str, ...], Doc(f"Of {', '.join(STEPS)}; all by default.")] = ()
    dataset: Annotated[str | None, Doc("A dataset of params.yaml; train.dataset by default.")] = None
    out: Annotated[Path | None, Doc("Where the steps have their folders; results/chain/DATASET by default.")] = None

    def folder(self, project: Project) -> Path:
        return self.out or project.results("chain") / (self.dataset or project.params.train.dataset)


async def run(project: Project, options: Options) -> dict[ChainStep, tuple[Project, dict[str, Any]]]:
    """Do the steps that are named, in the order of the chain. What a step has finished before, it does not do again.

    Returns:
        Of each step the project under its own settings, and its metrics.

    Raises:
        UserError: no such step, settings that a step refuses, an earlier step that has left nothing, or what a step refuses.
    """
    if unknown := sorted(set(options.steps) - set(STEPS)):
        raise UserError(f"chain: no step {unknown[0]!r}; choose from {', '.join(STEPS)}")
    out = options.folder(project)
    if project.params.chain.start:
        project.policy(project.params.chain.start)
    # those of all steps, so that a bad one is named before the first has taken hours
    own = {step: settings(project, step, options.dataset) for step in STEPS}
    with _group(own, out) if project.track else nullcontext():
        return {s: (own[s], await _do(s, own[s], out)) for s in STEPS if s in (options.steps or STEPS)}


def settings(project: Project, step: ChainStep, dataset: str | None = None) -> Project:
    """The project under the settings of a step. Those of `chain.steps` win over the chain's, which win over all others.

    Raises:
        UserError: a setting of `chain.steps` that there is not, or that is refused.
    """
    params, origin, its = project.params, f"chain.steps.{step}", CHAIN[step]
    said = params.chain.steps.get(step, {})
    # the paper's stages share no questions: with a seed of its own, a step at least draws others first
    seed = params.seed + (TRAINED.index(step) if step in TRAINED else 0)
    common = {**COMMON, "train.dataset": dataset or params.train.dataset, "seed": seed}
    own = project.changed({**common, **its.settings}).changed(said, origin=origin)
    if its.reward is not None:
        maps = cast(MAPS, build(SYSTEM, own.params.system_settings(SYSTEM)))
        own = own.changed(
            {
                "train.reward": its.reward(params.chain, maps),
                "rl.exploration.breadth": [1],
                "rl.exploration.breadth_of": dict.fromkeys(its.settings["rl.roles"], params.chain.rollouts),
                "rl.exploration.force": 0,
            }
        )
    return own.changed(said, origin=origin)  # again: it wins over what follows from it, too


async def _do(step: ChainStep, own: Project, out: Path) -> dict[str, Any]:
    first, earlier = own.params.chain.start, CHAIN[step].start
    start = _left_by(earlier, out) if earlier else first or own.params.proxy.model
    match step:
        case "debate":
            metrics = await debate.run(own, debate.Options(out=out / step))
            await validate.run(own, validate.Options(paths=(out / step,), out=out / "validate"))
            return metrics
        case "label":
            snapshots = out / "debate" / SNAPSHOTS
            return await label.run(own, label.Options(policy=start, snapshots=snapshots, out=out / step))
        case "judge":
            samples = out / "label" / SAMPLES
            return await sft.run(own, sft.Options(policy=start, samples=samples, out=out / step))
        case "evaluate":
            policies = (*([first] if first else []), *(_left_by(trained, out) for trained in TRAINED))
            systems = (*COMPARED, *(f"{SYSTEM}@{policy}" for policy in policies))
            return await evaluate.run(own, evaluate.Options(systems=systems, out=out / step))
    return await rl.run(own, rl.Options(policy=start, out=out / step))


def _left_by(step: ChainStep, out: Path) -> str:
    """The folder of an earlier step.

    Raises:
        UserError: it has no policy.
    """
    if not (out / step / POINTER).is_file():
        raise UserError(f"chain: {out / step} has no policy yet; run `dragoman chain {step}` first")
    return str(out / step)


def _group(own: Mapping[ChainStep, Project], out: Path) -> AbstractContextManager[str]:
    """The run in MLflow under which those of all steps stand, whichever process does them. Other settings make another."""
    named: dict[str, Any] = {**dict.fromkeys(SECTIONS, True), "systems": {SYSTEM}}
    chain = {step: project.params.model_dump(mode="json", include=named) for step, project in own.items()}
    first = own[STEPS[0]]
    return tracking.grouped(
        f"chain {out.name}",
        content_hash(out=str(out), chain=chain),
        first.store,
        tags={"stage": "chain", "system": SYSTEM, "dataset": first.params.train.dataset},
        parameters={"chain": first.params.chain.model_dump(mode="json"), "seed": first.params.seed},
    )
