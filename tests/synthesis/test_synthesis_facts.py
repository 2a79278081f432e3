"""What passages say: which facts are taken out of triples and out of text, and which are left."""

import pytest
from lands import THIMPHU, THREE, TRIPLES

from dragoman.core.types import Passage
from dragoman.synthesis.facts import (
    Fact,
    facts_of,
    left_out,
    mentions,
    phrase,
    relations,
    sentences,
    spans,
    through,
    unambiguous,
)


def test_facts_of_triples_by_passage():
    facts = facts_of(THREE, TRIPLES)
    assert {id: [(f.aspect, f.answers, f.triple) for f in found] for id, found in facts.items()} == {
        "bt": [("capital", ("Thimphu",), TRIPLES[0]), ("currency", ("ngultrum",), TRIPLES[1])],
        "np": [
            ("capital", ("Kathmandu",), TRIPLES[2]),
            ("currency", ("Nepalese rupee", "rupee of Nepal"), TRIPLES[3]),
        ],
        "th": [("country", ("Bhutan",), TRIPLES[5])],
    }
    assert facts["bt"][0] == Fact(
        "bt",
        "capital",
        "Bhutan",
        "the capital of {s}",
        "the seat of government of {s}",
        "the town from which {s} is ruled",
        ("Thimphu",),
        ("Bhutan", "capital", "Thimphu"),
    )


@pytest.mark.parametrize(
    "triple",
    [
        pytest.param(("Bhutan", "currency", "Indian rupee"), id="two things stand in the answer's place"),
        pytest.param(("Bhutan", "continent", "Oceania"), id="the passage does not say it"),
        pytest.param(("Bhutan", "borders", "Asia"), id="a relation that is not asked for"),
        pytest.param(("Asia", "capital", "Thimphu"), id="no passage about the subject"),
    ],
)
def test_triples_that_cannot_be_asked_for(triple):
    before = {f.aspect for f in facts_of(THREE, TRIPLES)["bt"]}
    after = {f.aspect for f in facts_of(THREE, [*TRIPLES, triple])["bt"]}
    assert after == (before - {"currency"} if triple[1] == "currency" else before)


def test_triples_that_are_not_asked_for_are_counted_by_their_reason():
    triples = [
        *TRIPLES,
        ("Bhutan", "currency", "Indian rupee"),
        ("Bhutan", "continent", "Oceania"),
        ("Bhutan", "borders", "Asia"),
        ("Asia", "capital", "Thimphu"),
        ("Asia", "capital city", "Thimphu"),
        ("Nepal", "article", "the"),
    ]
    assert left_out(THREE, TRIPLES) == {}
    assert left_out(THREE, triples) == {
        "with several objects for one question": 2,
        "about what no passage has as its title": 2,
        "that no passage about their subject says": 1,
        "of relations that relations.yaml leaves out": 1,
        "with a small word as object": 1,
    }


@pytest.mark.parametrize(
    ("relation", "said"),
    [
        ("part of", "the thing that Pump 7 is part of"),
        ("installed_by", "the thing that Pump 7 is installed by"),
        ("is_part_of", "the thing that Pump 7 is part of"),
        ("was built by", "the thing that Pump 7 was built by"),
        ("owner", "the owner of Pump 7"),
        ("the owner", "the owner of Pump 7"),
    ],
)
def test_a_relation_of_one_s_own_is_asked_for_in_its_own_words(relation, said):
    pump = Passage("p", "Pump 7", "The men of Acme set up Pump 7 in 1990.")
    (fact,) = facts_of([pump], [("Pump 7", relation, "Acme")])["p"]
    assert (phrase(fact, "plain"), phrase(fact, "expert"), fact.distant) == (said, said, "")
    assert (fact.aspect, fact.answers) == (relation, ("Acme",))


def test_a_fact_by_way_of_a_relation_without_distant_words_has_none():
    pump = Passage("p", "Pump 7", "It was built by Acme.")
    acme = Passage("a", "Acme", "It has its seat in the country of Bhutan.")
    facts = facts_of([pump, acme], [("Pump 7", "built by", "Acme"), ("Acme", "country", "Bhutan")])
    found = through(facts["p"][0], facts["a"][0])
    assert phrase(found, "plain") == "the country of the thing that Pump 7 is built by"
    assert found.distant == ""


