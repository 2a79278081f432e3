"""Addresses of servers, which end up in fingerprints and records, and keys, which may not."""

from __future__ import annotations

import pytest

from dragoman.core.errors import UserError
from dragoman.core.http import hidden, key_in, url_fault
from dragoman.core.settings import parse_section
from dragoman.engines.settings import EngineParams


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:8000/v1",
        "https://10.0.0.7/v1",
        "http://[::1]:8000",
        "http://host:65535",
        "http://my_service-2:80/v1",
        "https://bücher.example./v1",
        f"http://{'a' * 63}.example",
    ],
)
def test_a_plain_address_has_no_fault(url: str) -> None:
    assert url_fault(url) == ""


@pytest.mark.parametrize(
    "url",
    ["http://me:hunter2@host/v1", "http://hunter2@host/v1", "http://host/v1?key=hunter2", "http://host/v1#hunter2"],
)
def test_an_address_with_a_secret_is_refused_without_repeating_it(url: str) -> None:
    assert "the URL of host holds" in url_fault(url) and "hunter2" not in url_fault(url)


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://host",
        "",
        "http://",
        "http://host:port",
        "http://host:65536",
        "http://host:0/v1",
        "http://a..b/v1",
        "http://.host",
        f"http://{'a' * 64}.example",
        "http://my host/v1",
        "http://xn--zz-.example",
    ],
)
def test_what_is_no_http_address_is_refused(url: str) -> None:
    assert "not an http(s) URL" in url_fault(url)


def test_settings_with_a_secret_in_a_url_are_refused_without_repeating_it() -> None:
    with pytest.raises(UserError, match="llm: urls: the URL of host holds") as refused:
        parse_section(EngineParams, {"engine": "openai", "urls": ["http://me:hunter2@host/v1"]}, origin="llm")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("written", ["hunter2", "hunter2\n", " \thunter2\r\n"])
def test_a_key_with_blanks_around_it_is_read_without_them(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", written)
    assert key_in("MY_KEY") == "hunter2"


@pytest.mark.parametrize("written", [None, "", " \n"])
def test_a_variable_without_a_key_gives_none(written: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    if written is not None:
        monkeypatch.setenv("MY_KEY", written)
    assert key_in("MY_KEY") == ""


@pytest.mark.parametrize(
    "written", ["hunter2\nX-More: 1", "hunter 2hunter2", "hünter2", "hunter2\x7f", "hunter2\udcff"]
)
def test_a_key_that_no_header_can_hold_is_refused_without_repeating_it(
    written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", written)
    with pytest.raises(UserError, match="the key in the environment variable MY_KEY cannot be sent") as refused:
        key_in("MY_KEY")
    assert "nter" not in str(refused.value)


def test_a_key_in_a_text_is_hidden_wherever_it_stands() -> None:
    assert hidden("hunter2: no such key (hunter2)", "hunter2") == "***: no such key (***)"
    assert hidden("no such key", "") == "no such key"
