"""Questions by a model: what it is asked, and what becomes of whatever it answers, in process and behind a URL."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
from fakes import ScriptedEngine
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from lands import BHUTAN, NEPAL, THIMPHU, lands, run
from openai_stub import protocol, serving

from dragoman.core.errors import EngineFault, Fault, UserError
from dragoman.engines.base import Completion
from dragoman.engines.openai import OpenAIEngine
from dragoman.synthesis import filters
from dragoman.synthesis.brief import Brief, Draft, Rejected
from dragoman.synthesis.plan import load_plan
from dragoman.synthesis.written import LONGEST, EngineWriter, MixedWriter, _answers, _read, schema

PLAN = load_plan()
ONE = Brief("train-0001", 0, {"premise": "without premise"}, (BHUTAN,), seed=0)
TWO = replace(ONE, passages=(BHUTAN, NEPAL), categories={"number_of_documents": "multi-doc"})
TURNS = replace(ONE, categories={"interaction_type": "two-turn"})
GOOD = {"documents": [1], "answer": "Thimphu", "question": "Which town rules Bhutan?", "reply": "Thimphu does."}


# --- the schema -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("passages", [1, 2])
@pytest.mark.parametrize("two_turns", [False, True])
def test_the_schema_is_one_and_has_the_answer_before_the_question(passages, two_turns):
    made = schema(passages, two_turns)
    Draft202012Validator.check_schema(made)
    names = ["documents", "answer", *(["first_turn"] if two_turns else []), "question", "reply"]
    assert list(made["properties"]) == made["required"] == names
    # what servers hold models to: OpenAI's strict mode wants every property required and no other
    assert made["additionalProperties"] is False
    assert Draft202012Validator(made).is_valid(GOOD | ({"first_turn": "Tell me of it."} if two_turns else {}))


@pytest.mark.parametrize(
    "change",
    [
        {"documents": []},
        {"documents": [2]},
        {"documents": [0]},
        {"documents": [1, 1]},
        {"documents": ["1"]},
        {"documents": 1},
        {"answer": ""},
        {"answer": "x" * 101},
        {"question": 7},
        {"reply": None},
        {"mood": "good"},
        {"first_turn": "Tell me of it."},
    ],
    ids=str,
)
def test_the_schema_refuses(change):
    assert not Draft202012Validator(schema(1, False)).is_valid(GOOD | change)


@pytest.mark.parametrize("name", GOOD)
def test_the_schema_wants_everything(name):
    assert not Draft202012Validator(schema(1, False)).is_valid({k: v for k, v in GOOD.items() if k != name})


def fitting(passages, two_turns):
    def text(longest):
        return st.text(min_size=1, max_size=longest).filter(str.strip)

    numbers = st.lists(st.integers(1, passages), min_size=1, max_size=passages)
    names = [name for name in LONGEST if two_turns or name != "first_turn"]
    return st.fixed_dictionaries({"documents": numbers} | {name: text(20) for name in names})


@given(st.data(), st.sampled_from([ONE, TWO, TURNS]))
def test_what_fits_the_schema_is_read(data, brief):
    two_turns = brief is TURNS
    row = data.draw(fitting(len(brief.passages), two_turns))
    assert Draft202012Validator(schema(len(brief.passages), two_turns)).is_valid(row)
    read = _read(Completion(json.dumps(row), (), (), "stop"), brief)
    if len(set(row["documents"])) < len(brief.passages):
        assert read == Rejected("not of both documents", " ".join(row["question"].split()))
    else:
        assert isinstance(read, Draft) and read.supporting_ids == tuple(p.id for p in brief.passages)


@given(st.text() | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_nothing_that_is_written_breaks_the_reading(text):
    assert isinstance(_read(Completion(text, (), (), "stop"), TURNS), Rejected)


# --- what a model answers, in this process and behind a URL --------------------------------------------------------------


class Model(ScriptedEngine):
    """Says what `script` says. What ends in an ellipsis was cut off by length."""

    async def _one(self, request):
        result = await super()._one(request)
        cut = [replace(c, finish_reason="length") if c.text.endswith("...") else c for c in result.completions]
        return replace(result, completions=tuple(cut))


MODEL = Model(lambda prompt, rng: "")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(protocol(MODEL, "stub")) as served:
        yield served


@pytest.fixture(params=["in process", "openai"])
async def engine(request):
    MODEL.requests.clear()
    if request.param == "in process":
        yield MODEL
    else:
        client = OpenAIEngine([request.getfixturevalue("url")], "stub", retries=0)
        yield client
        await client.close()


def writer(engine, plan=PLAN, **changes):
    return EngineWriter(engine, plan, **({"temperature": 0.8, "passage_words": 120, "spans": False} | changes))


async def answered(engine, text, brief=ONE, **changes):
    """What becomes of one text."""
    MODEL.script = lambda prompt, rng: text if isinstance(text, str | Exception) else json.dumps(text)
    (draft,) = await writer(engine, **changes).write(brief, 1)
    return draft


async def test_an_answer_in_the_schema_is_a_draft(engine):
    assert await answered(engine, GOOD) == Draft(
        question="Which town rules Bhutan?",
        answers=("Thimphu",),
        reference="Thimphu does.",
        nuggets=("Thimphu",),
        supporting_ids=("bt",),
        writer="engine",
    )


async def test_of_several_things_each_has_its_answer(engine):
    asked = {"answer": ["Thimphu", " Kathmandu", "Thimphu"], "documents": [1, 2]}
    draft = await answered(engine, GOOD | asked, TWO)
    assert (draft.answers, draft.parts) == (("Thimphu and Kathmandu",), (("Thimphu",), ("Kathmandu",)))
    assert draft.nuggets == ("Thimphu", "Kathmandu")
    shape = schema(2, False, several=True)
    assert Draft202012Validator(shape).is_valid(GOOD | asked) and not Draft202012Validator(shape).is_valid(GOOD)
    assert "one entry for each thing that is asked for" in MODEL.requests[-1].messages[-1]["content"]
    one = await answered(engine, GOOD | asked | {"answer": ["Thimphu"]}, TWO)
    assert (one.answers, one.parts, one.nuggets) == (("Thimphu",), (), ())
    assert (await answered(engine, GOOD | asked | {"answer": []}, TWO)).reason == "not parsed"
    assert (
        await answered(engine, GOOD | {"answer": ["Thimphu"]}, ONE)
    ).reason == "not parsed"  # of one thing there is one


async def test_two_turns_are_one_question_and_kept_apart_too(engine):
    draft = await answered(engine, GOOD | {"first_turn": "  Tell me\nof Bhutan. "}, TURNS)
    assert draft.question == "Tell me of Bhutan. Which town rules Bhutan?"
    assert draft.turns == ("Tell me of Bhutan.", "Which town rules Bhutan?")
    # a first turn that was not asked for is left out
    assert (await answered(engine, GOOD | {"first_turn": "Tell me."})).turns == ()


@pytest.mark.parametrize("numbers", [[1, 2], [2, 1], [2, 1, 2]])
async def test_both_documents(engine, numbers):
    assert (await answered(engine, GOOD | {"documents": numbers}, TWO)).supporting_ids == ("bt", "np")


async def test_one_document_of_two_is_not_what_was_wanted(engine):
    draft = await answered(engine, GOOD | {"documents": [2, 2]}, TWO)
    assert draft == Rejected("not of both documents", "Which town rules Bhutan?")


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("", "JSONDecodeError: "),
        ("Sure! Here is a question: who?", "JSONDecodeError: "),
        ("```json\n{}\n```", "KeyError: 'question'"),
        (json.dumps(GOOD)[:-1], "JSONDecodeError: "),
        (json.dumps(GOOD) * 2, "JSONDecodeError: Extra data"),
        ("[]", "TypeError: "),
        ("null", "TypeError: "),
        ("7", "TypeError: "),
        ({}, "KeyError: 'question'"),
        (GOOD | {"question": ["who?"]}, "ValueError: question ['who?']"),
        (GOOD | {"question": " \n"}, "ValueError: question ' \\n'"),
        (GOOD | {"answer": 7}, "ValueError: answer 7"),
        (GOOD | {"answer": None}, "ValueError: answer None"),
        (GOOD | {"reply": True}, "ValueError: reply True"),
        (GOOD | {"documents": []}, "ValueError: documents []"),
        (GOOD | {"documents": [0]}, "ValueError: documents [0]"),
        (GOOD | {"documents": [-1]}, "ValueError: documents [-1]"),
        (GOOD | {"documents": [2]}, "ValueError: documents [2]"),
        (GOOD | {"documents": [1, 3]}, "ValueError: documents [1, 3]"),
        (GOOD | {"documents": [1.0]}, "ValueError: documents [1.0]"),
        (GOOD | {"documents": ["1"]}, "ValueError: documents ['1']"),
        (GOOD | {"documents": [True]}, "ValueError: documents [True]"),
        (GOOD | {"documents": "1"}, "ValueError: documents 1"),
        (GOOD | {"documents": 1}, "TypeError: "),
        (GOOD | {"documents": [[1]]}, "TypeError: "),
        (GOOD | {"documents": [1, "x"]}, "TypeError: "),
        (GOOD | {"documents": None}, "TypeError: "),
    ],
    ids=str,
)
async def test_what_does_not_fit_is_not_parsed(engine, text, detail):
    draft = await answered(engine, text)
    assert isinstance(draft, Rejected) and draft.reason == "not parsed"
    assert draft.detail.startswith(detail) and len(draft.detail) <= 200


async def test_a_first_turn_that_is_missing(engine):
    draft = await answered(engine, GOOD, TURNS)
    assert draft.reason == "not parsed" and draft.detail.startswith("KeyError: 'first_turn'; it wrote '{")


@pytest.mark.parametrize("fence", ["```json\n{}\n```", "```\n{}\n```\n", " {} "])
async def test_a_fence_around_json_is_left_out(engine, fence):
    bare = await answered(engine, GOOD)
    assert isinstance(bare, Draft) and await answered(engine, fence.format(json.dumps(GOOD))) == bare


async def test_what_was_cut_off_says_so_even_when_it_can_be_read(engine):
    draft = await answered(engine, '{"documents": [1], "answer": "Thimphu and so on and so...')
    assert draft.reason == "not parsed" and draft.detail.startswith('longer than 400 tokens: {"documents": [1]')
    assert len(draft.detail) < 120


async def test_the_candidates_of_one_call_are_judged_one_by_one(engine):
    def script(prompt, rng):
        return json.dumps(GOOD) if rng.random() < 0.5 else "no"

    MODEL.script = script
    drafts = await writer(engine).write(ONE, 8)
    assert len(drafts) == 8 and {type(d) for d in drafts} == {Draft, Rejected}
    assert await writer(engine).write(ONE, 8) == drafts
    assert await writer(engine).write(replace(ONE, attempt=1), 8) != drafts


async def test_a_fault_is_no_candidate(engine):
    with pytest.raises(EngineFault, match="out of memory"):
        await answered(engine, EngineFault("out of memory"))


async def test_half_a_surrogate_pair_is_not_parsed(engine):
    draft = await answered(engine, json.dumps(GOOD).replace("Which", "\\ud83d Which"))
    assert isinstance(draft, Rejected)


def test_brackets_without_end_are_not_parsed():
    read = None
    with suppress(RecursionError):  # pytest stumbles over its traceback
        read = _read(Completion("[" * 5_000, (), (), "stop"), ONE)
    assert isinstance(read, Rejected)


# --- answers to choose among -------------------------------------------------------------------------------------------

CHOSEN = {"answer": "Thimphu", "question": "Which town rules Bhutan?", "reply": "Thimphu does."}
BOTH = CHOSEN | {"answer": "Nepalese", "question": "Which rupee do they take south of Bhutan?"}


async def test_the_schema_offers_what_the_passage_says_and_asks_for_no_documents(engine):
    assert await answered(engine, CHOSEN, spans=True) == await answered(engine, GOOD)
    request = MODEL.requests[0]
    offered = json.loads(request.grammar.json_schema)
    assert offered == schema(1, False, ["Asia", "Thimphu"])
    assert offered["properties"]["answer"] == {"type": "string", "enum": ["Asia", "Thimphu"]}
    assert list(offered["properties"]) == offered["required"] == ["answer", "question", "reply"]
    valid = Draft202012Validator(offered).is_valid
    assert valid(CHOSEN) and not valid(CHOSEN | {"answer": "Paro"}) and not valid(GOOD)


async def test_the_example_is_in_the_form_that_is_asked_for(engine):
    for brief in (ONE, TWO, TURNS, replace(TWO, categories=TURNS.categories)):
        MODEL.requests.clear()
        await answered(engine, CHOSEN, brief, spans=True)
        (request,) = MODEL.requests
        assert [m["role"] for m in request.messages] == ["system", "user", "assistant", "user"]
        properties = json.loads(request.grammar.json_schema)["properties"]
        example, task = request.messages[1]["content"], request.messages[-1]["content"]
        assert list(json.loads(request.messages[2]["content"])) == list(properties)
        assert example.partition("Fill in: ")[2] == task.partition("Fill in: ")[2] != ""
        assert ("\n[2] " in example) == ("\n[2] " in task)


async def test_a_server_that_ignores_what_is_offered_is_found_out(engine):
    assert await answered(engine, CHOSEN | {"answer": "Paro"}, spans=True) == Rejected("answer not offered", "Paro")
    assert (await answered(engine, "{}", spans=True)).reason == "not parsed"
    assert (await answered(engine, BOTH | {"answer": "Thimphu"}, TWO, spans=True)).reason == "answer not offered"


async def test_of_two_documents_the_second_answers_and_the_question_names_something_of_the_first(engine):
    assert (await answered(engine, BOTH, TWO, spans=True)).supporting_ids == ("bt", "np")
    unnamed = BOTH | {"question": "Which rupee do they take?"}
    assert await answered(engine, unnamed, TWO, spans=True) == Rejected("not of both documents", unnamed["question"])
    by_what_it_says = BOTH | {"question": "Which rupee do they take who buy in Thimphu?"}
    assert isinstance(await answered(engine, by_what_it_says, TWO, spans=True), Draft)


@pytest.mark.parametrize(
    ("passages", "words", "offered"),
    [
        ((BHUTAN,), 120, ["Asia", "Thimphu"]),
        ((BHUTAN,), 5, []),  # the model sees no whole sentence
        ((NEPAL, BHUTAN), 120, ["Asia", "Thimphu"]),
        ((THIMPHU, BHUTAN), 120, ["Asia"]),  # the first says Thimphu too
        ((replace(BHUTAN, text="It is so. Nobody knows why."),), 120, []),
    ],
)
async def test_what_is_offered(passages, words, offered):
    brief = replace(ONE, passages=passages)
    MODEL.requests.clear()
    drafts = await writer(MODEL, spans=True, passage_words=words).write(brief, 3)
    if offered:
        assert json.loads(MODEL.requests[0].grammar.json_schema)["properties"]["answer"]["enum"] == offered
    else:  # the model is not troubled
        assert drafts == [Rejected("nothing to ask", ", ".join(p.id for p in passages))] and not MODEL.requests


async def test_to_a_question_of_yes_or_no_these_two_are_offered(engine):
    brief = replace(ONE, categories={"question_intent": "yes-no"})
    assert _answers(brief, brief.passages) == ["yes", "no"]
    asked = CHOSEN | {"answer": "yes", "question": "Is Thimphu the capital of Bhutan?"}
    draft = await answered(engine, asked, brief, spans=True)
    assert (draft.answers, draft.evidence) == (("yes",), ("Thimphu", "Bhutan"))
    assert (await answered(engine, asked | {"answer": "no"}, brief, spans=True)).evidence == ()


# --- what a model is asked --------------------------------------------------------------------------------------------


async def test_what_is_asked(engine):
    await answered(engine, GOOD)
    (request,) = MODEL.requests
    assert json.loads(request.grammar.json_schema) == schema(1, False)
    assert (request.n, request.temperature, request.max_tokens) == (1, 0.8, 400)
    system, user = (message["content"] for message in request.messages)
    assert "JSON" in system
    assert f"[1] Bhutan: {BHUTAN.text}\n" in user
    assert "\n- Nothing is said about the user.\n" in user
    assert "the document above" in user and "first_turn" not in user


async def test_what_is_asked_of_two_documents_and_two_turns():
    brief = replace(TWO, categories={"interaction_type": "two-turn", "number_of_documents": "multi-doc"})
    MODEL.requests.clear()
    MODEL.script = lambda prompt, rng: ""
    await writer(MODEL, passage_words=3).write(brief, 5)
    (request,) = MODEL.requests
    assert json.loads(request.grammar.json_schema) == schema(2, True, several=True)
    assert request.n == 5
    user = request.messages[-1]["content"]
    assert "[1] Bhutan: Bhutan is a ...\n[2] Nepal: The capital of ...\n" in user
    assert "the documents above" in user and '"first_turn"' in user
    for wish in PLAN.describe(dict(brief.categories)):
        assert f"\n- {wish}\n" in user


async def test_the_seed_of_a_call_is_its_brief_s():
    seeds = []
    for brief in (ONE, ONE, replace(ONE, attempt=1), replace(ONE, slot="dev-0001"), replace(ONE, seed=1)):
        MODEL.requests.clear()
        await writer(MODEL).write(brief, 1)
        seeds.append(MODEL.requests[0].seed)
    assert seeds[0] == seeds[1] and len(set(seeds)) == 4


def test_a_fingerprint_follows_engine_temperature_and_length():
    other = Model(lambda prompt, rng: "")
    other.fingerprint = "another"
    made = [writer(MODEL), writer(other), writer(MODEL, temperature=1.0), writer(MODEL, passage_words=60)]
    made.append(writer(MODEL, spans=True))
    assert len({w.fingerprint for w in made}) == 5
    assert writer(MODEL).fingerprint == made[0].fingerprint


def test_a_fingerprint_follows_the_descriptions_of_the_plan():
    values = PLAN.model_dump()
    values["categorizations"]["premise"]["without premise"]["description"] = "Do not say who asks."
    assert writer(MODEL, plan=type(PLAN).model_validate(values)).fingerprint != writer(MODEL).fingerprint


# --- the stage with it -------------------------------------------------------------------------------------------------


def asks_for_capitals(prompt, rng):
    """A good model: it reads the passages and answers in the schema."""
    found = re.findall(r"^\[\d\] (\w+): .*?Its capital is (\w+)", prompt, flags=re.M)
    lands_, towns = zip(*found, strict=True)
    row = {
        "documents": list(range(1, len(found) + 1)),
        "answer": towns[0],
        "question": f"Which town is the capital of {' and which of '.join(lands_)}, asked {rng.randrange(10**6)}?",
        "reply": f"It is {' and '.join(towns)}.",
    }
    if "first_turn" in prompt:
        row["first_turn"] = f"Tell me about {lands_[0]}."
    return json.dumps(row)


def chooses_a_name(prompt, rng):
    """A model that is led: it puts a question about whatever lands it is shown to the last capital."""
    passages = re.findall(r"^\[\d\] (\w+): .*?Its capital is (\w+)", prompt, flags=re.M)
    row = {
        "answer": passages[-1][1],
        "question": f"What has {' and '.join(land for land, _ in passages)} for town {rng.randrange(10**6)}?",
        "reply": "That one.",
    }
    return json.dumps(row | ({"first_turn": "Tell me more."} if "first_turn" in prompt else {}))


def through(url, out, script, spans=False, n=12, **values):
    """A run of the stage with the model behind a URL."""
    MODEL.script = script
    MODEL.requests.clear()
    return run(out, writer(OpenAIEngine([url], "stub", retries=0), spans=spans), n=n, **values)


def test_a_server_that_answers_in_the_schema_fills_the_set(url, tmp_path):
    filled = through(url, tmp_path / "a", asks_for_capitals)
    assert filled.kept == 12 and filled.open == 0
    capitals = {subject: object_ for subject, relation, object_ in lands(40)[1] if relation == "capital"}
    titles = {p.id: p.title for p in lands(40)[0]}
    for rows in filled.questions.values():
        for row in rows:
            assert row["writer"] == "engine"
            assert row["answers"] == [capitals[titles[row["supporting_ids"][0]]]]
            assert len(row["supporting_ids"]) == (2 if row["categories"]["number_of_documents"] == "multi-doc" else 1)
            assert len(row["turns"]) == (2 if row["categories"]["interaction_type"] == "two-turn" else 0)
    again = through(url, tmp_path / "b", asks_for_capitals)
    assert again == filled


def test_a_server_that_chooses_among_what_is_offered_fills_the_set_but_for_yes_and_no(url, tmp_path):
    stated = {"answer not in its passages": filters.grounded}
    filled = through(url, tmp_path, chooses_a_name, spans=True, n=40, attempts=2, checks=stated)
    rows = [row for questions in filled.questions.values() for row in questions]
    assert 0 < filled.open < 10 and all(row["categories"].get("question_intent") != "yes-no" for row in rows)
    assert filled.reasons == {"answer not offered": 2 * filled.open}  # a capital where yes or no was asked for


def test_a_server_that_answers_garbage_leaves_nothing_and_says_why(url, tmp_path):
    with pytest.raises(
        UserError, match=r"none of the first 20 replies could be read \(.*'I am a teapot.'\); see .*`structured`"
    ):
        through(url, tmp_path, lambda prompt, rng: "I am a teapot.", n=90)
    assert len(MODEL.requests) == 20 and len((tmp_path / "rejected.jsonl").read_text().splitlines()) == 20


def test_a_server_that_faults_leaves_nothing_and_says_why(url, tmp_path):
    with pytest.raises(Fault, match=r"questions met a fault"):
        through(url, tmp_path, lambda prompt, rng: EngineFault("out of memory"), attempts=2)


def test_mixed_leaves_to_the_second_what_the_first_has_not_filled(tmp_path):
    class Named:
        def __init__(self, name):
            self.fingerprint, self.attempts = name, []

        async def write(self, brief, candidates):
            self.attempts.append(brief.attempt)
            return [Rejected("no", self.fingerprint)]

    first, then = Named("first"), Named("then")
    mixed = MixedWriter(first, 2, then)
    with pytest.raises(UserError, match="10 no"):
        run(tmp_path, mixed, n=2, attempts=5, plan=simple())
    assert sorted(first.attempts) == [0, 0, 1, 1] and sorted(then.attempts) == [2, 2, 3, 3, 4, 4]
    assert (
        len({mixed.fingerprint, MixedWriter(first, 3, then).fingerprint, MixedWriter(then, 2, first).fingerprint}) == 3
    )


def simple():
    """A plan of one kind of question, about one document."""
    kind = {"number_of_documents": {"single-doc": {"probability": 1, "description": "One document."}}}
    return type(PLAN).model_validate({"categorizations": kind, "combinations": [["number_of_documents"]]})
