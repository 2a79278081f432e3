"""The registry: versions of the proxy, where each came from, and which one is served.

Every trained policy can be a version of one registered model in MLflow, with its lineage as tags. The weights lie beside the
store, in `policies/`: a copy of the registry's own, which no later run of a stage and no cleaning up takes away. Where MLflow
is a server it has a copy too, which other machines fetch. Whoever opens a version gets a folder whose files have been hashed
again. Three aliases name versions:

- `challenger` was trained last and wants to be served;
- `champion` is served;
- `previous` was the champion before, and is what a rollback goes back to.

A version is named by an alias, by its number (`v3`) or by its policy's id, also after the `@` of a system: `c3po@champion`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from dragoman import tracking
from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.hashing import sha256_of_state
from dragoman.engines.fetch import MANIFEST, weights_sha256
from dragoman.registry.policy import POINTER, POLICIES, PolicySet, find_policy, publish, set_sha256
from dragoman.registry.trained_with import must_agree
from dragoman.registry.version import Version, from_tags, to_tags

log = logging.getLogger(__name__)

MODEL = "dragoman-proxy"
CHAMPION, CHALLENGER, PREVIOUS = ALIASES = ("champion", "challenger", "previous")
PROMOTED, ROLLED_BACK, CHAMPION_AGAIN = "promoted", "rolled back", "champion again"
"""How the decision on a version begins that became champion, was taken back as one, or became it by that."""

_SILENT_S = 2.0
"""Seconds for which others are waited for without a word."""


class ChampionMoved(UserError):
    """Another one is champion by now than the one that a challenger was compared with."""


@dataclass(frozen=True)
class Registry:
    """The versions of one project."""

    store: Path = Path("mlruns")
    """The folder of MLflow. The weights of versions lie in it too, also where a server keeps the rest."""
    results: Path = Path("results")
    """Where training stages have their folders."""

    def policy(self, name: str) -> PolicySet:
        """The policy behind what stands after `system@`: a version, a stage that has trained, or a folder.

        Raises:
            UserError: there is no such policy.
        """
        if name in ALIASES or re.fullmatch(r"v\d+", name):
            return self.open(self.find(name))
        try:
            return find_policy(name, self.results)
        except UserError:
            if re.fullmatch(r"[0-9a-f]{6,64}", name) and (version := self.get(name)):  # a policy's id, or its beginning
                return self.open(version)
            raise

    def register(self, policy: PolicySet) -> Version:
        """The version of a trained policy, which is made unless it is a version already. Its files are kept.

        Equal weights that were trained with other settings are another version, since they are not used alike.

        Raises:
            UserError: no stage has trained it, or its weights are not those that its manifest names.
        """
        manifest = policy.manifest
        if "version" not in manifest or "sha256" not in manifest:
            raise UserError(
                f"{policy.folder}: no training stage has made this folder, so it cannot become a version of {MODEL}"
            )
        hashes = {role: weights_sha256(folder) for role, folder in policy.weights.items()}
        found = set_sha256(hashes, policy.instructions)
        if found != manifest["sha256"]:
            raise UserError(
                f"{policy.folder}: SHA-256 of the weights is {found[:12]}, its manifest says {manifest['version']}"
            )
        content = self._content_of(policy)
        kept = self._keep(policy, content)
        known = self._version_of(content)
        # before the lock: it may take minutes, for which a rollback must not wait
        sent = {} if known and known.run else self._sent(kept)
        with self.locked():
            if known := self._version_of(content):  # by now, another process may have made it
                if sent and not known.run:
                    tracking.tag_version(MODEL, known.number, sent, self.store)
                return self.find(known.name)
            source = f"dragoman:/{POLICIES}/{kept.name}"
            where, project = policy.folder.resolve(), self.results.resolve().parent
            left_in = where.relative_to(project) if where.is_relative_to(project) else where
            number = tracking.create_version(MODEL, source, to_tags(policy, content, left_in) | sent, self.store)
            log.info("%s v%d: policy %s of %s", MODEL, number, policy.version, manifest.get("stage") or "no stage")
            return self.find(f"v{number}")

    def register_stages(self, stages: Iterable[str]) -> list[Version]:
        """The versions of what training stages have left, in their order: what is trained from another comes after it."""
        finished = [stage for stage in stages if (self.results / stage / POINTER).is_file()]
        return [self.register(find_policy(stage, self.results)) for stage in finished]

    def history(self) -> list[Version]:
        """All versions, newest first."""
        return [from_tags(stored) for stored in tracking.model_versions(MODEL, self.store)]

    def get(self, name: str) -> Version | None:
        """The version called `name`, or None. By an alias or a number it is one question: the endpoint asks it every second."""
        if name in ALIASES:
            stored = tracking.aliased(MODEL, name, self.store)
        elif re.fullmatch(r"v[1-9][0-9]{0,8}", name):
            stored = tracking.numbered(MODEL, int(name[1:]), self.store)
        else:
            long = len(name) >= 6
            return next((v for v in self.history() if name in v.aliases or (long and v.policy.startswith(name))), None)
        return from_tags(stored) if stored else None

    def find(self, name: str) -> Version:
        """The version called `name`: an alias, a number (`v3`), or a policy's id.

        Raises:
            UserError: there is none.
        """
        if (version := self.get(name)) is None:
            known = ", ".join(f"{v.name} ({', '.join((*v.aliases, v.policy))})" for v in self.history()[:5]) or "none"
            raise UserError(
                f"{MODEL} {name!r}: no such version; there are: {known}. `dragoman promote` registers policies"
            )
        return version

    def open(self, version: Version) -> PolicySet:
        """The policy of a version, with the files that were registered: each is hashed again when it has changed.

        Raises:
            UserError: they are gone, or not the same.
        """
        folder = self._kept(version.content)
        if not (folder / POINTER).is_file() and version.run:
            self._fetch(version, folder)
        if not (folder / POINTER).is_file():
            raise UserError(
                f"{MODEL} {version.name}: its weights are not in {folder}; where {version.folder} still has them, "
                "`dragoman register` keeps them again"
            )
        if not _holds(folder, version.content):
            raise UserError(
                f"{MODEL} {version.name}: the files in {folder} are not those that were registered; where "
                f"{version.folder} still has them, `dragoman register` keeps them again"
            )
        return find_policy(str(folder))

    def challenge(self, version: Version) -> None:
        """Make it the challenger."""
        with self.locked():
            tracking.set_alias(MODEL, CHALLENGER, version.number, self.store)

    def promote(self, version: Version, expected: Version | None) -> None:
        """Make a version the champion, if the champion is still the one that it was compared with (None: there was none).

        A process that was killed in it can do it again.

        Raises:
            ChampionMoved: it is not. Nothing has moved.
            UserError: another process is at the registry.
        """
        with self.locked():
            champion = self.get(CHAMPION)
            if champion is None or champion.number != version.number:
                if (champion and champion.number) != (expected and expected.number):
                    was, now = (v.name if v else "none" for v in (expected, champion))
                    raise ChampionMoved(
                        f"{version.name} was compared with the champion {was}, and the champion is {now} by now: nothing was "
                        "moved; run `dragoman promote` again"
                    )
                if champion is not None:
                    # before the champion: a process that dies between the two leaves a champion that was always there
                    tracking.set_alias(MODEL, PREVIOUS, champion.number, self.store)
                tracking.set_alias(MODEL, CHAMPION, version.number, self.store)
            if (challenger := self.get(CHALLENGER)) and challenger.number == version.number:
                tracking.set_alias(MODEL, CHALLENGER, None, self.store)

    def way_back(self) -> tuple[Version, Version]:
        """The champion, and the one before it, whose weights are known to be there.

        Raises:
            UserError: there is nothing to go back to.
        """
        champion, previous = self.get(CHAMPION), self.get(PREVIOUS)
        if champion is None or previous is None or champion.number == previous.number:
            raise UserError(f"{MODEL}: no champion before this one to go back to")
        self.open(previous)
        return champion, previous

    def rollback(self, champion: Version, previous: Version, at: str) -> bool:
        """Swap champion and previous, unless another one is champion by now: then nothing moves.

        A process that was killed in it can do it again; who must not lose it notes it first, as `pipeline.decisions` does.

        Args:
            at: when it was asked for.

        Returns:
            Whether they were swapped, now or before.
        """
        with self.locked():
            now = self.get(CHAMPION)
            if now is None or now.number not in (champion.number, previous.number):
                return False
            tracking.set_alias(MODEL, CHAMPION, previous.number, self.store)
            tracking.set_alias(MODEL, PREVIOUS, champion.number, self.store)
            self.decided(champion, f"{ROLLED_BACK} {at}")
            self.decided(previous, f"{CHAMPION_AGAIN} {at}")
            return True

    def decided(self, version: Version, decision: str) -> None:
        """Write down what became of a version."""
        tracking.tag_version(MODEL, version.number, {"decision": decision}, self.store)

    def tried(self, version: Version, kind: str, shown: Mapping[str, Any]) -> None:
        """Write down what a version has shown beside the champion, in place of an earlier trial of that kind."""
        tracking.tag_version(MODEL, version.number, {f"trial.{kind}": files.dumps(dict(shown))}, self.store)

    def lineage(self, name: str) -> list[Version]:
        """A version and those that it was trained from, as far as they are versions too.

        Of several with the parent's weights, it is the newest that is older than the child.

        Raises:
            UserError: there is no such version.
        """
        versions = self.history()
        chain = [self.find(name)]
        while same := [v for v in versions if v.policy == chain[-1].parent]:
            parent = next((v for v in same if v.number < chain[-1].number), same[-1])  # or was registered after it
            if parent in chain:
                break
            chain.append(parent)
        return chain

    @contextmanager
    def locked(self, name: str = "registry", wait: float = 300) -> Iterator[None]:
        """Only one process at a time, among those that share the store's folder. A killed process lets go.

        Raises:
            UserError: another one did not let go in `wait` seconds.
        """
        self.store.mkdir(parents=True, exist_ok=True)
        path = self.store / f"{name}.lock"
        lock = FileLock(path)
        try:
            try:
                lock.acquire(timeout=min(wait, _SILENT_S))
            except Timeout:
                if wait <= _SILENT_S:
                    raise
                log.info("%s: another process is at it; waiting %.0f s for it at most", path, wait)
                lock.acquire(timeout=wait)
        except Timeout:
            raise UserError(
                f"{path}: another process is at it; wait until it is done and run the command again"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def _version_of(self, content: str) -> Version | None:
        return next((version for version in self.history() if version.content == content), None)

    def _content_of(self, policy: PolicySet) -> str:
        """The hash by which a policy is a version. It is the older one where that names a version with the same settings."""
        content, before = content_sha256(policy), content_sha256(policy, settings=False)
        if content == before or self._version_of(content) or (known := self._version_of(before)) is None:
            return content
        with suppress(UserError):  # its files are gone: nobody knows what it was trained with
            then = self.open(known).manifest.get("trained_with", {})
            if must_agree(then) == must_agree(policy.manifest["trained_with"]):
                return before
        return content

    def _keep(self, policy: PolicySet, content: str) -> Path:
        """The folder of the registry's own with these files, which is made unless it is there and whole."""
        kept = self._kept(content)
        with self.locked(_lock_of(kept)):
            if not _holds(kept, content):
                shutil.rmtree(kept, ignore_errors=True)
                publish({}, kept, policy.manifest, carried=policy.weights)
                log.info("%s: kept in %s", policy.folder, kept)
        return kept

    def _sent(self, kept: Path) -> dict[str, str]:
        """A tag with the run of the MLflow server to which the files were sent; none where the store is a folder."""
        return {"run": tracking.keep_folder(kept, f"weights {kept.name}", self.store)} if tracking.server() else {}

    def _fetch(self, version: Version, folder: Path) -> None:
        """Get the files of a version from the store, and give them their name once they have the right hash.

        Raises:
            UserError: the store does not have them, or they are not those that were registered.
        """
        if not re.fullmatch(r"[0-9a-f]{32}", version.run):
            raise UserError(f"{MODEL} {version.name}: its tag `run` is {version.run!r}, which is no run of MLflow")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetched.") as scratch:
            fetched = tracking.fetch_folder(version.run, Path(scratch), self.store)
            if (fetched / POINTER).is_file() and (strays := _strays(find_policy(str(fetched)), fetched)):
                raise UserError(
                    f"{MODEL} {version.name}: the files in run {version.run} name {strays[0]}, which is not one of them"
                )
            if not (fetched / POINTER).is_file() or not _holds(fetched, version.content):
                raise UserError(
                    f"{MODEL} {version.name}: the files in run {version.run} are not those that were registered"
                )
            # two that asked at once have both fetched it, and one folder has the name
            with self.locked(_lock_of(folder)):
                if not folder.exists():
                    files.rename_folder(fetched, folder)

    def _kept(self, content: str) -> Path:
        """Where the files with this hash are kept. A tag comes from the store, which others may write to."""
        if not re.fullmatch(r"[0-9a-f]{64}", content):
            raise UserError(f"{self.store}: a version has the tag `content` {content!r}, which is no SHA-256")
        return self.store / POLICIES / content[:12]


