"""Policies on disk: weights for each role of a system, named after their content, with a manifest of where they come from.

A policy is a set of model folders (see `PolicySet`). A stage that trains keeps its weights in `results/STAGE/policies/HASH/`
and names its policy in `results/STAGE/policy.json`. New weights have a new path, so that whatever has loaded a path (an
engine, a server) can never serve other weights under it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman import tracking
from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.engines.fetch import MANIFEST, weights_sha256

log = logging.getLogger(__name__)

POINTER = "policy.json"
METRICS = "metrics.json"
STARTED = "started.json"
"""The identity of the run whose work a stage's folder holds."""


TRAINING = ("sft", "rl", "gepa")
"""The stages, and commands, whose folders have their names unless another is given."""
WARM_UP = "-warm-up"
"""How the folders end that `dragoman warm-up` fills, behind the name of the system."""
SHARED = "*"
"""The entry of a policy set that stands for every role without an entry of its own."""
POLICIES = "policies"


@dataclass(frozen=True)
class PolicySet:
    """The weights of a policy: a model folder for each role, or one that several roles share."""

    version: str
    """The first 12 digits of the hash of all weights, and of instructions that come with them; the folder's name where no stage
    has published it."""
    weights: Mapping[str, Path]
    """Model folders by role. The entry `*` is for every role that is not named."""
    manifest: Mapping[str, Any]
    """Where the policy comes from (see `lineage`), with its `version` and `sha256`; empty for a folder without one."""
    folder: Path = Path()
    """The folder by which this policy is found again: the model folder, or that of the set. Empty for a set in the making."""

    @property
    def instructions(self) -> Mapping[str, str]:
        """Those that come with the weights, by role: the system is run with them. Empty where it has its own."""
        found: Mapping[str, str] = self.manifest.get("instructions", {})
        return found

    def of(self, role: str) -> Path:
        """The model folder of a role.

        Raises:
            UserError: the set has no weights for it.
        """
        self.check([role])
        return self.weights.get(role) or self.weights[SHARED]

    def check(self, roles: Iterable[str]) -> None:
        """
        Raises:
            UserError: a role has no weights in this set.
        """
        missing = [role for role in roles if role not in self.weights and SHARED not in self.weights]
        if missing:
            raise UserError(
                f"policy {self.version}: no weights for {', '.join(missing)}, only for {', '.join(sorted(self.weights))}; "
                f"add {'it' if len(missing) == 1 else 'them'} to `roles` in its {POINTER}, or an entry '{SHARED}' for all"
            )

    def groups(self) -> list[tuple[Path, tuple[str, ...]]]:
        """Each model folder once, with the entries that it is for."""
        entries: dict[Path, list[str]] = {}
        for role, folder in self.weights.items():
            entries.setdefault(folder.resolve(), []).append(role)
        return [(self.weights[roles[0]], tuple(roles)) for roles in entries.values()]


