"""Names and questions compared, and words counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.text import count_words, has, has_answer, names, printable, same_question, sentences, stands_in


@pytest.mark.parametrize(
    ("text", "name", "stands"),
    [
        ("its domain is .is.", ".is", True),
        ("what is it", ".is", False),
        ("www.example.is", ".is", False),
        ("the symbol As", "As", True),
        ("as a rule", "As", False),
        ("C++ and C#", "C++", True),
        ("C and C#", "C++", False),
        ("50% of them", "50%", True),
        ("50 of them", "50%", False),
        ("number 18, it melts", "18", True),
        ("18,000 of them", "18", False),
        ("In São Tomé", "Sao Tome", True),
        ("lies in Thimphu.", "“thimphu!”", True),
        ("Nur-Sultan", "Nur Sultan", True),
        ("in Thimphubad", "Thimphu", False),
        ("北京是中华人民共和国的首都。", "北京", True),
        ("住在东京都港区。", "东京都港区", True),
        ("กรุงเทพมหานครเป็นเมืองหลวง", "กรุงเทพมหานคร", True),
        ("上海是城市。", "北京", False),
        ("第1980年", "1980", False),
    ],
)
def test_a_short_or_marked_name_stands_only_as_it_is_written(text, name, stands):
    assert stands_in(text, name) == stands


@given(st.text("ab .", max_size=12), st.text("ab", min_size=3, max_size=4))
def test_any_other_name_stands_where_its_words_do(text, name):
    assert stands_in(text, name) == has(text, name)


@pytest.mark.parametrize(
    ("text", "answer", "stands"),
    [
        ("Man From Monterey", "The Man From Monterey", True),
        ("the bank of West", "Bank of the West", True),
        ("It is an A.", "A", True),
        ("a dog", "A", False),
        ("Ha", "A-ha", False),
        ("Man", "The Man From Monterey", False),
        ("It is Hepatitis B.", "Hepatitis A", False),
        ("It is hepatitis A, a virus.", "Hepatitis A", True),
    ],
)
def test_an_answer_stands_in_a_text_whatever_the_articles_unless_it_is_one(text, answer, stands):
    assert has_answer(text, answer) == stands


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It is by John H. Auer. He won.", ["John H Auer"]),
        ("Mr. Smith and Dr. J. Doe live in St. Louis.", ["Mr Smith", "Dr J Doe", "St Louis"]),
        ("A. A. Milne knew J.R.R. Tolkien.", ["A A Milne", "J.R.R Tolkien"]),
        ("They met Malcolm X. He was in the U.S. It rained.", ["Malcolm X", "U.S"]),
        ("He got an A. Perth is far. A dog barked.", ["A Perth"]),
        ("It has vitamin C. Paris is far.", ["C Paris"]),  # read as an initial, as `director J. Doe` is
        ("John Roe Jr. Paris is far.", ["John Roe Jr", "Paris"]),
        ("Which is in Thimphu? A. Wang Chhu B. Manas C. Torsa", ["Thimphu", "Wang Chhu", "Manas", "Torsa"]),
        ("Which?\nA. Wang Chhu\nB. Manas", ["Wang Chhu", "Manas"]),
    ],
)
def test_a_name_goes_on_over_initials_and_titles_but_not_into_a_sentence_that_opens_with_a_small_word(text, found):
    assert names(text) == found


def test_a_title_or_an_initial_ends_no_sentence():
    text = "Mr. Smith drew it with J. Doe. Dr. Roe paid. It is in St. Louis."
    assert sentences(text) == ["Mr. Smith drew it with J. Doe.", "Dr. Roe paid.", "It is in St. Louis."]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("What is “Rome”?", "what is rome", True),
        ("What  is Rome ?", "What is Rome?!", True),
        ("北京在哪里？", "北京在哪里", True),
        ("ما هي عاصمة بوتان؟", "ما هي عاصمة بوتان", True),
        ("भूटान की राजधानी क्या है।", "भूटान की राजधानी क्या है", True),
        ("Who created C?", "Who created C++?", False),
        ("Who created C++?", "Who created C#?", False),
        ("Who owns .in?", "Who owns in?", False),
        ("What does ! mean?", "What does ? mean?", False),
        ("Who has type A?", "Who has type?", False),
    ],
)
def test_questions_are_the_same_but_for_case_and_marks_around_words(one, other, same):
    assert (same_question(one) == same_question(other)) == same


def test_a_question_of_marks_alone_is_no_question():
    assert same_question("? !") == ""


@pytest.mark.parametrize(
    ("text", "count"),
    [("", 0), ("北京在哪里？", 3), ("谁？", 1), ("东京 is 東京都庁", 4), ("กรุงเทพ", 3), ("서울은 어디에", 2)],
)
def test_two_characters_of_a_script_without_blanks_are_a_word(text, count):
    assert count_words(text) == count


@given(st.text(st.characters(max_codepoint=0xDFF)))
def test_words_between_blanks_are_counted_as_they_stand(text):
    assert count_words(text) == len(text.split())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[2Jb\x07", "a\\x1b[2Jb\\x07"),
        ("a\x9b31mb\r\x7f", "a\\x9b31mb\\r\\x7f"),
        ("a\u202eb\ud83d", "a\\u202eb\\ud83d"),
        ("Łódź\t東京\n👩\u200d🔬", "Łódź\t東京\n👩\u200d🔬"),
    ],
)
def test_what_a_terminal_would_obey_is_written_out_and_all_else_stays(text, shown):
    assert printable(text) == shown
