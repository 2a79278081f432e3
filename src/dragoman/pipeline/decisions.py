"""What the gate has decided, and what a rollback was asked for, carried out to the end: the aliases, and the record of it.

Each is noted in the registry's folder before anything moves. A process that is killed meanwhile leaves its note to the next
command, which does what is left. A note says when the aliases have followed it, so that they never do twice. Who writes one has
done before what another says, but for its record: a rollback does not wait for that.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dragoman import tracking
from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.settings import flatten
from dragoman.core.tables import table_lines
from dragoman.evaluation.report import markdown
from dragoman.registry.version import Version
from dragoman.registry.versions import PROMOTED, ROLLED_BACK, ChampionMoved, Registry

log = logging.getLogger(__name__)

PROMOTION, ROLLBACK = "promotion.json", "rollback.json"
"""The notes of what is being carried out."""
LOCK = "decisions"
"""Who holds it writes a note, or does what one says."""


@dataclass(frozen=True)
class Check:
    """One condition of the gate."""

    name: str
    found: str
    limit: str
    met: bool

    @property
    def reason(self) -> str:
        """What is said of it where it is not met."""
        return f"{self.name}: {self.found}, and not {self.limit}"


@dataclass(frozen=True)
class Verdict:
    """What the gate decided, and why. `decision.json` holds these fields."""

    challenger: str
    policy: str
    champion: str
    """The champion at the time; empty while there was none."""
    against: str
    """The system that the challenger was compared with."""
    promoted: bool
    reasons: tuple[str, ...]
    """What spoke against it; empty when it was promoted."""
    checks: tuple[Check, ...]
    dataset: str
    questions: str
    """Hash of the questions, with their answers."""
    llm: str
    retriever: str
    judge: str
    """Fingerprints: equal for both. Of the judge it is empty where nothing was judged."""
    seed: int
    trials: Mapping[str, Any]
    """What the challenger has shown on real questions, by kind (`shadow`, `canary`); empty where it was not tried."""
    settings: Mapping[str, Any]
    revision: str
    at: str


@dataclass(frozen=True)
class Rollback:
    """A rollback that was asked for. `rollback.json` holds these fields."""

    id: str
    champion: str
    """The champion that was taken back."""
    previous: str
    """The one before it, which is champion again."""
    at: str


def carry_out(decision: Verdict, metrics: Mapping[str, Any], out: Path, registry: Registry) -> Verdict:
    """Let the aliases follow a decision, and record it in `out`, in MLflow and on the version.

    Returns:
        What became of it: a refusal, where the champion has changed since.
    """
    with registry.locked(LOCK):
        _settle(registry)
        noted = {"id": uuid.uuid4().hex, "decision": asdict(decision), "metrics": metrics, "out": str(out)}
        files.write_json(registry.store / PROMOTION, noted)
        return _promote(registry)


def rollback(registry: Registry) -> tuple[Version, Version]:
    """Swap champion and previous, and record it. A rollback that was killed is carried out, and not taken back.

    Returns:
        The champion now, and the one before.

    Raises:
        UserError: there is nothing to go back to.
    """
    with registry.locked(LOCK):
        done = _settle(registry, record_later=True)
        if not isinstance(done, Rollback):
            champion, previous = registry.way_back()
            asked = Rollback(uuid.uuid4().hex, champion.name, previous.name, now())
            files.write_json(registry.store / ROLLBACK, asdict(asked))
            done = _roll_back(registry)
    if done is None:
        raise UserError("the champion has changed meanwhile: nothing was moved; run `dragoman rollback` again")
    return registry.find(done.previous), registry.find(done.champion)


def settle(registry: Registry, out: Path | None = None, *, record_later: bool = False) -> Verdict | Rollback | None:
    """Carry out what a promotion or a rollback has noted whose process was killed before it had done so.

    Args:
        out: where a decision is written; None takes the folder that it was made for.
        record_later: where a decision cannot be recorded, as with a full disk, it is left to a later command.

    Returns:
        What was carried out, or None where nothing was left.

    Raises:
        UserError: another process is at it.
    """
    if not any((registry.store / note).is_file() for note in (PROMOTION, ROLLBACK)):
        return None
    with registry.locked(LOCK):  # one that is at work has done all that its note says when it lets go
        return _settle(registry, out, record_later=record_later)


def _settle(registry: Registry, out: Path | None = None, *, record_later: bool = False) -> Verdict | Rollback | None:
    """Do what the notes say, in the order in which they were written. Returns what the last of them was."""
    promotion, back = ((registry.store / note).is_file() for note in (PROMOTION, ROLLBACK))
    done = _promote(registry, out, record_later=record_later) if promotion else None
    return _roll_back(registry) if back else done


def _promote(registry: Registry, out: Path | None = None, *, record_later: bool = False) -> Verdict:
    """Do what the note of a promotion says. What was done of that before stays as it is.

    Args:
        record_later: see `settle`.
    """
    path = registry.store / PROMOTION
    noted = json.loads(path.read_text(encoding="utf-8"))
    late = noted.get("settled", False)  # the aliases have followed it, and may have moved on since
    said = noted["decision"]
    made = tuple(Check(**check) for check in said["checks"])
    decision = Verdict(**said | {"checks": made, "reasons": tuple(said["reasons"])})
    challenger = registry.find(decision.challenger)
    if decision.promoted and not late:
        try:
            registry.promote(challenger, registry.find(decision.champion) if decision.champion else None)
        except ChampionMoved as e:  # a rollback came in between
            check = Check("champion", str(e), "the same as before", False)
            decision = replace(decision, promoted=False, checks=(*made, check), reasons=(check.reason,))
    if not late:
        files.write_json(path, noted | {"decision": asdict(decision), "settled": True})
    try:
        _record(decision, noted["metrics"], challenger, out or Path(noted["out"]), registry, noted["id"], late=late)
    except Exception as e:  # a full disk, a server that is away: whatever it is, the way back stays open
        if not record_later:
            raise
        log.warning("%s: cannot be recorded now, and is left to a later command: %s", path, e)
        return decision
    path.unlink()
    return decision


def _roll_back(registry: Registry) -> Rollback | None:
    """Do what the note of a rollback says; None where another one is champion by now, and nothing was moved."""
    path = registry.store / ROLLBACK
    asked = Rollback(**json.loads(path.read_text(encoding="utf-8")))
    moved = registry.rollback(registry.find(asked.champion), registry.find(asked.previous), asked.at)
    if moved:
        shown = {"champion": asked.previous, "previous": asked.champion}  # as they are now
        tracking.start(registry.store)
        tracking.log_decision(
            f"rollback to {asked.previous}",
            {**shown, "at": asked.at},
            [],
            tags={"stage": "rollback", **shown},
            parameters={},
            metrics={},
            key=asked.id,
        )
    else:
        log.warning("rollback to %s: another one is champion by now, so nothing was moved", asked.previous)
    path.unlink()
    return asked if moved else None


def _record(
    decision: Verdict,
    metrics: Mapping[str, Any],
    challenger: Version,
    out: Path,
    registry: Registry,
    id: str,
    *,
    late: bool,
) -> None:
    files.write_json(out / "decision.json", asdict(decision))
    files.write_text(out / "table.md", table(decision, metrics))
    what = PROMOTED if decision.promoted else "refused"
    text = "; ".join((f"{what} {decision.at} against {decision.against}", *decision.reasons))
    taken_back = challenger.decision.partition(";")[0]
    if taken_back.startswith(ROLLED_BACK):
        since = late and taken_back.removeprefix(ROLLED_BACK).strip() >= decision.at
        if since or not decision.promoted:  # only a promotion clears it: else the version would come back by itself
            text = f"{taken_back}; {text}"
    registry.decided(challenger, text)
    gain = metrics["paired"][f"{challenger.system}@{challenger.name} - {decision.against}"]
    tracking.start(registry.store)
    tracking.log_decision(
        f"promote {decision.challenger} against {decision.against}",
        asdict(decision),
        [out / "table.md", *sorted((out / "plots").glob("*.png"))],
        tags={"stage": "promote", "decision": what, "challenger": decision.challenger, "against": decision.against},
        parameters={"promote": decision.settings, "dataset": decision.dataset, "seed": decision.seed},
        metrics={f"gain.{key}": value for key, value in flatten(gain).items()},
        key=id,
    )
    log.info("%s: %s", decision.challenger, "; ".join((what, *decision.reasons)))


def table(decision: Verdict, metrics: Mapping[str, Any]) -> str:
    """The decision as Markdown: its conditions, then the evaluation that it rests on."""
    what = "promoted" if decision.promoted else "refused"
    (pair,) = metrics["paired"].values()
    smallest = pair.get(score := decision.settings.get("score", ""), {}).get("detectable")
    shown = {f"gain in {score}": "–" if smallest is None else f"{smallest:.3f}"}
    lines = [
        f"**{decision.challenger}** ({decision.policy}) {what}; compared with {decision.against}, {decision.at}",
        "",
        *table_lines(
            ["condition", "found", "limit", "met", "detectable"],
            (
                [c.name, str(c.found), str(c.limit), "yes" if c.met else "**no**", shown.get(c.name, "")]
                for c in decision.checks
            ),
        ),
        "",
        *(f"{kind}: {_said(shown)}\n" for kind, shown in decision.trials.items()),
    ]
    return "\n".join(lines) + "\n" + markdown(dict(metrics))


def _said(trial: Mapping[str, Any]) -> str:
    """What a trial has shown, in one line."""
    arms = [
        f"{arm} {(of := trial[arm])['answers']} answers, {of['failed']} failed, {of['seconds']} s, {of['up']} up, {of['down']} down"
        for arm in ("champion", "challenger")
    ]
    agreed = [f"{trial['agreed']} of {trial['compared']} answers agree"] if "agreed" in trial else []
    return "; ".join([f"since {trial['since']}, {trial['share']:.0%} of the questions", *arms, *agreed])


def now() -> str:
    """The present time to the second, as records of decisions have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
