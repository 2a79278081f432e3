"""The calls of mRAG's coordinator as lanes on the page of a tree, in a real browser."""

import json
import re
from itertools import pairwise

import pytest
from browser import browse, needs_chromium
from fakes import ListRetriever, ScriptedEngine

from dragoman.core.types import Passage, Question
from dragoman.rollout.backends import Backends
from dragoman.rollout.record import Episode
from dragoman.rollout.tree import Tree
from dragoman.rollout.view import write_tree
from dragoman.systems import build

pytestmark = pytest.mark.browser
QUESTION = Question("q1", "Which currency has the country whose capital is Thimphu?", ("ngultrum",))
PASSAGES = [
    Passage("bhutan", "Bhutan", "Thimphu is the capital of Bhutan."),
    Passage("ngultrum", "Ngultrum", "The currency of Bhutan is the ngultrum."),
]
SEARCH = [
    {"agent": "searcher", "suggestions": []},
    {"query": "currency of Bhutan"},
    {"next": "end", "relevant": [True, False]},
]
SHORT = [*SEARCH, {"agent": "answerer"}, {"agent": "finisher"}]
LONG = [said for i in range(30) for said in ({"agent": "planner"}, {"steps": [f"step {i}"]})]
"""Thirty calls, and at last the answerer's: 61 steps."""


async def led(said: list[dict], reward: float | None = 1.0) -> Episode:
    """An episode in which coordinator and agents say this in turn."""
    texts = map(json.dumps, said)
    proxy = ScriptedEngine(lambda prompt, rng: next(texts))
    llm = ScriptedEngine(lambda prompt, rng: "the ngultrum")
    episode = await Tree(QUESTION, build("mrag"), Backends(llm, proxy, ListRetriever(PASSAGES))).grow()
    episode.trajectories[0].rewards = {"cover_em": reward}
    return episode


@needs_chromium
@pytest.mark.parametrize("reward", [1.0, None])
async def test_the_calls_of_a_coordinator_are_drawn_as_lanes(tmp_path, reward):
    episode = await led(SHORT, reward)
    write_tree(episode, "cover_em", tmp_path / "tree.html")
    dom = browse(tmp_path / "tree.html", "trajectory-1", "--dump-dom")
    (drawing,) = re.findall(r'<div class="lanes">.*?</svg>', dom, flags=re.S)
    names = re.findall(r'<span class="name">([^<]+)<', drawing)
    assert names == ["coordinator", "searcher", "search", "ask answer"]
    boxes = re.findall(r'<g(?: data-id="(\w+)")?[^>]*>.*?<rect x="([\d.]+)" y="([\d.]+)"', drawing, flags=re.S)
    assert len(boxes) == len(episode.trajectories[0].steps) == 7
    assert all(float(one[1]) < float(other[1]) for one, other in pairwise(boxes))  # each to the right of the last
    rows = {id: y for id, _, y in boxes if id}
    assert {rows[node.id] for node in episode.nodes if node.role == "coordinator"} == {boxes[0][2]}
    assert {node.id for node in episode.nodes} == set(rows)
    # decisions have the colour of their credit, as in the tree; searches and the LLM have none
    assert drawing.count("fill: rgb(253,231,37)") == (len(episode.nodes) if reward else 0) == drawing.count("fill:")
    assert "<title>searcher: Query currency of Bhutan</title>" in drawing
    assert "<title>search: currency of Bhutan</title>" in drawing


@pytest.fixture
def script(driver):
    """Runs JavaScript in the page: the body of a function, and what it returns."""
    return lambda code: driver("POST", "/execute/sync", script=code, args=[])


BOXES = """
return [...document.querySelectorAll(".lanes g rect")].map(rect => rect.getBoundingClientRect())
    .map(({ left, right, top, bottom }) => [left, right, top, bottom])
"""


@pytest.mark.parametrize("width", [340, 1400])
async def test_thirty_calls_can_be_told_apart_on_a_phone_too(tmp_path, driver, script, width):
    write_tree(await led(LONG), "cover_em", tmp_path / "tree.html")
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver("POST", "/goog/cdp/execute", cmd="Emulation.setDeviceMetricsOverride", params=metrics)
    driver("POST", "/url", url=(tmp_path / "tree.html").as_uri() + "#trajectory-1")
    boxes = script(BOXES)
    assert len(boxes) == 61 and min(right - left for left, right, *_ in boxes) >= 10
    assert all(one[1] < other[0] for one, other in pairwise(boxes))  # none touches the next
    names, drawn = script('return [...document.querySelector(".lanes").children].map(c => c.getBoundingClientRect())')
    assert names["right"] <= drawn["left"] and names["height"] == pytest.approx(3 * 24)
    lanes = 'document.querySelector(".lanes .drawn")'
    assert script(f"return {lanes}.scrollWidth > {lanes}.clientWidth")  # they scroll, and the page does not
    assert script("return document.documentElement.scrollWidth") <= width
    assert script('return document.getElementById("panel").scrollWidth <= document.getElementById("panel").clientWidth')


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_boxes_and_names_stand_out_from_the_panel(tmp_path, driver, script, scheme):
    """By the contrast that WCAG 2.2 asks for: 4.5 for text, 3 for what can be clicked."""
    write_tree(await led(SHORT), "cover_em", tmp_path / "tree.html")
    preferred = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver("POST", "/goog/cdp/execute", cmd="Emulation.setEmulatedMedia", params=preferred)
    driver("POST", "/url", url=(tmp_path / "tree.html").as_uri() + "#trajectory-1")
    style = "getComputedStyle(document.querySelector('{}')).{}".format
    panel = luminance(script(f"return {style('#panel', 'backgroundColor')}"))
    assert (panel > 0.5) == (scheme == "light")
    assert contrast(panel, luminance(script(f"return {style('.lanes .name', 'color')}"))) >= 4.5
    assert contrast(panel, luminance(script(f"return {style('.lanes rect', 'stroke')}"))) >= 3


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    r, g, b = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: float, other: float) -> float:
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


async def test_lanes_are_walked_with_the_arrow_keys_and_opened_with_enter(tmp_path, driver, script):
    episode = await led(SHORT)
    write_tree(episode, "cover_em", tmp_path / "tree.html")
    driver("POST", "/url", url=(tmp_path / "tree.html").as_uri() + "#trajectory-1")

    def press(key: str) -> str:
        keys = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        driver("POST", "/actions", actions=[{"type": "key", "id": "keys", "actions": keys}])
        return script(
            'return document.activeElement.querySelector?.("title")?.textContent ?? document.activeElement.id'
        )

    assert script("return document.querySelectorAll('.lanes g[tabindex=\"0\"]').length") == 1  # one stop of Tab
    script('document.getElementById("close").focus()')
    assert press("\ue004") == "coordinator: Search none"  # Tab
    assert press("\ue014") == "searcher: Query currency of Bhutan"  # right
    assert press("\ue014") == "searcher: End yes, no"  # past the search, which is no decision
    assert press("\ue012") == "searcher: Query currency of Bhutan"  # left
    assert press("\ue007") == "panel"  # Enter: what was open is gone, and the next Tab is in what is open now
    assert script('return document.getElementById("selected").textContent') == "searcher"
    asked = next(node for node in episode.nodes if "currency" in node.text)
    assert driver("GET", "/url").endswith(asked.id)
    assert press("\ue00c") == "" and script("return document.activeElement.dataset.id") == asked.id  # Escape
    assert script('return document.getElementById("panel").hidden')
