"""Files that this project makes, as tables to be checked: flat columns of facts, one row a passage, question, node and so on.

What an expectation cannot say in one column is worked out here, as a number or as a text that says what is wrong and is
null where nothing is. The index of a table is the line of the file (from 1; of a Parquet file the row), so that a bad row
can be found again.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.core.errors import UserError
from dragoman.core.stats import chi_square
from dragoman.core.text import same_question
from dragoman.corpus.chunking import with_wholes
from dragoman.corpus.names import CORPUS, SPLITS
from dragoman.quality.lines import Lines, PassageRow, QuestionRow, read_lines
from dragoman.quality.snapshots import snapshot_columns
from dragoman.quality.tables import Table, file_table, frame, listed, words
from dragoman.retrieval.manifest import MANIFEST, Manifest
from dragoman.retrieval.store import passage_line
from dragoman.rewards import Reward
from dragoman.rollout.record import SCHEMA, Episode
from dragoman.rollout.samples import Sample
from dragoman.synthesis.plan import PLAN, Plan, load_plan
from dragoman.systems.maps.snapshots import SnapshotRow

if TYPE_CHECKING:
    import pandas as pd

QUESTIONS = tuple(f"{split}.jsonl" for split in SPLITS)
KINDS = {
    CORPUS: "corpus",
    **dict.fromkeys(QUESTIONS, "questions"),
    MANIFEST: "index",
    "episodes.jsonl": "episodes",
    "samples.parquet": "samples",
    "snapshots.jsonl": "snapshots",
}
"""What a file holds, by its name."""


@dataclass(frozen=True)
class Artifact:
    """A file, ready to be checked. `unchecked` says what could not be, for want of another file."""

    path: Path
    kind: str
    rows: int
    tables: tuple[Table, ...]
    unchecked: tuple[str, ...] = ()


@dataclass(frozen=True)
class Corpus:
    """What other files are compared with: how many passages, their ids, and the hash that an index of them has."""

    passages: int
    ids: frozenset[str]
    sha256: str


def find(paths: Iterable[Path]) -> list[Path]:
    """The files to check: those given, and those of a known name anywhere below a given folder.

    Hidden folders are left alone, as are manifests of models and policies.

    Raises:
        UserError: a path does not exist, or is a file of an unknown name; or there is nothing to check.
    """
    paths = list(paths)
    found: list[Path] = []
    for path in paths:
        if path.is_file():
            if path.name not in KINDS:
                raise UserError(f"{path}: not a file that can be validated; there are {', '.join(KINDS)}")
            found.append(path)
        elif path.is_dir():
            found += [
                file
                for file in sorted(path.rglob("*"))
                if file.name in KINDS
                and file.is_file()
                and not any(part.startswith(".") for part in file.relative_to(path).parts)
                and (file.name != MANIFEST or _is_of_an_index(file))
                and not _is_unasked(file)
            ]
        else:
            raise UserError(f"{path}: no such file or folder")
    if not found:
        raise UserError(
            f"{', '.join(map(str, paths)) or 'no path given'}: nothing to validate; expected {', '.join(KINDS)}"
        )
    return list(dict.fromkeys(found))


def _is_unasked(file: Path) -> bool:
    """A split without a question of a synthetic set for which none were wanted: `synthesize.backend: none`."""
    beside = file.with_name("metrics.json")
    if file.name not in QUESTIONS or file.stat().st_size or not beside.is_file():
        return False
    made = json.loads(beside.read_text(encoding="utf-8"))
    return isinstance(made, dict) and made.get("backend") == "none"


class Reader:
    """Reads artifacts, each together with the files that it has to agree with.

    Args:
        found: all files that are to be checked.
        plan: what the categories of synthetic questions are compared with that have no plan beside them.
    """

    def __init__(self, found: Sequence[Path], plan: Plan) -> None:
        self._found = found
        self._plan = plan
        self._questions = functools.cache(lambda path: read_lines(path, QuestionRow))
        self._corpus = functools.cache(read_corpus)

    def read(self, path: Path) -> Artifact:
        """The file as tables. The first says whether it can be read, row by row; the others hold the rows that can."""
        readers: dict[str, Callable[[Path], Artifact]] = {
            "corpus": self._read_corpus,
            "questions": self._read_questions,
            "index": self._read_index,
            "episodes": self._read_episodes,
            "samples": self._read_samples,
            "snapshots": self._read_snapshots,
        }
        artifact = readers[KINDS[path.name]](path)
        # A file may rightly have no node or no category, and one without any row is refused by its first table.
        tables = tuple(t for i, t in enumerate(artifact.tables) if i == 0 or len(t.frame))
        return dataclasses.replace(artifact, tables=tables)

    def _read_corpus(self, path: Path) -> Artifact:
        lines = read_lines(path, PassageRow)
        rows = lines.rows.values()
        passages = frame(
            lines.rows,
            id=[r.id for r in rows],
            text=[r.text for r in rows],
            words=words(r.text for r in rows),
        )
        return _of_lines(path, lines, Table("corpus", passages))

    def _read_questions(self, path: Path) -> Artifact:
        lines = self._questions(path)
        rows = lines.rows.values()
        plan = self._plan_of(path, rows)
        asked = {same_question(r.question): "" for r in rows if r.question is not None}
        support = {}
        for split in (path.with_name(name) for name in QUESTIONS if name != path.name):
            if split.is_file():
                for line, row in self._questions(split).rows.items():
                    if row.question is not None and (same := same_question(row.question)) in asked:
                        asked[same] = f"{split.name}:{line}"
                    support.update(dict.fromkeys(row.supporting_ids or (), f"{split.name}:{line}"))
        beside = path.with_name(CORPUS)
        named = any(r.supporting_ids for r in rows)
        known = self._corpus(beside).ids if named and beside.is_file() else None

        questions = frame(
            lines.rows,
            id=[r.id for r in rows],
            question=[r.question for r in rows],
            normalised=[None if r.question is None else same_question(r.question) for r in rows],
            words=words(r.question for r in rows),
            answers=[len(r.answers or ()) for r in rows],
            empty_answers=[sum(not a.strip() for a in r.answers or ()) for r in rows],
            unknown_passages=[
                listed(i for i in r.supporting_ids or () if known is not None and i not in known) for r in rows
            ],
            also_asked_in=[None if r.question is None else asked[same_question(r.question)] or None for r in rows],
            # Questions of other origins may rest on one passage; between those made out of passages, that is a leak.
            passages_also_in=[
                listed(f"{i} in {support[i]}" for i in r.supporting_ids or () if r.categories and i in support)
                for r in rows
            ],
            unplanned_categories=[listed(self._unplanned(r.categories or {}, plan)) for r in rows],
        )
        categories = Table("categories", self._categories(rows, plan))
        missing = (f"that supporting passages exist: there is no {beside}",) if named and known is None else ()
        return _of_lines(path, lines, Table("questions", questions), categories, unchecked=missing)

    def _plan_of(self, path: Path, rows: Iterable[QuestionRow]) -> Plan:
        """That by which the questions were made, which `synthesize` leaves beside them. Other questions have none."""
        beside = path.with_name(PLAN)
        return load_plan(beside) if any(r.categories for r in rows) and beside.is_file() else self._plan

    def _unplanned(self, categories: Mapping[str, str], plan: Plan) -> list[str]:
        """Categories that the plan does not have, or gives no probability."""
        planned = plan.categorizations
        return [
            f"{name}: {category}"
            for name, category in categories.items()
            if name not in planned or category not in planned[name] or not planned[name][category].probability
        ]

    def _categories(self, rows: Iterable[QuestionRow], plan: Plan) -> pd.DataFrame:
        """A row for each categorization in use: the probability of counts as uneven as these under the plan."""
        drawn = [r.categories for r in rows if r.categories]
        uses: dict[str, float] = {}
        for name, categories in plan.categorizations.items():
            planned = {category: c.probability for category, c in categories.items() if c.probability}
            counts = Counter(d[name] for d in drawn if d.get(name) in planned)
            if n := counts.total():
                worst = max(planned, key=lambda c: abs(counts[c] - n * planned[c]))
                uses[f"{name}: {counts[worst]} of {n} are {worst!r}, planned {n * planned[worst]:.4g}"] = chi_square(
                    counts, planned
                )
        return frame(uses, p=list(uses.values()))

    def _read_index(self, path: Path) -> Artifact:
        try:
            manifest = Manifest.read(path.parent)
        except UserError as e:
            return Artifact(path, "index", 1, (file_table({None: str(e).removeprefix(f"{path}: ")}),))
        corpus = self._corpus_of(path, manifest.corpus_sha256)
        sizes = frame(
            [None],
            passages=[manifest.passages],
            corpus_passages=[corpus.passages if corpus else float("nan")],
            corpus_sha256=[manifest.corpus_sha256],
            sha256_of_corpus=[corpus.sha256 if corpus else None],
        )
        missing = () if corpus else ("that it is an index of the corpus: which corpus is not known",)
        return Artifact(path, "index", 1, (file_table({None: None}), Table("index", sizes)), missing)

    def _corpus_of(self, manifest: Path, sha256: str) -> Corpus | None:
        """`data/NAME/corpus.jsonl` for an index `data/index/NAME`; otherwise the one with its hash, of those checked."""
        for folder in manifest.parents:
            if folder.parent.name == "index":
                beside = folder.parent.parent / folder.name / CORPUS
                if beside.is_file():
                    return self._corpus(beside)
        corpora = (self._corpus(path) for path in self._found if path.name == CORPUS)
        return next((corpus for corpus in corpora if corpus.sha256 == sha256), None)

    def _read_episodes(self, path: Path) -> Artifact:
        lines = read_lines(path, Episode)
        faults = {
            line: f"schema_version is {e.schema_version}, this version reads {SCHEMA}"
            for line, e in lines.rows.items()
            if e.schema_version != SCHEMA
        }
        lines = Lines({n: e for n, e in lines.rows.items() if n not in faults}, lines.faults | faults)
        last = {e.key: n for n, e in lines.rows.items()}
        # What failed is tried again under the same key, and the last line counts.
        rows = {n: e for n, e in lines.rows.items() if last[e.key] == n or not (e.faulty or e.too_long)}
        episodes = frame(
            rows, key=[e.key for e in rows.values()], trajectories=[len(e.trajectories) for e in rows.values()]
        )
        nodes = {n: {node.id for node in e.nodes} for n, e in rows.items()}
        steps = {n: nodes[n] | {call.id for call in e.calls} for n, e in rows.items()}
        leaves = [(n, t) for n, e in rows.items() for t in e.trajectories]
        trajectories = frame(
            [n for n, _ in leaves],
            missing_nodes=[
                listed(
                    dict.fromkeys([i for i in t.nodes if i not in nodes[n]] + [i for i in t.steps if i not in steps[n]])
                )
                for n, t in leaves
            ],
            wrong_rewards=[
                listed(f"{name} {r:g}" for name, r in t.rewards.items() if r is not None and not _possible(name, r))
                for _, t in leaves
            ],
            failed=[int(t.stop.is_fault) for _, t in leaves],
        )
        taken = [(n, node) for n, e in rows.items() for node in e.nodes]
        actions = frame(
            [n for n, _ in taken],
            missing_parents=[
                listed(i for i in (node.parent, *node.joins) if i is not None and i not in nodes[n])
                for n, node in taken
            ],
            invalid=[int(node.stop is not None) for _, node in taken],
        )
        return _of_lines(
            path, lines, Table("episodes", episodes), Table("trajectories", trajectories), Table("nodes", actions)
        )

    def _read_snapshots(self, path: Path) -> Artifact:
        lines = read_lines(path, SnapshotRow)
        return _of_lines(path, lines, Table("snapshots", snapshot_columns(lines)))

    def _read_samples(self, path: Path) -> Artifact:
        import pandas as pd
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(path)
        except (pa.ArrowInvalid, OSError) as e:
            return Artifact(path, "samples", 0, (file_table({None: str(e).splitlines()[0]}),))
        if wrong := _wrong_columns(table.schema):
            return Artifact(path, "samples", table.num_rows, (file_table({None: wrong}),))
        rows = range(1, table.num_rows + 1)
        nested = ("prompt_ids", "completion_ids", "logprobs")
        columns = {f.name: table[f.name].to_pandas() for f in dataclasses.fields(Sample) if f.name not in nested}
        lengths = {name: pc.list_value_length(table[name]).to_pandas() for name in nested}
        samples = pd.DataFrame(columns | lengths)
        samples["tokens"] = samples.prompt_ids + samples.completion_ids
        samples["choices"] = samples.marks.map(_choices, na_action="ignore").fillna(samples.completion_ids)
        uneven = ~(samples.logprobs.eq(0) | samples.logprobs.eq(samples.choices)) & samples.logprobs.notna()
        samples["wrong_logprobs"] = [
            f"{found:.0f} for {choices:.0f}" if wrong else None
            for wrong, found, choices in zip(uneven, samples.logprobs, samples.choices, strict=True)
        ]
        samples.index = pd.Index(rows, dtype=object)
        return Artifact(path, "samples", len(rows), (file_table(dict.fromkeys(rows)), Table("samples", samples)))


def _choices(marks: str) -> int:
    """How many choices made an action at marks: see `Sample.length`."""
    row = json.loads(marks)
    return len(row["positions"]) if row["many"] else 1


def read_corpus(path: Path) -> Corpus:
    """What there is to know of a corpus; lines that cannot be read are left out."""
    ids = []
    digest = hashlib.sha256()
    for row in read_lines(path, PassageRow).rows.values():
        ids.append(row.id or "")
        digest.update(passage_line(row.id or "", row.title, row.text or ""))
    return Corpus(len(ids), frozenset(with_wholes(ids)), digest.hexdigest())


def _of_lines(path: Path, lines: Lines[Any], *tables: Table, unchecked: tuple[str, ...] = ()) -> Artifact:
    count = len(lines.rows) + len(lines.faults)
    return Artifact(
        path, KINDS[path.name], count, (file_table({**dict.fromkeys(lines.rows), **lines.faults}), *tables), unchecked
    )


def _wrong_columns(schema: Any) -> str | None:
    """Which columns of samples are missing or of another type."""
    from pyarrow import types

    is_text, is_list = (types.is_string, types.is_large_string), (types.is_list, types.is_large_list)
    shapes = {"bool": (types.is_boolean,), "int": (types.is_integer,), "float": (types.is_floating,), "tuple": is_list}
    wrong = []
    for field in dataclasses.fields(Sample):
        fits = shapes.get(
            str(field.type).removesuffix(" | None").partition("[")[0], is_text
        )  # what is of no such type is stored as JSON
        if field.name not in schema.names:
            wrong.append(f"no column {field.name}")
        elif not any(fit(schema.field(field.name).type) for fit in fits):
            wrong.append(f"column {field.name} is of type {schema.field(field.name).type}")
    return listed(wrong)


def _is_of_an_index(manifest: Path) -> bool:
    """Models and policies have a file of this name too. One that cannot be read is taken for an index, to be refused."""
    try:
        row = json.loads(manifest.read_bytes())
    except ValueError:
        return True
    return isinstance(row, dict) and bool({"dragoman", "corpus_sha256"} & row.keys())


def _possible(reward: str, value: float) -> bool:
    low, high = _bounds(reward)
    return math.isfinite(value) and low <= value <= high


@functools.cache
def _bounds(reward: str) -> tuple[float, float]:
    try:
        return Reward.of(reward).bounds
    except UserError:  # of a package that is not installed here
        return -math.inf, math.inf
