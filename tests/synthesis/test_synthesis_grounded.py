"""Questions without a model: what every category does to them, that a yes is so, and how they read."""

import asyncio
import random
import re
from collections import Counter

import pytest
from fakes import drawn
from lands import BHUTAN, NEPAL, THIMPHU, THREE, TRIPLES, lands

from dragoman.core.text import has
from dragoman.core.types import Passage
from dragoman.synthesis.brief import Brief, Draft, Rejected
from dragoman.synthesis.facts import facts_of
from dragoman.synthesis.grounded import GroundedWriter, phrasings
from dragoman.synthesis.plan import load_plan

PLAIN = {
    "user_expertise": "novice",
    "question_phrasing": "concise and natural",
    "answer_phrasing": "concise and natural",
    "number_of_documents": "single-doc",
    "interaction_type": "single-turn",
    "aspect_granularity": "single aspect",
}
ATLAS = GroundedWriter(facts_of(THREE, TRIPLES))
TEXT = GroundedWriter(facts_of(THREE))
CAPITALS = GroundedWriter(facts_of(THREE, [t for t in TRIPLES if t[1] == "capital"]))
DRAWS = 30


def brief(*passages, seed=0, **categories):
    return Brief("train-0001", 0, PLAIN | categories, passages or (BHUTAN,), seed)


def written(writer, *passages, count=DRAWS, **categories):
    """Candidates for one brief, which differ by chance."""
    return asyncio.run(writer.write(brief(*passages, **categories), count))


def drafts(writer, *passages, **categories):
    found = written(writer, *passages, **categories)
    assert all(isinstance(d, Draft) for d in found), found
    return found


def questions(*passages, writer=CAPITALS, **categories):
    return {d.question for d in drafts(writer, *passages, **categories)}


def references(*passages, writer=CAPITALS, **categories):
    return {d.reference for d in drafts(writer, *passages, **categories)}


# --- the effect of every category, on the one fact that Bhutan's capital is Thimphu ------------------------------------

PLAINLY = {"What is the capital of Bhutan?"}
THAT = "the capital of Bhutan is Thimphu"

QUESTIONS = {
    ("user_expertise", "novice"): PLAINLY,
    ("user_expertise", "expert"): {
        "What is the seat of government of Bhutan?",
    },
    ("question_phrasing", "concise and natural"): PLAINLY,
    ("question_phrasing", "verbose and natural"): {
        "Here is something that I would like to know about Bhutan: what is the capital of Bhutan?",
        "I came across Bhutan the other day, and now I would like to know: what is the capital of Bhutan?",
    },
    ("question_phrasing", "concise and fancy"): {
        "Pray, what is the capital of Bhutan?",
        "Kindly say, what is the capital of Bhutan?",
    },
    ("question_phrasing", "short search query"): {"Bhutan capital"},
    ("question_phrasing", "long search query"): {"Bhutan capital seat government information facts details explained"},
    ("answer_intent", "factoid"): PLAINLY,
    ("answer_intent", "open-ended"): {
        "What is known of the capital of Bhutan?",
        "What can be said of the capital of Bhutan?",
    },
    ("question_intent", "clarification"): {
        "To be clear, what is the capital of Bhutan?",
        "What exactly is the capital of Bhutan?",
    },
    ("question_intent", "opinion"): {
        "What would you say is the capital of Bhutan?",
        "What do you think is the capital of Bhutan?",
    },
    ("question_intent", "yes-no"): {
        "Is it true that Thimphu is the capital of Bhutan, yes or no?",
        "Yes or no, is it so that Thimphu is the capital of Bhutan?",
        "Is it true that Kathmandu is the capital of Bhutan, yes or no?",
        "Yes or no, is it so that Kathmandu is the capital of Bhutan?",
    },
    ("question_intent", "hypothetical"): {
        "If I had to state the capital of Bhutan, what would it be?",
        "Suppose I had to give the capital of Bhutan: what would it be?",
    },
    ("premise", "without premise"): PLAINLY,
    ("premise", "with premise"): {
        f"{premise} What is the capital of Bhutan?"
        for premise in ("I am helping my daughter with her homework.", "I am new to this subject.", "I like quizzes.")
    },
    ("lexical_similarity", "similar to document"): PLAINLY,
    ("lexical_similarity", "distant from document"): {
        "Can you tell me the town from which Bhutan is ruled?",
    },
    ("aspect_granularity", "single aspect"): PLAINLY,
    ("interaction_type", "single-turn"): PLAINLY,
    ("interaction_type", "two-turn"): {
        f"{first} {second} what is its capital?"
        for first in ("I have a question about Bhutan.", "I have been reading about Bhutan.", "Let us talk of Bhutan.")
        for second in ("And", "Then", "So")
    },
    ("number_of_documents", "single-doc"): PLAINLY,
}
ANSWERS = {
    "concise and natural": {"Thimphu"},
    "verbose and natural": {f"The sources say that {THAT}.", f"You can take it that {THAT}."},
    "concise and fancy": {"It is, to be precise, Thimphu."},
    "verbose and fancy": {
        f"Having consulted the sources with due care, one finds that {THAT}. May this be of service to you."
    },
}
ELSEWHERE = {
    ("question_phrasing", "verbose and fancy"),
    ("question_intent", "comparison"),  # takes two facts
    ("aspect_granularity", "multiple aspects"),
    ("number_of_documents", "multi-doc"),
    ("lexical_similarity", "unpopular entities"),  # is the shelf's: which passage is drawn
}


