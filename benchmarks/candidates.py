"""What C-3PO's lists of queries can find: an oracle searches by the best of each list and keeps the gold passages.

The first search is by the question. The oracle then takes the query that ranks a missing gold passage best, until all are
found, none is, or there were four searches. `candidates` are those of C-3PO's marks, `names` those of its mode `names`.

    python -m benchmarks.candidates --index data/index/atlas --questions data/atlas/train.jsonl --k 5,10
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from dragoman.core.types import Passage, Question
from dragoman.corpus import load_questions
from dragoman.retrieval import Retriever, open_retriever
from dragoman.systems.c3po.queries import candidates, known_names, whole
from dragoman.systems.c3po.settings import Settings

SEARCHES = 4
SHOWN = (4, 8, 14, 20)
"""Of the queries listed for the second search, so many are shown."""
FIRST = (5, 10, 20)
"""Passages of the first search."""
ALL = 1000


def names_only(settings: Settings, question: str, kept: Sequence[Passage], asked: Sequence[str]) -> list[str]:
    every = [whole(settings, question), *known_names(settings, question, kept)]
    return list(islice((query for query in dict.fromkeys(every) if query not in asked), settings.max_candidates))


LISTS: dict[str, Callable[..., list[str]]] = {"names": names_only, "candidates": candidates}


@dataclass
class Searched:
    """What an oracle found for one question, and where a missing gold passage stood for each query of its second search."""

    recall: float
    searches: int
    listed: list[float] | None
    seconds: list[float]
    """What it took to list the queries, each time."""


class Oracle:
    """Searches for one list of queries.

    Args:
        distractors: so many wrong passages of each search are kept too, those that rank best.
    """

    def __init__(self, retriever: Retriever, kind: str, k: int, shown: int, distractors: int) -> None:
        self.retriever, self.list, self.k, self.shown, self.distractors = retriever, LISTS[kind], k, shown, distractors
        self.settings = Settings(k=k, max_candidates=ALL)

    async def search(self, question: Question) -> Searched:
        gold, query, listed = set(question.supporting_ids), whole(self.settings, question.question), None
        asked: list[str] = []
        took: list[float] = []
        kept: dict[str, Passage] = {}
        while True:
            found = await self._find([query])
            asked.append(query)
            wrong = [passage.id for passage in found[0] if passage.id not in gold][: self.distractors]
            kept |= {passage.id: passage for passage in found[0] if passage.id in gold or passage.id in wrong}
            missing = gold - set(kept)
            if not missing or len(asked) == SEARCHES:
                break
            started = time.perf_counter()
            queries = self.list(self.settings, question.question, list(kept.values()), asked)
            took.append(time.perf_counter() - started)
            ranks = [_rank(passages, missing) for passages in await self._find(queries)]
            listed = ranks if listed is None else listed
            best = min(ranks[: self.shown], default=ALL)
            if best == ALL:
                break
            query = queries[ranks.index(best)]
        return Searched(1 - len(missing) / len(gold), len(asked), listed, took)

    async def _find(self, queries: list[str]) -> list[list[Passage]]:
        return [[hit.passage for hit in hits] for hits in await self.retriever.search(queries, self.k)]


def _rank(passages: Sequence[Passage], missing: set[str]) -> float:
    return min((place for place, passage in enumerate(passages) if passage.id in missing), default=ALL)


async def first_search(retriever: Retriever, questions: Sequence[Question]) -> None:
    print("| first search | gold found | all gold found |\n|---|---|---|")
    for k in FIRST:
        found = await retriever.search([whole(Settings(), q.question) for q in questions], k)
        shares = [
            len({hit.passage.id for hit in hits} & set(q.supporting_ids)) / len(set(q.supporting_ids))
            for q, hits in zip(questions, found, strict=True)
        ]
        print(f"| k = {k} | {_mean(shares):.3f} | {_mean([share == 1 for share in shares]):.3f} |")


async def measure(options: argparse.Namespace) -> None:
    retriever = open_retriever(options.index)
    questions = [q for q in load_questions(options.questions, require_answers=False) if q.supporting_ids]
    print(f"{len(questions)} questions\n")
    await first_search(retriever, questions)
    shown = " | ".join(f"of {n}" for n in SHOWN)
    print(f"\n| k | list | all gold | recall | searches | second searches | {shown} | of all | listed | ms a list |")
    print("|---" * (9 + len(SHOWN)) + "|")
    for k in options.k:
        for kind in LISTS:
            oracle = Oracle(retriever, kind, k, options.shown, options.distractors)
            results = [await oracle.search(question) for question in questions]
            second = [result.listed for result in results if result.listed is not None]
            leads = [f"{_mean([min(r[:n], default=ALL) < ALL for r in second]):.3f}" for n in (*SHOWN, ALL)]
            figures = [
                f"{_mean([r.recall == 1 for r in results]):.3f}",
                f"{_mean([r.recall for r in results]):.3f}",
                f"{_mean([r.searches for r in results]):.2f}",
                f"{len(second)}",
                *leads,
                f"{_mean([len(r) for r in second]):.1f}",
                f"{1000 * _mean([seconds for r in results for seconds in r.seconds]):.2f}",
            ]
            print(f"| {k} | {kind} | " + " | ".join(figures) + " |", flush=True)
    await retriever.close()


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", default="data/index/atlas")
    parser.add_argument("--questions", default="data/atlas/train.jsonl")
    parser.add_argument("--k", type=lambda text: [int(part) for part in text.split(",")], default=[5, 10])
    parser.add_argument("--shown", type=int, default=Settings.max_candidates, help="queries the oracle chooses among")
    parser.add_argument("--distractors", type=int, default=0, help="wrong passages kept of each search")
    asyncio.run(measure(parser.parse_args(argv)))


if __name__ == "__main__":
    main()
