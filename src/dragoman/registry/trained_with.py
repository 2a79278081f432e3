"""With which settings and prompts of its system a policy was trained, and whether it is used with the same."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

from dragoman.core.errors import UserError
from dragoman.core.identity import content_hash
from dragoman.systems.base import System


def trained_with(system: System) -> dict[str, Any]:
    """What a policy's manifest records of its system, a dataclass: settings, a hash of the prompts, the count of views.

    Settings of `turned_after_training` are left out: a policy is the same under any of their values.
    """
    prompts = {name: asdict(prompt) for name, prompt in system.trained_prompts.items()}
    settings = {k: v for k, v in asdict(cast(Any, system)).items() if k not in system.turned_after_training}
    return {
        "settings": _as_stored(settings),
        "prompts": content_hash(**_as_stored(prompts)),
        "views": system.views,
    }


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
