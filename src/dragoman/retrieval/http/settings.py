"""How a retriever behind a URL is asked, whatever it speaks."""

from __future__ import annotations

from pydantic import Field

from dragoman.core.settings import Section


class ServerParams(Section):
    revision: str = ""
    """Names what a server searches that does not say so itself: change it whenever that index changes."""
    key_env: str = ""
    """The environment variable with the key. Empty: DRAGOMAN_RETRIEVER_KEY, for Tavily TAVILY_API_KEY, for others none."""
    timeout: float = Field(60.0, gt=0)
    """Seconds to wait for the whole answer once connected."""
    retries: int = Field(4, ge=0)
    """How often to ask again after a transport error, 408, 429 or a 5xx."""
    at_once: int | None = Field(None, ge=1)
    """Requests under way; the others wait. None: 64 at an address without a prefix, 4 at those of others."""
    pause: float = Field(0.0, ge=0)
    """Seconds between the beginnings of two requests; a public server wants some."""
