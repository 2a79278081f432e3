"""Stage `label`: what the judge of MAPS is to say of snapshots, by the agreement of several answers (section 3.4).

From each pool the answerer draws several answers. Where all are right, the pool is sufficient; where all are wrong, it is
not; elsewhere nothing is learnt. Algorithm 1 has the query agent draw, section 3.4 the answer agent, as here.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, cast

from typing_extensions import Doc

from dragoman.core import files
from dragoman.core.errors import EngineFault, Fault, UserError
from dragoman.core.journal import Journal, digest
from dragoman.core.progress import bar
from dragoman.engines.base import Engine, Request, Result
from dragoman.engines.local import Vocabulary
from dragoman.pipeline.debate import SNAPSHOTS, SYSTEM
from dragoman.pipeline.inputs import InputOptions, open_inputs
from dragoman.pipeline.project import Project
from dragoman.rewards.answer import scores
from dragoman.rollout.backends import Backends
from dragoman.rollout.calls import seed_of
from dragoman.rollout.choosing import taken
from dragoman.rollout.results import SAMPLES
from dragoman.rollout.samples import Sample, write_samples
from dragoman.systems.answer import answer_ask
from dragoman.systems.maps.actions import Insufficient, Sufficient
from dragoman.systems.maps.snapshots import Snapshot, read_snapshots
from dragoman.systems.maps.system import MAPS
from dragoman.systems.options import Choice, scoring
from dragoman.systems.system_name import SystemName
from dragoman.training.seeds import taught
from dragoman.training.settings import LabelParams

ANSWERS = "answers.jsonl"
"""How many answers to each snapshot are right, so that a run that was stopped draws none again."""

DRAWS = "label.draws (of a chain chain.steps.label.label.draws)"
"""Where the number of answers to a pool is set."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Options(InputOptions):
    snapshots: Annotated[Path | None, Doc("Snapshots (JSONL); results/debate/snapshots.jsonl by default.")] = None
    policy: Annotated[
        str | None, Doc("Whose answer agent draws: a stage or a folder; the untrained base by default.")
    ] = None
    out: Annotated[Path | None, Doc("Where the samples go; results/label by default.")] = None

    def folder(self, project: Project) -> Path:
        return self.out or project.results("label")


async def run(project: Project, options: Options) -> dict[str, Any]:
    """Label snapshots, and write a sample of the judge for each that has a label: what `sft` imitates.

    Raises:
        UserError: a bad line, a pool over the limit, no gold answers, no such policy, or no snapshot on which all answers agree.
        Fault: no answer to any snapshot could be drawn.
    """
    params, settings, out = project.params, project.params.label, options.folder(project)
    path = options.snapshots or project.results("debate") / SNAPSHOTS
    snapshots = [snapshot for snapshot in read_snapshots(path) if snapshot.question.answers]
    inputs = open_inputs(project, options, "train", out, sources=params.train.questions, limit=1)  # nothing is searched
    async with project.runtime(inputs.index, inputs.passages) as runtime:
        opened, backends = runtime.open(str(SystemName(SYSTEM, options.policy or "")))
        maps = cast(MAPS, opened)
        _check_pools(snapshots, maps, path)
        counts = await _counts_of_right(snapshots, maps, _answering(maps, backends), settings, params.seed, out)
    labelled = _labelled(snapshots, counts, maps, settings.draws, Vocabulary(Path(params.proxy.model), None))
    if not labelled:
        raise UserError(
            f"label: on none of {len(snapshots)} snapshots of {path} with gold answers do {settings.draws} answers agree; take "
            f"more snapshots, or lower label.temperature or {DRAWS}"
        )
    samples = labelled
    if settings.samples is not None and len(labelled) > settings.samples:
        samples = random.Random(params.seed).sample(labelled, settings.samples)
    kinds = Counter(sample.kind for sample in samples)
    if len(kinds) == 1:
        log.warning(
            "label: every label says %s, so a judge that learns from them says nothing else; train the answer agent further, "
            "lower %s, or take label.score: cover_em",
            *kinds,
            DRAWS,
        )
    write_samples(out / SAMPLES, samples)
    metrics = {
        "snapshots": len(snapshots),
        "kinds": dict(sorted(kinds.items())),
        "dropped": len(snapshots) - len(labelled) - counts.count(None),
        "failed": counts.count(None),
    }
    files.write_json(out / "metrics.json", metrics)
    project.record("label", out, metrics, settings.model_dump())
    return metrics


