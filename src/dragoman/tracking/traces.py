"""Traces: what happened for one question, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dragoman.rollout.feedback import Feedback
from dragoman.rollout.record import Call, Episode, Node
from dragoman.tracking.store import client_of, experiment_of

EPISODE = "episode"
"""The tag by which the trace of an episode is found."""
RATING, COMMENT, ANSWER, PASSAGES = "rating", "comment", "expected_response", "expected_passages"
_ASSESSMENTS = frozenset({RATING, COMMENT, ANSWER, PASSAGES})
"""What `show_feedback` makes; those of other names and of other people stay."""
SPAN_TYPES = {"ask": "CHAT_MODEL", "search": "RETRIEVER"}


def log_trace(episode: Episode, system: str, *, steps: bool = True) -> str:
    """Write an episode's first trajectory as a trace: a span for each decision, ask and search, with its real times.

    Args:
        steps: without them, the trace has the question, the answer and their times alone.
    """
    import mlflow

    trajectory = episode.trajectories[0]
    taken = set(trajectory.steps if steps else ())
    shown: list[Node | Call] = [n for n in episode.nodes if n.id in taken]
    shown += [c for c in episode.calls if c.id in taken]
    root = mlflow.start_span_no_context(
        name=system,
        span_type="AGENT",
        inputs={"question": episode.question["question"]},
        attributes={"question_id": episode.question["id"], "episode": episode.key},
        start_time_ns=_ns(episode.started),
        tags={"system": system, "stop": trajectory.stop.value, EPISODE: episode.key},
    )
    for step in sorted(shown, key=lambda s: s.started):
        if isinstance(step, Node):
            name, kind, inputs, output = step.role, "LLM", {"messages": step.prompt}, step.text
        else:
            name, kind = step.name, SPAN_TYPES[step.kind]
            inputs = step.input if isinstance(step.input, dict) else {"messages": step.input}
            output = step.output  # type: ignore[assignment]
        span = mlflow.start_span_no_context(
            name=name,
            span_type=kind,
            parent_span=root,
            inputs=inputs,
            attributes={  # MLflow's annotation says str, its code takes any JSON value
                "id": step.id,
                "prompt_tokens": step.prompt_tokens,  # type: ignore[dict-item]
                "completion_tokens": step.completion_tokens,  # type: ignore[dict-item]
            },
            start_time_ns=_ns(step.started),
        )
        span.end(outputs=output, end_time_ns=_ns(step.started + step.seconds))
    root.end(
        outputs={"answer": trajectory.answer, "passages": trajectory.passages, "rewards": trajectory.rewards},
        status="ERROR" if trajectory.stop.is_fault else "OK",
        end_time_ns=_ns(episode.started + episode.seconds),
    )
    return str(root.trace_id)


def show_feedback(feedback: Feedback, folder: Path | str = "mlruns") -> int:
    """Show feedback as assessments of the traces of its episode, in place of those that were there before.

    A rating is the feedback `rating` (true for up), with the comment as its reason. The right answer and its passages are
    the expectations `expected_response` and `expected_passages`.

    Returns:
        How many traces there are: 0 where none was recorded, and 2 where a proxy failed and standard RAG answered.
    """
    import mlflow
    from mlflow.entities import AssessmentSource

    client, experiment = client_of(folder), experiment_of(folder)
    found = client.search_traces(
        locations=[experiment], filter_string=f"tags.{EPISODE} = '{feedback.id}'", include_spans=False, flush=True
    )
    source = AssessmentSource("HUMAN", feedback.by or "anonymous")
    for trace in found:
        id = trace.info.trace_id
        for old in trace.info.assessments:
            if old.name in _ASSESSMENTS and old.source == source:
                mlflow.delete_assessment(trace_id=id, assessment_id=old.assessment_id)
        common: dict[str, Any] = {"trace_id": id, "source": source}
        if feedback.rating:
            mlflow.log_feedback(name=RATING, value=feedback.rating == "up", rationale=feedback.comment, **common)
        elif feedback.comment:
            mlflow.log_feedback(name=COMMENT, value=feedback.comment, **common)
        if feedback.answer:
            mlflow.log_expectation(name=ANSWER, value=feedback.answer, **common)
        if feedback.passages:
            mlflow.log_expectation(name=PASSAGES, value=feedback.passages, **common)
    return len(found)


def finish() -> None:
    """Wait until all traces are stored."""
    import mlflow

    mlflow.flush_trace_async_logging()


def _ns(unix_seconds: float) -> int:
    return int(unix_seconds * 1e9)
