"""The fields of one row of a user's corpus or questions: by which names they go, and what they must be."""

from __future__ import annotations

from dragoman.core.rows import Faults, Row
from dragoman.core.types import Question

ID_KEYS = ("id", "_id", "docid", "doc_id", "passage_id")
TITLE_KEYS = ("title", "name")
TEXT_KEYS = ("text", "contents", "passage", "content", "document")
QUESTION_KEYS = ("question", "text", "query")


def text_of(row: Row, keys: tuple[str, ...], faults: Faults, line: int, *, optional: bool = False) -> str | None:
    """The first of `keys` that the row has, when it is a text that is not blank; otherwise a fault, and None."""
    key = next((k for k in keys if row.get(k) is not None), None)
    if key is None:
        if optional:
            return ""
        faults.add(f"the key {keys[0]!r} is missing", line)
        return None
    value = row[key]
    if not isinstance(value, str):
        faults.add(f"{key!r} must be a string, found {type(value).__name__}", line)
        return None
    if not value.strip() and not optional:
        faults.add(f"{key!r} is empty", line)
        return None
    return value


def _texts_of(row: Row, key: str, faults: Faults, line: int) -> tuple[str, ...] | None:
    value = row.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        faults.add(f"{key!r} must be a list of strings", line)
        return None
    if not all(v.strip() for v in value):
        faults.add(f"{key!r} holds an empty string", line)
        return None
    return tuple(value)


def _parts_of(row: Row, faults: Faults, line: int) -> tuple[tuple[str, ...], ...] | None:
    value = row.get("parts")
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(names, list) and names for names in value):
        faults.add("'parts' must be a list of lists: of each thing that is asked for, its names", line)
        return None
    found = [_texts_of({"parts": names}, "parts", faults, line) for names in value]
    return None if None in found else tuple(names for names in found if names is not None)


def _triples_of(row: Row, faults: Faults, line: int) -> tuple[tuple[str, str, str], ...] | None:
    value = row.get("triples")
    if value is None:
        return ()
    well_formed = isinstance(value, list) and all(
        isinstance(t, list) and len(t) == 3 and all(isinstance(part, str) for part in t) for t in value
    )
    if not well_formed:
        faults.add("'triples' must be a list of [subject, relation, object], all strings", line)
        return None
    return tuple((s, r, o) for s, r, o in value)


def _topics_of(row: Row, faults: Faults, line: int) -> tuple[str, ...]:
    """The topic entity, or several of them."""
    value = row.get("topic")
    topics = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(topics, list) or not all(isinstance(topic, str) and topic.strip() for topic in topics):
        faults.add("'topic' must be the name of an entity, or a list of names", line)
        return ()
    return tuple(dict.fromkeys(topics))


def question_of(identity: str, row: Row, require_answers: bool, faults: Faults, line: int) -> Question | None:
    before = faults.total
    text = text_of(row, QUESTION_KEYS, faults, line)
    answers = _texts_of(row, "answers", faults, line)
    supporting = _texts_of(row, "supporting_ids", faults, line)
    triples = _triples_of(row, faults, line)
    parts = _parts_of(row, faults, line)
    nuggets = _texts_of(row, "nuggets", faults, line)
    reference = text_of(row, ("reference",), faults, line, optional=True)
    topics = _topics_of(row, faults, line)
    kind = row.get("type")
    if kind is not None and not isinstance(kind, str):
        faults.add(f"'type' must be a string, found {type(kind).__name__}", line)
    if answers == () and require_answers:
        faults.add("'answers' is missing or empty", line)
    if faults.total > before or text is None or answers is None or supporting is None or triples is None:
        return None
    return Question(
        identity,
        text,
        answers,
        kind or "",
        supporting,
        triples,
        parts or (),
        nuggets or (),
        reference or "",
        topics,
    )