@pytest.mark.parametrize(("choice", "expected"), QUESTIONS.items(), ids=map(str, QUESTIONS))
def test_the_effect_of_a_category_on_the_question(choice, expected):
    name, category = choice
    found = questions(**{name: category})
    assert found <= expected
    assert len(found) > len(expected) / 2  # which of them is left to chance


@pytest.mark.parametrize(("category", "expected"), ANSWERS.items())
def test_the_effect_of_a_category_on_the_answer(category, expected):
    assert references(answer_phrasing=category) == expected


def test_every_category_of_the_built_in_plan_has_its_effect_shown_here():
    shown = {*QUESTIONS, *(("answer_phrasing", category) for category in ANSWERS), *ELSEWHERE}
    planned = load_plan().categorizations
    assert shown == {(name, category) for name, categories in planned.items() for category in categories}


def test_verbose_and_fancy():
    found = questions(question_phrasing="verbose and fancy")
    assert all(re.match("Permit me to enquire|Should it please you", q) and len(q.split()) >= 15 for q in found)


def test_an_expert_says_what_an_expert_would():
    premises = {q.partition(". ")[0] for q in questions(user_expertise="expert", premise="with premise")}
    assert premises == {
        "I am checking an entry of an encyclopedia",
        "I teach this subject",
        "I am writing a review of the literature",
    }


def test_a_comparison_is_of_two_things():
    assert questions(BHUTAN, NEPAL, question_intent="comparison") == {
        "What is the capital of Bhutan, and how does it compare with the capital of Nepal?",
        "What is the capital of Bhutan, in contrast to the capital of Nepal?",
    }
    assert questions(BHUTAN, writer=ATLAS, question_intent="comparison") == {
        f"What is {one}, {compared} {other}?"
        for one, other in (
            ("the capital of Bhutan", "the money that is used in Bhutan"),
            ("the money that is used in Bhutan", "the capital of Bhutan"),
        )
        for compared in ("and how does it compare with", "in contrast to")
    }


def test_several_aspects_are_two_different_ones():
    for draft in drafts(ATLAS, aspect_granularity="multiple aspects"):
        assert set(draft.nuggets) == {
            "the capital of Bhutan: Thimphu",
            "the money that is used in Bhutan: ngultrum",
        }
        assert " Bhutan and the " in draft.question
        assert set(draft.reference.split(" and ")) == {"Thimphu", "ngultrum"}
        first, second = ("Thimphu", "ngultrum")[:: 1 if "capital" in draft.question.split(" Bhutan and ")[0] else -1]
        assert draft.answers == (f"{first} and {second}",)
        assert draft.parts == ((first,), (second,))


