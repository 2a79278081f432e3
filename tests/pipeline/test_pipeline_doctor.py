"""What the doctor finds of servers: it asks each for an answer, as a stage would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes import ListRetriever
from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from listening import listening
from openai_stub import serving

from dragoman.config import Params
from dragoman.core.types import Passage
from dragoman.pipeline import doctor
from dragoman.pipeline.doctor import Finding
from dragoman.pipeline.project import Project
from dragoman.retrieval import build_index
from dragoman.retrieval.http.server import create_app


class Server(FastAPI):
    """Has no list of models, says one thing, and refuses a field.

    Args:
        held: what it says where it is asked to hold its answer to a form; the same where that is None.
    """

    def __init__(self, content: str | None = "yes", refused: str = "nothing", held: str | None = None) -> None:
        super().__init__()
        self.content, self.refused, self.held = content, refused, held
        self.bodies: list[dict[str, Any]] = []
        self.post("/v1/chat/completions")(self.chat)

    async def chat(self, body: dict[str, Any]) -> Response:
        self.bodies.append(body)
        if self.refused in body:
            return JSONResponse({"error": {"message": f"Unknown parameter: {self.refused!r}."}}, 400)
        content = (
            self.held if self.held is not None and {*body} & {"structured_outputs", "response_format"} else self.content
        )
        choice = {"index": 0, "message": {"content": content}, "finish_reason": "length"}
        return JSONResponse({"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 1}})


@contextmanager
def examined(root: Path, server: Server, **settings: Any) -> Iterator[Finding]:
    """What is found of the server of the LLM."""
    with serving(server) as url:
        llm = {"engine": "openai", "model": "m", "urls": [url]} | settings
        project = Project(root, Params.model_validate({"llm": llm}))
        (finding,) = [found for found in doctor._models(project) if found.detail.startswith("llm: ")]
        yield finding


@pytest.mark.parametrize("structured", ["vllm", "response_format", "none"])
def test_a_server_without_a_list_of_models_is_well_where_a_revision_names_what_it_runs(
    structured: str, tmp_path: Path
) -> None:
    server = Server(held='{"yes": true}' if structured == "response_format" else None)
    with examined(tmp_path, server, revision="a", structured=structured) as finding:
        assert (finding.mark, finding.fix) == ("ok  ", "") and "answers as m" in finding.detail
    asked = [(body["max_tokens"], "structured_outputs" in body or "response_format" in body) for body in server.bodies]
    assert asked.count((1, False)) == 1 and any(held for _, held in asked) == (structured != "none")


def test_a_server_without_a_list_of_models_is_refused_where_no_revision_stands_for_it(tmp_path: Path) -> None:
    with examined(tmp_path, Server()) as finding:
        assert (finding.mark, finding.subject) == ("FAIL", "server") and "set the engine's `revision`" in finding.detail


@pytest.mark.parametrize(
    ("structured", "field", "hint"),
    [
        ("vllm", "structured_outputs", "`structured_outputs`, which only vLLM knows? Set `structured` to"),
        ("response_format", "response_format", "Set `structured` to none"),
        ("none", "temperature", "`body: {temperature: null}`"),
        ("none", "stop", "`body: {stop: null}`"),
        ("vllm", "stop", "`body: {stop: null}`"),
    ],
)
def test_a_field_that_the_server_refuses_is_found_before_a_stage_meets_it(
    structured: str, field: str, hint: str, tmp_path: Path
) -> None:
    with examined(tmp_path, Server(refused=field), revision="a", structured=structured) as finding:
        assert (finding.mark, finding.subject) == ("FAIL", "server") and hint in finding.detail


@pytest.mark.parametrize("settings", [{"body": {"stop": None}}, {"one_line_answers": False}])
def test_a_server_that_takes_no_stop_string_is_well_where_it_is_sent_none(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    with examined(tmp_path, Server(refused="stop"), revision="a", **settings) as finding:
        assert finding.mark == "ok  "


@pytest.mark.parametrize(
    ("structured", "said"),
    [("vllm", "Yes."), ("response_format", "yes"), ("response_format", '```json\n{"yes": true}\n```')],
)
def test_a_server_that_ignores_the_form_of_an_answer_is_a_warning(structured: str, said: str, tmp_path: Path) -> None:
    with examined(tmp_path, Server(held=said), revision="a", structured=structured) as finding:
        assert (finding.mark, finding.subject) == ("WARN", "form") and repr(said) in finding.detail
        assert "`structured`" in finding.fix


def test_a_model_that_thinks_is_a_warning(tmp_path: Path) -> None:
    with examined(tmp_path, Server(content=None), revision="a") as finding:
        assert (finding.mark, finding.subject) == ("WARN", "thinking") and "Switch thinking off" in finding.fix


def test_the_server_that_an_index_names_is_searched_and_one_that_is_gone_is_named(tmp_path: Path) -> None:
    passages = [Passage("p", "Bhutan", "Thimphu is its capital.")]
    with listening(create_app(ListRetriever(passages))) as url:
        params = Params.model_validate({"datasets": ["atlas"], "index": {"method": "server", "url": url}})
        folder = Project(tmp_path, params).index("atlas")
        build_index(passages, folder, params.index)
        (found,) = doctor._indexes(Project(tmp_path, params))
        assert (found.mark, found.detail) == ("ok  ", f"{folder}: {url} answers")
    (gone,) = doctor._indexes(Project(tmp_path, params))
    assert (gone.mark, gone.subject) == ("FAIL", "index") and url in gone.detail and "Start that server" in gone.fix
