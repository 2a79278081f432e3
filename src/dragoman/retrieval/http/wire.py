"""What the retrieval server and its client say to each other, as JSON, and the limits of one request."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, FiniteFloat

from dragoman.core.types import Passage
from dragoman.retrieval.base import Hit

MOST_PASSAGES = 100
MOST_QUERIES = 1000
MOST_CHARACTERS = 20_000


def _not_blank(query: str) -> str:
    if not query.strip():
        raise ValueError("the query is empty")
    return query


Query = Annotated[str, Field(max_length=MOST_CHARACTERS), AfterValidator(_not_blank)]
Queries = Annotated[list[Query], Field(min_length=1, max_length=MOST_QUERIES)]
Depth = Annotated[int, Field(ge=1, le=MOST_PASSAGES)]
Page = Annotated[int, Field(ge=0)]


class SearchRequest(BaseModel, extra="forbid"):
    queries: Queries
    k: Depth = 5
    page: Page = 0


class WireHit(BaseModel):
    id: str
    title: Annotated[str, BeforeValidator(lambda title: "" if title is None else title)] = ""
    text: Annotated[str, Field(min_length=1)]
    score: FiniteFloat

    @classmethod
    def of(cls, hit: Hit) -> WireHit:
        return cls(id=hit.passage.id, title=hit.passage.title, text=hit.passage.text, score=hit.score)

    def hit(self) -> Hit:
        return Hit(Passage(self.id, self.title, self.text), self.score)


class SearchResponse(BaseModel):
    fingerprint: str
    results: list[list[WireHit]]


class MissingRequest(BaseModel, extra="forbid"):
    ids: Annotated[list[Annotated[str, Field(max_length=MOST_CHARACTERS)]], Field(max_length=MOST_QUERIES)]


class MissingResponse(BaseModel):
    missing: list[str]


class OneSearchResponse(BaseModel):
    fingerprint: str
    results: list[WireHit]


class Health(BaseModel):
    status: str
    fingerprint: str
    passages: int | None


class C3PORequest(BaseModel):
    """What C-3PO's code posts to `/search`; it gets a list of lists of hits."""

    queries: Queries
    n_docs: Depth = 10


class SearchR1Request(BaseModel):
    """What Search-R1's code posts to `/retrieve`."""

    queries: Queries
    topk: Depth = 3
    return_scores: bool = False


class SearchR1Document(BaseModel):
    id: str
    contents: str
    """The title, a newline, and the text."""


class SearchR1Hit(BaseModel):
    document: SearchR1Document
    score: FiniteFloat


class SearchR1Response(BaseModel):
    result: list[list[SearchR1Hit]] | list[list[SearchR1Document]]
