"""Versions of the proxy: what was trained, where it came from, and which one is served.

Every trained policy can be a version of one registered model, with its lineage as tags. The weights stay where DVC keeps them
(`results/STAGE/policies/ID`, and in its cache once the stage has run again): a version only says where, and with what hash,
and whoever resolves it gets a folder whose weights have been hashed again. Three aliases name versions:

- `challenger` was trained last and wants to be served;
- `champion` is served;
- `previous` was the champion before, and is what a rollback goes back to.

A version is named by an alias, by its number (`v3`) or by its policy's id, also after the `@` of a system: `c3po@champion`.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from dragoman import tracking
from dragoman.core.errors import UserError
from dragoman.engines.fetch import weights_sha256
from dragoman.registry import lockfile
from dragoman.registry.policy import POINTER, SHARED, PolicySet, find_policy, read_manifest

log = logging.getLogger(__name__)

MODEL = "dragoman-proxy"
CHAMPION, CHALLENGER, PREVIOUS = ALIASES = ("champion", "challenger", "previous")
STORE = Path("mlruns")
RESTORED = Path("results/registry")
"""Where a version is made available again whose stage has run since, and where one is kept that DVC does not keep."""
ROLLED_BACK = "rolled back"


@dataclass(frozen=True)
class Version:
    """A version of the proxy."""

    number: int
    policy: str
    """The policy's id: the first 12 digits of the hash of its weights."""
    sha256: str
    folder: Path
    """Where the stage has left it. It may be gone: see `resolve`."""
    stage: str
    system: str
    base: str
    """The model that the first training started from."""
    parent: str
    """The policy that it was trained from; empty for the base."""
    revision: str
    """The git commit of the code that trained it."""
    data: Mapping[str, str]
    """Hashes of what it was trained on, as the stage gave them."""
    dvc: Mapping[str, str]
    """From `dvc.lock`: `stage`, `out` (path and hash of the folder that holds it), and each dependency's hash by its path;
    empty for a policy that DVC does not keep."""
    parameters: Mapping[str, str]
    metrics: Mapping[str, float]
    aliases: tuple[str, ...]
    created: float
    decision: str
    """What became of it: promoted, refused (why), rolled back."""

    @property
    def name(self) -> str:
        return f"v{self.number}"


def register(folder: Path, store: Path = STORE, project: Path = Path()) -> Version:
    """The version of a trained policy, which is made unless its weights are a version already.

    Args:
        folder: a policy folder, as a training stage leaves it.
        store: the folder of MLflow.
        project: the folder of `dvc.lock`.

    Raises:
        UserError: no stage has trained it, or its weights are not those that its manifest names.
    """
    manifest = read_manifest(folder)
    if "version" not in manifest or "sha256" not in manifest:
        raise UserError(f"{folder}: no training stage has made this folder, so it cannot become a version of {MODEL}")
    if (found := weights_sha256(folder)) != manifest["sha256"]:
        raise UserError(f"{folder}: SHA-256 of the weights is {found[:12]}, its manifest says {manifest['version']}")
    with locked(store):
        for version in history(store):
            if version.sha256 == found:
                return version
        output = lockfile.output_holding(folder, project)
        if output is None:
            kept = _keep(folder, project / RESTORED / manifest["version"])
            log.info("%s: not in DVC's cache, so it is kept in %s", folder, kept)
        where = folder.resolve()
        if where.is_relative_to(project.resolve()):
            where = where.relative_to(project.resolve())
        source = f"dvc:{Path('/') / where}" + (f"?md5={output.md5}" if output else "")
        tags = _tags(where, manifest, output)
        number = tracking.create_version(MODEL, source, tags, store)
        log.info("%s v%d: policy %s of %s", MODEL, number, manifest["version"], manifest.get("stage", "?"))
        return find(f"v{number}", store)


def register_stages(
    stages: Iterable[str], results: Path = Path("results"), store: Path = STORE, project: Path = Path()
) -> list[Version]:
    """The versions of what training stages have left, in their order: what is trained from another comes after it."""
    finished = [stage for stage in stages if (results / stage / POINTER).is_file()]
    return [register(find_policy(stage, results).of(SHARED), store, project) for stage in finished]


def history(store: Path = STORE) -> list[Version]:
    """All versions, newest first."""
    return [_version(stored) for stored in tracking.model_versions(MODEL, store)]


def get(name: str, store: Path = STORE) -> Version | None:
    """The version called `name`, or None."""
    for version in history(store):
        if name in (*version.aliases, version.name) or (len(name) >= 6 and version.policy.startswith(name)):
            return version
    return None


