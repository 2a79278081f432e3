"""Personal data with a form of its own does not stay in a text, whatever stands around it; other numbers do."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.synthesis.masking import KINDS, luhn, masked


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Who is jane.doe+x@mail.example.org?", "Who is [email]?"),
        ("Is <mailto:j@a.de> the same as j@b.co.uk", "Is <mailto:[email]> the same as [email]"),
        ("call +41 (0)44 668 18 00 now", "call [phone] now"),
        ("call +1 (555) 123-4567, or 555-123-4567.", "call [phone], or [phone]."),
        ("call 0049 30 123456 or (030) 12 34 56", "call [phone] or [phone]"),
        ("call 044/668.18.00 or 2125551234", "call [phone] or [phone]"),
        ("pay by 4111 1111 1111 1111 today", "pay by [card] today"),
        ("cards 12 4111-1111-1111-1111 99 and 378282246310005", "cards 12 [card] 99 and [card]"),
        ("to DE89 3704 0044 0532 0130 00 please", "to [iban] please"),
        ("to GB82WEST12345698765432.", "to [iban]."),
        ("who owns 192.168.10.1 and 2001:db8::8a2e:370:7334?", "who owns [ip] and [ip]?"),
        ("http://[fe80::1]/ and ::ffff:10.0.0.1", "http://[[ip]]/ and [ip]"),
        ("Tel.079 123 45 67 or No.0791234567", "Tel.[phone] or No.[phone]"),
        ("call me,0791234567 or Tel.030/1234567", "call me,[phone] or Tel.[phone]"),
        ("phone.555-123-4567", "phone.[phone]"),
        ("card no.4111111111111111, card.4111 1111 1111 1111", "card no.[card], card.[card]"),
        ("pay by 4111.1111.1111.1111, or by 3782.822463.10005.", "pay by [card], or by [card]."),
        ("server at.192.168.0.1", "server at.[ip]"),
    ],
)
def test_what_has_the_form_of_personal_data_is_masked(text, expected):
    assert masked(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "What is the capital of Brisa?",
        "Who ruled from 1914 to 1918, and who in 1939-1945?",
        "Which country has 1,400,000,000 inhabitants, and which 1 400 000 000?",
        "Is pi 3.14159265358979, and e 2,71828182845904?",
        "Is pi 3.141592653589793, of 1,234,567 digits?",
        "Has the universe 4.111.111.111.111.111 stars, or 4111.11111111111109?",
        "Who was born on.01.02.1903?",
        "Who was born on 01.02.1903, on 04/07/1776, on 2003-01-02?",
        "What begins at 10:30:45, and what does std::vector hold?",
        "Is 4111 1111 1111 1112 the number of a card?",
        "Does version 1.2.3 follow 1.2, or 999.1.2.3?",
        "Which element has the number 92 and melts at 1405.3 K?",
        "in1945 this that when they came here",
    ],
)
def test_other_numbers_stay(text):
    assert masked(text) == text


@pytest.mark.parametrize(
    ("digits", "valid"), [("79927398713", True), ("79927398710", False), ("0", True), ("18", True)]
)
def test_the_check_digit_of_a_card(digits, valid):
    assert luhn(digits) is valid  # 79927398713 is the example of the standard's article: 7+9+9+4+7+6+9+7+7+2+3 = 70


LETTERS = st.text(st.sampled_from("abcxyzéß東 "), max_size=12)
DIGITS = st.text(st.sampled_from("0123456789"), min_size=1, max_size=6)


@st.composite
def cards(draw) -> str:
    body = draw(st.text(st.sampled_from("0123456789"), min_size=12, max_size=18))
    number = next(body + check for check in "0123456789" if luhn(body + check))
    gap = draw(st.sampled_from(["", " ", "-"]))
    return gap.join(number[i : i + 4] for i in range(0, len(number), 4))


@st.composite
def phones(draw) -> str:
    parts = draw(st.lists(st.text(st.sampled_from("0123456789"), min_size=2, max_size=4), min_size=3, max_size=3))
    return "+4" + draw(st.sampled_from(["", " ", "-", "."])).join(["1", *parts])


@st.composite
def accounts(draw) -> str:
    body = draw(st.text(st.sampled_from("0123456789"), min_size=12, max_size=26))
    gap = draw(st.sampled_from(["", " "]))
    number = "CH93" + body
    return gap.join(number[i : i + 4] for i in range(0, len(number), 4))


PERSONAL = st.one_of(
    cards(),
    phones(),
    accounts(),
    st.from_regex(r"\A[a-z0-9._+-]{1,10}@[a-z0-9-]{1,10}\.(org|co\.uk)\Z"),
    st.integers(0, 2**32 - 1).map(lambda n: str(ipaddress.IPv4Address(n))),
    st.integers(2**100, 2**128 - 1).map(lambda n: str(ipaddress.IPv6Address(n))),
)
ANYTHING = st.text(st.sampled_from("0123456789 -.:/()+@[]abfxAE,\n"), max_size=60)


@given(LETTERS, PERSONAL, LETTERS)
def test_personal_data_between_words_does_not_stay(before, personal, after):
    text = masked(f"{before} {personal} {after}")
    assert personal not in text and "[" in text
    assert text.startswith(f"{before} [") and text.endswith(f"] {after}")


@given(st.one_of(ANYTHING, st.lists(PERSONAL | DIGITS | LETTERS, max_size=5).map("".join), st.text(max_size=60)))
def test_a_masked_text_has_no_match_left(text):
    once = masked(text)
    assert [kind.name for kind in KINDS if list(kind.find(once))] == []
    assert masked(once) == once