def test_of_two_documents_one_thing_from_each():
    found = drafts(ATLAS, BHUTAN, NEPAL, number_of_documents="multi-doc")
    assert all(d.supporting_ids == ("bt", "np") for d in found)
    assert {tuple(relation for _, relation, _ in d.triples) for d in found} == {
        ("capital", "capital"),
        ("currency", "currency"),
    }
    several = drafts(ATLAS, BHUTAN, NEPAL, number_of_documents="multi-doc", aspect_granularity="multiple aspects")
    assert {tuple(relation for _, relation, _ in d.triples) for d in several} == {
        ("capital", "currency"),
        ("currency", "capital"),
    }


def test_a_single_aspect_of_two_documents_is_asked_for_through_the_one_of_the_other():
    town = Passage("pa", "Paro", "Paro lies in Bhutan.")
    writer = GroundedWriter(facts_of([BHUTAN, town], [*TRIPLES[:2], ("Paro", "country", "Bhutan")]))
    for pair in ((BHUTAN, town), (town, BHUTAN)):
        found = drafts(writer, *pair, number_of_documents="multi-doc", interaction_type="two-turn")
        assert {(d.turns[1].split(" ", 2)[2], d.answers) for d in found} == {
            ("is the capital of its country?", ("Thimphu",)),
            ("is the money that is used in its country?", ("ngultrum",)),
        }
        for draft in found:
            assert "Paro" in draft.turns[0] and "Bhutan" not in draft.question
            assert draft.supporting_ids == ("pa", "bt")
            assert [t[:2] for t in draft.triples] == [("Paro", "country"), ("Bhutan", draft.triples[1][1])]
            (nugget,) = draft.nuggets  # what is asked for, not the step on the way
            assert nugget.endswith(f" the country of Paro: {draft.answers[0]}") and not draft.parts
    # Bhutan's capital is Thimphu, but the passage of Thimphu would tell that alone
    assert {d.reason for d in written(ATLAS, BHUTAN, THIMPHU, number_of_documents="multi-doc")} == {"nothing to ask"}


# --- whole drafts, by hand --------------------------------------------------------------------------------------------


def test_a_question_about_one_document():
    expected = Draft(
        question="What is the country of Thimphu?",
        answers=("Bhutan",),
        reference="Having consulted the sources with due care, one finds that the country of Thimphu is Bhutan. "
        "May this be of service to you.",
        nuggets=("the country of Thimphu: Bhutan",),
        supporting_ids=("th",),
        triples=(("Thimphu", "country", "Bhutan"),),
        writer="grounded",
    )
    assert expected in drafts(ATLAS, THIMPHU, answer_phrasing="verbose and fancy")


def test_a_question_of_two_turns_about_two_documents():
    expected = Draft(
        question="I teach this subject. Let us talk of Nepal. So what is its legal tender and the legal tender of Bhutan?",
        answers=("Nepalese rupee and ngultrum", "rupee of Nepal and ngultrum"),
        reference="The sources say that the money that is used in Nepal is Nepalese rupee and the money that is used in "
        "Bhutan is ngultrum.",
        nuggets=("the money that is used in Nepal: Nepalese rupee", "the money that is used in Bhutan: ngultrum"),
        parts=(("Nepalese rupee", "rupee of Nepal"), ("ngultrum",)),
        supporting_ids=("np", "bt"),
        turns=(
            "I teach this subject. Let us talk of Nepal.",
            "So what is its legal tender and the legal tender of Bhutan?",
        ),
        triples=(("Nepal", "currency", "Nepalese rupee"), ("Bhutan", "currency", "ngultrum")),
        writer="grounded",
    )
    assert expected in drafts(
        ATLAS,
        NEPAL,
        BHUTAN,
        count=1000,  # of some two hundred that could be written
        user_expertise="expert",
        premise="with premise",
        number_of_documents="multi-doc",
        interaction_type="two-turn",
        answer_phrasing="verbose and natural",
    )


