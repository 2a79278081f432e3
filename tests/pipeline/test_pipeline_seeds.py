"""From questions to files: rollouts and seeds, with a scripted proxy and LLM in the real C3PO."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import ListRetriever, ScriptedEngine
from seeding import make_seeds

from dragoman.core.errors import EngineFault, Fault, UserError
from dragoman.core.types import Passage, Question
from dragoman.engines.local import Vocabulary
from dragoman.pipeline.rollout import roll_out_questions
from dragoman.pipeline.seeds import explored
from dragoman.rollout.backends import Backends
from dragoman.rollout.exploration import TREE, Exploration
from dragoman.rollout.samples import read_samples
from dragoman.rollout.store import read_episodes
from dragoman.systems import build
from dragoman.training.settings import SeedsParams

QUESTIONS = [Question(f"a/{i}", f"Which town is number {i}?", (f"town {i}",)) for i in range(3)]
PASSAGES = [Passage(f"p{i}", f"Town {i}", f"town {i} is number {i}") for i in range(9)]


def proxy(prompt: str, rng) -> str:
    grammar = prompt.partition("\n")[0]
    if "Planning" in grammar or "No Retrieval" in grammar or grammar.startswith("\\[Retrieval"):
        kinds = [k for k in ("[No Retrieval]", "[Planning]") if k.strip("[]") in grammar]
        return rng.choice(
            [*kinds, f"[Retrieval] town {rng.randrange(9)}"] if len(kinds) == 2 else kinds or ["[Retrieval] town"]
        )
    if "LLM" in grammar:
        return rng.choice(["Action: [LLM]", f"Action: [Retrieval] town {rng.randrange(9)}"])
    return rng.choice(["Action: []", "Action: [1]", "Action: [1, 2]"])


def backends(answer: str | Exception = "") -> Backends:
    """The LLM repeats the first passage that it is shown; with `answer`, it always says that, or fails with it."""

    def llm(prompt: str, rng) -> str | Exception:
        if answer or "List the facts" in prompt:
            return answer or "1. find it"
        return next((line for line in prompt.splitlines() if line.startswith("[1]")), "no idea")

    return Backends(llm=ScriptedEngine(llm), proxy=ScriptedEngine(proxy), retriever=ListRetriever(PASSAGES))


async def roll_out(out: Path, own: Backends, exploration: Exploration = TREE, draws: int = 1):
    return await roll_out_questions(
        "c3po",
        build("c3po", {"max_depth": 5}),
        own,
        QUESTIONS,
        exploration=exploration,
        draws=draws,
        reward="cover_em",
        seed=0,
        concurrency=4,
        out=out,
        views=2,
    )


async def test_trees_leave_episodes_samples_figures_and_views(tmp_path):
    episodes, metrics = await roll_out(tmp_path, backends())
    assert json.loads((tmp_path / "metrics.json").read_text()) == metrics
    assert metrics["questions"] == 3 and metrics["nodes"] == sum(len(e.nodes) for e in episodes)
    assert {e.key for e in read_episodes(tmp_path / "episodes.jsonl")} == {e.key for e in episodes}
    assert [e.question["id"] for e in episodes] == [q.id for q in QUESTIONS]
    rows = read_samples(tmp_path / "samples.parquet")
    assert len(rows) == metrics["nodes"] and {r.role for r in rows} == {"router", "filter", "decide"}
    assert len(list((tmp_path / "trees").glob("a-*.html"))) == 2  # a slash in an id is no folder


async def test_a_second_run_asks_nothing_again(tmp_path):
    await roll_out(tmp_path, backends())
    again = backends()
    await roll_out(tmp_path, again)
    assert not again.proxy.requests and not again.llm.requests


async def test_single_trajectories_are_drawn_independently(tmp_path):
    episodes, metrics = await roll_out(tmp_path, backends(), Exploration(breadth=(1,), force=0), draws=4)
    assert metrics["questions"] == metrics["trajectories"] == 12
    assert all(len(e.trajectories) == 1 for e in episodes) and len({e.key for e in episodes}) == 12


async def seeds(out: Path, own: Backends, vocabulary=None, questions=QUESTIONS, **settings):
    return await make_seeds(
        "c3po", build("c3po", {"max_depth": 5}), own, questions, SeedsParams(**settings), vocabulary, out=out
    )


async def test_seeds_are_actions_that_led_to_right_answers(tmp_path):
    metrics = await seeds(tmp_path, backends(), min_credit=0.0, first="all")
    kept = read_samples(tmp_path / "samples.parquet")
    assert len(kept) == metrics["kept"]["samples"] <= metrics["worth_imitating"]["samples"]
    assert all(sample.credit > 0 for sample in kept)
    assert sum(metrics["kept"]["roles"].values()) == len(kept)


async def test_where_nothing_was_right_there_is_nothing_to_imitate(tmp_path):
    with pytest.raises(UserError, match=r"none of \d+ trajectories was worth keeping"):
        await seeds(tmp_path, backends("no idea"))
    assert (tmp_path / "episodes.jsonl").is_file()  # what was sampled is kept


async def test_seeds_of_trees_that_all_met_a_fault_are_left_to_a_later_try(tmp_path):
    with pytest.raises(Fault, match="every question met a fault, the first: the server is away"):
        await seeds(tmp_path, backends(EngineFault("the server is away")), min_credit=0.0, first="all")


async def test_seeds_are_not_chosen_from_what_an_outage_has_left(tmp_path):
    own = backends()
    llm, away = own.llm.script, EngineFault("the server is away")
    own.llm.script = lambda prompt, rng: away if QUESTIONS[2].question in prompt else llm(prompt, rng)
    with pytest.raises(Fault, match="1 of 3 questions met a fault, the first: the server is away"):
        await seeds(tmp_path, own, min_credit=0.0, first="all")


async def test_a_teacher_s_actions_are_written_in_the_proxy_s_tokens(tmp_path, tiny_model):
    vocabulary = Vocabulary(tiny_model, None)
    await seeds(tmp_path, backends(), lambda: vocabulary, min_credit=0.0, shots=2)
    for sample in read_samples(tmp_path / "samples.parquet"):
        assert len(sample.prompt_ids) > 20 and sample.completion_ids[-1] in vocabulary.eos_ids
        assert vocabulary.decode(sample.completion_ids).startswith(("[", "Action: ["))


async def test_an_oracle_s_actions_too_and_the_proxy_is_asked_nothing(tmp_path, tiny_model):
    vocabulary, own = Vocabulary(tiny_model, None), backends()
    known = [replace(q, supporting_ids=(f"p{i}",)) for i, q in enumerate(QUESTIONS)]
    metrics = await seeds(tmp_path, own, lambda: vocabulary, known, exploration={"oracle": True}, min_advantage=0.1)
    assert own.proxy.requests == [] and metrics["trees"]["trajectories"] == len(known)
    for sample in read_samples(tmp_path / "samples.parquet"):
        assert sample.completion_ids[-1] in vocabulary.eos_ids and sample.credit == 1
    said = {
        vocabulary.decode(s.completion_ids) for s in read_samples(tmp_path / "samples.parquet") if s.role == "filter"
    }
    assert said and all("[all]" not in text for text in said)


async def test_a_choice_of_one_which_nobody_was_asked_is_not_imitated(tmp_path, tiny_model):
    """Nothing gold is found, and nothing is left to ask but the LLM, which knows the answer."""
    system = build("mujica", {"decide": "marks", "queries": "span"})
    question = Question("a/0", "which town is it?", ("town 0",), supporting_ids=("elsewhere",))
    settings = SeedsParams(exploration={"oracle": True}, max_share=1)
    vocabulary = Vocabulary(tiny_model, None)
    metrics = await make_seeds(
        "mujica", system, backends("town 0"), [question], settings, lambda: vocabulary, out=tmp_path
    )
    kept = read_samples(tmp_path / "samples.parquet")
    assert metrics["trees"]["nodes"] == 3 and [sample.kind for sample in kept] == ["Subquestions", "Nothing"]
    assert all(sample.marks.positions for sample in kept)


@pytest.mark.parametrize(
    ("decide", "oracle", "asked"),
    [("marks", True, False), ("marks", False, True), ("text", True, True), ("text", False, True)],
)
def test_only_where_an_oracle_says_at_marks_what_is_right_no_answer_is_asked_for(decide, oracle, asked):
    system = build("c3po", {"decide": decide})
    settings = SeedsParams(exploration={"oracle": oracle, "answers": False})
    assert explored(system, settings).answers is asked
