"""Words and names in running text, and names made comparable."""

from __future__ import annotations

import re
import unicodedata
from itertools import dropwhile
from string import whitespace


def fold(text: str) -> str:
    """Without diacritics: `São Tomé` -> `Sao Tome`. Letters that are not made of a base and marks stay (`Łódź` -> `Łodz`)."""
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))


def key(text: str) -> str:
    """For comparing names: folded, lower case, letters and digits only."""
    return re.sub(r"[\W_]+", " ", fold(text).casefold()).strip()


def has(text: str, name: str) -> bool:
    """Whether the words of a name stand in a text, side by side. Where its script is written without blanks, its letters do."""
    return side_by_side(key(text), key(name))


def side_by_side(text: str, name: str) -> bool:
    """Whether the words of a name stand in a text, of which each word is between single blanks."""
    before, after = _edges(name)
    return f"{' ' * before}{name}{' ' * after}" in f" {text} "


def _edges(name: str) -> tuple[bool, bool]:
    """Whether a name begins and ends where a word does: not at a letter of a script that is written without blanks."""
    return not _UNSPACED_LETTER.match(name[:1]), not _UNSPACED_LETTER.match(name[-1:])


def has_answer(text: str, answer: str) -> bool:
    """As `has`, but articles do not count. One that is nothing else stands in a text only as it is written.

    The capital that `Hepatitis A` ends in is none.
    """
    if answer.endswith(" A"):
        return has(text, answer)
    wanted = _without_articles(answer)
    return has(_without_articles(text), wanted) if key(wanted) else stands_in(text, answer)


_QUOTES = "\"'“”‘’«»()[]{}¿¡"
_MARKS = f"{_QUOTES}.,;:!?…。？！؟؛،۔।॥"
_LEAST_LETTERS = 3


def stands_in(text: str, name: str) -> bool:
    """As `has`. But a name of one or two letters, or with a mark at an end, stands there only as it is written.

    `.is` and the symbol `As` are ordinary words without their marks and capitals, and `C++` is `C`.
    """
    bare = _bare(fold(name))
    if len(key(bare)) >= _LEAST_LETTERS and bare[0].isalnum() and bare[-1].isalnum():
        return has(text, name)
    wanted = bare or name
    before, after = _edges(wanted)
    start, end = r"(?<![\w.])" if before else "", r"(?!\w|[.,]\d)" if after else ""
    return re.search(f"{start}{re.escape(wanted)}{end}", fold(text)) is not None


def _without_articles(text: str) -> str:
    return " ".join(word for word in text.split() if key(word) not in ("a", "an", "the"))


def same_question(text: str) -> str:
    """For comparing questions: lower case, without the marks around words. What makes a name stays: `C`, `C++`, `C#`."""
    return " ".join(_bare(word) or word for word in text.casefold().rstrip(f"{_MARKS}{whitespace}").split())


def _bare(word: str) -> str:
    """Without quotes and brackets around it, and without the marks that end a sentence: `.is` keeps its dot."""
    return word.lstrip(_QUOTES).rstrip(_MARKS)


def slug(text: str) -> str:
    return key(text).replace(" ", "-")


_SMALL_WORDS = """a among an and are as at both by did do does during each for from give had has have he her his how if in is it
its name near of on one or she since some the their there these they this those to today under was were what when where which
while who whom whose why with"""  # what a sentence begins with, and no name does


_SMALL = frozenset(_SMALL_WORDS.split())
_LINKING_WORDS = """of the de la del der di du da von van le les el"""
_LINKS = frozenset(_LINKING_WORDS.split())
_MONTH_NAMES = """january february march april may june july august september october november december"""
_MONTHS = frozenset(_MONTH_NAMES.split())
_MONTH = "|".join(month.capitalize() for month in _MONTH_NAMES.split())
_FIGURE = re.compile(
    rf"\b(?:\d{{1,2}}\s(?:{_MONTH})\s\d{{4}}|(?:{_MONTH})\s(?:\d{{1,2}},?\s)?\d{{4}}|\d+(?:[.,]\d+)*)\b"
)


def names(text: str) -> list[str]:
    """The runs of capitalized words in a text, in order and each once, without the small words they may begin with.

    A run goes on over one or two linking words (`Bank of the Ozarks`), and over an initial or a title (`John H. Auer`), whose
    dot is left out. A letter or a month alone is no name, and the letters of a question's choices (`A. Torsa B. Manas`) are none.
    """
    found = dict[str, None]()
    text = _ABBREVIATED.sub(r"\1_", _apart(text))  # A_ is no article
    for clause in re.split(r"[^\w\s.,'’/&+-]+|[.,](?=\s|$)", text):
        run = words(clause)
        kinds = "".join("N" if word[0].isupper() else "l" if word in _LINKS else "-" for word in run)
        for match in re.finditer("N(?:l{0,2}N)*", kinds):
            kept = dropwhile(lambda word: word.lower() in _SMALL, run[match.start() : match.end()])
            name = " ".join(word.removesuffix("_") for word in kept)
            if len(name) > 1 and name.lower() not in _MONTHS:
                found[name] = None
    return list(found)


