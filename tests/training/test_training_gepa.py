"""GEPA itself, with C-3PO, scripted models and a reflection model behind a real URL. What it comes to is worked out by hand.

The proxy searches if its instructions have a word that the question asks for, else it does not. The LLM answers with the first
passage that it is shown. So an answer is right where the router's instructions have the word.
"""

import asyncio
import itertools
import multiprocessing
import threading
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes import ListRetriever, ScriptedEngine
from reflecting import reflection_model

from dragoman.core import files
from dragoman.core.errors import EngineFault, Fault, UserError
from dragoman.core.types import Passage, Question
from dragoman.engines import open_engine
from dragoman.engines.settings import EngineParams
from dragoman.registry.policy import find_policy
from dragoman.rollout.backends import Backends
from dragoman.systems import build
from dragoman.training.gepa import player
from dragoman.training.gepa.player import next_role
from dragoman.training.gepa.rewriting import check, check_budget, rewrite
from dragoman.training.gepa.settings import GepaParams
from dragoman.training.gepa.waiting import Halted, Waiting
from dragoman.training.run import TrainingRun

PASSAGES = [Passage(f"p{i}", f"Town {i}", f"town {i} is number {i}") for i in range(9)]
OWN = build("c3po").instructions["router"]


def questions(first: int, last: int, word: str = "boldly") -> list[Question]:
    return [
        Question(f"q{i}", f"Which town is {word} number {i}?", (f"town {i}",), supporting_ids=(f"p{i}",))
        for i in range(first, last)
    ]


TRAIN, DEV = questions(0, 4), questions(4, 7)


def proxy(prompt: str, rng) -> str:
    if "one action for the question" not in prompt:
        return "Action: [1]"
    instructions, _, question = prompt.rpartition("Question: ")
    word, number = question.split()[3], question.split()[5].strip("?")
    return f"[Retrieval] town {number}" if word in instructions else "[No Retrieval]"


def llm(prompt: str, rng) -> str:
    return next((line for line in prompt.splitlines() if line.startswith("[1]")), "no idea")


def adds(*words: str):
    """A reflection model that adds these words, one each time, to whatever it is shown."""
    left = list(words)
    return lambda text: text.replace("Choose one action", f"Choose {left.pop(0)} one action")


@dataclass
class Run:
    """A run whose models can be scripted anew, in one folder."""

    folder: Path
    proxy: ScriptedEngine
    reward: str = "cover_em"

    async def __call__(self, reflection: EngineParams | None, train=TRAIN, dev=DEV, **settings) -> dict:
        backends = Backends(ScriptedEngine(llm), self.proxy, ListRetriever(PASSAGES))
        opened: dict[EngineParams, object] = {}

        def engine(settings: EngineParams) -> object:
            return opened.setdefault(settings, open_engine(settings))

        base = self.folder / "base"
        base.mkdir(exist_ok=True)
        (base / "config.json").write_text("{}")
        (base / "model.safetensors").write_bytes(b"weights")
        try:
            training = TrainingRun(
                system="c3po",
                dev=dev,
                runtime=SimpleNamespace(open=lambda name: (build("c3po"), backends), engine=engine),
                start=find_policy(str(base)),
                reward=self.reward,
                seed=0,
                out=self.folder / "gepa",
                data={},
            )
            chosen = GepaParams(**{"max_metric_calls": 20, "minibatch": 2} | settings, reflection=reflection)
            return await rewrite(training, train, chosen)
        finally:
            for other in opened.values():
                await other.close()

    def read(self, name: str) -> list[dict]:
        return [row for _, row in files.read(self.folder / "gepa" / name)]


@pytest.fixture
def run(tmp_path) -> Run:
    return Run(tmp_path, ScriptedEngine(proxy))


async def test_a_word_that_helps_is_found_within_the_budget_and_published(run):
    """3 dev answers, 2 + 2 on a minibatch, 3 on dev again; then minibatches of 2 that are all right, while 7 more would fit."""
    asked: list[str] = []
    with reflection_model(adds("boldly"), asked) as reflection:
        metrics = await run(reflection)
    texts = build("c3po").instructions | {"router": OWN.replace("Choose one", "Choose boldly one")}
    policy = find_policy(str(run.folder / "gepa"))
    assert metrics == {
        "dev_questions": 3,
        "first": {"dev_reward": 0.0},
        "dev_reward": 1.0,
        "candidates": 2,
        "best_candidate": 1,
        "rewritten": ["router"],
        "metric_calls": 14,
        "reflections": 1,
        "policy": policy.version,
    }
    assert policy.instructions == texts
    assert policy.of("router").joinpath("model.safetensors").read_bytes() == b"weights"
    assert (run.folder / "gepa/instructions/router.txt").read_text() == texts["router"] + "\n"
    assert [row["dev_reward"] for row in run.read("candidates.jsonl")] == [0.0, 1.0]
    (prompt,) = asked
    assert "What it wrote:\n[No Retrieval]" in prompt and OWN in prompt
    assert "The answer was 'no idea'; right is 'town " in prompt and "0% were kept" in prompt