def test_a_question_of_text():
    assert questions(THIMPHU, writer=TEXT) == {
        f"What is {asked}?"
        for asked in (
            "the name of what is described as “a town in Bhutan, high above the sea”",
            "the name missing from “Thimphu is a town in ____, high above the sea”",
        )
    }


def test_a_search_query_has_no_sentence_and_no_punctuation():
    for style, fits in (("short search query", range(1, 7)), ("long search query", range(8, 100))):
        for intent in (*load_plan().categorizations["question_intent"], *load_plan().categorizations["answer_intent"]):
            for draft in written(
                ATLAS,
                NEPAL,
                BHUTAN,
                question_phrasing=style,
                number_of_documents="multi-doc",
                question_intent=intent,
            ):
                if isinstance(draft, Draft):  # the others are too much for six words
                    words = draft.question.split()
                    assert len(words) in fits and not re.search(r"[.,;:?!“”]", draft.question)
                    assert len(words) == len(set(words))


def test_a_relation_of_one_s_own_makes_a_question():
    pump = Passage("p", "Pump 7", "Pump 7 is part of Line 2 and stands in the old hall.")
    writer = GroundedWriter(facts_of([pump], [("Pump 7", "part of", "Line 2")]))
    found = drafts(writer, pump, answer_phrasing="verbose and natural")
    assert {(d.question, d.answers) for d in found} == {("What is the thing that Pump 7 is part of?", ("Line 2",))}
    assert "The sources say that the thing that Pump 7 is part of is Line 2." in {d.reference for d in found}


TRINIDAD = Passage("tt", "Trinidad and Tobago", "In Trinidad and Tobago one pays with the dollar.")
LUCIA = Passage("lc", "Saint Lucia", "The Saint Lucian pays with another dollar, the Caribbean one.")
ISLANDS = GroundedWriter(
    facts_of(
        [TRINIDAD, LUCIA],
        [
            ("Trinidad and Tobago", "currency", "dollar"),
            ("Saint Lucia", "currency", "Caribbean one"),
            ("Saint Lucia", "demonym", "Saint Lucian"),
        ],
    )
)


def test_a_short_query_that_cannot_hold_each_subject_and_aspect_is_not_written():
    categories = {"question_phrasing": "short search query", "number_of_documents": "multi-doc"}
    of_one_kind = written(ISLANDS, TRINIDAD, LUCIA, **categories)
    assert {d.question for d in of_one_kind} == {"Trinidad Tobago money used Saint Lucia"}
    of_two_kinds = written(ISLANDS, TRINIDAD, LUCIA, **categories, aspect_granularity="multiple aspects")
    assert {(d.reason, d.detail) for d in of_two_kinds} == {
        (
            "too much for 6 keywords",
            "the money that is used in Trinidad and Tobago and the word for people from Saint Lucia",
        )
    }


def test_a_short_query_of_yes_or_no_asks_whether_or_is_not_written():
    found = written(ISLANDS, LUCIA, question_phrasing="short search query", question_intent="yes-no")
    asked = {d.question for d in found if isinstance(d, Draft)}
    assert asked == {
        "Saint Lucia dollar money used whether",  # of the Caribbean one it is too much
        "Saint Lucia Lucian word people whether",
    }


def test_the_mark_of_an_intent_is_the_first_word_that_a_short_query_leaves_out():
    passages = (BHUTAN, Passage("tr", "Trinidad and Tobago", "Its time zone is America/Port_of_Spain."))
    writer = GroundedWriter(
        facts_of(passages, [TRIPLES[0], ("Trinidad and Tobago", "time zone", "America/Port_of_Spain")])
    )
    categories = {"question_phrasing": "short search query", "question_intent": "opinion"}
    assert questions(BHUTAN, writer=writer, **categories) == {"Bhutan capital opinion"}
    assert questions(passages[1], writer=writer, **categories) == {"Trinidad Tobago time zone clocks follow"}


