"""Personal data with a form of its own, taken out of text: addresses of e-mail and machines, numbers of phones, cards, accounts.

Names, and what else has no form, are not found. Where the form alone does not decide, this takes out rather too much.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Span = tuple[int, int]

_EMAIL = re.compile(r"[\w.!#$%&'*+/=?^`{|}~-]+@[\w-]+(?:\.[\w-]+)+")
_DIGIT_IN_4 = r"(?=[A-Z]{0,3}\d|[A-Z]{4}[ -]?[A-Z]{0,3}\d)"
_IBAN = re.compile(
    rf"(?<![^\W_])[A-Z]{{2}}\d{{2}}[ -]?[A-Z\d]{{4}}(?:[ -]?{_DIGIT_IN_4}[A-Z\d]{{4}}){{1,6}}"
    r"(?:[ -]?(?=[A-Z]{0,2}\d)[A-Z\d]{1,3})?(?![^\W_])",
    re.IGNORECASE,
)
_IBAN_DIGITS = 8
"""Fewer are the beginning of a sentence, and no account."""
_APART = r"(?<!\d)(?<!\d[.,])"
"""Where a number begins: a dot or a comma behind a digit is inside another number, and behind a word it ends that word."""
_IPV4 = re.compile(rf"{_APART}(?<!\+)(?:\d{{1,3}}\.){{3}}\d{{1,3}}(?!\d|\.\d)")
_IPV6 = re.compile(r"(?<![\w:])[0-9A-F]{0,4}(?::[0-9A-F]{0,4}){2,8}(?:(?:\.\d{1,3}){3})?(?![\w:])", re.IGNORECASE)
_DOTTED = r"\d{4}\.(?:\d{4}\.\d{4}\.\d{1,7}|\d{6}\.\d{4,5})(?!\d|[.,]\d)"
"""The groups of a card's number with dots between. Other numbers with dots are decimals, or have groups of three."""
_DIGITS = re.compile(rf"{_APART}(?<!\+)(?:{_DOTTED}|\d(?:[ -]?\d){{12,}})")
_CARD = range(13, 20)
"""Digits of a card's number (ISO/IEC 7812)."""
_GAP = r"[ .\-/\u00a0\u2009\u202f]{0,2}"
_DATE = r"\d\d([./\-])\d\d\1\d{4}(?![ .\-/]?\d)"
_PHONE = re.compile(
    rf"""{_APART}(?:
        (?:\+|00){_GAP}\d(?:{_GAP}(?:\(0\))?{_GAP}[(]?\d[)]?){{6,14}}   # with the country's code
      | \(\d{{2,5}}\){_GAP}\d(?:{_GAP}\d){{4,9}}                        # with the town's in brackets
      | (?!{_DATE})0\d(?:{_GAP}\d){{6,12}}                              # with a leading 0
      | \d{{3}}[ .\-]\d{{3}}[ .\-]\d{{4}}                               # North America
      | \d{{3}}-\d{{4}}
      | \d{{9,15}}                                                      # whatever else is as long
    )(?!\d|[.,]\d)""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Kind:
    """Of personal data: the word that takes its place, and what finds it."""

    name: str
    find: Callable[[str], Iterator[Span]]


def _whole(pattern: re.Pattern[str], holds: Callable[[str], bool] = bool) -> Callable[[str], Iterator[Span]]:
    return lambda text: (match.span() for match in pattern.finditer(text) if holds(match[0]))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return any(c.isalnum() for c in text)


def _is_account(text: str) -> bool:
    return sum(c.isdigit() for c in text) >= _IBAN_DIGITS


def luhn(digits: str) -> bool:
    """Whether the last digit is the check digit of the others (Luhn, ISO/IEC 7812-1)."""
    odd = sum(map(int, digits[-1::-2]))
    doubled = sum(sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return (odd + doubled) % 10 == 0


def _cards(text: str) -> Iterator[Span]:
    """Numbers of cards, also where other numbers stand beside them: they begin and end with a group of digits."""
    for run in _DIGITS.finditer(text):
        places = [place for place in range(*run.span()) if text[place].isdigit()]
        first = 0
        while first < len(places):
            last = next((last for last in _ends(text, places, first)), None)
            if last is None:
                first += 1
                continue
            yield places[first], places[last] + 1
            first = last + 1


def _ends(text: str, places: list[int], first: int) -> Iterator[int]:
    """Where a card's number may end that begins at a place; the longest first."""
    if first and places[first] == places[first - 1] + 1:  # inside a group
        return
    for last in range(min(first + _CARD[-1], len(places)) - 1, first + _CARD[0] - 2, -1):
        at_end = last + 1 == len(places) or places[last + 1] > places[last] + 1
        if at_end and luhn("".join(text[place] for place in places[first : last + 1])):
            yield last


KINDS = (
    Kind("email", _whole(_EMAIL)),
    Kind("iban", _whole(_IBAN, _is_account)),
    Kind("ip", _whole(_IPV6, _is_address)),
    Kind("ip", _whole(_IPV4, _is_address)),
    Kind("card", _cards),
    Kind("phone", _whole(_PHONE)),
)
"""In the order in which they are looked for: what is left of one must not be taken for another."""
MASK = re.compile("|".join(re.escape(f"[{kind.name}]") for kind in KINDS))
"""What stands in their place."""


def masked(text: str) -> str:
    """The text with `[email]`, `[iban]`, `[ip]`, `[card]` or `[phone]` in the place of each that is found in it."""
    while True:  # once more, as what stood beside it may have hidden another
        before = text
        for kind in KINDS:
            for start, end in sorted(kind.find(text), reverse=True):
                text = f"{text[:start]}[{kind.name}]{text[end:]}"
        if text == before:
            return text
