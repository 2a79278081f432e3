"""A knowledge graph as a corpus: each entity is a passage of the triples that it heads and of those that end in it.

A graph is a TSV file of triples (subject, relation, object) without a header line, like the atlas's own `triples.tsv`, or
RDF: N-Triples or Turtle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from dragoman.core.errors import UserError
from dragoman.core.types import Passage, Triple
from dragoman.corpus.faults import Faults

RDF_FORMATS = {".nt": "nt", ".ttl": "turtle"}
SUFFIXES = (".tsv", *RDF_FORMATS)


def read_triples(path: Path) -> list[Triple]:
    """The triples of a file, in order, each once.

    Args:
        path: `.nt` and `.ttl` are RDF, whose terms become names (`dragoman.corpus.rdf.named`); anything else is TSV. Blank
            lines are skipped.

    Raises:
        UserError: no such file, no triple in it, RDF that cannot be read, bad UTF-8, or a line that is not three texts with
            tabs between. Up to five faults are named at once.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    triples = _read_rdf(path) if path.suffix in RDF_FORMATS else _read_tsv(path)
    if not triples:
        raise UserError(f"{path}: holds no triple")
    return triples


def _read_rdf(path: Path) -> list[Triple]:
    from dragoman.corpus.rdf import named, read_rdf  # rdflib takes a while to import

    return named(read_rdf(path))


def _read_tsv(path: Path) -> list[Triple]:
    faults = Faults(path)
    triples: dict[Triple, None] = {}
    for number, raw in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            cells = [cell.strip() for cell in raw.decode("utf-8-sig" if number == 1 else "utf-8").split("\t")]
        except UnicodeDecodeError as e:
            faults.add(f"not valid UTF-8 ({e.reason} at byte {e.start})", number)
            continue
        if len(cells) == 3 and all(cells):
            triples[cells[0], cells[1], cells[2]] = None
        elif any(cells):
            faults.add("expected subject, relation and object, with tabs between", number)
    faults.check()
    return list(triples)


def entity_passages(triples: Iterable[Triple]) -> list[Passage]:
    """A passage for each subject, in the order in which they first come, with its name as id and title.

    Its text has a sentence for each relation: `capital: Port-au-Prince.` for the triples that it heads, then
    `capital of: Haiti.` for those that end in it. An object that is never a subject is a value (`.ht`, `1492`), and found
    with the entity that it is a value of.
    """
    facts: dict[str, dict[str, list[str]]] = {}
    inverse: defaultdict[str, dict[str, list[str]]] = defaultdict(dict)
    for subject, relation, obj in triples:
        facts.setdefault(subject, {}).setdefault(f"{relation}:", []).append(obj)
        inverse[obj].setdefault(f"{relation} of:", []).append(subject)
    return [
        Passage(
            entity,
            entity,
            " ".join(
                f"{name} {', '.join(of)}."  # a relation may be called as the inverse of another one is: both are told
                for name, of in (*facts[entity].items(), *inverse[entity].items())
            ),
        )
        for entity in facts
    ]
