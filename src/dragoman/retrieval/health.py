"""The probe at the start of every run: does this retriever find what is known to be there, in the form agreed on?

An index of another corpus, or a server that returns empty texts, otherwise shows as a reward that stays flat.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from dragoman.core.errors import RetrieverFault, UserError
from dragoman.core.text import clip
from dragoman.core.types import Passage
from dragoman.retrieval.base import Hit, Retriever

PROBE_WORDS = 12  # of the title and of the text
NEUTRAL_QUERY = "the first name of a person, place or thing that is known for something"


async def check_health(retriever: Retriever, corpus_sample: Sequence[Passage] | None, k: int = 10) -> None:
    """Search each passage of the sample by its title and first words; half of them must be among the best `k`.

    Not all of them: a good index may miss one that begins as many others do, or with stop words alone. Without a sample only
    the form of what is found is checked: texts are not empty, scores do not rise.

    Raises:
        UserError: the retriever fails the probe. The message says what to rebuild.
        RetrieverFault: it gave no answer.
    """
    probes = [_probe(passage) for passage in corpus_sample or ()]
    queries = probes or [NEUTRAL_QUERY]
    try:
        found = await retriever.search(queries, k)
    except RetrieverFault as e:
        raise RetrieverFault(f"{retriever!r} cannot search: {e}") from e
    if len(found) != len(queries):
        raise UserError(f"{retriever!r} gave {len(found)} results for {len(queries)} queries: it breaks its contract")
    for query, hits in zip(queries, found, strict=True):
        _check_form(retriever, query, hits, k)
    missed = [
        passage
        for passage, hits in zip(corpus_sample or (), found, strict=False)
        # By content too: of several equal passages any will do.
        if not any(hit.passage.id == passage.id or hit.passage.text == passage.text for hit in hits)
    ]
    if 2 * len(missed) > len(probes):
        raise UserError(
            f"{retriever!r} does not find passage {missed[0].id!r} ({missed[0].title!r}) by its own words: "
            "it holds another corpus or is damaged; build the index again from this corpus"
        )


async def probe(retriever: Retriever) -> None:
    """Search once, past a cache where there is one.

    A retriever that follows its index is told to look after it: behind a server's address another one may be by now, which
    refuses what knows the old one alone.

    Raises:
        RetrieverFault: it failed.
    """
    if look := getattr(retriever, "look", None):
        look()
    await getattr(retriever, "inner", retriever).search([NEUTRAL_QUERY], 1)


def _probe(passage: Passage) -> str:
    return f"{clip(passage.title, PROBE_WORDS, '')} {clip(passage.text, PROBE_WORDS, '')}"


def _check_form(retriever: Retriever, query: str, hits: Sequence[Hit], k: int) -> None:
    if len(hits) > k:
        raise UserError(f"{retriever!r} gave {len(hits)} passages where {k} were asked for: it breaks its contract")
    for hit in hits:
        if not hit.passage.text.strip():
            raise UserError(
                f"{retriever!r} gives passage {hit.passage.id!r} without text (query {query!r}): "
                "build the index again from a corpus with texts"
            )
    scores = [hit.score for hit in hits]
    if any(later > earlier for earlier, later in pairwise(scores)):
        raise UserError(f"{retriever!r} does not order its passages by score (query {query!r}): build the index again")
