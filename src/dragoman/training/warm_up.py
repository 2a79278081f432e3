"""What both warm-ups have in common: their samples, what a run goes on with, and the policy that they publish."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from dragoman.core import files
from dragoman.core.journal import digest
from dragoman.core.types import Question
from dragoman.registry.policy import METRICS, lineage, resume
from dragoman.registry.trained_with import trained_with
from dragoman.rollout.exploration import GREEDY
from dragoman.rollout.record import Episode
from dragoman.rollout.samples import Sample
from dragoman.training.identity import run_identity
from dragoman.training.policies import TrainedPolicy
from dragoman.training.rollouts import Rollouts, summary
from dragoman.training.run import TrainingRun
from dragoman.training.selection import imitable, mean_reward, of_roles, worth
from dragoman.training.settings import SftParams


@dataclass(frozen=True)
class WarmUp:
    """A warm-up under way."""

    samples: Sequence[Sample]
    """What is imitated: of the roles that are trained, and not too long."""
    too_long: int
    """How many were left out for that."""
    policy: TrainedPolicy
    manifest: Mapping[str, Any]
    dev: Sequence[Question]
    out: Path
    finished: dict[str, Any] | None
    """What `out/metrics.json` holds, where an equal run has ended already."""

    def candidate(self, number: int) -> Path:
        """The model folder of an epoch, or of a round."""
        return self.out / "candidates" / f"{number:02d}"

    def finish(
        self,
        each: str,
        history: Sequence[dict[str, Any]],
        worths: Sequence[Sequence[float | None]],
        losses: Sequence[dict[str, Any]],
        **more: Any,
    ) -> dict[str, Any]:
        """Publish the policy that answers the dev questions best, and return what `out/metrics.json` holds.

        Candidates are compared on the questions that all of them have a score of; on their own where there is none. Of equals
        the first is taken.

        Args:
            each: `epoch` or `round`: what a row of the history is about.
            worths: of each row, what each dev question earned, as `dev_worths` has it.
            more: other figures of the metrics.
        """
        compared = [i for i, scores in enumerate(zip(*worths, strict=True)) if None not in scores]
        means = [fmean(x for i in compared if (x := own[i]) is not None) for own in worths] if compared else []
        means = means or [row["dev_worth"] for row in history]
        best = history[means.index(max(means))]
        metrics = {
            "samples": len(self.samples),
            "too_long": self.too_long,
            "roles": dict(sorted(Counter(sample.role for sample in self.samples).items())),
            f"best_{each}": best[each],
            "dev_reward": best["dev_reward"],
            "dev_worth": best["dev_worth"],
            "dev_questions": len(self.dev),
            "loss": losses[-1]["loss"] if losses else None,
            **more,
        }
        published = self.policy.publish({**self.manifest, "metrics": metrics}, self.candidate(best[each]))
        metrics["policy"] = published.version
        files.write_csv(self.out / "loss.csv", losses)
        files.write_csv(self.out / "dev.csv", history)
        files.write_json(self.out / METRICS, metrics)
        return metrics


def dev_worths(episodes: Sequence[Episode], rollouts: Rollouts) -> list[float | None]:
    """What a policy earned on each dev question, by the reward with its shaping; None where that could not be scored."""
    return [worth(episode, rollouts.shaped, 0.0) for episode in episodes]


def dev_row(episodes: Sequence[Episode], rollouts: Rollouts) -> dict[str, Any]:
    """How good a policy is on dev, by the names of the columns of `dev.csv`. `dev_worth` is the reward with its shaping."""
    return {**summary(episodes, rollouts.reward), "dev_worth": mean_reward(episodes, rollouts.shaped)}


async def begin(
    trainer: str,
    run: TrainingRun,
    batch: Sequence[Sample],
    settings: SftParams,
    *,
    visited: Sequence[Question] = (),
    exclude: frozenset[str] = frozenset(),
) -> WarmUp:
    """Make `run.out` the folder of this run; it is emptied where it is that of another one.

    Args:
        trainer: the module that trains.
        visited: questions that are learnt from beside the samples.
        exclude: settings on which the result does not depend.

    Raises:
        UserError: nothing to learn from, or the policy cannot be trained.
    """
    chosen = of_roles(batch, settings.roles)
    samples = imitable(chosen, run.dev, settings.max_tokens)
    policy = TrainedPolicy(run.start, settings.roles, run.out, own=bool(settings.roles))
    parameters = {"reward": run.reward, "seed": run.seed, **settings.model_dump(mode="json", exclude=set(exclude))}
    manifest = lineage("sft", run.system, run.start, run.data, parameters)
    played, backends = run.runtime.open(run.system, run.start)
    identity = run_identity(
        [trainer],
        run,
        played,
        backends,
        manifest,
        exploration=GREEDY,
        learnt_from=[*(sample.node for sample in samples), *(digest(question.to_json()) for question in visited)],
        shaping=settings.shaping,
    )
    await run.runtime.release(run.system, run.start)
    return WarmUp(
        samples=samples,
        too_long=len(chosen) - len(samples),
        policy=policy,
        manifest=manifest | {"trained_with": trained_with(played)},
        dev=run.dev,
        out=run.out,
        finished=resume(run.out, identity),
    )
