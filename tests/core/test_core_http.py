"""Addresses of servers, which end up in fingerprints and records."""

from __future__ import annotations

import pytest

from dragoman.core.errors import UserError
from dragoman.core.http import url_fault
from dragoman.core.settings import parse_section
from dragoman.engines.settings import EngineParams


@pytest.mark.parametrize("url", ["http://localhost:8000/v1", "https://10.0.0.7/v1", "http://[::1]:8000"])
def test_a_plain_address_has_no_fault(url: str) -> None:
    assert url_fault(url) == ""


@pytest.mark.parametrize(
    "url",
    ["http://me:hunter2@host/v1", "http://hunter2@host/v1", "http://host/v1?key=hunter2", "http://host/v1#hunter2"],
)
def test_an_address_with_a_secret_is_refused_without_repeating_it(url: str) -> None:
    assert "the URL of host holds" in url_fault(url) and "hunter2" not in url_fault(url)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "", "http://", "http://host:port"])
def test_what_is_no_http_address_is_refused(url: str) -> None:
    assert "not an http(s) URL" in url_fault(url)


def test_settings_with_a_secret_in_a_url_are_refused_without_repeating_it() -> None:
    with pytest.raises(UserError, match="llm: urls: the URL of host holds") as refused:
        parse_section(EngineParams, {"engine": "openai", "urls": ["http://me:hunter2@host/v1"]}, origin="llm")
    assert "hunter2" not in str(refused.value)