def test_a_triple_is_asked_of_whichever_passage_of_its_title_says_it():
    parts = [Passage("a#1", "Argon", "It is a gas."), Passage("a#2", "Argon", "It was found by Rayleigh.")]
    assert facts_of(parts, [("Argon", "found by", "Rayleigh")])["a#2"][0].answers == ("Rayleigh",)


def test_a_passage_without_a_stated_fact_is_read_where_half_of_them_have_none():
    perth = Passage("o", "Oats", "In the year 1900 farmers of Perth sold oats to Leith.")
    facts = facts_of([THIMPHU, perth], TRIPLES)
    assert [f.aspect for f in facts["th"]] == ["country"]
    assert [f.answers[0] for f in facts["o"]] == ["Perth", "Leith", "1900"]
    assert facts_of([*THREE, perth], TRIPLES) == facts_of(THREE, TRIPLES)


@pytest.mark.parametrize(
    ("relation", "answer", "text", "asked"),
    [
        ("internet domain", ".pl", "Its web addresses end in .pl.", True),
        ("internet domain", ".pl", "Its short form is PL.", False),
        ("calling code", "+354", "It is dialled as +354.", True),
        ("calling code", "+354", "It has 354,000 inhabitants.", False),
        ("symbol", "Pa", "Its symbol is Pa.", True),
        ("symbol", "Pa", "It made his pa rich.", False),
        ("atomic number", "18", "It is element 18.", True),
        ("atomic number", "18", "It melts at 18.5 degrees.", False),
    ],
)
def test_a_short_or_marked_answer_is_asked_for_only_where_it_stands_as_it_is_written(relation, answer, text, asked):
    assert bool(facts_of([Passage("x", "Erehwon", text)], [("Erehwon", relation, answer)])) == asked


@pytest.mark.parametrize(("relation", "answer"), [("internet domain", ".in"), ("symbol", "I"), ("symbol", "No")])
def test_an_answer_that_scores_as_a_small_word_is_not_asked_for(relation, answer):
    assert not facts_of([Passage("x", "Erehwon", f"Its short form is {answer}.")], [("Erehwon", relation, answer)])


def test_a_number_has_no_other_names():
    passage = Passage("a", "Argon", "Argon has the atomic number 18.")
    triples = [("Argon", "atomic number", "18"), ("18", "also called", "eighteen")]
    assert [f.answers for f in facts_of([passage], triples)["a"]] == [("18",)]


@pytest.mark.parametrize(
    ("number", "names"),
    [
        ("1,750,000", ("1,750,000", "1.75 million")),
        ("12,000,000", ("12,000,000", "12 million")),
        ("750,000", ("750,000",)),
        ("1,750,000,000", ("1,750,000,000",)),
    ],
)
def test_millions_may_be_said_in_words(number, names):
    passage = Passage("a", "Argon", f"Argon has {number} inhabitants.")
    assert facts_of([passage], [("Argon", "population", number)])["a"][0].answers == names


def test_every_relation_has_three_wordings_of_its_own():
    for name, words in relations().items():
        if words is None:  # it is not asked for
            continue
        assert words.keys() == {"plain", "expert", "distant"}, name
        assert len(set(words.values())) == 3, name
        assert all(wording.count("{s}") == 1 for wording in words.values()), name


def test_text_is_read_where_no_triple_can_be_asked_for():
    facts = facts_of([THIMPHU], [("Thimphu", "borders", "Bhutan")])["th"]
    assert [f.aspect for f in facts] == ["definition", "name"]
    assert all(f.triple is None for f in facts)
    definition, name = facts
    assert definition.plain == "the name of what is described as “a town in Bhutan, high above the sea”"
    assert definition.expert == "the designation of what is defined as “a town in Bhutan, high above the sea”"
    assert definition.answers == ("Thimphu",)
    assert name.plain == "the name missing from “Thimphu is a town in ____, high above the sea”"
    assert name.expert == "the exact name that completes “Thimphu is a town in ____, high above the sea”"
    assert (name.answers, name.distant) == (("Bhutan",), "")