def lineage(
    stage: str, system: str, start: Path | PolicySet, data: Mapping[str, str], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """What a manifest says of where a policy comes from: trained by `stage` on `data`, from the model folder or set `start`.

    Raises:
        UserError: the policy to start from has instructions of its own, which training would lose.
    """
    if isinstance(start, PolicySet) and start.instructions:
        raise UserError(
            f"policy {start.version} has instructions of its own, and would be trained without them: start from its base, and "
            f"give the texts of its folder `instructions` to systems.{system}.rewritten"
        )
    parent = start.manifest if isinstance(start, PolicySet) else read_manifest(start)
    return {
        "stage": stage,
        "system": system,
        "base": parent.get("base", parent.get("source", "")),
        "parent": parent.get("version", ""),
        "data": dict(data),
        "parameters": dict(parameters),
    }


def publish(
    trained: Path | Mapping[str, Path], out: Path, manifest: Mapping[str, Any], *, carried: Mapping[str, Path] = {}
) -> PolicySet:
    """Make weights the policy of the stage folder `out`. Earlier ones are removed from it.

    A process that dies in it, or after it, can do it again: what was given stays where it is.

    Args:
        trained: finished model folders by role, or one for all roles. What is made of them gets the manifest.
        out: the stage's folder.
        manifest: where the policy comes from (see `lineage`), its metrics, and its `instructions` if it has some.
        carried: model folders of roles that were not trained. They stay where they are and keep their own manifest.

    Raises:
        UserError: a folder holds no weights.
    """
    made_here = {SHARED: trained} if isinstance(trained, Path) else dict(trained)
    given = {**carried, **made_here}
    hashes = {role: weights_sha256(folder) for role, folder in given.items()}
    made = {"code": tracking.git_revision(), **manifest}
    weights = {role: out / POLICIES / _short(sha256) for role, sha256 in hashes.items()}
    for role, folder in given.items():
        if role in made_here and folder.resolve() != weights[role].resolve():
            shutil.rmtree(weights[role], ignore_errors=True)  # equal weights may have come with another tokenizer
        link_folder(folder, weights[role])
        if role in made_here:
            _identify(weights[role], hashes[role], made)
    version = _short(set_sha256(hashes, manifest.get("instructions", {})))
    folder = out / POLICIES / version
    if folder not in weights.values():
        write_set(folder, weights, made, hashes=hashes)
    roles = {role: f"{POLICIES}/{path.name}" for role, path in weights.items()}
    files.write_json(out / POINTER, {"version": version, "folder": f"{POLICIES}/{version}", "roles": roles})
    for other in (out / POLICIES).iterdir():
        if other not in (*weights.values(), folder):
            shutil.rmtree(other)
    return find_policy(str(folder))


def write_set(
    folder: Path, weights: Mapping[str, Path], manifest: Mapping[str, Any], *, hashes: Mapping[str, str] | None = None
) -> PolicySet:
    """Make `folder` stand for a set of weights, which stay where they are. It names them by paths relative to it.

    Args:
        weights: model folders by role; `*` for all that are not named.
        manifest: where the policy comes from.
        hashes: `weights_sha256` of each, where it is known.
    """
    known = hashes or {role: weights_sha256(path) for role, path in weights.items()}
    sha256 = set_sha256(known, manifest.get("instructions", {}))
    roles = {role: os.path.relpath(path.resolve(), folder.resolve()) for role, path in weights.items()}
    _identify(folder, sha256, manifest)
    files.write_json(folder / POINTER, {"version": _short(sha256), "roles": roles})
    return find_policy(str(folder))


def set_sha256(hashes: Mapping[str, str], instructions: Mapping[str, str] = {}) -> str:
    """The hash of all weights of a set, from the hash of each entry; that of the weights where one entry is for all.

    Args:
        instructions: those that come with the weights.
    """
    if list(hashes) == [SHARED] and not instructions:
        return hashes[SHARED]
    parts = [f"{role} {sha256}\n" for role, sha256 in sorted(hashes.items())]
    parts += [f"{role} reads {text}\n" for role, text in sorted(instructions.items())]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def find_policy(policy: str, results: Path = Path("results")) -> PolicySet:
    """The policy that a training stage has published, that a folder names in its `policy.json`, or a single model folder.

    Args:
        policy: the stage's name, or the folder.
        results: where stages have their folders.

    Raises:
        UserError: there is no such policy, or its `policy.json` or its manifest cannot be used.
    """
    for pointer in (results / policy / POINTER, Path(policy) / POINTER):
        if pointer.is_file():
            return _read(policy, pointer)
    folder = Path(policy)
    if (folder / "config.json").is_file():
        manifest = read_manifest(folder)
        return PolicySet(str(manifest.get("version") or folder.name), {SHARED: folder}, manifest, folder)
    raise UserError(
        f"policy {policy!r}: neither a model folder nor a finished stage (there is neither {results / policy / POINTER} nor "
        f"{folder / POINTER}); {_how_to_train(folder)}"
    )


def _how_to_train(folder: Path) -> str:
    """The command that makes a policy of that name, as the rest of a sentence."""
    if folder.parent.name.endswith(WARM_UP):
        return f"`dragoman warm-up {folder.parent.name.removesuffix(WARM_UP)} --out {folder.parent}` trains it"
    if folder.name not in TRAINING:
        return f"`dragoman sft --out {folder}` trains one there, and so does `dragoman rl`"
    out = "" if folder == Path(folder.name) else f" --out {folder}"
    return f"`dragoman {folder.name}{out}` trains it"


def _read(policy: str, pointer: Path) -> PolicySet:
    try:
        content = json.loads(pointer.read_text(encoding="utf-8"))
        folder = pointer.parent / content.get("folder", "")
        roles = content.get("roles") or {SHARED: content["folder"]}
        weights = {str(role): Path(os.path.normpath(pointer.parent / path)) for role, path in roles.items()}
        version = str(content["version"])
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise UserError(
            f"{pointer}: not a policy ({e!r}); it needs `version` and `roles`, as stages write it"
        ) from None
    for role, path in weights.items():
        if not (path / "config.json").is_file():
            raise UserError(f"policy {policy!r}: {pointer} names {path} for {role}, and no model is there")
    return PolicySet(version, weights, read_manifest(folder), folder)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a policy or of a fetched model; empty where there is none.

    Raises:
        UserError: the file cannot be used.
    """
    path = folder / MANIFEST
    try:
        values = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as e:
        raise UserError(f"{path}: not a manifest ({e}); train or fetch what lies there again") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: not a manifest (no JSON object); train or fetch what lies there again")
    return values


def resume(out: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """Make `out` the folder of the run with this identity, and give its metrics when it has finished already.

    The folder is kept when it is that run's. So a run that was cut short goes on, and results of different code, settings or data are
    never mixed. Another's, which may be hours of work, becomes `OUT.before`, in the place of what was there.

    Args:
        identity: all that the result depends on, by name, in values that JSON can hold.

    Raises:
        UserError: the folder, or `OUT.before`, holds something else.
    """
    started, metrics = out / STARTED, out / METRICS
    wanted = json.loads(files.dumps(identity))
    if not started.is_file() and out.exists() and any(out.iterdir()):
        raise UserError(f"{out}: holds files that no training run wrote; give an empty folder or remove it")
    before = json.loads(started.read_text(encoding="utf-8")) if started.is_file() else {}
    if before != wanted:
        kept = _keep_before(out.resolve())
        if before:
            changed = ", ".join(name for name in wanted if before.get(name) != wanted[name])
            where = f"; what it held is in {kept}" if kept else ""
            log.warning("%s: starts anew, since these have changed: %s%s", out, changed, where)
        files.write_json(started, wanted)
    if not metrics.is_file():
        return None
    log.info("%s: finished already, with equal settings and data", out)
    finished: dict[str, Any] = json.loads(metrics.read_text(encoding="utf-8"))
    return finished


def _keep_before(out: Path) -> Path | None:
    """Empty the folder of a run, whose files go to `OUT.before`; None where there are none, or `out` cannot be renamed."""
    made = any(path.name != STARTED for path in out.glob("*"))
    kept = out.with_name(f"{out.name}.before") if made else None
    if kept and kept.exists() and not (kept / STARTED).is_file():
        raise UserError(f"{kept}: holds files that no training run wrote, where those of {out} would go; rename it")
    try:
        with files.set_aside(kept or out):
            if kept:
                out.rename(kept)
            out.mkdir(parents=True)
    except OSError:  # a mount point keeps its name, and is emptied in its place
        if not out.is_dir():
            raise
        kept = None
        files.write_json(out / STARTED, {})  # of no run: one that is killed here is emptied again
        for path in out.iterdir():
            if path.name != STARTED:
                with files.set_aside(path):
                    pass
    return kept


def copy_tokenizer(base: Path, folder: Path) -> None:
    """Copy into a folder of new weights what `base` has besides weights and manifest: tokenizer, generation settings."""
    for path in base.iterdir():
        own = ".safetensors" in path.suffixes or path.name == MANIFEST or (folder / path.name).exists()
        if path.is_file() and not own:
            shutil.copy2(path, folder / path.name)


def link_folder(folder: Path, target: Path) -> None:
    """The same files in `target`, all or nothing, as hard links where the file system has them."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        shutil.copytree(folder, scratch, copy_function=_link, dirs_exist_ok=True)
        files.rename_folder(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(os.path.realpath(source), target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _identify(folder: Path, sha256: str, manifest: Mapping[str, Any]) -> None:
    files.write_json(folder / MANIFEST, {"version": _short(sha256), "sha256": sha256, **manifest})


def _short(sha256: str) -> str:
    return sha256[:12]
