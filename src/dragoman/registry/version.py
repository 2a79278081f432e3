"""A version of the proxy: what is known of it, how MLflow keeps that as tags, and how people read it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman import tracking
from dragoman.core.settings import flatten
from dragoman.registry.policy import PolicySet

NOT_THERE = "–"
LONGEST = 5000
"""Characters of a tag's value, which servers of MLflow take. Rewritten prompts are longer, and their hash stands beside them."""


@dataclass(frozen=True)
class Version:
    """A version of the proxy."""

    number: int
    policy: str
    """The policy's id: the first 12 digits of the hash of its weights."""
    sha256: str
    """Of the weights."""
    content: str
    """SHA-256 of what was registered; see `content_sha256`."""
    run: str
    """The run of an MLflow server that has a copy of the files; empty where the store is a folder, which has them itself."""
    folder: Path
    """Where the stage had left it when it was registered."""
    stage: str
    system: str
    base: str
    """The model that the first training started from."""
    parent: str
    """The policy that it was trained from; empty for the base."""
    revision: str
    """The git commit of the code that trained it."""
    roles: Mapping[str, str]
    """Ids of the weights by role, for a policy whose roles have weights of their own."""
    data: Mapping[str, str]
    """Hashes of what it was trained on, as the stage gave them."""
    parameters: Mapping[str, str]
    trained_with: Mapping[str, str]
    """The settings of its system, and a hash of the prompts; empty for versions from before these were recorded here."""
    metrics: Mapping[str, float]
    aliases: tuple[str, ...]
    created: float
    """Unix time, in seconds."""
    decision: str
    """What became of it: promoted, refused (why), rolled back."""
    trials: Mapping[str, str]
    """What it has shown beside the champion, as JSON by the kind of the trial: `shadow`, `canary`."""

    @property
    def name(self) -> str:
        return f"v{self.number}"

    @property
    def taken_back(self) -> str:
        """Why the endpoint has taken it back as a canary; empty where it has not."""
        return str(json.loads(self.trials["canary"])["rolled_back"]) if "canary" in self.trials else ""


def to_tags(policy: PolicySet, content: str, folder: Path) -> dict[str, str]:
    """What MLflow keeps of a policy whose files have the hash `content` and which `folder` held."""
    manifest = policy.manifest
    tags = {
        "policy": policy.version,
        "sha256": manifest["sha256"],
        "content": content,
        "folder": str(folder),
        "git.revision": manifest.get("code", ""),
    }
    tags |= {key: str(manifest.get(key, "")) for key in ("stage", "system", "base", "parent")}
    if len(policy.weights) > 1:
        tags["roles"] = json.dumps({role: path.name for role, path in policy.weights.items()})
    groups = (("data", "data"), ("parameter", "parameters"), ("metric", "metrics"), ("trained_with", "trained_with"))
    for group, key in groups:
        for name, value in flatten(manifest.get(key, {})).items():
            # MLflow allows few characters in a tag's name, and a file's name may have others
            tags[f"{group}.{re.sub(r'[^/A-Za-z0-9_. -]', '-', name)}"] = str(value)[:LONGEST]
    return tags


def from_tags(stored: tracking.StoredVersion) -> Version:
    """The version that MLflow has kept."""
    tags = stored.tags

    def group(name: str) -> dict[str, str]:
        return {key.removeprefix(f"{name}."): text for key, text in tags.items() if key.startswith(f"{name}.")}

    return Version(
        number=stored.number,
        policy=tags["policy"],
        sha256=tags["sha256"],
        content=tags.get("content", ""),
        run=tags.get("run", ""),
        folder=Path(tags["folder"]),
        stage=tags["stage"],
        system=tags["system"],
        base=tags["base"],
        parent=tags["parent"],
        revision=tags["git.revision"],
        roles=json.loads(tags.get("roles", "{}")),
        data=group("data"),
        parameters=group("parameter"),
        trained_with=group("trained_with"),
        metrics={key: value for key, text in group("metric").items() if (value := _number(text)) is not None},
        aliases=stored.aliases,
        created=stored.created,
        decision=tags.get("decision", ""),
        trials=group("trial"),
    )


def describe(version: Version) -> list[str]:
    """What is known of a version, as lines to read."""
    lines = [
        f"{version.name} policy {version.policy}" + (f" [{', '.join(version.aliases)}]" if version.aliases else ""),
        f"  stage {version.stage} of {version.system}, code {version.revision}, {version.folder}",
    ]
    for title, group in (("role", version.roles), ("data", version.data), ("metric", version.metrics)):
        lines += [f"  {title} {key}: {value}" for key, value in group.items()]
    lines += [f"  {kind}: {shown}" for kind, shown in version.trials.items()]
    if version.decision:
        lines.append(f"  {version.decision}")
    return lines


def differences(a: Version, b: Version) -> list[tuple[str, str, str]]:
    """(what, in a, in b) for all in which two versions differ; `–` where one has no such thing."""
    left, right = _facts(a), _facts(b)
    return [
        (key, left.get(key) or NOT_THERE, right.get(key) or NOT_THERE)
        for key in dict.fromkeys((*left, *right))
        if left.get(key) != right.get(key)
    ]


def _facts(version: Version) -> dict[str, str]:
    v = version
    facts = {"policy": v.policy, "stage": v.stage, "system": v.system, "base": v.base, "parent": v.parent}
    facts |= {"code": v.revision, "aliases": ", ".join(v.aliases), "decision": v.decision}
    groups: Mapping[str, Mapping[str, Any]] = {
        "role": v.roles, "data": v.data, "parameter": v.parameters, "metric": v.metrics, "trained with": v.trained_with
    }  # fmt: skip
    return facts | {f"{group} {key}": str(value) for group, values in groups.items() for key, value in values.items()}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None  # a reason for stopping, for example