def _apart(text: str) -> str:
    """With the choices of a question apart, if it has any."""
    first = _FIRST_CHOICE.search(text)
    return f"{text[: first.start()]}; {_CHOICE.sub('; ', text[first.end() :])}" if first else text


def figures(text: str) -> list[str]:
    """The dates and numbers in a text, in order and each once: `6 May 1999`, `May 6, 1999`, `May 1999`, `16,300`, `2.5`."""
    return list(dict.fromkeys(" ".join(found.split()) for found in _FIGURE.findall(text)))


def sentences(text: str) -> list[str]:
    """A text cut after the marks that end its sentences; not after an initial or a title, as in `J. Doe` and `Mr. Doe`."""
    return _SENTENCE_END.split(text)


def owner(name: str) -> str:
    """`Jane Doe` of `Jane Doe's`, which is no other name."""
    return _POSSESSIVE.sub("", name)


def stem(word: str) -> str:
    """What `directed` and `director` have in common: the first five letters."""
    return word[:5].lower()


def content_words(text: str) -> list[str]:
    """The words of a text without the small ones."""
    return [word for word in words(text) if word.lower() not in _SMALL]


def words(text: str) -> list[str]:
    """The words of a text without the punctuation around them, and without those that hold a square bracket."""
    bare = (word.strip("\"'“”‘’«».,;:!?()[]{}") for word in _CONTROL.sub(" ", text).split())
    return [word for word in bare if word and not set("[]") & set(word)]


_TITLES = ("Mr", "Mrs", "Ms", "Dr", "St")
_ABBREVIATED = re.compile(
    rf"\b([^\W\d_]|{'|'.join(_TITLES)})\.(?=\s+[^\W\d_])(?!\s+(?i:{'|'.join(sorted(_SMALL))})\b(?!\.))"
)
"""An initial or a title with its dot. Before a small word the dot ends a sentence: `Malcolm X. He was`."""
_SENTENCE_END = re.compile(r"(?<=[a-z0-9)\"'][.!?])" + "".join(rf"(?<!\b{title}\.)" for title in _TITLES) + r"\s+")
_FIRST_CHOICE = re.compile(r"(?<=[?:\n])\s*A\.\s")
_CHOICE = re.compile(r"\s[B-H]\.\s")
_POSSESSIVE = re.compile(r"['’]s?$")
_WORD_CHARS = 20
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ua4cf\uf900-\ufaff\U00020000-\U0003ffff"  # Thai to Chinese
_UNSPACED_LETTER = re.compile(f"[{_UNSPACED}]")
SINGLE_WORDS = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
"""Words without the marks around them, and single letters of a script that is written without blanks."""
_WITHOUT_SPACES = f"{_UNSPACED}\U0001f000-\U0001ffff"  # and emoji
COUNTED = re.compile(rf"[{_UNSPACED}]{{1,2}}[^\w\s]*|[^\s{_UNSPACED}]+")
"""What counts as a word: a run without a blank, or two characters of a script that is written without blanks."""
_PIECE = re.compile(rf"[{_WITHOUT_SPACES}]{{1,2}}|[^\s{_WITHOUT_SPACES}]{{1,{_WORD_CHARS}}}")


def count_words(text: str) -> int:
    """How many words a text has; see `COUNTED`."""
    return len(COUNTED.findall(text))


_FENCE = re.compile(r"\s*(?:```(?:json)?\s)?(.*?)(?:```)?\s*", re.DOTALL)


def unfenced(text: str) -> str:
    """Without the fence of Markdown that chat models like to put around JSON."""
    match = _FENCE.fullmatch(text)
    return match[1] if match else text


def clip(text: str, most: int, more: str = " ...") -> str:
    """The first `most` words of a text, on one line, with `more` after them where there are others.

    A model reads tokens, and a text may have thousands of them without a blank. So a run of 20 characters is a word here,
    and two characters of a script that is written without spaces: a word has seldom more than four tokens.
    """
    line = " ".join(text.split())
    if len(line) <= most:  # no word is shorter than a character
        return line
    for count, piece in enumerate(_PIECE.finditer(line)):
        if count == most:
            return line[: piece.start()].rstrip() + more
    return line


def fit(text: str, chars: int) -> str:
    """As many whole words of a line as fit into so many characters; of a first word that does not, its beginning."""
    if len(text) <= chars:
        return text
    return (text[: chars + 1].rpartition(" ")[0] or text[:chars]).rstrip()


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_CONTROL_WITHIN_LINES = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


def plain_lines(text: str) -> str:
    """A text with a space in the place of each control character but line breaks."""
    return _CONTROL_WITHIN_LINES.sub(" ", text)


def plain_line(text: str) -> str:
    """A text on one line: single spaces between its words. Control characters are white space, as line breaks are."""
    return " ".join(_CONTROL.sub(" ", text).split())


_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """A text that a terminal shows and does not obey: control characters and those that turn its direction are written out.

    Tabs and line breaks stay.
    """
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def folder_name(text: str) -> str:
    """The name of a system or a question as the name of a file: `c3po@results/sft` has a slash."""
    return re.sub(r"[^A-Za-z0-9@._-]+", "-", text)
