"""Stage `debate`: snapshots of the pools that a debate gathers, for the judge of MAPS.

The paper debates over the first part of its questions with 3 passages a search, and over the others with 5: see
`debate.narrow`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, cast

from typing_extensions import Doc

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.progress import bar
from dragoman.core.types import Passage, Question
from dragoman.pipeline.inputs import InputOptions, open_inputs
from dragoman.pipeline.project import Project
from dragoman.rollout.exploration import GREEDY
from dragoman.rollout.record import Call, Episode, check_outage
from dragoman.rollout.scheduler import roll_out
from dragoman.rollout.store import EpisodeStore
from dragoman.systems.maps.debate import Debate
from dragoman.systems.maps.snapshots import Snapshot, snapshots, write_snapshots
from dragoman.systems.maps.system import MAPS

SYSTEM = "maps"
SNAPSHOTS = "snapshots.jsonl"


@dataclass(frozen=True, kw_only=True)
class Options(InputOptions):
    out: Annotated[Path | None, Doc("Where the snapshots go; results/debate by default.")] = None

    def folder(self, project: Project) -> Path:
        return self.out or project.results("debate")


async def run(project: Project, options: Options) -> dict[str, Any]:
    """Debate over training questions, and write every pool on the way to `snapshots.jsonl`.

    Raises:
        UserError: a file that cannot be read, no question that can be debated over, or passages without a corpus.
    """
    params, settings, out = project.params, project.params.debate, options.folder(project)
    inputs = open_inputs(project, options, "train", out, sources=params.train.questions, limit=settings.questions)
    questions = inputs.asked.questions
    if settings.by == "oracle":
        questions = [question for question in questions if question.supporting_ids]
    if not questions:
        raise UserError("debate: no question has supporting_ids, so no oracle can debate; set debate.by: llm")
    if inputs.passages is None:
        raise UserError("debate: snapshots hold the texts of passages; give --corpus beside --index")
    narrow = round(settings.narrow * len(questions))
    texts = {passage.id: passage for passage in inputs.passages}
    async with project.runtime(inputs.index, inputs.passages, cache=True) as runtime:
        opened, backends = runtime.open(f"{SYSTEM}@oracle")
        if settings.engine:
            backends = replace(backends, llm=runtime.engine(settings.engine))
        maps = cast(MAPS, opened)
        system: MAPS | Debate = maps if settings.by == "oracle" else Debate(**asdict(maps))
        with EpisodeStore(out) as store, bar(f"debate {settings.by}", len(questions)) as advance:
            episodes = []
            for part, k in ((questions[:narrow], settings.narrow_k), (questions[narrow:], system.k)):
                episodes += await roll_out(
                    part,
                    f"{SYSTEM}-debate-{settings.by}",
                    replace(system, k=k) if part else system,
                    backends,
                    store,
                    exploration=GREEDY.model_copy(update={"answers": False}),
                    seed=params.seed,
                    concurrency=settings.concurrency,
                    progress=lambda episode: advance(),
                )
    check_outage(episodes)
    found = [
        snapshot
        for question, episode in zip(questions, episodes, strict=True)
        for snapshot in _snapshots(question, episode, texts, maps.max_documents)
    ]
    write_snapshots(out / SNAPSHOTS, found)
    metrics = {
        "questions": len(questions),
        "snapshots": len(found),
        "rounds": dict(sorted(Counter(str(snapshot.round) for snapshot in found).items())),
        "stops": dict(sorted(Counter(str(e.trajectories[0].stop) for e in episodes).items())),
    }
    files.write_json(out / "metrics.json", metrics)
    project.record("debate", out, metrics, settings.model_dump())
    return metrics


def _snapshots(question: Question, episode: Episode, texts: Mapping[str, Passage], most: int) -> list[Snapshot]:
    """Those of an episode of a single trajectory.

    Raises:
        UserError: the index found a passage that the corpus does not have.
    """
    calls: dict[str, Call] = {call.id: call for call in episode.calls if call.kind == "search"}
    searches = []
    for call in (calls[step] for step in episode.trajectories[0].steps if step in calls):
        if missing := [id for id in call.output if id not in texts]:
            raise UserError(f"debate: the index found {missing[0]!r}, which is not in the corpus; build the index anew")
        assert isinstance(call.input, dict)
        searches.append((str(call.input["query"]), [texts[id] for id in call.output]))
    return snapshots(question, searches, most)
