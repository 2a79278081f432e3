"""The page of a tree: it holds the episode safely, and a real browser draws it."""

import html
import json
import random
import re
from decimal import ROUND_HALF_UP, Decimal
from importlib import resources

import pytest
from browser import browse, needs_chromium
from fakes import ListRetriever, ScriptedEngine

from dragoman.core.types import Passage, Question
from dragoman.rewards.answer import scores
from dragoman.rollout.backends import Backends
from dragoman.rollout.credit import credit
from dragoman.rollout.exploration import TREE
from dragoman.rollout.record import Episode
from dragoman.rollout.tree import Tree
from dragoman.rollout.view import tree_html, write_tree
from dragoman.systems import build

HOSTILE = "</script><script>alert(1)</script> <!-- \u2028 & {{ data }} <b>bold</b>"
PASSAGES = [
    Passage("bhutan", "Bhutan", "Thimphu is the capital of Bhutan."),
    Passage("ngultrum", "Ngultrum", "The currency of Bhutan is the ngultrum."),
    Passage("rupee", "Rupee", "The currency of Nepal is the rupee."),
]
QUESTION = Question("q1", "Which currency has the country whose capital is Thimphu?", ("ngultrum",), "compositional")


def proxy(prompt: str, rng: random.Random) -> str:
    regex = prompt.splitlines()[0]
    if regex.startswith(r"\["):  # the router, forced to each of its kinds
        kinds = {r"\[N": "[No Retrieval]", r"\[R": "[Retrieval] currency of Bhutan", r"\[P": "[Planning]"}
        return kinds[regex[:3]]
    if r"\[LLM\]" in regex:
        searches = [f"Action: [Retrieval] {query}" for query in ("capital Thimphu", "currency of Bhutan")]
        return rng.choice(["Action: [LLM]", *searches, "I would stop here"])
    return rng.choice(["Action: []", "Action: [1]", "Action: [1, 2]"])


def llm(prompt: str, rng: random.Random) -> str:
    if "List the facts" in prompt:
        return f"1. The country whose capital is Thimphu\n2. The currency of that country {HOSTILE}"
    return "the Bhutanese ngultrum" if "is the ngultrum" in prompt else "the Indian rupee"


@pytest.fixture
async def episode() -> Episode:
    backends = Backends(llm=ScriptedEngine(llm), proxy=ScriptedEngine(proxy), retriever=ListRetriever(PASSAGES))
    system = build("c3po", {"k": 2, "max_depth": 5})
    grown = await Tree(QUESTION, system, backends, exploration=TREE, seed=3).grow(
        system_name="c3po", config={"seed": 3}
    )
    for trajectory in grown.trajectories:
        trajectory.rewards = scores(trajectory.answer, QUESTION.answers)
    return grown


@pytest.fixture
def page(episode, tmp_path):
    write_tree(episode, "cover_em", tmp_path / "tree.html")
    return tmp_path / "tree.html"


def test_the_page_holds_the_episode(episode):
    text = tree_html(episode, "cover_em")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.S)
    held = json.loads(data)
    assert Episode.model_validate(held["episode"]) == episode
    assert held["credit"] == credit(episode, "cover_em") and held["reward"] == "cover_em"
    assert any(HOSTILE in n.prompt[-1][1] for n in episode.nodes)
    assert "<" not in data and text.count("<script") == 2


def test_numbers_that_json_lacks_do_not_break_the_page(episode):
    episode.nodes[0].logprobs[0] = float("-inf")
    data = tree_html(episode, "cover_em").split('id="data">')[1].split("</script>")[0]
    assert json.loads(data, parse_constant=pytest.fail)["episode"]["nodes"][0]["logprobs"][0] is None