def test_a_name_that_a_sentence_links_with_several_is_not_asked_for_by_it():
    several = "In 1900 farmers of Perth and smiths of Cupar sold oats to Leith. In 1912 Leith was left by the Danes."
    found = facts_of([Passage("o", "Oats", several)])["o"]
    assert {(f.answers[0], f.distant) for f in found} == {
        ("Perth", ""),  # with Leith the account links Cupar and the Danes too
        ("Cupar", ""),
        ("Leith", ""),
        ("Leith", "the name that the account of Oats links with Danes"),  # in the second sentence
        ("Danes", ""),
        ("1900", "the number that the account of Oats links with Perth"),
        ("1912", "the number that the account of Oats links with Danes"),  # with Leith it links 1900 too
    }


def kept(*passages):
    """The aspects and answers of the facts that are left of some passages, and how many are not."""
    clear, left_out = unambiguous(facts_of(passages), passages)
    return {(f.aspect, f.answers[0]) for known in clear.values() for f in known}, left_out


def test_a_sentence_with_one_gap_and_two_answers_is_asked_for_in_no_passage():
    one = Passage("a", "Cold Sea", "It was released in the year 1971 by a small label.")
    other = Passage(
        "b", "Warm Sea", "It was released in the year 1983 by a small label. Nobody had bought it before 1990."
    )
    assert kept(one, other) == ({("number", "1990")}, 2)
    again = Passage("c", "Cold Sea", one.text)
    assert kept(one, again) == ({("number", "1971")}, 0)  # of one answer there may be several passages


@pytest.mark.parametrize(
    ("text", "others"),
    [
        pytest.param("Jane Doe is an American actress.", 1, id="the same definition"),
        pytest.param("Jane Doe is an American actress and singer.", 0, id="one that says more"),
        pytest.param("The play was written for Jane Doe, an American actress.", 0, id="within a sentence"),
    ],
)
def test_a_definition_that_is_true_of_something_else_is_not_asked_for(text, others):
    first = Passage("a", "Ann Other", "Ann Other is an American actress.")
    assert kept(first) == ({("definition", "Ann Other"), ("name", "American")}, 0)
    facts, left_out = kept(first, Passage("b", "Jane Doe", text))
    assert ("definition", "Ann Other") not in facts and left_out == 1 + others


def test_a_definition_that_only_passages_of_its_own_title_repeat_is_asked_for():
    chunks = [Passage(f"a{i}", "Ann Other", "Ann Other is an American actress.") for i in range(2)]
    assert kept(*chunks) == ({("definition", "Ann Other"), ("name", "American")}, 0)


def test_facts_of_triples_are_left_out_where_two_names_are_one_when_said():
    passages = [
        Passage("a", "São Tomé", "Its capital is Arville."),
        Passage("b", "Sao Tome", "Its capital is Boville."),
    ]
    triples = [("São Tomé", "capital", "Arville"), ("Sao Tome", "capital", "Boville")]
    assert unambiguous(facts_of(passages, triples), passages) == ({}, 2)


def test_a_gap_can_be_asked_for_in_other_words_by_another_name_of_its_sentence():
    passage = Passage("o", "Oats", "In the year 1900 farmers of Perth sold oats to Leith.")
    assert {(f.aspect, f.answers, f.distant) for f in facts_of([passage])["o"]} == {
        ("name", ("Perth",), "the name that the account of Oats links with Leith"),
        ("name", ("Leith",), "the name that the account of Oats links with Perth"),
        ("number", ("1900",), "the number that the account of Oats links with Perth"),
    }


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("He went to Rome for six whole days.", ["Rome"]),
        ("He went to Rome often.", []),  # five words
        (f"He went to Rome {'and on ' * 14}again.", []),  # 33 words
        ("He went from Rome to Rome for days.", []),  # either gap could be filled from the other
        ("He met Al in a very old town.", []),  # two letters
        ("Rome was far too hot for him then.", []),  # a sentence's first word is no gap
        ("He went to see the Orchard for days.", []),  # the title gives it away
        ("He went to Rome for six whole days", []),  # cut off
    ],
)
def test_which_gaps_are_made(text, asked):
    found = facts_of([Passage("x", "Orchard", text)]).get("x", [])
    assert [f.answers[0] for f in found] == asked