def find(name: str, store: Path = STORE) -> Version:
    """The version called `name`: an alias, a number (`v3`), or a policy's id.

    Raises:
        UserError: there is none.
    """
    if (version := get(name, store)) is None:
        known = ", ".join(f"{v.name} ({', '.join((*v.aliases, v.policy))})" for v in history(store)[:5]) or "none"
        raise UserError(f"{MODEL} {name!r}: no such version; there are: {known}. `dragoman promote` registers policies")
    return version


def resolve(name: str, store: Path = STORE, project: Path = Path()) -> Path:
    """The folder of a version, with the weights that were registered: hashed once in a process, again when a file changes.

    Raises:
        UserError: no such version, its weights are neither in their folder nor in DVC's cache, or they are not the same.
    """
    version = find(name, store)
    restored = project / RESTORED / version.policy
    for folder in (project / version.folder, restored):
        if folder.is_dir() and _verified(folder, version.sha256):
            return folder
    if "out" not in version.dvc:
        raise UserError(
            f"{MODEL} {version.name}: its weights were in {version.folder} only, and are not there any more"
        )
    path, _, md5 = version.dvc["out"].rpartition(" ")
    lockfile.restore(md5, version.folder.relative_to(path).as_posix(), restored, project)
    if not _verified(restored, version.sha256):
        raise UserError(f"{MODEL} {version.name}: the weights in {restored} are not those that were registered")
    return restored


def policy_set(policy: str, results: Path = Path("results"), store: Path = STORE) -> PolicySet:
    """The policy behind what stands after `system@`: a version, a stage that has trained, or a folder.

    Raises:
        UserError: there is no such policy.
    """
    named = policy in ALIASES or re.fullmatch(r"v\d+", policy)
    return find_policy(str(resolve(policy, store))) if named else find_policy(policy, results)


def challenge(version: Version, store: Path = STORE) -> None:
    """Make it the challenger."""
    with locked(store):
        tracking.set_alias(MODEL, CHALLENGER, version.number, store)


def promote(version: Version, expected: Version | None, store: Path = STORE) -> None:
    """Make a version the champion, if the champion is still the one that it was compared with (None: there was none).

    Raises:
        UserError: it is not. Nothing has moved.
    """
    with locked(store):
        champion = get(CHAMPION, store)
        if (champion and champion.number) != (expected and expected.number):
            was, now = (v.name if v else "none" for v in (expected, champion))
            raise UserError(
                f"{version.name} was compared with the champion {was}, and the champion is {now} by now: nothing was "
                "moved; run `dragoman promote` again"
            )
        if champion is not None:
            # before the champion: a process that dies between the two leaves a champion that was always there
            tracking.set_alias(MODEL, PREVIOUS, champion.number, store)
        tracking.set_alias(MODEL, CHAMPION, version.number, store)
        if (challenger := get(CHALLENGER, store)) and challenger.number == version.number:
            tracking.set_alias(MODEL, CHALLENGER, None, store)


def rollback(store: Path = STORE, project: Path = Path()) -> tuple[Version, Version]:
    """Swap champion and previous, once the previous one's weights are known to be there.

    Returns:
        The champion now, and the one before.

    Raises:
        UserError: there is nothing to go back to.
    """
    with locked(store):
        champion, previous = get(CHAMPION, store), get(PREVIOUS, store)
        if champion is None or previous is None or champion.number == previous.number:
            raise UserError(f"{MODEL}: no champion before this one to go back to")
        resolve(previous.name, store, project)
        tracking.set_alias(MODEL, CHAMPION, previous.number, store)
        tracking.set_alias(MODEL, PREVIOUS, champion.number, store)
        when = time.strftime("%Y-%m-%d %H:%M")
        tracking.tag_version(MODEL, champion.number, {"decision": f"{ROLLED_BACK} {when}"}, store)
        tracking.tag_version(MODEL, previous.number, {"decision": f"champion again {when}"}, store)
        return previous, champion


def decided(version: Version, decision: str, store: Path = STORE) -> None:
    """Write down what became of a version."""
    tracking.tag_version(MODEL, version.number, {"decision": decision}, store)


def lineage(name: str, store: Path = STORE) -> list[Version]:
    """A version and those that it was trained from, as far as they are versions too."""
    by_policy = {v.policy: v for v in history(store)}
    chain = [find(name, store)]
    while (parent := by_policy.get(chain[-1].parent)) and parent not in chain:
        chain.append(parent)
    return chain