def _check_pools(snapshots: Sequence[Snapshot], maps: MAPS, path: Path) -> None:
    """
    Raises:
        UserError: a pool is over the limit.
    """
    if over := next((s for s in snapshots if len(s.pool.passages) > maps.max_documents), None):
        raise UserError(
            f"label: {path}: question {over.question.id}, round {over.round}: a pool of {len(over.pool.passages)} passages, "
            f"and maps.max_documents is {maps.max_documents}; raise it, or debate again"
        )


def _answering(maps: MAPS, backends: Backends) -> Engine:
    """The engine that draws answers."""
    return backends.engine_of(maps.answer_agent.name, backends.proxy) if maps.answers == "agent" else backends.llm


async def _counts_of_right(
    snapshots: Sequence[Snapshot], maps: MAPS, engine: Engine, settings: LabelParams, seed: int, out: Path
) -> list[int | None]:
    """How many of the answers that are drawn from each pool are right; None where a fault left none.

    Args:
        out: the folder in which the counts are kept.

    Raises:
        Fault: every snapshot met one.
    """
    faults: list[str] = []
    gate = asyncio.Semaphore(settings.concurrency)
    with bar("label", len(snapshots)) as advance, Journal(out / ANSWERS) as journal:

        async def count_of_right(snapshot: Snapshot) -> int | None:
            request, listed = _drawing(maps, snapshot, settings, seed)
            # a request that scores a list has none of these
            drawn = settings.draws, settings.temperature, seed
            key = digest(snapshot.to_json(), settings.score, request, engine.fingerprint, *drawn)
            async with gate:
                try:
                    count: int = await journal.get(
                        key, lambda: _right(engine, request, listed, snapshot, settings, seed)
                    )
                except EngineFault as e:
                    log.warning("label: question %s, round %d: %s", snapshot.question.id, snapshot.round, e)
                    faults.append(str(e))
                    return None
                finally:
                    advance()
            return count

        counts = await asyncio.gather(*map(count_of_right, snapshots))
    if faults and len(faults) == len(snapshots):
        raise Fault(f"label: every question met a fault, the first: {faults[0]}")
    return counts


def _labelled(
    snapshots: Sequence[Snapshot], counts: Sequence[int | None], maps: MAPS, draws: int, vocabulary: Vocabulary
) -> list[Sample]:
    """A sample of the judge for each snapshot on which all of `draws` answers agree."""
    verdicts: dict[int | None, Sufficient | Insufficient] = {draws: Sufficient(), 0: Insufficient()}
    return [
        taught(
            maps.judge_agent,
            {"question": snapshot.question.question, "pool": snapshot.pool},
            verdicts[count],
            vocabulary,
            question=snapshot.question.id,
            node=f"round {snapshot.round}",
        )
        for snapshot, count in zip(snapshots, counts, strict=True)
        if count in verdicts
    ]


def _drawing(maps: MAPS, snapshot: Snapshot, settings: LabelParams, seed: int) -> tuple[Request, Choice | None]:
    """What draws answers from a pool, and the list that they are chosen from where they are listed."""
    question, pool = snapshot.question, snapshot.pool
    drawn: dict[str, Any] = {"n": settings.draws, "temperature": settings.temperature}
    if maps.answers == "llm":
        ask, state = answer_ask(question, pool.passages, words=maps.passage_words, max_tokens=maps.answer_tokens)
        return replace(ask, **drawn).request(ask.messages(state), seed=seed), None
    role, state = maps.answer_agent, {"question": question.question, "pool": pool}
    if role.options:
        listed = cast(Choice, role.options(**state))
        return scoring(listed), listed
    grammar = role.grammar(**state).constraint()
    return Request(role.messages(state), role.max_tokens, stop=role.stop, grammar=grammar, seed=seed, **drawn), None


def _answers(result: Result, listed: Choice | None, settings: LabelParams, rng: random.Random) -> list[str]:
    """The answers that were drawn. From a list the same one may be drawn again, as a model may write it again."""
    if listed is None:
        return [c.text.strip() for c in result.completions]
    logits = result.logits
    places = range(len(logits))
    shares = [taken(logits, listed.many, [place], settings.temperature).probability for place in places]
    return [listed.action([place]).text for place in rng.choices(places, shares, k=settings.draws)]


async def _right(
    engine: Engine, request: Request, listed: Choice | None, snapshot: Snapshot, settings: LabelParams, seed: int
) -> int:
    """How many of the answers that are drawn from a pool are right."""
    question = snapshot.question
    (result,) = await engine.generate([request])
    rng = random.Random(seed_of(seed, question.id, str(snapshot.round)))
    texts = _answers(result, listed, settings, rng)
    return sum(bool(scores(text, question.answers, question.parts)[settings.score]) for text in texts)
