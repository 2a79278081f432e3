"""The scores of answers on their traces, by `mlflow.genai.evaluate`, and the questions as an evaluation dataset of MLflow's.

The answers are there already: nothing is asked again, and the scores are the project's own, without a judge.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

from dragoman.core.identity import content_hash
from dragoman.core.types import Question
from dragoman.rewards.answer import scores
from dragoman.rewards.gold import recall
from dragoman.rollout.record import Episode
from dragoman.tracking.traces import finish, log_trace

if TYPE_CHECKING:
    from mlflow import ActiveRun
    from mlflow.genai.datasets import EvaluationDataset
    from mlflow.genai.scorers import Scorer

log = logging.getLogger(__name__)

QUESTIONS = "questions"
"""The tag of an evaluation dataset that says, by a hash, of which questions it is."""


def show_scores(dataset: str, system: str, episodes: Sequence[Episode], traces: Sequence[str], run: ActiveRun) -> bool:
    """Put cover-EM, F1 and recall of each answer on its trace, and their means on the run, which is the active one.

    What goes wrong here is a warning: the figures of an evaluation do not depend on it.

    Args:
        traces: of the first episodes. The others get one that has their question and answer, without steps.

    Returns:
        Whether they are there.
    """
    import mlflow

    try:
        ids = [*traces, *(log_trace(episode, system, steps=False) for episode in episodes[len(traces) :])]
        finish()
        experiment = run.info.experiment_id
        mlflow.log_input(register_questions(dataset, episodes, experiment), context="evaluation")
        logged = mlflow.search_traces(locations=[experiment], run_id=run.info.run_id, return_type="list")
        by_id = {trace.info.trace_id: trace for trace in logged}
        rows = [_row(episode) | {"trace": by_id[id]} for episode, id in zip(episodes, ids, strict=True)]
        with _unhindered():
            mlflow.genai.evaluate(data=rows, scorers=_scorers())
    except Exception as e:  # of MLflow, its store or its server: nothing that was measured is lost
        log.warning("%s on %s: its answers have no scores on their traces in MLflow: %s", system, dataset, e)
        return False
    return True


def register_questions(dataset: str, episodes: Sequence[Episode], experiment: str) -> EvaluationDataset:
    """The questions of these episodes, in MLflow: registered the first time, and found again afterwards."""
    from mlflow.genai import datasets

    rows = [{name: value for name, value in _row(episode).items() if name != "outputs"} for episode in episodes]
    key = content_hash(dataset=dataset, questions=rows)
    found = datasets.search_datasets(
        experiment_ids=[experiment],
        filter_string=f"tags.{QUESTIONS} = '{key}'",
        max_results=1,
        order_by=["created_time ASC"],
    )
    of = found or [
        datasets.create_dataset(f"{dataset} {key[:8]}", experiment, tags={QUESTIONS: key, "dataset": dataset})
    ]
    if json.loads(of[0].profile or "{}").get("num_records") != len(rows):  # new, or a kill came in between
        of[0].merge_records(rows)
    return of[0]


def _row(episode: Episode) -> dict[str, Any]:
    """A question, what is right, and what was answered, as MLflow calls them."""
    question, trajectory = Question.from_json(episode.question), episode.trajectories[0]
    # names that no reviewer is asked for: see `review`
    expected = {"answers": question.answers, "parts": question.parts, "gold_passages": question.supporting_ids}
    return {
        "inputs": {"id": question.id, "question": question.question},
        "expectations": {name: _lists(value) for name, value in expected.items() if value},
        "outputs": {
            "answer": trajectory.answer,
            "passages": None if trajectory.stop.is_fault else trajectory.passages,
        },
    }


def _scorers() -> list[Scorer]:
    from mlflow.genai.scorers import scorer

    @scorer
    def cover_em(outputs: Mapping[str, Any], expectations: Mapping[str, Any]) -> float | None:
        return _of_answer("cover_em", outputs, expectations)

    @scorer
    def f1(outputs: Mapping[str, Any], expectations: Mapping[str, Any]) -> float | None:
        return _of_answer("f1", outputs, expectations)

    @scorer(name="recall")
    def gold_recall(outputs: Mapping[str, Any], expectations: Mapping[str, Any]) -> float | None:
        kept, gold = outputs["passages"], expectations.get("gold_passages")
        return recall(kept, gold) if gold and kept is not None else None

    return [cover_em, f1, gold_recall]


def _of_answer(score: str, outputs: Mapping[str, Any], expectations: Mapping[str, Any]) -> float | None:
    """None, which no mean counts, where the machinery failed or no answer is known."""
    answer, golds = outputs["answer"], expectations.get("answers")
    return scores(answer, golds, expectations.get("parts", ()))[score] if golds and answer is not None else None


def _lists(value: Any) -> Any:
    return [_lists(one) for one in value] if isinstance(value, tuple) else value


@contextmanager
def _unhindered() -> Iterator[None]:
    """MLflow prints where to look, has a bar of its own over what the command shows, and spares a judge that is asked too often.

    There is no judge: a score takes microseconds, and at MLflow's pace of thirty a second 150 answers would take 15 seconds.
    """
    from mlflow.environment_variables import MLFLOW_GENAI_EVAL_SCORER_RATE_LIMIT as PACE
    from mlflow.genai.evaluation import harness

    bar, harness.tqdm = harness.tqdm, None  # as where there is no tqdm
    before = PACE.get_raw()
    PACE.set("0")
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        harness.tqdm = bar
        if before is None:
            PACE.unset()
        else:
            PACE.set(before)
