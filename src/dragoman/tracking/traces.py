"""Traces: what happened for one question, step by step."""

from __future__ import annotations

from dragoman.rollout.record import Call, Episode, Node

SPAN_TYPES = {"ask": "CHAT_MODEL", "search": "RETRIEVER"}


def log_trace(episode: Episode, system: str) -> str:
    """Write an episode's first trajectory as a trace: a span for each decision, ask and search, with its real times."""
    import mlflow

    trajectory = episode.trajectories[0]
    taken = set(trajectory.steps)
    steps: list[Node | Call] = [n for n in episode.nodes if n.id in taken]
    steps += [c for c in episode.calls if c.id in taken]
    root = mlflow.start_span_no_context(
        name=system,
        span_type="AGENT",
        inputs={"question": episode.question["question"]},
        attributes={"question_id": episode.question["id"], "episode": episode.key},
        start_time_ns=_ns(episode.started),
        tags={"system": system, "stop": trajectory.stop.value},
    )
    for step in sorted(steps, key=lambda s: s.started):
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


def finish() -> None:
    """Wait until all traces are stored."""
    import mlflow

    mlflow.flush_trace_async_logging()


def _ns(unix_seconds: float) -> int:
    return int(unix_seconds * 1e9)