def describe(version: Version) -> list[str]:
    """What is known of a version, as lines to read."""
    lines = [
        f"{version.name} policy {version.policy}" + (f" [{', '.join(version.aliases)}]" if version.aliases else "")
    ]
    lines.append(f"  stage {version.stage} of {version.system}, code {version.revision}, {version.folder}")
    for title, group in (("data", version.data), ("dvc", version.dvc), ("metric", version.metrics)):
        lines += [f"  {title} {key}: {value}" for key, value in group.items()]
    if version.decision:
        lines.append(f"  {version.decision}")
    return lines


def differences(a: Version, b: Version) -> list[tuple[str, str, str]]:
    """(what, in a, in b) for all in which two versions differ; `–` where one has no such thing."""
    facts = []
    for v in (a, b):
        own = {"policy": v.policy, "stage": v.stage, "system": v.system, "base": v.base, "parent": v.parent}
        own |= {"code": v.revision, "aliases": ", ".join(v.aliases), "decision": v.decision}
        for group, values in (("data", v.data), ("dvc", v.dvc), ("parameter", v.parameters), ("metric", v.metrics)):
            own |= {f"{group} {key}": str(value) for key, value in values.items()}
        facts.append(own)
    left, right = facts
    return [
        (key, left.get(key) or "–", right.get(key) or "–")
        for key in dict.fromkeys((*left, *right))
        if left.get(key) != right.get(key)
    ]


@contextmanager
def locked(store: Path = STORE, name: str = "registry", wait: float = 60) -> Iterator[None]:
    """Only one process at a time, among those that share the store's folder. A killed process lets go.

    Raises:
        UserError: another one did not let go in `wait` seconds.
    """
    from filelock import FileLock, Timeout

    store.mkdir(parents=True, exist_ok=True)
    path = store / f"{name}.lock"
    try:
        with FileLock(path, timeout=wait):
            yield
    except Timeout:
        raise UserError(f"{path}: another process is at it; wait until it is done and run the command again") from None


def _keep(folder: Path, target: Path) -> Path:
    """The same files in `target`, as hard links where the file system has them: the stage's next run deletes its folder."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
        try:
            shutil.copytree(folder, scratch, copy_function=_link, dirs_exist_ok=True)
            scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _tags(folder: Path, manifest: Mapping[str, Any], output: lockfile.Output | None) -> dict[str, str]:
    tags = {
        "policy": manifest["version"],
        "sha256": manifest["sha256"],
        "folder": str(folder),
        "git.revision": manifest.get("code", ""),
    }
    tags |= {key: str(manifest.get(key, "")) for key in ("stage", "system", "base", "parent")}
    if output is not None:
        kept = {"stage": output.stage, "out": f"{output.path} {output.md5}", **output.dependencies}
        tags |= _prefixed("dvc", kept)
    for group, key in (("data", "data"), ("parameter", "parameters"), ("metric", "metrics")):
        tags |= _prefixed(group, tracking.flatten(manifest.get(key, {})))
    return tags


def _prefixed(group: str, values: Mapping[str, Any]) -> dict[str, str]:
    # MLflow allows few characters in a tag's name, and a file's name may have others
    return {f"{group}.{re.sub(r'[^/A-Za-z0-9_. -]', '-', key)}": str(value) for key, value in values.items()}


def _version(stored: tracking.StoredVersion) -> Version:
    def group(name: str) -> dict[str, str]:
        return {k.removeprefix(f"{name}."): v for k, v in stored.tags.items() if k.startswith(f"{name}.")}

    metrics = {}
    for key, text in group("metric").items():
        try:
            metrics[key] = float(text)
        except ValueError:
            continue  # a reason for stopping, for example
    return Version(
        number=stored.number,
        policy=stored.tags["policy"],
        sha256=stored.tags["sha256"],
        folder=Path(stored.tags["folder"]),
        stage=stored.tags["stage"],
        system=stored.tags["system"],
        base=stored.tags["base"],
        parent=stored.tags["parent"],
        revision=stored.tags["git.revision"],
        data=group("data"),
        dvc=group("dvc"),
        parameters=group("parameter"),
        metrics=metrics,
        aliases=stored.aliases,
        created=stored.created,
        decision=stored.tags.get("decision", ""),
    )


def _verified(folder: Path, sha256: str) -> bool:
    """Whether the folder holds these weights. Hashing 270 MB takes a second, so each state of the files is hashed once."""
    files = sorted(folder.glob("*.safetensors"))
    if not files or not all(path.is_file() for path in files):
        return False
    stats = [(path.name, path.stat()) for path in files]
    return _hash(folder.resolve(), tuple((n, s.st_ino, s.st_size, s.st_mtime_ns) for n, s in stats)) == sha256


@lru_cache(maxsize=64)
def _hash(folder: Path, state: tuple[tuple[str, int, int, int], ...]) -> str:
    return weights_sha256(folder)
