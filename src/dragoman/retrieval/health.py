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
    found = await _found(retriever, probes or [NEUTRAL_QUERY], k)
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


async def check_ids(retriever: Retriever, sample: Sequence[Passage], k: int = 10) -> None:
    """The same of passages that others have indexed: half of them must be found under their own ids.

    Raises:
        UserError: they are not. See `unknown_id`.
        RetrieverFault: it gave no answer.
    """
    found = await _found(retriever, [_probe(passage) for passage in sample], k)
    missed = [p for p, hits in zip(sample, found, strict=True) if all(hit.passage.id != p.id for hit in hits)]
    if 2 * len(missed) > len(sample):
        raise await unknown_id(retriever, missed[0], k)


async def unknown_id(retriever: Retriever, passage: Passage, k: int = 10) -> UserError:
    """That a retriever does not know a passage by its id, with an id of what it finds by the words of that passage.

    Raises:
        UserError, RetrieverFault: it does not find anything as it should.
    """
    [hits] = await _found(retriever, [_probe(passage)], k)
    if same := [hit for hit in hits if hit.passage.text == passage.text]:
        came = f"its text came back as {same[0].passage.id!r}"
    elif hits:
        came = f"{hits[0].passage.id!r} ({hits[0].passage.title!r}) came first for its title and first words"
    else:
        came = "nothing came for its title and first words"
    return UserError(
        f"{retriever!r} does not know passage {passage.id!r} ({passage.title!r}) of this corpus by its id: {came}. "
        "Let the server give the ids of the corpus, or export the corpus from what it searches, with the ids that it gives"
    )


async def _found(retriever: Retriever, queries: Sequence[str], k: int) -> list[list[Hit]]:
    """The best `k` for each query, in the form agreed on.

    Raises:
        UserError: in another one.
        RetrieverFault: it gave no answer.
    """
    try:
        found = await retriever.search(queries, k)
    except RetrieverFault as e:
        raise RetrieverFault(f"{retriever!r} cannot search: {e}") from e
    if len(found) != len(queries):
        raise UserError(f"{retriever!r} gave {len(found)} results for {len(queries)} queries: it breaks its contract")
    for query, hits in zip(queries, found, strict=True):
        _check_form(retriever, query, hits, k)
    return found


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
