from collections import Counter

import pytest

from dragoman.core.errors import UserError
from dragoman.core.text import has
from dragoman.corpus.atlas.facts import ALIAS, LINKS, settled_by_hand
from dragoman.corpus.atlas.passages import choose, render
from dragoman.corpus.atlas.questions import SHARES, make, number, split_clusters
from dragoman.corpus.atlas.verify import TripleIndex, verify
from dragoman.systems.mujica.topics import topic_entities

CHAINS = ("single_hop", "compositional", "inference")


def everything(atlas_questions):
    return [question for asked in atlas_questions.values() for question in asked]


def halves(question):
    """The path of a chain, or the two paths of a comparison."""
    if question.type in CHAINS:
        return [question.triples]
    middle = len(question.triples) // 2
    return [question.triples[:middle], question.triples[middle:]]


def start_of(path, question):
    """Where a path starts: at the end of its first fact that is neither the next stop nor the answer."""
    after = (
        {path[1][0], path[1][2]}
        if len(path) > 1
        else set(question.answers)
        if question.type in CHAINS
        else {path[0][2]}
    )
    return next(end for end in (path[0][0], path[0][2]) if end not in after)


def test_counts_and_types(atlas_questions):
    assert {split: len(asked) for split, asked in atlas_questions.items()} == {"train": 600, "dev": 150, "test": 150}
    for asked in atlas_questions.values():
        types = Counter(question.type for question in asked)
        for kind, share in SHARES.items():
            assert abs(types[kind] - share * len(asked) / 100) <= 2


def test_nothing_is_asked_twice(atlas_questions):
    asked = everything(atlas_questions)
    assert len({q.id for q in asked}) == len({q.question for q in asked}) == 900


def test_a_chain_starts_in_the_graph_from_entities_that_are_no_answers(atlas_questions):
    chains = [question for question in everything(atlas_questions) if question.type in CHAINS]
    assert [q.id for q in chains if {*topic_entities(q)} & {*q.answers}] == []


def test_answers_follow_from_the_triples(atlas_folder, atlas_questions):
    lines = (atlas_folder / "triples.tsv").read_text(encoding="utf-8").splitlines()
    index = TripleIndex(tuple(line.split("\t")) for line in lines)
    for question in everything(atlas_questions):
        assert verify(question, index) == [], question


def test_gold_passages_hold_the_answer(atlas_passages, atlas_questions):
    for question in everything(atlas_questions):
        texts = [atlas_passages[i].title + ". " + atlas_passages[i].text for i in question.supporting_ids]
        if question.answers[0] not in ("yes", "no"):
            assert any(has(text, answer) for text in texts for answer in question.answers), question


def test_every_hop_is_in_a_gold_passage(atlas, atlas_passages, atlas_questions):
    """Both ends of every fact of the path stand in one of the gold passages, by one of their names."""
    for question in everything(atlas_questions):
        texts = [atlas_passages[i].title + ". " + atlas_passages[i].text for i in question.supporting_ids]
        for subject, _, object_ in question.triples:
            names = [[end, *(e.aliases if (e := atlas.entities.get(end)) else ())] for end in (subject, object_)]
            assert any(all(any(has(t, n) for n in group) for group in names) for t in texts), question


def test_gold_passages_are_as_many_as_the_hops_need(atlas_questions):
    for question in everything(atlas_questions):
        needed = {"single_hop": 1, "compositional": 2, "inference": 2, "comparison": 2, "bridge_comparison": 3}
        assert len(set(question.supporting_ids)) == len(question.supporting_ids) >= needed[question.type]


def test_answers_are_short_and_not_given_away(atlas_questions):
    for question in everything(atlas_questions):
        assert all(answer.strip() and len(answer.split()) <= 6 for answer in question.answers)
        if question.type in CHAINS:
            assert not any(has(question.question, answer) for answer in question.answers), question
        elif question.answers[0] not in ("yes", "no"):
            assert any(has(question.question, answer) for answer in question.answers), question


