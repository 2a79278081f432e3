"""The page at `/`: what is sent with it, and that a person can use it in a real browser."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
from browser import ENTER, TAB, Driver, driven
from fakes import ListRetriever, Script
from serving_parts import QUESTION, Model, Parts, answering, ask, chat

from dragoman.core.errors import EngineFault
from dragoman.core.keys import Keys, make_key
from dragoman.core.types import Passage
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


def answers(driver: Driver) -> list[str]:
    """What the cards say, once nobody is asking any more."""
    driver.until("return document.querySelector('.answer') && send.textContent === 'Ask'")
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


def kept(driver: Driver, *questions: str) -> None:
    """Wait until the endpoint's list has just these, the newest first."""
    driver.until(
        "const all = [...document.querySelectorAll('#kept button')].map(one => one.firstChild.textContent);"
        "return JSON.stringify(all) === JSON.stringify(arguments[0])",
        questions,
    )


def outline(driver: Driver) -> Any:
    """The tree that is seen: of each step its name, in a pair with what hangs below it where something does."""
    return driver.run("""
        const of = list => [...list.children].map(item => {
          const name = item.querySelector("summary b").textContent, below = item.querySelector(":scope > details > .tree");
          return below ? [name, of(below)] : name;
        });
        return of(document.querySelector(".tree"))""")


@pytest.mark.browser
def test_a_past_question_is_opened_by_keyboard_as_a_tree_and_feedback_on_it_keeps_what_was_said(driver, tmp_path):
    with Parts(past=tmp_path, feedback=tmp_path, models=("c3po",)).server_in_thread() as url:
        opened(driver, url)
        assert driver.run("return document.querySelector('#before').hidden")  # there is none yet
        driver.press(QUESTION + ENTER)
        assert answers(driver) == ["Port Salt"]
        kept(driver, QUESTION)
        driver.run("document.querySelector('.feedback input').focus()")
        driver.press("Salt Harbour" + ENTER)
        driver.until("return document.querySelector('.said').textContent.startsWith('Kept')")
        driver.run("forget.click()")
        driver("POST", "/refresh")  # the tab knows nothing any more: the endpoint does
        kept(driver, QUESTION)
        assert texts(driver, "#past button") == [] == texts(driver, "article")
        driver.run("document.querySelector('#kept button').focus()")
        driver.press(ENTER)
        driver.until("return document.querySelector('.tree')")
        assert driver.run("return document.activeElement.className") == "asked"
        assert driver.run("return document.querySelector('#kept button').ariaCurrent") == "true"
        assert texts(driver, ".asked") == [QUESTION] and answers(driver) == ["Port Salt"]
        assert outline(driver) == [["router", ["search"]], ["filter", ["LLM: answer"]]]
        assert texts(driver, ".tree .taken") == ["brisa"] == texts(driver, ".kept li")
        facts = dict(zip(*[iter(texts(driver, "dl > *"))] * 2, strict=True))
        assert facts["passages"] == "4 found, 1 kept" and facts["decisions"] == "2" and facts["policy"] == "base"
        assert re.match(r"[1-9]\d* \(", facts["tokens"]) and re.match(r"[A-Z][a-z]{2} \d+, 20\d\d", facts["asked"])
        # a step is folded by keyboard, as any browser does it
        driver.run("document.querySelector('.tree summary').focus()")
        driver.press(ENTER)
        assert driver.run("return document.querySelector('.tree details').open") is False
        driver.press(ENTER)
        assert driver.run("return document.querySelector('.tree details').open") is True
        assert driver.run("return document.querySelector('.feedback input').value") == "Salt Harbour"
        driver.run("document.querySelector('[data-rating=down]').click()")
        driver.until("return document.querySelector('.said').textContent.startsWith('Kept')")
    (feedback,) = read_feedback(tmp_path).values()
    assert (feedback.rating, feedback.answer) == ("down", "Salt Harbour")


@pytest.mark.browser
def test_past_questions_come_in_pages_and_markup_in_them_stays_text(driver, tmp_path):
    # passages and options have the markup too
    passage = Passage(f"id {HOSTILE}", f"Brisa {HOSTILE}", f"The capital of Brisa is {HOSTILE}")
    parts = Parts(past=tmp_path, llm=Model(lambda *_: HOSTILE), retriever=ListRetriever([passage]))
    with parts.server_in_thread() as url:
        for number in range(21):
            httpx.post(f"{url}/v1/chat/completions", json=chat(f"{number} {HOSTILE}", "direct")).raise_for_status()
        httpx.post(f"{url}/v1/chat/completions", json=chat(f"capital of Brisa {HOSTILE}")).raise_for_status()
        deadline = time.monotonic() + 300
        while len(httpx.get(f"{url}/v1/episodes?limit=50").json()["data"]) != 22:  # they are written in the background
            assert time.monotonic() < deadline, "not all are kept"
            time.sleep(0.01)
        opened(driver, url)
        newest_first = [f"capital of Brisa {HOSTILE}", *(f"{number} {HOSTILE}" for number in reversed(range(21)))]
        kept(driver, *newest_first[:20])
        driver.run("earlier.click()")
        kept(driver, *newest_first)
        assert driver.run("return document.querySelector('#earlier').hidden")
        assert driver.run("return document.activeElement.firstChild.textContent") == newest_first[20]
        driver.run("document.querySelector('#kept button').click()")
        driver.until("return document.querySelector('.tree')")
        assert texts(driver, ".asked") == newest_first[:1] and texts(driver, ".answer") == [HOSTILE]
        assert texts(driver, ".tree .passages li") == [f"id {HOSTILE}"] and texts(driver, ".tree pre") == [HOSTILE]
        found = "return [document.images.length, document.scripts.length, document.title]"
        assert driver.run(found) == [0, 1, "dragoman"]
        # somebody has purged them meanwhile
        (tmp_path / "episodes.jsonl").unlink()
        driver.run("document.querySelector('#kept li:last-child button').click()")
        driver.until("return document.querySelector('#kept-said').textContent.startsWith('no such answer')")
        assert texts(driver, ".asked") == newest_first[:1]