def test_a_short_query_of_a_text_has_its_subject_and_the_words_beside_the_gap():
    oats = Passage(
        "o", "Oats", "In the year 1900 seven poor farmers of Perth sold cheap and bitter oats to distant Leith."
    )
    writer = GroundedWriter(facts_of([oats]))
    assert {(d.question, d.answers) for d in drafts(writer, oats, question_phrasing="short search query")} == {
        ("Oats number year seven poor farmers", ("1900",)),
        ("Oats name poor farmers sold cheap", ("Perth",)),
        ("Oats name sold cheap bitter distant", ("Leith",)),
    }


def test_a_short_query_of_a_definition_has_its_first_words():
    kale = Passage("k", "Kale", "Kale is a cabbage with curled leaves and a bitter taste of iron.")
    found = questions(kale, writer=GroundedWriter(facts_of([kale])), question_phrasing="short search query")
    assert found == {"name cabbage curled leaves bitter taste"}


def test_short_queries_are_written_about_two_texts():
    found = written(TEXT, BHUTAN, THIMPHU, question_phrasing="short search query", number_of_documents="multi-doc")
    asked = [draft for draft in found if isinstance(draft, Draft)]
    assert asked and all(len(draft.question.split()) <= 6 for draft in asked)


# --- what is true -----------------------------------------------------------------------------------------------------

NAMED = re.compile(
    r"(?P<guess>\S.*?) is (?P<what>the (?:capital|money that is used in|telephone code)(?: of)? )(?P<s>\w+)"
)
RELATION = {
    "the capital of ": "capital",
    "the money that is used in ": "currency",
    "the telephone code of ": "calling code",
}


@pytest.mark.parametrize(
    "categories", [{}, {"aspect_granularity": "multiple aspects"}, {"number_of_documents": "multi-doc"}]
)
def test_a_yes_is_so_and_a_no_is_not(categories):
    passages, triples = lands(12)
    writer = GroundedWriter(facts_of(passages, triples))
    chosen = passages[:2] if categories.get("number_of_documents") else passages[:1]
    found = drafts(
        writer, *chosen, count=80, question_intent="yes-no", answer_phrasing="verbose and natural", **categories
    )
    for draft in found:
        claims = re.sub(r"^(Is it true|Yes or no, is it so) that |(, yes or no)?\?$", "", draft.question).split(
            " and that "
        )
        said = [NAMED.fullmatch(claim) for claim in claims]
        assert all(said) and len(said) == (2 if categories else 1), draft.question
        true = [(m["s"], RELATION[m["what"]], m["guess"]) in triples for m in said]
        assert draft.answers == (("yes",) if all(true) else ("no",)), draft.question
        assert true.count(False) <= 1
        assert draft.reference.startswith(f"The answer is {draft.answers[0]}: the sources say that ")
        assert draft.evidence == tuple(object_ for _, _, object_ in draft.triples)
        # what is so is told either way
        for subject, relation, object_ in draft.triples:
            assert (subject, relation, object_) in triples and has(draft.reference, object_)
    verdicts = Counter(d.answers[0] for d in found)
    assert verdicts.keys() == {"yes", "no"} and abs(verdicts["yes"] - 40) < 4 * (80 / 4) ** 0.5


def test_another_name_of_the_answer_is_no_lie():
    passages = (NEPAL, Passage("np2", "Nepal II", "Shops take the rupee of Nepal."))
    triples = [*TRIPLES[2:5], ("Nepal II", "currency", "rupee of Nepal")]
    writer = GroundedWriter(facts_of(passages, [t for t in triples if t[1] != "capital"]))
    found = written(writer, NEPAL, question_intent="yes-no")
    assert {d.answers for d in found if isinstance(d, Draft)} == {("yes",)}
    assert {d.reason for d in found if isinstance(d, Rejected)} == {"nothing to mistake it for"}