def test_the_template_asks_for_nothing_from_elsewhere():
    template = resources.files("dragoman.rollout").joinpath("view.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in template
    assert not re.search(r"https?:|@import|url\(|(?:src|href)\s*=", template)


def drawn(dom: str, id: str) -> str:
    return re.search(rf'<button [^>]*class="item[^>]*data-id="{id}".*?</button>', dom, flags=re.S)[0]


@pytest.mark.browser
@needs_chromium
def test_a_browser_draws_every_node_and_opens_the_one_in_the_address(episode, page):
    chosen = next(n for n in episode.nodes if HOSTILE in n.prompt[-1][1])
    dom = browse(page, chosen.id, "--dump-dom")
    credits = credit(episode, "cover_em")
    for node in episode.nodes:
        button = drawn(dom, node.id)
        shown = Decimal(credits[node.id]).quantize(Decimal("0.01"), ROUND_HALF_UP)  # as a browser rounds
        assert node.role in button and f">{shown}<" in button
    for i, trajectory in enumerate(episode.trajectories, start=1):
        assert trajectory.stop in drawn(dom, f"trajectory-{i}")
    panel = dom[dom.index("<aside") : dom.index("</aside>")]
    assert "hidden" not in panel[: panel.index(">")]
    assert ">null<" not in panel and "</h3>null" not in panel and "</pre>null" not in panel
    assert html.escape(chosen.prompt[-1][1], quote=False) in panel


@pytest.mark.browser
@needs_chromium
async def test_trajectories_without_nodes_and_without_scores_are_drawn(tmp_path):
    engine = ScriptedEngine(llm)
    backends = Backends(llm=engine, proxy=engine, retriever=ListRetriever(PASSAGES))
    write_tree(await Tree(QUESTION, build("standard"), backends).grow(), "cover_em", tmp_path / "tree.html")
    dom = browse(tmp_path / "tree.html", "trajectory-1", "--dump-dom")
    assert "not scored" in drawn(dom, "trajectory-1")
    panel = dom[dom.index("<aside") : dom.index("</aside>")]
    assert "ngultrum" in panel and panel.index("search") < panel.index("ask answer")


@pytest.mark.browser
@needs_chromium
async def test_a_plan_of_parallel_subquestions_is_drawn_as_a_graph(tmp_path):
    plans = iter(["[Ask] capital Thimphu\n[Ask] currency of Bhutan", "[Ask] rupee", "[Answer]"])
    engine = ScriptedEngine(lambda prompt, rng: "[1] It is so." if "no result answers" in prompt else next(plans))
    backends = Backends(llm=ScriptedEngine(llm), proxy=engine, retriever=ListRetriever(PASSAGES))
    planned = await Tree(QUESTION, build("mujica", {"k": 1}), backends).grow()
    write_tree(planned, "cover_em", tmp_path / "tree.html")
    dom = browse(tmp_path / "tree.html", "trajectory-1", "--dump-dom")
    (drawing,) = re.findall(r'<svg class="graph".*?</svg>', dom, flags=re.S)
    boxes = dict(re.findall(r'<g data-id="(\w+)".*?y="(-?\d+)"', drawing, flags=re.S))
    first, second, third = (n for n in planned.nodes if n.role == "planner")
    workers = [n for n in planned.nodes if n.role == "worker"]
    assert set(boxes) == {n.id for n in planned.nodes} and drawing.count("<line") == 2 + 2 + 1 + 1
    assert boxes[workers[0].id] == boxes[workers[1].id]  # side by side, and what rests on them below
    assert int(boxes[first.id]) < int(boxes[workers[0].id]) < int(boxes[second.id]) < int(boxes[third.id])


BOXES = """
return [...document.querySelectorAll(".item")].map(item => item.getBoundingClientRect())
    .map(({ left, right, width, height }) => [left, right, width, height])
"""


@pytest.mark.browser
def test_items_have_their_place_at_each_width_and_a_click_or_the_enter_key_opens_the_panel(episode, page, driver):
    def find(selector: str) -> str:
        return "/element/" + next(iter(driver("POST", "/element", using="css selector", value=selector).values()))

    def item(id: str) -> str:
        return find(f'.item[data-id="{id}"]')

    def panel() -> str:
        return driver("GET", f"{find('#panel')}/text")

    driver("POST", "/url", url=page.as_uri())
    assert panel() == ""  # nothing is selected
    for width in (400, 1600):
        metrics = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        driver("POST", "/goog/cdp/execute", cmd="Emulation.setDeviceMetricsOverride", params=metrics)
        boxes = driver.run(BOXES)
        assert driver.run("return innerWidth") == width and len(boxes) == len(episode.nodes) + len(episode.trajectories)
        assert all(left >= 0 and right <= width and min(sides) >= 10 for left, right, *sides in boxes)
    router, other = episode.nodes[0], episode.nodes[-1]
    driver("POST", f"{item(router.id)}/click")
    assert router.prompt[-1][1].splitlines()[0] in panel() and router.text in panel()
    assert driver("GET", "/url") == f"{page.as_uri()}#{router.id}"
    driver("POST", f"{item(other.id)}/value", text="\ue007")  # Enter
    assert panel().startswith(other.role) and driver("GET", "/url").endswith(other.id)
    driver("POST", "/back")
    assert panel().startswith(router.role)
    leaf = next(i for i, t in enumerate(episode.trajectories, start=1) if t.passages and t.answer)
    driver("POST", f"{item(f'trajectory-{leaf}')}/click")
    assert "search" in panel() and "ask answer" in panel() and "cover_em" in panel()
    driver("POST", f"{find('#close')}/click")
    assert panel() == ""
