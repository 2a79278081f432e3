"""One definition renders, parses and constrains: what is rendered is parsed back, and the sampler can say it."""

import re
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.text import figures, names, plain_line
from dragoman.systems.c3po import actions
from dragoman.systems.c3po.actions import Answer, Keep, KeepAll, NoRetrieval, Plan, Search
from dragoman.systems.grammar import (
    Alias,
    Form,
    HallucinatedIndex,
    Indices,
    InvalidAction,
    Keywords,
    Line,
    OneOf,
    Span,
    Titles,
)
from dragoman.systems.names import copied

THOUGHTS = Line(120)
lines = st.text(max_size=80).map(lambda t: plain_line(t.translate({91: None, 93: None}))).filter(bool)


def selections(n: int):
    return st.sets(st.integers(1, n)).map(lambda s: tuple(sorted(s))) if n else st.just(())


router_actions = st.one_of(st.just(NoRetrieval()), st.just(Plan()), lines.map(Search))
decisions = st.one_of(st.builds(Search, lines, lines), st.builds(Answer, lines))
filters = st.integers(0, 10).flatmap(lambda n: st.tuples(st.just(n), st.builds(Keep, selections(n), lines)))


def check_round_trip(grammar, action):
    text = grammar.render(action)
    assert grammar.parse(text) == action
    assert grammar.parse(f" {text} \n") == action
    assert re.fullmatch(grammar.constraint().regex, text)


@given(router_actions)
def test_router(action):
    check_round_trip(actions.router([Line()]), action)


@given(decisions)
def test_decision_maker_with_thoughts(action):
    check_round_trip(actions.decision_maker([Line()], THOUGHTS), action)


@given(lines)
def test_decision_maker_without_thoughts(query):
    for action in (Search(query), Answer()):
        check_round_trip(actions.decision_maker([Line()], None), action)


@given(filters)
def test_filter(case):
    n, action = case
    for ids in (Indices(n), Titles.of([f"Tower {i}" for i in range(n)], reserved=actions.ALL)):
        check_round_trip(actions.information_filter(ids, THOUGHTS), action)
        check_round_trip(actions.information_filter(ids, None), Keep(action.ids))
        check_round_trip(actions.information_filter(ids, THOUGHTS), KeepAll(action.thought))
        check_round_trip(actions.information_filter(ids, None), KeepAll())


@given(st.lists(st.text(max_size=30), max_size=6), st.data())
def test_any_texts_make_titles_to_select_by(texts, data):
    titles = Titles.of(texts, reserved=actions.ALL)
    assert len(titles.titles) == len(texts)
    action = Keep(data.draw(selections(len(texts))))
    check_round_trip(actions.information_filter(titles, None), action)


def test_titles_are_told_apart_and_unknown_ones_refused():
    titles = Titles.of(["Bhutan", "", "bhutan", "all", "Thimphu; its [old] town"], reserved=actions.ALL)
    assert titles.titles == ("Bhutan", "(2)", "bhutan (3)", "all (4)", "Thimphu its old town")
    grammar = actions.information_filter(titles, None)
    assert grammar.parse("Action: [thimphu its old town;Bhutan ]") == Keep((1, 5))
    assert grammar.parse("Action: [all]") == KeepAll()
    with pytest.raises(HallucinatedIndex, match="no passage has the title 'Tibet'"):
        grammar.parse("Action: [Bhutan; Tibet]")
    assert not re.fullmatch(titles.strict, "bhutan (3); Bhutan")
    assert Titles.of(["不丹的首都是廷布。" * 50]).titles == (("不丹的首都是廷布。" * 50)[:60],)
    assert Titles.of([]).strict == ""


@given(st.integers(0, 7).flatmap(lambda n: st.tuples(st.just(n), st.permutations(range(1, 9)))))
def test_the_sampler_can_select_sets_only(case):
    n, order = case
    text = ", ".join(map(str, order[:2]))
    allowed = re.fullmatch(Indices(n).strict, text) is not None
    assert allowed == (order[0] < order[1] <= n)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Action: [1,3]", (1, 3)),
        ("Action: [ 3 , 1 ]", (1, 3)),
        ("action", None),
        ("Action: []", ()),
        ("Action: [2, 2]", (2,)),
    ],
)
def test_the_parser_forgives_white_space_and_order(text, ids):
    grammar = actions.information_filter(Indices(3), None)
    if ids is None:
        with pytest.raises(InvalidAction):
            grammar.parse(text)
    else:
        assert grammar.parse(text) == Keep(ids)


