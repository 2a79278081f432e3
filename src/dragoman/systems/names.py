"""What may be searched for next: the question, and names in it and in what was found. What several systems make queries of."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import islice

from dragoman.core.text import content_words, fit, names, owner, sentences, stem, words
from dragoman.core.types import Passage
from dragoman.systems.prompts import one_line

ITSELF = "the question"
AHEAD = 3
"""So many places a name moves ahead for each word its sentence shares with the question, and for being longer than a word."""
WHOLE_RUN = 30
"""So many words of a name, a sentence or an answer are copied."""
QUESTION_RUN = 200
"""And so many of a question. What it asks for may stand at its end, after a long lead-in."""
QUESTION_CHARS = 1000
"""So many characters of a question are searched for where it is called by a name, and nobody writes it."""
_TWICE = re.compile(r"^(.+) \1(?= |$)")


def copied(text: str, chars: int, most: int = WHOLE_RUN) -> str:
    """A text as a query that is copied and not phrased: its first `most` words, and as many of them as fit into `chars`."""
    return fit(" ".join(words(text)[:most]), chars)


def known_names(
    question: str, kept: Sequence[Passage], *, passage_words: int, chars: int, as_written: bool = False
) -> list[str]:
    """The names in the question, and those in the first words of kept passages that it does not have; each once.

    Args:
        passage_words: so many words of a passage are read.
        chars: a longer name is left out.
        as_written: with the `'s` of an owner, without which a run of words cannot be copied.
    """
    known = set(_lower(question))
    others = [name for passage in kept for name in names(one_line(passage, passage_words))]
    found = [*names(question), *(name for name in others if not known >= set(_lower(name)))]
    every = dict.fromkeys(found if as_written else map(owner, found))
    return [name for name in every if len(name) <= chars and len(name.split()) <= WHOLE_RUN]


def searches(question: str, whole: str, kept: Sequence[Passage], start: Sequence[str] = ()) -> dict[str, str]:
    """What each query is called in a list, and the query, likely ones first.

    - The question, called `the question`; its query is `whole`.
    - The names to start from, and those in the question that no kept passage is about.
    - The titles of kept passages and the names in them, if the question does not have them. Such a query is the name twice,
      so that it weighs more, and those words of the question that no kept passage has.
    """
    about = {word for passage in kept for word in _lower(passage.title)}
    said = about | {word for passage in kept for word in _lower(passage.text)}
    left = [word for word in map(owner, content_words(question)) if word.lower() not in said]
    queries = {ITSELF: whole} | {name: name for name in start}
    queries |= {name: name for name in map(owner, names(question)) if not set(_lower(name)) <= about}
    return queries | {name: " ".join([name, name, *left] if left else [name]) for name in _new_names(question, kept)}


def unasked(queries: dict[str, str], asked: Collection[str], chars: int, most: int) -> dict[str, str]:
    """The first `most` of them, each once, and none that was asked. All but the question are cut to `chars`, and none has a
    name of half that length.

    A name with words of the question was asked whichever they were: those that are left open are fewer with each kept passage.
    """
    named = {called(query) for query in asked} - {*asked}
    new = dict[str, str]()
    for name, query in queries.items():
        cut = query if name == ITSELF else fit(query, chars)
        if cut and len(name) <= chars // 2 and name not in named and cut not in (*asked, *new.values()):
            new[name] = cut
    return dict(islice(new.items(), most))


def called(query: str) -> str:
    """The name that a query of `searches` is about, which it says twice; another query is called by its own words."""
    found = _TWICE.match(query)
    return found[1] if found else query


def _new_names(question: str, kept: Sequence[Passage]) -> list[str]:
    """The names in kept passages that the question has not: early ones first, and those in sentences that share its words."""
    known, stems = set(_lower(question)), set(map(stem, content_words(question)))
    ranks = dict[str, int]()
    for passage in kept:
        title = " ".join(words(re.sub(r"\(.*?\)", "", passage.title)))  # without `(film)`
        found = [(0, title)]
        for sentence in sentences(passage.text):
            shared = len(stems & set(map(stem, words(sentence))))
            new = (name for name in map(owner, names(sentence)) if not set(_lower(name)) <= set(_lower(title)))
            found += [(shared, name) for name in new]
        for place, (shared, name) in enumerate(found):
            if not known >= set(_lower(name)):
                rank = place - AHEAD * (shared + (" " in name))
                ranks[name] = min(rank, ranks.get(name, rank))
    return sorted(ranks, key=ranks.__getitem__)


def _lower(text: str) -> list[str]:
    return [owner(word).lower() for word in words(text)]