@pytest.mark.browser
def test_a_key_finds_its_own_past_questions_alone(driver, tmp_path):
    alice, bob = make_key(tmp_path / "keys", "alice"), make_key(tmp_path / "keys", "bob")
    parts = Parts(past=tmp_path / "kept", keys=Keys(tmp_path / "keys"))
    with parts.server_in_thread() as url:
        for key, question in ((alice, "Of alice?"), (bob, "Of bob?")):
            headers = {"Authorization": f"Bearer {key}"}
            asked = chat(question, "direct")
            httpx.post(f"{url}/v1/chat/completions", json=asked, headers=headers).raise_for_status()
        opened(driver, url)
        assert texts(driver, "#kept button") == []
        driver.press(bob + ENTER)
        kept(driver, "Of bob?")
        driver.run("document.querySelector('#kept button').click()")
        driver.until("return document.querySelector('.tree')")
        assert texts(driver, ".asked") == ["Of bob?"]


@pytest.mark.browser
def test_a_list_that_comes_once_its_key_is_forgotten_is_not_shown(driver, tmp_path):
    key = make_key(tmp_path / "keys", "alice")
    parts = Parts(past=tmp_path / "kept", keys=Keys(tmp_path / "keys"))
    with parts.server_in_thread() as url:
        headers = {"Authorization": f"Bearer {key}"}
        httpx.post(f"{url}/v1/chat/completions", json=chat(model="direct"), headers=headers).raise_for_status()
        opened(driver, url)
        driver.run("""
            const now = fetch;
            window.late = [];
            window.fetch = (url, ...more) => !url.includes("episodes") ? now(url, ...more) : new Promise(done =>
              late.push(async () => { done(await now(url, ...more)); await new Promise(next => setTimeout(next, 500)); }));
        """)
        driver.press(key + ENTER)
        driver.until("return late.length")
        driver.run("forget.click()")
        driver.run("return late[0]()")
        assert driver.run("return document.querySelector('#before').hidden") and texts(driver, "#kept button") == []


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 1280])
def test_a_tree_runs_over_no_edge_and_its_steps_are_reached_by_tab(driver, tmp_path, width):
    long = "W" * 300
    parts = Parts(past=tmp_path, llm=Model(lambda *_: long), models=("c3po",))
    with parts.server_in_thread() as url:
        httpx.post(f"{url}/v1/chat/completions", json=chat(long)).raise_for_status()
        opened(driver, url, width)
        kept(driver, long)
        driver.run("document.querySelector('#kept button').click()")
        driver.until("return document.querySelector('.tree')")
        assert driver.run("const all = document.documentElement; return all.scrollWidth - all.clientWidth") == 0
        wide = "return [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).length"
        assert driver.run(wide) == 0
        reached = []
        for _ in range(20):  # from the question, which has the focus
            driver.press(TAB)
            reached.append(driver.run("return document.activeElement.textContent.trim()"))
        steps = texts(driver, ".tree summary")
        assert [step.split()[1] for step in steps] == ["router", "search", "filter", "LLM:"]
        assert set(steps) <= set(reached)


@pytest.mark.browser
def test_while_nothing_is_answered_the_seconds_count_and_the_next_question_takes_the_place_of_the_last(driver):
    parts = Parts(llm=Held(answering), settings={"deadline_s": 60}, models=("standard",))
    with parts.server_in_thread() as url:
        opened(driver, url)
        driver.press(QUESTION + ENTER)
        assert re.fullmatch(r"[1-9]\d* s", driver.until("return document.querySelector('.clock')?.textContent"))
        driver.press("And of Jorvik?")
        assert driver.run("return document.querySelector('#question').value") == "And of Jorvik?"
        parts.llm.go.set()
        assert answers(driver) == ["Port Salt"] and texts(driver, ".clock") == [""]


@pytest.mark.browser
@pytest.mark.parametrize(("width", "needed"), [(360, True), (1280, False)])
def test_on_a_phone_one_press_leads_past_the_answers_to_the_past_questions(driver, width, needed):
    parts = Parts(llm=Model(lambda *_: "line\n" * 200), models=("standard",))
    with parts.server_in_thread() as url:
        opened(driver, url, width)
        driver.press(QUESTION + ENTER)
        answers(driver)
        seen = "const box = document.querySelector('#past-title').getBoundingClientRect(); return box.top < innerHeight"
        if needed:
            assert not driver.run(seen)
            driver.run("jump.focus()")
            driver.press(ENTER)
            assert driver.until(seen) and driver.run("return document.activeElement.id") == "questions"
        else:
            assert driver.run(seen) and driver.run("return jump.getClientRects().length") == 0
