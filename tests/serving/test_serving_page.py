"""The page at `/`: what is sent with it, and that a person can use it in a real browser."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator, Sequence

import pytest
from browser import ENTER, TAB, Driver, driven
from fakes import Script
from serving_parts import QUESTION, Model, Parts, answering, ask

from dragoman.core.errors import EngineFault
from dragoman.core.keys import Keys, make_key
from dragoman.engines.base import Request, Result
from dragoman.rollout.feedback import read_feedback

FILES = {"/": "text/html", "/page.css": "text/css", "/page.js": "text/javascript"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HOSTILE = "<img src=x onerror=\"document.title='run'\"> & {{ data }} </script>"


@pytest.mark.parametrize("path", FILES)
async def test_each_file_has_its_type_and_its_policy_and_needs_no_key(tmp_path, path):
    make_key(tmp_path / "keys", "alice")
    async with Parts(keys=Keys(tmp_path / "keys")).client() as client:
        got, head = await client.get(path), await client.head(path)
        assert (await ask(client)).status_code == 401
    assert (got.status_code, head.status_code, head.content) == (200, 200, b"")
    for response in (got, head):
        assert response.headers["content-type"] == f"{FILES[path]}; charset=utf-8"
        assert response.headers["content-security-policy"] == POLICY
        assert response.headers["x-content-type-options"] == "nosniff"
        assert int(response.headers["content-length"]) == len(got.content)


async def test_the_page_loads_its_own_files_and_nothing_from_elsewhere():
    async with Parts().client() as client:
        texts = {path: (await client.get(path)).text for path in FILES}
    loaded = re.findall(r'(?:src|href)\s*=\s*"(.*?)"', texts["/"])
    assert set(loaded) == {"page.css", "page.js", "#thumb"}
    for text in texts.values():
        assert not re.search(r"//\w|@import|url\(|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
    assert not re.search(r"\son\w+\s*=|style\s*=|<style", texts["/"])  # the policy would refuse them


async def test_other_paths_are_still_unknown_and_other_methods_refused():
    async with Parts().client() as client:
        unknown, posted = await client.get("/page.txt"), await client.post("/")
        described = (await client.get("/openapi.json")).json()["paths"]
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "not_found")
    assert (posted.status_code, posted.json()["error"]["code"]) == (405, "method_not_allowed")
    assert not described.keys() & FILES.keys()


async def test_without_the_page_its_paths_are_unknown():
    async with Parts(settings={"page": False}).client() as client:
        for path in FILES:
            assert (await client.get(path)).json()["error"]["code"] == "not_found"
        assert (await ask(client)).status_code == 200


class Held(Model):
    """An engine that answers once it is let go."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.go = threading.Event()

    async def generate(self, requests: Sequence[Request]) -> list[Result]:
        await asyncio.to_thread(self.go.wait, 20)
        return await super().generate(requests)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with driven(tmp_path_factory.mktemp("browser")) as driver:
        yield driver


