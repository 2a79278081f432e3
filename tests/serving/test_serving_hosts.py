"""By which names an endpoint without keys may be called: a foreign page must not read answers through a name of its own."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from serving_parts import QUESTION, Parts, chat

from dragoman.core.keys import Keys, make_key
from dragoman.serving.hosts import host_of
from dragoman.serving.settings import ServeParams

ROUTES = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/feedback"),
    ("GET", "/v1/models"),
    ("GET", "/v1/episodes"),
    ("GET", "/v1/nothing"),
]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8200", "localhost.evil.example", "[::1", "2130706433", ""]
)
async def test_without_keys_a_foreign_name_is_refused_on_every_route_of_the_api_before_anything_is_asked(host):
    parts = Parts()
    async with parts.client() as client:
        for method, path in ROUTES:
            response = await client.request(method, path, json=chat(QUESTION), headers={"host": host})
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (421, "foreign_host"), path
            assert error["type"] == "invalid_request_error" and "serve.hosts" in error["message"]
        assert (await client.get("/healthz", headers={"host": host})).status_code == 200
    assert parts.llm.requests == []
    assert parts.metric("dragoman_errors_total", code="foreign_host") == len(ROUTES)


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8200", "127.0.0.1:8200", "[::1]:8200", "10.0.0.7:8200", "Rag.example", "box.lan:80"],
)
async def test_without_keys_an_address_a_named_host_and_the_one_it_listens_on_are_answered(host):
    parts = Parts(settings={"hosts": ("rag.Example",)}, host="Box.lan")
    async with parts.client() as client:
        response = await client.post("/v1/chat/completions", json=chat(QUESTION), headers={"host": host})
    assert response.status_code == 200


async def test_with_keys_any_name_is_answered(tmp_path):
    key = make_key(tmp_path / "keys", "alice")
    async with Parts(keys=Keys(tmp_path / "keys")).client() as client:
        headers = {"host": "rag.example", "authorization": f"Bearer {key}"}
        assert (await client.get("/v1/models", headers=headers)).status_code == 200


@pytest.mark.parametrize("name", ["https://rag.example", "rag.example:8200", "rag.example/v1", "[::1]", ""])
def test_a_setting_that_is_no_name_of_a_host_is_refused(name):
    with pytest.raises(ValidationError, match="no name of a host: leave out scheme, port and path"):
        ServeParams(hosts=(name,))


@pytest.mark.parametrize(
    ("header", "host"),
    [("Rag.example:80", "rag.example"), ("[FE80::1]:80", "fe80::1"), ("a b", ""), ("a:b", ""), ("", "")],
)
def test_a_header_is_read_without_its_port_and_a_broken_one_names_nothing(header, host):
    assert host_of(header) == host
