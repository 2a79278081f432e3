"""With which settings and prompts of its system a policy was trained, and whether it is used with the same."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

from dragoman.core.errors import UserError
from dragoman.core.identity import content_hash
from dragoman.core.settings import flatten
from dragoman.systems.base import System

log = logging.getLogger(__name__)

TURNED = "turned"
"""Where a record has the settings of `turned_after_training`."""


def trained_with(system: System) -> dict[str, Any]:
    """What a policy's manifest records of its system, a dataclass: settings, a hash of the prompts, the count of views.

    Settings of `turned_after_training` stand apart from those that must agree.
    """
    prompts = {name: asdict(prompt) for name, prompt in system.trained_prompts.items()}
    settings = asdict(cast(Any, system))
    turned = {key: settings.pop(key) for key in sorted(settings.keys() & system.turned_after_training)}
    return {
        "settings": _as_stored(settings),
        "prompts": content_hash(**_as_stored(prompts)),
        "views": system.views,
        TURNED: _as_stored(turned),
    }


def must_agree(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """A record without what may be turned afterwards."""
    return {key: value for key, value in recorded.items() if key != TURNED}


def check_trained_with(name: str, system: System, manifest: Mapping[str, Any]) -> None:
    """Refuse a policy whose system now differs from what it was when the policy was trained; see `differences`.

    Args:
        name: of the system with its policy, for the error.

    Raises:
        UserError: it names each setting with both values.
    """
    if faults := differences(system, manifest):
        raise UserError(
            f"{name}: trained with other settings of {manifest.get('system', 'its system')}: {'; '.join(faults)}; "
            "set them back, train again, or take it as it is with --allow-mismatch"
        )


def warn_if_turned(name: str, system: System, manifest: Mapping[str, Any]) -> None:
    """Log, in one line, the settings of `turned_after_training` that have other values than those that a policy learnt with.

    A warm-up learns what is likely, whatever they add (`training.imitation`), and may be run with any. RL learns what is best beside
    them. A number that is not named, such
    as a bias, is 0. Nothing is said of a policy that does not record them.

    Args:
        name: of the policy, for the log.
    """
    if manifest.get("stage", "sft") == "sft":
        return
    recorded, present = manifest.get("trained_with", {}).get(TURNED, {}), trained_with(system)[TURNED]
    then, now = (flatten({key: of[key] for key in recorded if key in present}) for of in (recorded, present))
    turned = [
        f"{manifest['system']}.{key} was {then.get(key) or 0} and is {now.get(key) or 0}"
        for key in dict.fromkeys((*then, *now))
        if (then.get(key) or 0) != (now.get(key) or 0)
    ]
    if turned:
        log.warning(
            "%s: stage %s learnt with other settings: %s; set them back, or choose them on dev",
            name,
            manifest["stage"],
            "; ".join(turned),
        )


def differences(system: System, manifest: Mapping[str, Any]) -> list[str]:
    """Which settings, prompts or views of its system are others than when the policy of a manifest was trained, with both values.

    A manifest without a record of them, such as that of a plain model, differs in none. A setting that did not exist yet counts
    as its default. Those of `turned_after_training` may be any.
    """
    then, now = manifest.get("trained_with"), trained_with(system)
    if not then or then == now:
        return []
    before, after = _defaults(system) | then["settings"], now["settings"]
    faults = [
        f"{key} was {before.get(key)!r} and is {after.get(key)!r}"
        for key in dict.fromkeys((*before, *after))
        if before.get(key) != after.get(key) and key not in system.turned_after_training
    ]
    if then["prompts"] != now["prompts"]:
        faults.append(f"the prompts had hash {then['prompts']} and have {now['prompts']}")
    if (views := then.get("views", 1)) != now["views"]:  # not recorded by the first versions
        faults.append(f"states were shown in form {views} and are in form {now['views']}, by another dragoman")
    return faults


def _defaults(system: System) -> dict[str, Any]:
    fields = dataclasses.fields(cast(Any, system))
    return {f.name: _as_stored(f.default) for f in fields if f.default is not dataclasses.MISSING}


def _as_stored(value: Any) -> Any:
    """The value as JSON gives it back: tuples are lists, for example."""
    return json.loads(json.dumps(value))
