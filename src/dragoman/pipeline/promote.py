"""Stage `promote`, the gate: a challenger becomes champion only where it is provably better.

Challenger and champion answer the same held-out questions, with the same frozen LLM and the same index. The challenger wins if
the lower bound of its gain (95%, paired bootstrap) exceeds a margin. It may fail no more often and cost no more than allowed,
and the data must have passed validation. While there is no champion, the first challenger has to beat `promote.baseline`, which is
standard RAG unless set otherwise: that is what is served as long as nothing better is known.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from typing_extensions import Doc

from dragoman import tracking
from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.hashing import sha256_of
from dragoman.core.text import folder_name
from dragoman.core.types import Question
from dragoman.corpus import load_corpus, load_questions
from dragoman.evaluation.evaluate import Evaluation, evaluate
from dragoman.evaluation.settings import PromoteParams
from dragoman.pipeline import register
from dragoman.pipeline.decisions import Check, Verdict, carry_out, now, settle
from dragoman.pipeline.project import Project
from dragoman.registry.version import Version
from dragoman.registry.versions import CHAMPION, ROLLED_BACK, Registry
from dragoman.runtime import Runtime

log = logging.getLogger(__name__)

COSTS = ("calls", "tokens", "seconds")


@dataclass(frozen=True, kw_only=True)
class Options:
    policy: Annotated[str | None, Doc("A stage, a folder or a version; the last of `policies` by default.")] = None
    out: Annotated[Path | None, Doc("Where the decision and its evaluation go; results/promote by default.")] = None

    def folder(self, project: Project) -> Path:
        return self.out or project.results("promote")


async def run(project: Project, options: Options) -> dict[str, Any]:
    """Register what the stages have trained, and put a policy to the test.

    Returns:
        What `decision.json` holds; or `unchanged`, which says why nothing had to be decided.

    Raises:
        UserError: no such policy, or another promotion is under way.
    """
    params, settings = project.params, project.params.promote
    settled = settle(project.registry, options.folder(project))
    await register.run(project, register.Options())
    wanted = options.policy or (params.policies[-1] if params.policies else "rl")
    registry = project.registry
    challenger = registry.get(wanted) or registry.register(project.policy(wanted))
    if isinstance(settled, Verdict) and settled.promoted and settled.challenger == challenger.name:
        return asdict(settled)
    champion = registry.get(CHAMPION)
    named = f"{challenger.name} ({challenger.policy})"
    if champion and champion.number == challenger.number:
        return {"unchanged": f"{named} is the champion already"}
    if options.policy is None and challenger.decision.startswith(ROLLED_BACK):
        return {"unchanged": f"{named} was taken back: {challenger.decision}; name it to try it again"}
    either = project.changed({"allow_mismatch": True})  # champion and challenger may be of different settings
    either.check_systems(f"{challenger.system}@{challenger.name}", opponent(champion, settings))
    dataset = settings.dataset or params.train.dataset
    questions = load_questions(project.held_out, limit=settings.limit)
    passages = load_corpus(project.corpus(dataset))
    evaluation = Evaluation(
        dataset=dataset,
        settings=params.evaluate,
        seed=params.seed,
        out=options.folder(project),
        track=registry.store,
    )
    async with either.runtime(str(project.index(dataset)), passages) as runtime:
        decision = await promote(
            challenger,
            questions,
            runtime,
            settings,
            evaluation,
            validation=project.results("validate"),
            data=(project.held_out, project.corpus(dataset)),
            registry=registry,
        )
    return asdict(decision)


def checks(
    metrics: Mapping[str, Any],
    challenger: str,
    against: str,
    settings: PromoteParams,
    *,
    champion: bool,
    validation: Path,
    data: Sequence[Path] = (),
) -> tuple[Check, ...]:
    """The conditions of the gate, each with what was found.

    Args:
        metrics: of an evaluation of both (`metrics.json`), `against` before the challenger.
        challenger: the challenger's name in it.
        against: the name of what it is compared with.
        settings: the limits.
        champion: whether `against` is the champion. A baseline's cost is no measure: it takes no decisions.
        validation: the folder of `dragoman validate`.
        data: files that must be those that were validated.
    """
    own, other = metrics["systems"][challenger], metrics["systems"][against]
    n = metrics["n"]
    gain = metrics["paired"][f"{challenger} - {against}"].get(settings.score)
    found = "no question has a score of both"
    if gain is not None:
        found = f"{gain['mean']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]"
    missing, lost = "failed", own["failed"]
    if settings.score == "judge":  # a verdict that is missing is the judge's fault, on whosever answer
        missing, lost = "unjudged", max(own["unjudged"], other["unjudged"] - other["failed"])
    pairs = max(0, n - own[missing] - other[missing])  # at least so many have a score of both
    made = [
        Check(
            f"gain in {settings.score}",
            found,
            f"lower bound > {settings.margin:+.3f}",
            gain is not None and gain["low"] > settings.margin,
        ),
        Check("questions", str(pairs), f">= {settings.min_questions}", pairs >= settings.min_questions),
        Check(missing, f"{lost} of {n}", f"<= {settings.max_failed:.1%}", lost / n <= settings.max_failed),
    ]
    for cost in COSTS:
        limits = []
        if (absolute := getattr(settings.max_cost, cost)) is not None:
            limits.append(absolute)
        if champion:
            limits.append(settings.max_cost_ratio * other[cost])
        if limits:
            made.append(Check(cost, f"{own[cost]:g}", f"<= {min(limits):g}", own[cost] <= min(limits)))
    return (*made, _validated(validation, data))


def _validated(folder: Path, data: Sequence[Path]) -> Check:
    """Whether all validations in `folder`, of one or of several parts of the data, were passed, and `data` was among it."""
    paths = sorted({*folder.glob("metrics.json"), *folder.glob("*/metrics.json")})
    if not paths:
        return Check("data", f"{folder}: nothing was validated; run `dragoman validate`", "all met", False)
    failed = expectations = 0
    where, seen = [], set()
    for path in paths:
        try:
            counts = json.loads(path.read_text(encoding="utf-8"))
            failed, expectations = failed + counts["failed"], expectations + counts["expectations"]
            where += [str(path.parent)] if counts["failed"] else []
            seen |= set(counts.get("sha256", {}).values())
        except (ValueError, KeyError, TypeError, AttributeError):
            return Check("data", f"{path}: cannot be read; run `dragoman validate` again", "all met", False)
    if changed := [path for path in data if sha256_of([path]) not in seen]:
        return Check(
            "data", f"{changed[0]}: is not what was validated; run `dragoman validate` again", "all met", False
        )
    # a checkpoint without expectations succeeds, and shows nothing
    found = f"{failed} of {expectations} expectations not met" + (f" ({', '.join(where)})" if where else "")
    return Check("data", found, "all met", failed == 0 and expectations > 0)


def opponent(champion: Version | None, settings: PromoteParams) -> str:
    """The system that a challenger is compared with: the champion, pinned by its number, or the baseline."""
    return f"{champion.system}@{champion.name}" if champion else settings.baseline


async def promote(
    challenger: Version,
    questions: Sequence[Question],
    runtime: Runtime,
    settings: PromoteParams,
    evaluation: Evaluation,
    *,
    validation: Path,
    data: Sequence[Path] = (),
    registry: Registry,
) -> Verdict:
    """Put the challenger to the test, let the aliases follow, and record the decision in MLflow and on the version.

    `decision.json` and `table.md` of `evaluation.out` say what was decided; the rest is the evaluation's.

    Args:
        validation: as `data`, see `checks`.

    Raises:
        UserError: another promotion is under way, another process writes into `out`, or the challenger is the champion.
    """
    out = evaluation.out
    with registry.locked("promote", wait=0), files.only_writer(out):
        settle(registry)
        champion = registry.get(CHAMPION)
        if champion and champion.number == challenger.number:
            raise UserError(f"{challenger.name} is the champion already")
        registry.challenge(challenger)
        name, against = f"{challenger.system}@{challenger.name}", opponent(champion, settings)
        _forget_others(out / "episodes", {folder_name(name), folder_name(against)})
        metrics = await evaluate([against, name], questions, runtime, evaluation)
        made = checks(metrics, name, against, settings, champion=champion is not None, validation=validation, data=data)
        tried = registry.find(challenger.name)  # by now: a trial goes on while the gate judges
        trials = {kind: json.loads(shown) for kind, shown in tried.trials.items()}
        if "canary" in trials:
            taken_back = tried.taken_back
            found = f"taken back: {taken_back}" if taken_back else "served"
            made = (*made, Check("canary", found, "served to its end", not taken_back))
        _, backends = runtime.open(name)
        decision = Verdict(
            challenger=challenger.name,
            policy=challenger.policy,
            champion=champion.name if champion else "",
            against=against,
            promoted=all(check.met for check in made),
            reasons=tuple(check.reason for check in made if not check.met),
            checks=made,
            dataset=evaluation.dataset,
            questions=_hash(questions),
            llm=backends.llm.fingerprint,
            retriever=backends.retriever.fingerprint,
            judge=backends.judge.fingerprint if evaluation.settings.judge else "",
            seed=evaluation.seed,
            trials=trials,
            settings=settings.model_dump(),
            revision=tracking.git_revision(),
            at=now(),
        )
        return carry_out(decision, metrics, out, registry)


def _forget_others(episodes: Path, pair: set[str]) -> None:
    """Remove what was answered for another decision: seconds are compared, and the LLM's server was another day's then."""
    if episodes.is_dir() and not {path.name for path in episodes.iterdir() if path.is_dir()} <= pair:
        shutil.rmtree(episodes)


def _hash(questions: Sequence[Question]) -> str:
    return hashlib.sha256(files.dumps([q.to_json() for q in questions]).encode()).hexdigest()[:16]