async def test_instructions_that_help_on_training_questions_alone_are_not_chosen(run):
    with reflection_model(adds("boldly")) as reflection:
        metrics = await run(reflection, dev=questions(4, 7, "meekly"))
    assert metrics["candidates"] == 2 and (metrics["best_candidate"], metrics["rewritten"]) == (0, [])
    assert find_policy(str(run.folder / "gepa")).instructions == build("c3po").instructions


@pytest.mark.parametrize("most", [10, 11, 14, 17, 23])
async def test_no_more_answers_are_scored_than_the_budget_says(run, most):
    with reflection_model(lambda text: text.replace("Choose one", "Choose one, and just one")) as reflection:
        metrics = await run(reflection, max_metric_calls=most)
    asked = sum(1 for request in run.proxy.requests if "one action for the question" in request.messages[-1]["content"])
    assert asked <= metrics["metric_calls"] == 3 + 4 * ((most - 3 - 3) // 4)  # what does not gain costs 2 + 2


async def test_a_rewriting_without_the_question_or_the_same_again_is_not_tried(run):
    with reflection_model(lambda text: text.replace("{question}", "it")) as reflection:
        metrics = await run(reflection)
    assert metrics["candidates"] == 1 and metrics["reflections"] > 1
    assert {request.messages[0]["content"] for request in run.proxy.requests} == {build("c3po").router.prompt.system}, (
        "nothing else was read by the proxy"
    )


def breaking(function, at: set[int], failure):
    """The function, which fails at these of its calls."""
    calls = itertools.count(1)
    return lambda *arguments: failure if next(calls) in at else function(*arguments)


async def test_a_run_that_was_cut_short_anywhere_comes_to_the_same(run, tmp_path):
    (tmp_path / "broken").mkdir()
    broken, faults = Run(tmp_path / "broken", ScriptedEngine(breaking(proxy, {2, 9}, EngineFault("gone")))), 0
    with reflection_model(adds("meekly", "boldly")) as reflection:
        expected = await run(reflection, max_metric_calls=40)
    with reflection_model(breaking(adds("meekly", "boldly"), {1, 3}, None)) as reflection:
        while True:
            try:
                found = await broken(reflection, max_metric_calls=40)
                break
            except Fault:
                faults += 1
    assert faults == 4 and found == expected and found["reflections"] == 2
    assert broken.read("candidates.jsonl") == run.read("candidates.jsonl")


async def test_a_run_that_is_interrupted_stops_and_goes_on(run):
    thinking, go_on = threading.Event(), threading.Event()

    def write(text: str) -> str:
        thinking.set()
        go_on.wait(600)
        return text.replace("Choose one", "Choose boldly one")

    with reflection_model(write) as reflection:
        task = asyncio.create_task(run(reflection))
        assert await asyncio.to_thread(thinking.wait, 600)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        before = len(run.proxy.requests)
        metrics = await run(reflection)
    assert (metrics["dev_reward"], metrics["metric_calls"]) == (1.0, 14)
    routed = [r for r in run.proxy.requests[before:] if "Choose one action" in r.messages[-1]["content"]]
    assert not routed, "what was answered under the own instructions is on disk"


def play(folder: Path, reflection: EngineParams) -> dict:
    return asyncio.run(Run(folder, ScriptedEngine(proxy))(reflection, max_metric_calls=40))


@pytest.mark.process
def test_a_process_that_is_killed_leaves_what_another_goes_on_with(tmp_path):
    folders = [tmp_path / "killed", tmp_path / "calm"]
    second, go_on, words = (
        threading.Event(),
        threading.Event(),
        itertools.chain(["meekly", "-"], itertools.repeat("boldly")),
    )

    def write(text: str) -> str:
        word = next(words)
        if word == "-":
            second.set()
            go_on.wait(600)
        return text.replace("Choose", f"Choose {word}", 1)

    for folder in folders:
        folder.mkdir()
    with reflection_model(write) as reflection:
        process = multiprocessing.get_context("spawn").Process(target=play, args=(folders[0], reflection))
        process.start()
        assert second.wait(600)
        process.kill()
        process.join()
        go_on.set()
        found = play(folders[0], reflection)
    with reflection_model(adds("meekly", "boldly")) as reflection:
        assert found == play(folders[1], reflection) and found["reflections"] == 2
    first, other = (Run(folder, ScriptedEngine(proxy)).read("candidates.jsonl") for folder in folders)
    assert first == other


async def test_a_fault_of_ours_is_not_only_logged(run, monkeypatch):
    monkeypatch.setattr(player, "lessons", lambda episode, role, score: {}["a bug"])
    with reflection_model(adds("boldly")) as reflection, pytest.raises(KeyError, match="a bug"):
        await run(reflection)


async def test_a_finished_run_asks_nothing_again_and_another_budget_starts_anew(run):
    with reflection_model(lambda text: text.replace("Choose one", "Choose boldly one")) as reflection:
        metrics = await run(reflection)
        requests = len(run.proxy.requests)
        assert await run(reflection) == metrics and len(run.proxy.requests) == requests
        assert (await run(reflection, max_metric_calls=21))["metric_calls"] == 16


async def test_a_url_that_does_not_answer_ends_it_before_the_first_question(run):
    silent = EngineParams(engine="openai", model="r", urls=("http://127.0.0.1:9/v1",), retries=0)
    with pytest.raises(EngineFault, match=r"127\.0\.0\.1:9/v1/models: .*start the server, or check the URL"):
        await run(silent)
    assert not run.proxy.requests


async def test_an_answer_without_a_score_is_not_taken_for_a_wrong_one(run):
    run.reward = "gold_recall"
    unknown = [Question("x", "Which town is boldly number 1?", ("town 1",))]
    with (
        reflection_model(adds()) as reflection,
        pytest.raises(UserError, match=r"train\.reward \(gold_recall\) has no score for the answer to question x"),
    ):
        await run(reflection, dev=unknown)


@pytest.mark.parametrize(
    ("settings", "counts", "error"),
    [
        (
            {"max_metric_calls": 9},
            (4, 3),
            r"max_metric_calls is 9, and a single rewriting can take 10: 3 dev questions and 2",
        ),
        ({}, (0, 3), "one of the two is empty"),
        ({}, (4, 0), "one of the two is empty"),
    ],
)
def test_a_run_that_could_rewrite_nothing_is_refused(settings, counts, error):
    with pytest.raises(UserError, match=error):
        check_budget(*counts, GepaParams(minibatch=2, **settings))


def test_without_a_reflection_model_or_instructions_it_is_refused_by_the_name_of_the_setting():
    reflection = EngineParams(engine="openai", model="r", urls=("http://localhost/v1",))
    with pytest.raises(UserError, match=r"gepa\.reflection: no model is set"):
        check("c3po", build("c3po"), GepaParams())
    with pytest.raises(UserError, match=r"c3po have no instructions to rewrite; .* set c3po\.prompts=full"):
        check("c3po", build("c3po", {"prompts": "brief", "decide": "marks"}), GepaParams(reflection=reflection))
    check("c3po", build("c3po"), GepaParams(reflection=reflection))


def role(name: str) -> SimpleNamespace:
    return SimpleNamespace(nodes=[SimpleNamespace(role=name)])


def test_roles_take_turns_and_one_that_has_not_acted_is_passed_over():
    state = SimpleNamespace(named_predictor_id_to_update_next_for_program_candidate=[0, 0])
    candidate, played = {"router": "", "filter": "", "decide": ""}, [role("router"), role("decide")]
    assert [next_role(state, played, [], 1, candidate) for _ in range(4)] == [["router"], ["decide"]] * 2
    assert state.named_predictor_id_to_update_next_for_program_candidate[0] == 0  # each candidate has its own turn


async def test_what_a_coroutine_raises_ends_a_library_that_would_go_on():
    waiting = Waiting()

    async def fails() -> None:
        raise KeyError("x")

    def stubborn() -> None:
        while True:
            try:
                waiting.wait(fails())
            except Exception:
                continue

    with pytest.raises(KeyError, match="x"):
        await waiting.run(stubborn)
    coroutine = fails()
    with pytest.raises(Halted):  # nobody waits any more
        waiting.wait(coroutine)
