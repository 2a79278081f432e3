"""The rewards of MAPS (sections 3.2 and 3.3), to be summed as any others.

The answer agent's first stage is `em + 0.5 * precision_ratio + length_penalty` (eq. 4), its second
`em + 0.5 * f1 + length_penalty` (eq. 5). The query extension agent's is `delta_f1` (eq. 7). The paper gives neither the weight
alpha nor the length l: choose them on the dev questions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dragoman.core.types import Passage, Question
from dragoman.engines.base import Engine
from dragoman.rewards.answer import normalize, scores
from dragoman.rewards.base import Trajectory, reward
from dragoman.systems.answer import answer_ask


@reward(bounds=(0, 1))
def precision_ratio(question: Question, trajectory: Trajectory, passages: Sequence[Passage]) -> float | None:
    """PR = IN(y, y*) / PN(y): the share of the answer's words that the gold answer has (eq. 2); the best over gold answers.

    Words are compared as `em` compares them. Unlike `precision`, it knows no exception for yes and no.
    """
    if trajectory.answer is None or not question.answers:
        return None
    said = Counter(normalize(trajectory.answer).split())
    common = max((said & Counter(normalize(gold).split())).total() for gold in question.answers)
    return common / max(1, said.total())


@reward(bounds=(-1, 1))
async def delta_f1(
    question: Question,
    trajectory: Trajectory,
    passages: Sequence[Passage],
    *,
    llm: Engine,
    first: int = 5,
    passage_words: int = 100,
    answer_tokens: int = 48,
) -> float | None:
    """F1 of the answer, less F1 of the LLM's answer before any query extension: the sum of R_q (eq. 7) over all rounds.

    In that sum every answer between cancels. For one round, as the paper trains (section 3.3), it is R_q itself. The second
    term is the same for all answers to a question whose first search found `first` passages, so siblings compare as by `f1`.
    That holds for those too who found nothing more: were they given 0, they would be compared by who answers, the LLM or an
    agent.

    Args:
        llm: answers in place of y_0. It is asked in the words of every system, so its cache may know the answer.
        first: so many passages are those of the first search, which stand first in the pool: the system's `k`.
        passage_words: the system's setting of that name.
        answer_tokens: the same.

    Returns:
        -1, the least that there can be, where the proxy's own text was no action; None where there is no answer, or no gold
        one, to compare.
    """
    if trajectory.answer is None or not question.answers:
        return None
    if trajectory.stop.is_invalid:  # it has no first search to be compared with
        return -1.0
    after = scores(trajectory.answer, question.answers)["f1"]
    ask, state = answer_ask(question, passages[:first], words=passage_words, max_tokens=answer_tokens)
    (result,) = await llm.generate([ask.request(ask.messages(state))])
    before = scores(result.completions[0].text.strip(), question.answers)["f1"]
    assert after is not None and before is not None  # there are gold answers
    return after - before