def opened(driver: Driver, url: str, width: int = 1280, scheme: str = "light") -> None:
    """The page, once it knows the models or has been refused."""
    for command, params in (
        (
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        ),
        ("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}),
    ):
        driver("POST", "/goog/cdp/execute", cmd=command, params=params)
    driver("POST", "/url", url=url)
    driver.until("return document.querySelector('#model').value || !document.querySelector('#trouble').hidden")


def answers(driver: Driver, seconds: float = 20) -> list[str]:
    """What the cards say, once nobody is asking any more."""
    driver.until("return document.querySelector('.answer') && send.textContent === 'Ask'", seconds=seconds)
    return driver.run("return [...document.querySelectorAll('.answer')].map(one => one.textContent)")


def texts(driver: Driver, selector: str) -> list[str]:
    return driver.run("return [...document.querySelectorAll(arguments[0])].map(one => one.innerText)", selector)


@pytest.mark.browser
def test_a_question_by_keyboard_shows_its_steps_as_they_come_and_then_both_answers(driver):
    parts = Parts(llm=Held(answering), settings={"deadline_s": 60})
    with parts.server_in_thread() as url:
        opened(driver, url)
        driver.press(QUESTION + ENTER)  # the question has the focus
        driver.until("return document.querySelectorAll('article:first-child ol > li').length === 3")
        assert texts(driver, ".answer") == ["asking …", "asking …"] and texts(driver, "#send") == ["Stop"]
        assert [step.split()[0] for step in texts(driver, "article:first-child ol > li")] == [
            "router",
            "search",
            "filter",
        ]
        parts.llm.go.set()
        assert answers(driver) == ["Port Salt", "Port Salt"]
    assert texts(driver, "h3") == ["c3po", "standard"] and texts(driver, ".asked") == [QUESTION]
    facts = [dict(zip(*[iter(texts(driver, f"article:nth-child({n}) dl > *"))] * 2, strict=True)) for n in (1, 2)]
    assert [fact["passages"] for fact in facts] == ["4 found, 1 kept", "4 found, 4 kept"]
    assert facts[0]["policy"] == "base" and "policy" not in facts[1]
    for fact in facts:
        assert re.fullmatch(r"\d+\.\d\d s.*", fact["time"]) and re.match(r"[1-9]\d* \(", fact["tokens"])
    assert texts(driver, "article:first-child ol .taken") == ["brisa"]
    assert texts(driver, "article:first-child .kept li") == ["Brisa brisa"]


@pytest.mark.browser
def test_one_click_says_that_an_answer_was_right_and_a_correction_is_kept_with_it(driver, tmp_path):
    parts = Parts(feedback=tmp_path, models=("standard",))
    with parts.server_in_thread() as url:
        opened(driver, url)
        driver.press(QUESTION + ENTER)
        assert answers(driver) == ["Port Salt"]  # standard RAG alone has nothing to stand beside
        driver.run("document.querySelector('[data-rating=up]').click()")
        driver.until("return document.querySelector('.said').textContent.startsWith('Kept')")
        (feedback,) = read_feedback(tmp_path).values()
        assert (feedback.id, feedback.rating, feedback.answer) == (parts.episodes[0].key, "up", None)
        driver.run(
            "document.querySelector('.said').textContent = ''; document.querySelector('.feedback input').focus()"
        )
        driver.press("Salt Harbour" + ENTER)
        driver.until("return document.querySelector('.said').textContent.startsWith('Kept')")
        (feedback,) = read_feedback(tmp_path).values()
        assert (feedback.rating, feedback.answer) == ("up", "Salt Harbour")
        driver("POST", "/refresh")  # the session's questions are still there, with what was said of them
        assert texts(driver, "#past button") == [QUESTION] and answers(driver) == ["Port Salt"]
        assert driver.run("return document.querySelector('[aria-pressed=true]').dataset.rating") == "up"
        driver.run("forget.click()")
        driver("POST", "/refresh")
        assert texts(driver, "#past button") == [] == texts(driver, "article")


@pytest.mark.browser
def test_feedback_that_is_not_taken_is_said_and_not_shown_as_given(driver):
    with Parts().server_in_thread() as url:
        opened(driver, url)
        driver.press(QUESTION + ENTER)
        answers(driver)
        driver.run("document.querySelector('[data-rating=down]').click()")
        assert "keeps no episodes" in driver.until("return document.querySelector('.said').textContent")
        assert driver.run("return document.querySelector('[aria-pressed=true]')") is None


@pytest.mark.browser
def test_markup_in_questions_answers_and_steps_stays_text(driver):
    with Parts(llm=Model(lambda *_: HOSTILE)).server_in_thread() as url:
        opened(driver, url)
        driver.press(HOSTILE + ENTER)
        assert answers(driver) == [HOSTILE, HOSTILE]
        assert texts(driver, ".asked") == [HOSTILE] == texts(driver, "#past button")
        assert HOSTILE in texts(driver, "article:first-child ol")[0]
        assert driver.run("return [document.images.length, document.title]") == [0, "dragoman"]
        # and what should ever become markup could still not act
        blocked = """
            const done = arguments[0];
            addEventListener("securitypolicyviolation", event => done(event.effectiveDirective));
            document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='document.title = 1'>");
        """
        assert driver("POST", "/execute/async", script=blocked, args=[]) in {"img-src", "script-src-attr"}
        assert driver.run("return document.title") == "dragoman"


@pytest.mark.browser
def test_a_key_is_asked_for_where_the_server_has_keys(driver, tmp_path):
    key = make_key(tmp_path / "keys", "alice")
    parts = Parts(keys=Keys(tmp_path / "keys"))
    with parts.server_in_thread() as url:
        opened(driver, url)
        assert "valid API key" in texts(driver, "#trouble")[0]
        driver.press("wrong" + ENTER)  # its field has the focus
        driver.until("return document.activeElement.id === 'key' && document.querySelector('#key').value === ''")
        driver.until("return !document.querySelector('#trouble').hidden && !document.querySelector('#key-form').hidden")
        driver.press(key + ENTER)
        driver.until("return document.querySelector('#model').value")
        driver.press(QUESTION + ENTER)
        assert answers(driver) == ["Port Salt", "Port Salt"]
        assert key not in driver.run("return document.documentElement.outerHTML + location.href + document.cookie")
    assert {episode.asked_by for episode in parts.episodes} == {"alice"}


@pytest.mark.browser
def test_a_question_can_be_stopped_and_a_dead_llm_is_said_in_its_words(driver):
    parts = Parts(llm=Model(answering, seconds=30), settings={"deadline_s": 60})
    with parts.server_in_thread() as url:
        opened(driver, url)
        driver.press(QUESTION + ENTER)
        driver.until("return send.textContent === 'Stop'")
        driver.run("send.click()")
        assert answers(driver) == ["stopped", "stopped"]
        parts.llm.script = lambda *_: EngineFault("gone")
        parts.llm.seconds = 0
        driver.press(ENTER)
        assert [answer.split(";")[0] for answer in answers(driver)] == ["the language model does not answer"] * 2
        assert texts(driver, "#past button") == [QUESTION, QUESTION]


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_runs_over_the_edge_and_all_can_be_reached_by_tab(driver, tmp_path, width, scheme):
    long = "W" * 300
    parts = Parts(feedback=tmp_path, llm=Model(lambda *_: long))
    with parts.server_in_thread() as url:
        opened(driver, url, width, scheme)
        driver.run("document.querySelector('#show-key').click(); document.querySelector('#question').focus()")
        driver.press(long + ENTER)
        assert answers(driver) == [long, long]
        shown = "const all = document.documentElement; return [innerWidth, all.scrollWidth - all.clientWidth]"
        assert driver.run(shown) == [width, 0]
        wide = "return [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).length"
        assert driver.run(wide) == 0
        seen = driver.run("return getComputedStyle(document.body).backgroundColor")
        assert seen == {"light": "rgb(252, 252, 251)", "dark": "rgb(22, 24, 28)"}[scheme]
        reached = []
        for _ in range(30):
            driver.press(TAB)
            reached.append(
                driver.run("const a = document.activeElement; return a.id || a.dataset.rating || a.textContent.trim()")
            )
        assert {"model", "beside", "send", "up", "down", "Send", "Steps", "forget", "show-key", "key"} <= set(reached)
        unnamed = (
            "return [...document.querySelectorAll('input, select, textarea')].filter(e => !e.labels.length).length"
        )
        assert driver.run(unnamed) == 0
