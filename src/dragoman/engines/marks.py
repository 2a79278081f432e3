"""Options scored in one pass: each ends in a mark, and the model's ` yes` against its ` no` is read off there.

The text of a request with options is its prompt, as it stands, and then a line for each option:

    Question: Which currency is used in Guinea?
    Guinean franc: The Guinean franc is the currency of Guinea ->
    Melanesia: Melanesia is one of the regions of Oceania ->

The logit of an option is that of the token ` yes` minus that of ` no` after its mark. Nothing is written, so nothing has
to be decoded, and the probabilities of a policy are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

MARK = " ->"
YES, NO = " yes", " no"


def encode_options(
    tokenize: Callable[[str], Sequence[int]], prompt: str, options: Sequence[str]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The token ids of a prompt with its options, and the place of each option's mark among them.

    Options are tokenized one by one, so that none changes how another is read.

    Args:
        tokenize: gives the ids of plain text, without special tokens.
        prompt: ends with a new line.
    """
    ids = list(tokenize(prompt))
    mark, end = tokenize(MARK), tokenize("\n")
    marks = []
    for option in options:
        ids += [*tokenize(option), *mark]
        marks.append(len(ids) - 1)
        ids += end
    return tuple(ids[: marks[-1] + 1]), tuple(marks)


def yes_and_no(tokenize: Callable[[str], Sequence[int]]) -> tuple[int, int]:
    """The ids of the tokens that are compared at a mark: the first in which yes and no differ."""
    return next((yes, no) for yes, no in zip(tokenize(YES), tokenize(NO), strict=False) if yes != no)