def test_no_answer_dominates(atlas_questions):
    for asked in atlas_questions.values():
        answers = Counter(question.answers[0] for question in asked)
        assert (answers["yes"] + answers["no"]) / len(asked) <= 0.1
        assert abs(answers["yes"] - answers["no"]) <= 0.03 * len(asked)
        assert max(count for answer, count in answers.items() if answer not in ("yes", "no")) <= 0.04 * len(asked)


def test_the_place_of_an_answer_in_a_comparison_says_nothing(atlas_questions):
    contests = [q for q in everything(atlas_questions) if q.type == "comparison" and q.answers[0] not in ("yes", "no")]
    first = [q for q in contests if q.triples[0][0] == q.answers[0]]
    assert 0.35 < len(first) / len(contests) < 0.65


def test_splits_ask_about_different_things(atlas, atlas_questions):
    """Not the same start in two splits, and not even the same cluster: a country with its cities, money and language."""
    clusters: dict[str, set[str]] = {}
    for split, asked in atlas_questions.items():
        found = set()
        for question in asked:
            for path in halves(question):
                subject, relation, object_ = path[0]
                start = start_of(path, question)
                literal = start == object_ and relation not in LINKS
                found.add(atlas.entities[subject if literal else start].cluster)
        clusters[split] = found
    assert not clusters["train"] & clusters["dev"]
    assert not clusters["train"] & clusters["test"]
    assert not clusters["dev"] & clusters["test"]


def test_phrasings_vary(atlas_questions):
    words = Counter(" ".join(question.question.split()[:3]) for question in everything(atlas_questions))
    assert len(words) > 120 and max(words.values()) < 0.15 * 900


def test_the_clusters_of_a_split_are_in_proportion(atlas):
    entities = choose(atlas, 1500, seed=0)
    of = split_clusters(entities, {"train": 600, "dev": 150, "test": 150}, seed=5)
    countries = Counter(of[e.cluster] for e in entities if e.kind == "country")
    assert 110 < countries["train"] < 150 and min(countries["dev"], countries["test"]) > 20
    assert of == split_clusters(entities, {"train": 600, "dev": 150, "test": 150}, seed=5)
    assert of != split_clusters(entities, {"train": 600, "dev": 150, "test": 150}, seed=6)
    none = split_clusters(entities, {"train": 0, "dev": 0, "test": 10}, seed=5)
    assert set(none.values()) == {"test"}


@pytest.mark.parametrize("seed", [1, 2])
def test_a_small_corpus_has_questions_too(atlas, seed):
    entities = choose(atlas, 300, seed)
    pages = render(atlas, entities, seed)
    questions = make(atlas, entities, pages, {"train": 30, "dev": 12, "test": 12}, seed)
    ids = {page.passage.id for page in pages}
    asked = everything(questions)
    assert len(asked) == 54 and {q.type for q in asked} == set(SHARES)
    assert all(set(question.supporting_ids) <= ids for question in asked)
    index = TripleIndex({*atlas.facts} | {t for t in atlas.facts if t[1] == ALIAS})
    assert all(verify(question, index) == [] for question in asked)


def test_too_many_questions(atlas):
    entities = choose(atlas, 60, seed=0)
    with pytest.raises(UserError, match="different questions for train, not 5000"):
        make(atlas, entities, render(atlas, entities, seed=0), {"train": 5000, "dev": 1, "test": 1}, seed=0)


def test_the_table_of_patterns():
    for kind, patterns in settled_by_hand("patterns.yaml").items():
        assert kind in SHARES
        for pattern in patterns:
            texts = [t for side in ("ask", "more", "less", "same") for t in pattern.get(side, ())]
            slots = ("{0}",) if "ask" in pattern else ("{0}", "{1}")
            assert texts and all(text.count(slot) == 1 for text in texts for slot in slots)
            assert all(text[-1] in "?." for text in texts)
            assert ("more" in pattern) == ("apart" in pattern or "factor" in pattern) == ("less" in pattern)


def test_number():
    assert [number(t) for t in ("754,000", "-259 °C", "1898", "27.5° N", "33.9° S")] == [
        754000,
        -259,
        1898,
        27.5,
        -33.9,
    ]