def test_an_index_that_is_not_there_is_told_apart():
    with pytest.raises(HallucinatedIndex, match="3 passages"):
        actions.information_filter(Indices(3), None).parse("Action: [4]")
    with pytest.raises(HallucinatedIndex):
        OneOf(actions.information_filter(Indices(0), None)).parse("Action: [1]")


@pytest.mark.parametrize("query", ["", "  ", "two\nlines", "a  b", " a", "[LLM]", "x" * 201])
def test_what_has_no_text_is_refused(query):
    with pytest.raises(InvalidAction):
        actions.router([Line(200)]).render(Search(query))


CONTROL = "\x00\x07\x1b\x1f\x7f\x85\x9b\u2028\u2029"


@pytest.mark.parametrize("slot", [Line(), Keywords(), Span(sources=(("a b", 1, 2),)), Alias(name="it")])
@pytest.mark.parametrize("control", CONTROL)
def test_control_characters_in_what_is_written_are_read_as_spaces_and_not_rendered(slot, control):
    router = actions.router([slot])
    assert router.parse(f"[Retrieval] {control}Who{control}{control} rules Tibet?{control}") == Search(
        "Who rules Tibet?"
    )
    with pytest.raises(InvalidAction):
        router.parse(f"[Retrieval] {control}")
    with pytest.raises(InvalidAction, match="not one plain line"):
        router.render(Search(f"Who{control}rules Tibet?"))


@pytest.mark.parametrize("control", CONTROL)
def test_control_characters_around_an_action_cost_it_nothing(control):
    router = actions.router([Line()])
    assert router.parse(f"{control}[Planning]{control}") == Plan()
    assert router.parse(f"[No{control}Retrieval]\n{control}") == NoRetrieval()


def test_keywords_that_control_characters_set_apart_are_counted_apart():
    assert Keywords(most=2).parse("red\x00blue green") == "red blue"


@given(st.text(st.sampled_from("ab .[" + CONTROL)))
def test_what_is_copied_from_a_text_with_control_characters_can_be_said(text):
    query = copied(text, 100)
    if query:
        check_round_trip(actions.router([Span(100, ((text, 99, 99),))]), Search(query))


def test_a_title_is_taken_without_its_control_characters_however_it_is_said():
    titles = Titles.of(["The\x00Tower\x1b", "Hill"])
    assert titles.titles == ("The Tower", "Hill")
    assert titles.parse("the\x00tower; \x7f; Hill") == titles.parse("The Tower; Hill") == (1, 2)


def test_alternatives_are_the_kinds_of_action():
    kinds = actions.router([Line()]).alternatives()
    assert [k.cls for k in kinds] == [NoRetrieval, Search, Plan]
    assert re.fullmatch(kinds[1].constraint().regex, "[Retrieval] x") and not re.fullmatch(
        kinds[1].constraint().regex, "[Planning]"
    )


def test_two_forms_of_one_class_are_one_alternative_that_says_either():
    forms = actions.router([Alias(name="question", stands_for="Who was Ada?"), Line()])
    kinds = forms.alternatives()
    assert [k.cls for k in kinds] == [NoRetrieval, Search, Plan]
    texts = ("[No Retrieval]", "[Retrieval] question", "[Retrieval] Ada", "[Planning]")
    allowed = [[k.cls for k in kinds if re.fullmatch(k.constraint().regex, text)] for text in texts]
    assert allowed == [[NoRetrieval], [Search], [Search], [Plan]]
    check_round_trip(kinds[1], Search("Ada"))
    check_round_trip(kinds[1], Search("Who was Ada?"))


def test_an_alternative_is_its_own_only_one():
    (kind,) = actions.router([Line(), Line(5)], "Search").alternatives()
    (same,) = kind.alternatives()
    assert same.cls == kind.cls == Search and same.constraint() == kind.constraint()


