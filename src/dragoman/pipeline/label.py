"""Stage `label`: what the judge of MAPS is to say of snapshots, by the agreement of several answers (section 3.4).

From each pool the answerer draws several answers. Where all are right, the pool is sufficient; where all are wrong, it is
not; elsewhere nothing is learnt. Algorithm 1 has the query agent draw, section 3.4 the answer agent, as here.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
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
from dragoman.rollout.calls import seed_of
from dragoman.rollout.choosing import taken
from dragoman.rollout.results import SAMPLES
from dragoman.rollout.samples import write_samples
from dragoman.systems.answer import answer_ask
from dragoman.systems.maps.actions import Insufficient, Sufficient
from dragoman.systems.maps.snapshots import Snapshot, read_snapshots
from dragoman.systems.maps.system import MAPS
from dragoman.systems.options import Choice, biased, scoring
from dragoman.training.seeds import taught
from dragoman.training.settings import LabelParams

ANSWERS = "answers.jsonl"
"""How many answers to each snapshot are right, so that a run that was stopped draws none again."""

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
    found = [snapshot for snapshot in read_snapshots(path) if snapshot.question.answers]
    inputs = open_inputs(project, options, "train", out, sources=params.train.questions, limit=1)  # nothing is searched
    async with project.runtime(inputs.index, inputs.passages) as runtime:
        opened, backends = runtime.open(f"{SYSTEM}@{options.policy}" if options.policy else SYSTEM)
        maps, gate = cast(MAPS, opened), asyncio.Semaphore(settings.concurrency)
        if over := next((s for s in found if len(s.pool.passages) > maps.max_documents), None):
            raise UserError(
                f"label: {path}: question {over.question.id}, round {over.round}: a pool of {len(over.pool.passages)} passages, "
                f"and maps.max_documents is {maps.max_documents}; raise it, or debate again"
            )
        engine = backends.llm
        if maps.answers == "agent":
            engine = backends.engine_of(maps.answer_agent.name, backends.proxy)
        faults: list[str] = []
        with bar("label", len(found)) as advance, Journal(out / ANSWERS) as journal:

            async def right(snapshot: Snapshot) -> int | None:
                request, listed = _drawing(maps, snapshot, settings, params.seed)
                # a request that scores a list has none of these
                drawn = settings.draws, settings.temperature, params.seed
                key = digest(snapshot.to_json(), settings.score, request, engine.fingerprint, *drawn)
                async with gate:
                    try:
                        count: int = await journal.get(
                            key, lambda: _right(engine, request, listed, snapshot, settings, params.seed)
                        )
                    except EngineFault as e:
                        log.warning("label: question %s, round %d: %s", snapshot.question.id, snapshot.round, e)
                        faults.append(str(e))
                        return None
                    finally:
                        advance()
                return count

            counts = await asyncio.gather(*map(right, found))
    verdicts: dict[int | None, Sufficient | Insufficient] = {settings.draws: Sufficient(), 0: Insufficient()}
    vocabulary = Vocabulary(Path(params.proxy.model), None)
    samples = [
        taught(
            maps.judge_agent,
            {"question": snapshot.question.question, "pool": snapshot.pool},
            verdicts[count],
            vocabulary,
            question=snapshot.question.id,
            node=f"round {snapshot.round}",
        )
        for snapshot, count in zip(found, counts, strict=True)
        if count in verdicts
    ]
    agreed = len(samples)
    if settings.samples is not None and agreed > settings.samples:
        samples = random.Random(params.seed).sample(samples, settings.samples)
    if faults and len(faults) == len(found):
        raise Fault(f"label: every question met a fault, the first: {faults[0]}")
    if not samples:
        raise UserError(
            f"label: on none of {len(found)} snapshots of {path} with gold answers do {settings.draws} answers agree; take "
            "more snapshots, or lower label.draws or label.temperature"
        )
    kinds = Counter(sample.kind for sample in samples)
    if len(kinds) == 1:
        log.warning(
            "label: every label says %s, so a judge that learns from them says nothing else; train the answer agent further, "
            "lower label.draws, or take label.score: cover_em",
            *kinds,
        )
    write_samples(out / SAMPLES, samples)
    metrics = {
        "snapshots": len(found),
        "kinds": dict(sorted(kinds.items())),
        "dropped": len(found) - agreed - counts.count(None),
        "failed": counts.count(None),
    }
    files.write_json(out / "metrics.json", metrics)
    project.record("label", out, metrics, settings.model_dump())
    return metrics


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
    logits = biased(result.logits, listed.bias)
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