@pytest.mark.parametrize(
    ("title", "text", "defined"),
    [
        ("Kale", "Kale is a cabbage with curled leaves.", True),
        ("Kale", "Kale and chard are the greens of winter gardens.", True),
        ("Kale", "Curly kale is a kind of kale with curled leaves.", False),  # says its own answer
        ("Kale", "Chard is a beet with large green leaves.", False),  # of something else
        ("", "Kale is a cabbage with curled leaves.", False),
        ("Kale", "It grows in every garden all year. Kale is a cabbage with curled leaves.", False),  # not first
    ],
)
def test_which_definitions_are_found(title, text, defined):
    found = facts_of([Passage("x", title, text)]).get("x", [])
    assert [f.answers for f in found if f.aspect == "definition"] == ([(title,)] if defined else [])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("He met Clara O'Brien of Perth in 1874.", ["Clara O'Brien of Perth", "1874"]),
        ("It was built on 4 May 1874 and sold in June 1901.", ["4 May 1874", "June 1901"]),
        ("It opened on May 4, 1874, before 2,000 people.", ["2,000", "May 4, 1874"]),
        ("He read Dante's Inferno, then Dante again.", ["Dante", "Inferno"]),
        ("He read the Orchard, and the orchard was green.", []),  # the title; and a word that is no name elsewhere
        ("Hall 4 has the X-200/B, in EN-ISO-4064/2 of non-European make.", ["X-200/B", "EN-ISO-4064/2"]),
        ("Order 4711-0815 is of 2019/20, for 1990-1995, in a 10-year plan.", ["4711-0815", "2019/20", "1990-1995"]),
        ("It costs 1,500.50, or 12/kg, since 1990.", ["1,500.50", "1990"]),
        ("Perth lies far off", []),  # cut off
    ],
)
def test_the_spans_that_may_be_asked_for(text, found):
    assert spans(Passage("x", "Orchard", text)) == found


def test_what_a_question_mentions():
    assert mentions("I read of it. Is Thimphu, with 1,000 souls, in Bhutan?") == ["Thimphu", "Bhutan", "1,000"]


def test_a_fact_by_way_of_another():
    facts = facts_of(THREE, TRIPLES)
    found = through(facts["th"][0], facts["bt"][0])
    assert phrase(found, "plain") == "the capital of the country of Thimphu"
    assert phrase(found, "distant", "it") == "the town from which the nation on whose soil one finds it is ruled"
    assert (found.answers, found.subject, found.passage) == (("Thimphu",), "Thimphu", "bt")


def test_sentences_of_markdown():
    text = """# Heading of the file. Not a sentence.
The **first** one, with `code` and [a link](https://x.y). A second? "A third!"
| a table | of cells |
```python
This is code. It is no sentence.
```
- [a link](https://x.y) in a list
- An item that says something.
2. Another.
<div>markup</div>
    indented code
One that goes on
over the line, at 3.5 metres.

What is cut off where a chunk"""
    assert sentences(text) == [
        "The first one, with code and a link.",
        "A second?",
        '"A third!"',
        "An item that says something.",
        "Another.",
        "One that goes on over the line, at 3.5 metres.",
    ]


def test_a_phrase_is_about_its_subject_or_what_stands_for_it():
    capital = facts_of(THREE, TRIPLES)["np"][0]
    assert phrase(capital, "plain") == "the capital of Nepal"
    assert phrase(capital, "distant", "it") == "the town from which it is ruled"


def test_braces_of_a_text_are_left_alone():
    passage = Passage("t", "Templates", "Write {s} and Jinja fills in what it stands for.")
    (fact,) = facts_of([passage])["t"]
    assert phrase(fact, "plain") == "the name missing from “Write {s} and ____ fills in what it stands for”"