def test_forms_of_different_classes_are_their_own_alternatives_and_have_no_class_together():
    forms = [Form(NoRetrieval, "[No Retrieval]"), Form(Plan, "[Planning]")]
    assert OneOf(*forms).alternatives() == forms
    with pytest.raises(ValueError, match="too many values"):
        OneOf(*forms).cls  # noqa: B018


def test_a_template_must_fit_its_dataclass():
    @dataclass(frozen=True)
    class Empty:
        pass

    with pytest.raises(ValueError, match="does not fit"):
        Form(Empty, "{query}", query=Line())


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Z")), min_size=1, max_size=8)


@given(
    st.lists(st.lists(WORDS, min_size=1, max_size=12).map(" ".join), min_size=1, max_size=3),
    st.integers(1, 5),
    st.integers(0, 4),
)
def test_a_span_is_a_run_of_words_of_one_text(texts, fewest, more):
    most = fewest + more
    span = Span(100, tuple((text, fewest, most) for text in texts))
    pattern = re.compile(span.strict)
    bare = [
        [w for w in (x.strip("\"'“”‘’«».,;:!?()[]{}") for x in t.split()) if w and not set("[]") & set(w)]
        for t in texts
    ]
    if not any(bare):
        assert span.strict == Line(100).strict
        return
    allowed = {
        " ".join(words[start:end])
        for words in bare
        for start in range(len(words))
        for end in range(start + min(fewest, len(words)), min(start + most, len(words)) + 1)
    }
    runs = {" ".join(words[start:end]) for words in bare for start in range(len(words)) for end in range(start + 1, 13)}
    assert {run for run in runs if pattern.fullmatch(run)} == allowed
    assert not pattern.fullmatch("Ω" * 40)


def test_a_span_s_grammar_parses_what_it_allows_and_more():
    form = Form(Search, "[Retrieval] {query}", query=Span(100, (("Which city is the capital of Bhutan?", 1, 9),)))
    assert re.fullmatch(form.regex, "[Retrieval] capital of Bhutan")
    assert not re.fullmatch(form.regex, "[Retrieval] capital Bhutan")
    assert form.parse("[Retrieval] capital Bhutan") == Search("capital Bhutan")


def test_names_are_runs_of_capitalized_words():
    text = "In Albania, the Black Sea Fleet met Lena Holt. It sailed to Asia/Pyongyang (North Korea); hafnium did not."
    assert names(text) == ["Albania", "Black Sea Fleet", "Lena Holt", "Asia/Pyongyang", "North Korea"]


def test_names_go_on_over_linking_words_and_are_no_letters_or_months():
    text = "In May 1951 the University of the Arts hired Ludwig van Beek and J. Roe; the Duke of nothing paid in June."
    assert names(text) == ["University of the Arts", "Ludwig van Beek", "J Roe", "Duke"]


def test_figures_are_dates_as_a_whole_and_numbers():
    text = "Born 6 May 1999 (or May 7, 1999), she moved in June 2001, 2.5 km from 16,300 others. In 1999 she left."
    assert figures(text) == ["6 May 1999", "May 7, 1999", "June 2001", "2.5", "16,300", "1999"]


@given(lines)
def test_an_alias_is_what_the_sampler_says_and_any_line_is_understood(query):
    form = Form(Search, "[Retrieval] {query}", query=Alias(100, name="it", stands_for="capital of Bhutan"))
    assert form.render(Search("capital of Bhutan")) == "[Retrieval] it"
    assert re.fullmatch(form.regex, "[Retrieval] it") and not re.fullmatch(form.regex, "[Retrieval] capital of Bhutan")
    assert form.parse("[Retrieval] It.") == Search("capital of Bhutan")
    if not query.lower().startswith("it"):
        assert form.parse(form.render(Search(query))) == Search(query)


def test_what_would_be_read_as_an_alias_cannot_be_said():
    slot = Alias(100, name="it", stands_for="capital of Bhutan")
    with pytest.raises(InvalidAction, match="'it' would be read as 'capital of Bhutan'"):
        slot.render("it")


@given(st.text())
def test_names_are_made_of_words_of_the_text_and_can_be_copied(text):
    for name in names(text):
        assert name[0].isupper() and all(word in text for word in name.split())
        assert re.fullmatch(Span(10_000, ((name, 99, 99),)).strict, name)
