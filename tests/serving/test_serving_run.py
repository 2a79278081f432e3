"""From settings to a server: the command, its keys and its files, and the engines of the real backends."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import openai
import pytest
import yaml
from command import run
from serving_parts import PASSAGES, QUESTION, eventually
from tiny import make_tiny

from dragoman.config import load_params
from dragoman.core.errors import UserError
from dragoman.core.keys import Keys, make_key
from dragoman.engines import POOL
from dragoman.engines.base import Engine, Request
from dragoman.engines.openai import OpenAIEngine
from dragoman.engines.settings import EngineParams
from dragoman.registry.policy import publish
from dragoman.rollout.feedback import read_feedback
from dragoman.rollout.store import read_episodes
from dragoman.serving.champion import StageChampion
from dragoman.serving.run import open_service
from dragoman.serving.server import create_app
from dragoman.serving.settings import ServeParams
from tools.ports import free_port

ROOT = Path(__file__).parents[2]


def test_help_has_an_example(capsys):
    code, out, _ = run(capsys, "serve", "--help")
    assert code == 0 and "Example: dragoman serve" in " ".join(out.split())


def test_the_settings_of_the_project_are_the_documented_defaults():
    assert load_params(ROOT / "params.yaml").serve == ServeParams()


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "cpu.yaml").write_text("{}")
    (tmp_path / "params.yaml").write_text("serve: {keys: secret/keys}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("params", "arguments", "sentence"),
    [
        ("serve: {concurency: 3}", [], r"serve\.concurency: unknown key"),
        ("serve: {models: []}", [], r"serve: models: name at least one"),
        ("serve: {models: [c4po@rl]}", [], "unknown system 'c4po'"),
        ("{}", ["--models", "c3po@nowhere"], "policy 'nowhere': neither a model folder"),
        ("{}", ["--models", "c4po@champion"], "unknown system 'c4po'"),
        ("{}", ["--new-key", "alice"], r"serve\.keys in params\.yaml names no file"),
        ("serve: {keys: missing}", [], r"missing: no such file; `dragoman serve --new-key NAME`"),
        ("{}", ["--models", "standard"], "data/index/atlas"),
        ("{}", ["--host", "0.0.0.0"], r"--host 0\.0\.0\.0: everybody .* serve\.keys .* --insecure"),
        ("{}", ["--host", "0.0.0.0", "--insecure", "--models", "standard"], "data/index/atlas"),
    ],
)
def test_what_can_be_mended_is_said(project, capsys, params, arguments, sentence):
    (project / "params.yaml").write_text(params)
    code, _, err = run(capsys, "serve", *arguments)
    assert code == 2 and re.search(sentence, err)


def test_a_key_is_shown_once_and_kept_as_a_hash(project, capsys):
    code, out, _ = run(capsys, "serve", "--new-key", "alice")
    key = out.strip()
    keys = Keys(project / "secret/keys")
    assert code == 0 and key not in (project / "secret/keys").read_text()
    assert keys.owner(f"Bearer {key}") == "alice" == keys.owner(f"bearer  {key}")
    assert keys.owner(f"Basic {key}") is None and keys.owner(key) is None and keys.owner("Bearer \ud83d") is None


def test_key_files_may_have_comments_and_their_faults_are_named_without_their_text(tmp_path):
    path = tmp_path / "keys"
    key = make_key(path, "alice")
    path.write_text("# who\n\n" + path.read_text())
    assert Keys(path).owner(f"Bearer {key}") == "alice"
    path.write_text(f"alice {key}\n")
    with pytest.raises(UserError, match=":1: expected a name") as refused:
        Keys(path)
    assert key not in str(refused.value)
    path.write_text("\n")
    with pytest.raises(UserError, match="holds no key"):
        Keys(path)
    with pytest.raises(UserError, match="without blanks"):
        make_key(path, "alice smith")


@pytest.fixture
def served(tmp_path: Path):
    """A folder with an index."""
    from dragoman.retrieval import build_index

    build_index(PASSAGES, tmp_path / "index")
    return tmp_path


@pytest.fixture
def llm_server():
    """A server of OpenAI's protocol in a thread, which knows one answer and can be told to hang."""
    from fastapi import FastAPI
    from openai_stub import serving

    app, state = FastAPI(), {"seconds": 0.0, "over": False}

    @app.post("/v1/chat/completions")
    async def chat(body: dict):
        until = time.monotonic() + state["seconds"]
        while time.monotonic() < until and not state["over"]:
            await asyncio.sleep(0.01)
        message = {"role": "assistant", "content": "Port Salt"}
        usage = {"prompt_tokens": 7, "completion_tokens": 2}
        return {"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}

    with serving(app) as url:
        yield url, state
        state["over"] = True  # the server ends when its last answer has


async def test_a_service_out_of_settings(served, llm_server, tmp_path):
    """Real index, real engine of a remote LLM: answers, cached searches, kept episodes, a deadline that closes connections."""
    url, state = llm_server
    params = load_params(ROOT / "params.yaml")
    params = params.model_copy(
        update={
            "llm": params.llm.model_copy(
                update={"engine": "openai", "urls": (url,), "model": "m", "revision": "stub", "structured": "none"}
            ),
            "serve": ServeParams(models=("standard",), episodes=str(tmp_path / "kept"), deadline_s=10),
        }
    )
    async with open_service(params, params.serve, str(served / "index"), None) as service:
        transport = httpx.ASGITransport(app=create_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            body = {"model": "standard", "messages": [{"role": "user", "content": QUESTION}]}
            answers = [(await client.post("/v1/chat/completions", json=body)).json() for _ in range(2)]
            assert answers[0]["choices"][0]["message"]["content"] == "Port Salt"
            assert answers[0]["dragoman"]["citations"][0] == {"id": "brisa", "title": "Brisa"}
            metrics = (await client.get("/metrics")).text
            assert 'dragoman_searches_total{cache="hit"} 1.0' in metrics
            state["seconds"] = 20
            late = await client.post("/v1/chat/completions", json=body)
            assert late.status_code == 504
            said = {"id": answers[0]["id"], "rating": "up", "passages": ["brisa"]}
            unknown = await client.post("/v1/feedback", json=said | {"passages": ["brisa", "atlantis"]})
            assert unknown.status_code == 400 and "no passage atlantis" in unknown.text
            assert (await client.post("/v1/feedback", json=said)).status_code == 200
    kept = read_episodes(tmp_path / "kept" / "episodes.jsonl")
    assert [e.key for e in kept] == [a["dragoman"]["trace_id"] for a in answers]
    assert read_feedback(tmp_path / "kept")[kept[0].key].passages == ["brisa"]
    assert kept[0].config["llm"] == kept[1].config["llm"] != "" and kept[0].asked_by is None


async def test_an_abandoned_request_does_not_hold_the_engines_slot(llm_server):
    """What a deadline takes back is free at once: one slot, first taken by a call that hangs."""
    url, state = llm_server
    engine: Engine = OpenAIEngine([url], "m", structured="none", concurrency=1)
    request = Request((("user", "?"),), 4)
    state["seconds"] = 20
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await engine.generate([request])
    state["seconds"] = 0
    async with asyncio.timeout(10):
        (result,) = await engine.generate([request])
    assert result.completions[0].text == "Port Salt"
    await engine.close()


@pytest.mark.process
def test_the_command_serves_until_it_is_told_to_stop(served, llm_server, tmp_path):
    """A process of its own: the official client asks it, and SIGTERM ends it with exit code 0."""
    url, _ = llm_server
    port = free_port()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "cpu.yaml").write_text("{}")
    llm = {"engine": "openai", "model": "m", "urls": [url], "revision": "stub", "structured": "none"}
    settings = {"llm": llm, "serve": {"keys": "keys", "models": ["standard"]}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(settings))
    key = make_key(tmp_path / "keys", "alice")
    command = [sys.executable, "-m", "dragoman", "serve", "--port", str(port)]
    with subprocess.Popen([*command, "--index", "index"], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        try:
            client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0, timeout=10)
            deadline = time.monotonic() + 600
            while True:
                assert process.poll() is None, process.stderr.read()
                assert time.monotonic() < deadline, "it does not serve"
                try:
                    answer = client.chat.completions.create(
                        model="standard", messages=[{"role": "user", "content": QUESTION}]
                    )
                    break
                except openai.APIConnectionError:
                    time.sleep(0.1)
            assert answer.choices[0].message.content == "Port Salt"
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 0, log
    assert "by alice: 200" in log and key not in log and QUESTION not in log


async def test_real_engines_follow_a_stage_and_are_all_closed(served, tiny_model, tmp_path):
    """The stage publishes a new policy; the service loads it, serves it, and lets the old one go."""

    def train(seed: int) -> str:
        folder = make_tiny(tmp_path / "new" / f"model{seed}", seed=seed)
        return publish(folder, tmp_path / "rl", {"stage": "rl"}).version

    engine = EngineParams(engine="transformers", model=str(tiny_model), max_model_len=2048)
    small = {"strategy": "NoRetrieval", "answer_tokens": 4}
    params = load_params(ROOT / "params.yaml").model_copy(
        update={
            "llm": engine,
            "proxy": engine,
            "systems": {"c3po": small, "standard": {"answer_tokens": 4}},
            "serve": ServeParams(models=("c3po@champion", "c3po"), champion_poll_s=0.05),
        }
    )
    first = train(1)
    async with open_service(params, params.serve, str(served / "index"), StageChampion("rl", tmp_path)) as service:
        transport = httpx.ASGITransport(app=create_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:

            async def policy_of(model: str) -> str:
                body = {"model": model, "messages": [{"role": "user", "content": QUESTION}]}
                extension = (await client.post("/v1/chat/completions", json=body)).json()["dragoman"]
                assert extension["degraded"] is None and extension["strategy"] == "NoRetrieval"
                return extension["policy"]

            assert await policy_of("c3po@champion") == first
            assert await policy_of("c3po") == tiny_model.name
            assert len(POOL) == 2, "the LLM and the untrained proxy are one engine"
            second = train(2)
            await eventually(lambda: service.models.offered["c3po@champion"].version == second)
            assert await policy_of("c3po@champion") == second != first
            await eventually(lambda: len(POOL) == 2)
    assert len(POOL) == 0
