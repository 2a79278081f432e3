"""Whatever is sent, the server has an answer or a reason: never a 5xx, never another shape."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from examples import examples
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from serving_parts import QUESTION, Parts

from dragoman.rollout.feedback import read_feedback

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
TEXT = st.text(max_size=40) | st.just(QUESTION)
PARTS = st.lists(st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url", ""]), "text": TEXT}), max_size=2)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system", "developer", "tool", "function", "root"]),
            "content": TEXT | PARTS | st.none() | ANYTHING,
        },
        optional={"name": ANYTHING, "tool_calls": ANYTHING},
    ),
    max_size=4,
)
ASKED = st.lists(st.just({"role": "user", "content": QUESTION}), min_size=1, max_size=2)
REQUESTS = st.fixed_dictionaries(
    {"model": st.sampled_from(["c3po", "standard", "direct"]) | ANYTHING, "messages": MESSAGES | ASKED | ANYTHING},
    optional={
        "stream": st.booleans() | ANYTHING,
        "stream_options": st.fixed_dictionaries({"include_usage": st.booleans() | ANYTHING}) | ANYTHING,
        "n": st.integers(0, 2) | ANYTHING,
        "dragoman": st.fixed_dictionaries({"trace": st.booleans() | ANYTHING}) | ANYTHING,
        "temperature": ANYTHING,
        "tools": ANYTHING,
    },
)


def check(responses: list[Any]) -> None:
    for response in responses:
        assert response.status_code in (200, 400, 401, 404, 405, 413), response.text
        if response.status_code != 200:
            error = response.json()["error"]
            assert set(error) == {"message", "type", "param", "code"} and error["code"]
        elif not response.headers["content-type"].startswith("text/event-stream"):
            assert response.json()["choices"][0]["message"]["content"] is not None


@settings(examples(40, 150), suppress_health_check=list(HealthCheck))
@given(st.lists(REQUESTS | ANYTHING, min_size=1, max_size=5))
@example([{"model": "c3po", "messages": [{"role": "user", "content": QUESTION}], "stream": True}])
@example([{"model": "c3po", "messages": [{"role": "user", "content": "\x00"}]}])
@example([{"model": "c3po", "messages": [{"role": "user", "content": "\ud83d"}], "\ud83d": {"\ud83d": 1}}])
def test_any_json(bodies: list[Any]):
    async def send() -> list[Any]:
        async with Parts().client() as client:
            headers = {"Content-Type": "application/json"}
            posts = (
                client.post("/v1/chat/completions", content=json.dumps(body).encode(), headers=headers)
                for body in bodies
            )
            return list(await asyncio.gather(*posts))

    check(asyncio.run(send()))


@settings(examples(), suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=200), st.sampled_from(["application/json", "text/plain", "multipart/form-data", "", "x"]))
def test_any_bytes(content: bytes, kind: str):
    async def send() -> list[Any]:
        async with Parts().client() as client:
            return [await client.post("/v1/chat/completions", content=content, headers={"Content-Type": kind})]

    check(asyncio.run(send()))


@settings(examples(), suppress_health_check=list(HealthCheck))
@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=30))
def test_any_model_name(name: str):
    async def send() -> Any:
        async with Parts().client() as client:
            return await client.get("/v1/models/" + quote(name, safe=""))

    response = asyncio.run(send())
    assert response.status_code in (200, 404)


FEEDBACK = st.fixed_dictionaries(
    {},
    optional={
        "rating": st.sampled_from(["up", "down", "sideways"]) | ANYTHING,
        "answer": TEXT | ANYTHING,
        "passages": st.lists(st.sampled_from(["brisa", "salt", "atlantis", "\ud83d"]), max_size=3) | ANYTHING,
        "comment": TEXT | ANYTHING,
        "thumb": ANYTHING,
    },
)


@settings(examples(), suppress_health_check=list(HealthCheck))
@given(st.lists(FEEDBACK, min_size=1, max_size=5))
@example([{"answer": "\ud83d"}, {"comment": "\x00"}, {"passages": ["\ud83d"]}])
def test_any_feedback_is_kept_or_refused_and_the_file_can_be_read(said: list[Any]):
    async def send(folder: Path) -> list[Any]:
        async with Parts(feedback=folder).client() as client:
            asked = {"model": "direct", "messages": [{"role": "user", "content": QUESTION}]}
            id = (await client.post("/v1/chat/completions", json=asked)).json()["id"]
            headers = {"Content-Type": "application/json"}
            rows = [json.dumps({"id": id, **row}).encode() for row in said]
            return [await client.post("/v1/feedback", content=row, headers=headers) for row in rows]

    with TemporaryDirectory() as folder:
        responses = asyncio.run(send(Path(folder)))
        kept = read_feedback(Path(folder))
    assert {response.status_code for response in responses} <= {200, 400}, [r.text for r in responses]
    assert len(kept) == any(response.status_code == 200 for response in responses)