def content_sha256(policy: PolicySet, *, settings: bool = True) -> str:
    """SHA-256 of what an engine reads of a policy, and of how it is to be used.

    That is every file of each role's folder but the manifest, with its name: weights, tokenizer, chat template, configuration.
    Of the manifest, it is the instructions that come with them, and the settings and prompts that must agree with those of training.

    Args:
        settings: False leaves out what they were trained with, as the hash of the first versions did.
    """
    digest = hashlib.sha256()
    for role, folder in sorted(policy.weights.items()):
        for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST):
            digest.update(f"{role}/{path.relative_to(folder).as_posix()} {sha256_of_state([path])}\n".encode())
    for role, text in sorted(policy.instructions.items()):
        digest.update(f"{role} reads {text}\n".encode())
    if settings and "trained_with" in policy.manifest:
        said = must_agree(policy.manifest["trained_with"])
        digest.update(f"trained with {json.dumps(said, sort_keys=True)}\n".encode())
    return digest.hexdigest()


def _lock_of(kept: Path) -> str:
    """The lock of one folder of weights: to copy a large one takes minutes, for which others must not wait."""
    return f"{POLICIES}.{kept.name}"


def _holds(folder: Path, content: str) -> bool:
    try:
        policy = find_policy(str(folder))
        hashes = (content_sha256(policy, settings=settings) for settings in (True, False))
        return not _strays(policy, folder) and content in hashes
    except UserError:
        return False


def _strays(policy: PolicySet, folder: Path) -> list[Path]:
    """What the set in a folder of the registry's own names outside of it. Sets elsewhere do so on purpose; whoever may write
    into MLflow could make one of these name, and hash, any folder of this machine."""
    home = folder.resolve()
    named = [path for path in (policy.folder, *policy.weights.values()) if not path.resolve().is_relative_to(home)]
    return named or [path for path in folder.rglob("*") if not path.resolve().is_relative_to(home)]