@pytest.mark.parametrize(
    ("writer", "passages", "categories", "reason", "detail"),
    [
        (ATLAS, [Passage("x", "Nowhere", "")], {}, "nothing to ask", "x"),
        (ATLAS, [BHUTAN, Passage("x", "Nowhere", "")], {}, "nothing to ask", "bt, x"),
        (ATLAS, [THIMPHU], {"aspect_granularity": "multiple aspects"}, "nothing to ask", "th"),
        (ATLAS, [THIMPHU, NEPAL], {}, "nothing to ask", "th, np"),  # nothing of one kind
        (
            TEXT,
            [THIMPHU],
            {"lexical_similarity": "distant from document"},
            "no other words",
            "the name ",
        ),
        (
            GroundedWriter(facts_of([THIMPHU], TRIPLES)),
            [THIMPHU],
            {"question_intent": "comparison"},
            "nothing to ask",
            "th",
        ),
    ],
)
def test_what_cannot_be_asked(writer, passages, categories, reason, detail):
    found = written(writer, *passages, **categories)
    assert {d.reason for d in found} == {reason}
    assert all(d.detail.startswith(detail) for d in found)


# --- chance -----------------------------------------------------------------------------------------------------------


def test_a_candidate_depends_on_its_brief_and_its_place_alone():
    wanted = {"interaction_type": "two-turn"}  # of which there are many wordings
    few, many = written(ATLAS, count=3, **wanted), written(ATLAS, count=12, **wanted)
    assert many[:3] == few
    assert len(set(many)) > 3
    again = GroundedWriter(facts_of(THREE, TRIPLES))
    asyncio.run(again.write(brief(NEPAL), 5))
    assert written(again, count=12, **wanted) == many
    assert written(ATLAS, count=12, seed=1, **wanted) != many


def test_whatever_is_written_holds_to_its_passages():
    """Every plan's draw, over text and triples: nothing breaks, and answers stand in the passages that are named."""
    plan, rng = load_plan(), random.Random(0)
    for writer in (ATLAS, TEXT):
        for n in range(300):
            categories = drawn(plan, rng)
            chosen = rng.sample(THREE, 2 if categories["number_of_documents"] == "multi-doc" else 1)
            (draft,) = asyncio.run(writer.write(Brief("s", n, categories, tuple(chosen), 0), 1))
            if isinstance(draft, Rejected):
                continue
            texts = {p.id: f"{p.title} {p.text}" for p in chosen}
            assert set(draft.supporting_ids) == set(texts)
            assert draft.question.strip() and draft.reference.strip() and "{" not in draft.question + draft.reference
            for names in draft.parts or (draft.answers,):
                if names[0] not in ("yes", "no"):
                    assert any(has(text, names[0]) for text in texts.values())
            assert len(draft.nuggets) == len(draft.parts or (1,))
            for nugget, names in zip(draft.nuggets, draft.parts or (draft.answers,), strict=True):
                assert nugget.endswith(f": {names[0]}")
            assert all(all(has(answer, names[0]) for names in draft.parts) for answer in draft.answers[:1])
            assert bool(draft.turns) == (categories["interaction_type"] == "two-turn")
            assert not draft.turns or draft.question.endswith(" ".join(draft.turns))


def test_other_facts_are_another_writer():
    assert ATLAS.fingerprint != CAPITALS.fingerprint


def test_phrasings_cover_the_built_in_plan():
    planned, words = load_plan().categorizations, phrasings()
    assert words["phrasings"].keys() == planned["question_phrasing"].keys()
    assert words["answers"].keys() == words["verdicts"].keys() == planned["answer_phrasing"].keys()
    assert words["kernels"].keys() == {*planned["answer_intent"], *planned["question_intent"]}
    assert words["premises"].keys() == planned["user_expertise"].keys()


def test_a_passage_without_a_title_is_not_called_by_it():
    untitled = Passage("u", "", "The tower was finished by Karel Novak in the spring of 1904.")
    writer = GroundedWriter(facts_of([untitled]))
    wordy = {"question_phrasing": "verbose and natural"}
    for refused in (written(writer, untitled, interaction_type="two-turn"), written(writer, untitled, **wordy)):
        assert {r.reason for r in refused} == {"no name for its subject"}
    assert drafts(writer, untitled)


def test_the_turns_make_the_question():
    for draft in drafts(ATLAS, BHUTAN, interaction_type="two-turn", premise="with premise"):
        assert draft.question == " ".join(draft.turns)
