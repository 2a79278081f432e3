"""What is expected of each table, as suites of Great Expectations. Their descriptions are what a user reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.quality.settings import ValidateParams

if TYPE_CHECKING:
    from great_expectations.expectations.expectation import Expectation


def suites(limits: ValidateParams) -> dict[str, list[Expectation]]:
    """Fresh expectations by the name of the suite, which is that of the table."""
    import great_expectations.expectations as gxe

    def never_null(*columns: str) -> list[Expectation]:
        return [gxe.ExpectColumnValuesToNotBeNull(column=c, description=f"{c} is never null") for c in columns]

    def unique(column: str, words: str) -> Expectation:
        return gxe.ExpectColumnValuesToBeUnique(column=column, description=words)

    def nothing_in(column: str, words: str) -> Expectation:
        """The column says what is wrong, and is null where nothing is."""
        return gxe.ExpectColumnValuesToBeNull(column=column, description=words)

    def between(column: str, low: float | None, high: float | None, words: str) -> Expectation:
        return gxe.ExpectColumnValuesToBeBetween(column=column, min_value=low, max_value=high, description=words)

    def share(column: str, most: float, words: str) -> Expectation:
        return gxe.ExpectColumnMeanToBeBetween(column=column, max_value=most, description=words)

    def equal(a: str, b: str, words: str) -> Expectation:
        return gxe.ExpectColumnPairValuesToBeEqual(
            column_A=a, column_B=b, ignore_row_if="either_value_is_missing", description=words
        )

    passage = (limits.min_passage_words, limits.max_passage_words)
    question = (limits.min_question_words, limits.max_question_words)
    return {
        "file": [
            gxe.ExpectTableRowCountToBeBetween(min_value=1, description="the file is not empty"),
            nothing_in("fault", "every line can be read and has its fields"),
        ],
        "corpus": [
            *never_null("id", "text"),
            unique("id", "no two passages have one id"),
            between("words", *passage, f"a text has {passage[0]} to {passage[1]} words"),
        ],
        "questions": [
            *never_null("id", "question"),
            unique("id", "no two questions have one id"),
            unique("normalised", "no question is asked twice"),
            between("words", *question, f"a question has {question[0]} to {question[1]} words"),
            between("answers", 1, None, "a question has an answer"),
            between("empty_answers", None, 0, "no answer is empty"),
            nothing_in("unknown_passages", "supporting passages are in the corpus"),
            nothing_in("also_asked_in", "no question is in two splits"),
            nothing_in("passages_also_in", "no two splits of synthetic questions share a supporting passage"),
            nothing_in("unplanned_categories", "categories are those of the plan"),
        ],
        "categories": [
            between(
                "p", limits.min_category_p, None, f"categories are spread as planned (p >= {limits.min_category_p:g})"
            )
        ],
        "index": [
            between("passages", 1, None, "the index holds passages"),
            equal("passages", "corpus_passages", "the index has as many passages as the corpus"),
            equal("corpus_sha256", "sha256_of_corpus", "the index was built from the corpus as it is now"),
        ],
        "episodes": [
            *never_null("key"),
            unique("key", "no two episodes have one key"),
            between("trajectories", 1, None, "an episode has a trajectory"),
        ],
        "trajectories": [
            nothing_in("missing_nodes", "the nodes and steps of a trajectory exist"),
            nothing_in("wrong_rewards", "a reward is within its bounds, or null"),
            share(
                "failed",
                limits.max_failed_trajectories,
                f"at most {limits.max_failed_trajectories:.0%} of the trajectories failed",
            ),
        ],
        "nodes": [
            nothing_in("missing_parents", "the parents of a node exist"),
            share(
                "invalid",
                limits.max_invalid_actions,
                f"at most {limits.max_invalid_actions:.0%} of the actions are invalid",
            ),
        ],
        "snapshots": [
            unique("key", "no round of a question is there twice"),
            between("answers", 1, None, "a question has an answer"),
            nothing_in("repeated_passages", "no passage is in a pool twice"),
            nothing_in("repeated_queries", "no query is in a pool twice"),
        ],
        "samples": [
            *never_null("episode", "question", "node", "group", "role", "kind", "depth", "forced"),
            *never_null("prompt_ids", "completion_ids", "logprobs", "temperature", "credit"),
            gxe.ExpectCompoundColumnsToBeUnique(
                column_list=["episode", "node"], description="no node of an episode is there twice"
            ),
            between("choices", 1, None, "an action has tokens, or marks"),
            nothing_in(
                "wrong_logprobs", "there is a log-probability for each token or mark of an action, or none at all"
            ),
            *(
                [between("tokens", None, most, f"prompt and completion have at most {most} tokens")]
                if (most := limits.max_sample_tokens)
                else []
            ),
            between("temperature", 0, None, "a temperature is not negative"),
            between(
                "credit",
                limits.min_credit,
                limits.max_credit,
                f"credit is at least {limits.min_credit:g}"
                + ("" if limits.max_credit is None else f" and at most {limits.max_credit:g}"),
            ),
        ],
    }
