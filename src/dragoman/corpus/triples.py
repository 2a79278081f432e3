"""Knowledge graphs: files of triples (TSV, N-Triples, Turtle), as RDF, and for SPARQL.

A triple is (subject, relation, object), all names. Questions and models know names, RDF knows IRIs. The IRI of a name is
`urn:dragoman:` and the name, with underscores for its spaces, as in DBpedia. Other marks are in percent-encoding.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

import rdflib
from rdflib import BNode, Graph, Literal, URIRef
from rdflib.namespace import RDFS, XSD
from rdflib.plugins.sparql import prepareQuery
from rdflib.plugins.sparql.algebra import traverse
from rdflib.plugins.sparql.parserutils import CompValue
from rdflib.term import Node

from dragoman.core.errors import UserError
from dragoman.core.files import check_file
from dragoman.core.rows import Faults
from dragoman.core.types import Triple

RDF_FORMATS = {".nt": "nt", ".ttl": "turtle"}
NAMESPACE = "urn:dragoman:"
rdflib.NORMALIZE_LITERALS = False
"""A literal is its text. Normalized, a decimal of a few characters, `1E+999999999`, is a number of a billion digits."""
_HEADERS = (("subject", "relation", "object"), ("subject", "predicate", "object"))
FILE_ORDER = "SimpleMemory"  # its dictionaries keep the order of a file, which the default store does not


def read_triples(path: Path) -> list[Triple]:
    """The triples of a file, in order, each once.

    Args:
        path: `.nt` and `.ttl` are RDF, whose terms become names (`named`); anything else is TSV. Blank
            lines are skipped, and a first line that only names the columns.

    Raises:
        UserError: no such file, no triple in it, RDF that cannot be read, bad UTF-8, or a line that is not three texts with
            tabs between. Up to five faults are named at once.
    """
    check_file(path)
    triples = named(read_rdf(path)) if path.suffix in RDF_FORMATS else _read_tsv(path)
    if not triples:
        raise UserError(f"{path}: holds no triple")
    return triples


def _read_tsv(path: Path) -> list[Triple]:
    faults = Faults(path)
    triples: dict[Triple, None] = {}
    for number, raw in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            cells = [cell.strip() for cell in raw.decode("utf-8-sig" if number == 1 else "utf-8").split("\t")]
        except UnicodeDecodeError as e:
            faults.add(f"not valid UTF-8 ({e.reason} at byte {e.start})", number)
            continue
        if number == 1 and tuple(map(str.casefold, cells)) in _HEADERS:
            continue
        if len(cells) == 3 and all(cells):
            triples[cells[0], cells[1], cells[2]] = None
        elif any(cells):
            faults.add("expected subject, relation and object, with tabs between", number)
    faults.check()
    return list(triples)


def read_rdf(path: Path) -> Graph:
    """The graph of an N-Triples (`.nt`) or Turtle (`.ttl`) file.

    Raises:
        UserError: no such file, or it is not in the format that its name says.
    """
    check_file(path)
    format = RDF_FORMATS[path.suffix]
    try:
        graph = Graph(FILE_ORDER).parse(data=path.read_bytes(), format=format, publicID=NAMESPACE)
    except Exception as e:  # rdflib's parsers have no error in common: ParserError, BadSyntax, UnicodeDecodeError
        raise UserError(f"{path}: not {format} ({_one_line(e)[:200]})") from None
    for literal in graph.objects():
        if isinstance(literal, Literal) and literal.datatype == XSD.decimal and "e" in literal.lower():
            lines = path.read_text(encoding="utf-8").splitlines()
            number = next((n for n, line in enumerate(lines, start=1) if f'"{literal}"' in line), 1)
            raise UserError(
                f"{path}:{number}: {str(literal)[:40]!r} is no xsd:decimal, which has no exponent; use xsd:double"
            )
    return graph


def named(graph: Graph) -> list[Triple]:
    """The triples of a graph, with names in the place of its terms and in the graph's order; labels are none of them.

    The name of an IRI is its `rdfs:label` (in English or without a language, where there is a choice), else its last part,
    decoded. Of several entities with one name, each has the last part of its IRI behind it, as in `Georgia (Q230)`. A literal
    is its text, and a triple with an empty one is left out, since it says nothing. Blank nodes are numbered.
    """
    names = _names(graph)
    relations = {relation: _name_of(relation, graph) for relation in graph.predicates(unique=True)}
    triples: dict[Triple, None] = {}
    for subject, relation, obj in graph:
        if relation != RDFS.label and (said := _one_line(obj) if isinstance(obj, Literal) else names[obj]):
            triples[names[subject], relations[relation], said] = None
    return list(triples)


def as_rdf(triples: Iterable[Triple]) -> Graph:
    """Triples of names as a graph. What is never a subject is a value, and a literal. `named` is the way back."""
    triples = list(triples)
    subjects = {subject for subject, _, _ in triples}
    graph = Graph(FILE_ORDER)
    graph.bind("", NAMESPACE)
    for subject, relation, obj in triples:
        graph.add((iri(subject), iri(relation), iri(obj) if obj in subjects else Literal(obj)))
    return graph


def iri(name: str) -> URIRef:
    """`Equatorial Guinea` as `urn:dragoman:Equatorial_Guinea`, which a query may call `:Equatorial_Guinea`."""
    encoded = re.sub(r"[^\w -]|_", lambda m: "".join(f"%{byte:02X}" for byte in m[0].encode()), name)
    return URIRef(NAMESPACE + encoded.replace(" ", "_"))


def sparql(path: Path, query: str) -> list[str]:
    """What a query finds in a file of triples, as lines.

    SELECT gives the names of its variables and then its rows, with tabs between, ASK `true` or `false`, CONSTRUCT and DESCRIBE
    N-Triples. The prefix `:` stands for the names of a TSV file; other files bring their own.

    Raises:
        UserError: the file holds no graph, or the query cannot be answered.
    """
    graph = read_rdf(path) if path.suffix in RDF_FORMATS else as_rdf(read_triples(path))
    try:
        prepared = prepareQuery(query, initNs=dict(graph.namespaces()))
        if prepared.algebra.get("datasetClause") or "ServiceGraphPattern" in _patterns(prepared.algebra):
            raise ValueError("SERVICE and FROM ask other machines; a query is about this file alone")
        found = graph.query(prepared)
        if found.type == "ASK":
            return [str(found.askAnswer).lower()]
        if found.graph is not None:
            return sorted(found.graph.serialize(format="nt").splitlines())
        rows = [["" if term is None else term.n3(graph.namespace_manager) for term in row] for row in found]  # type: ignore
        return ["\t".join(row) for row in ([str(name) for name in found.vars or ()], *rows)]
    except Exception as e:  # pyparsing's for the grammar, a bare one for an unknown prefix
        raise UserError(f"SPARQL: {_one_line(e)[:300]}") from None


def _patterns(algebra: CompValue) -> set[str]:
    """The kinds of the parts of a query, at any depth."""
    found: set[str] = set()
    traverse(algebra, visitPre=lambda part: found.add(part.name) if isinstance(part, CompValue) else None)
    return found


def _names(graph: Graph) -> dict[Node, str]:
    """A name for each entity; no two have the same."""
    entities = dict.fromkeys(term for s, _, o in graph for term in (s, o) if not isinstance(term, Literal))
    names = {entity: _name_of(entity, graph) for entity in entities}
    blank = [entity for entity in entities if isinstance(entity, BNode) and not graph.value(entity, RDFS.label)]
    names |= {entity: f"_:{n}" for n, entity in enumerate(blank, start=1)}
    for part in (_last_part, str):  # the whole IRI, where the last part does not tell them apart
        bearers = Counter(names.values())
        names = {e: f"{name} ({part(e)})" if bearers[name] > 1 else name for e, name in names.items()}
    return names


def _name_of(term: Node, graph: Graph) -> str:
    labels = [label for label in graph.objects(term, RDFS.label) if isinstance(label, Literal) and _one_line(label)]
    return _one_line(min(labels, key=_preference)) if labels else _last_part(term)


def _preference(label: Literal) -> tuple[bool, str, str]:
    language = label.language or ""
    return language.partition("-")[0] not in ("", "en"), language, str(label)


def _last_part(term: Node) -> str:
    """`http://dbpedia.org/resource/Equatorial_Guinea` -> `Equatorial Guinea`; the whole of an IRI that ends in a mark."""
    return _one_line(unquote(re.split(r"[/#:]", str(term))[-1].replace("_", " "))) or str(term)


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
