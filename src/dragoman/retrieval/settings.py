"""Settings of stage `index`: the method, every setting that the method has, and what an opened retriever gets besides."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, model_validator

from dragoman.core.errors import UserError
from dragoman.core.settings import Section, parse_section
from dragoman.retrieval import methods
from dragoman.retrieval.http.settings import ServerParams
from dragoman.retrieval.rerank import RerankParams


class IndexParams(Section):
    """`{method: dense, encoder: intfloat/e5-base-v2, query_prefix: "query: "}`: keys are those of the method's `Settings`."""

    model_config = ConfigDict(extra="allow")

    method: str = "bm25"
    """A module of `retrieval/methods`. `graph` is for entities; with `ideal` a question finds its gold passages alone; `server` asks yours."""
    rerank: RerankParams = RerankParams()
    """What judges the passages that any retriever finds, a server included. The index is the same with and without."""
    server: ServerParams = ServerParams()
    """How a retriever behind a URL is asked, be it that of `--index` or of method `server`."""

    @model_validator(mode="after")
    def _keys_are_the_methods(self) -> IndexParams:
        try:
            self.settings()
        except UserError as e:
            raise ValueError(str(e)) from None
        return self

    def settings(self) -> Any:
        """The method's own section.

        Raises:
            UserError: no such method, or a key or value that it refuses, by name.
        """
        section, given = methods.load(self.method).Settings, dict(self.model_extra or {})
        if "server" in section.model_fields:
            given["server"] = self.server
        return parse_section(section, given, origin=f"method {self.method}")

    def with_method(self, method: str) -> IndexParams:
        """The settings of another method, with what both methods know.

        Raises:
            UserError: no such method.
        """
        known = methods.load(method).Settings.model_fields
        shared = {key: value for key, value in (self.model_extra or {}).items() if key in known}
        return IndexParams(method=method, rerank=self.rerank, server=self.server, **shared)
