"""API keys: who may ask. Only hashes are stored.

A key is 256 random bits, so a plain SHA-256 hides it: there is no dictionary to try. (Passwords would need a slow hash.)
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from pathlib import Path

from dragoman.core.errors import UserError

PREFIX = "dragoman-"
_LINE = re.compile(r"(\S+)\s+([0-9a-f]{64})")


class Keys:
    """The keys of a file with a line `NAME SHA256` for each; blank lines and those that begin with # are skipped.

    Raises:
        UserError: no such file, one that is not UTF-8, a line that is not of that form, or no key at all.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise UserError(f"{path}: no such file; `dragoman serve --new-key NAME` makes a key")
        self._names: list[tuple[str, bytes]] = []
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as e:
            at = e.object.count(b"\n", 0, e.start) + 1
            raise UserError(f"{path}:{at}: not UTF-8; save the file in that encoding") from None
        for number, line in enumerate(lines, start=1):
            if not line.strip() or line.startswith("#"):
                continue
            match = _LINE.fullmatch(line.strip())
            if match is None:
                raise UserError(f"{path}:{number}: expected a name and the SHA-256 of a key")  # and does not repeat it
            self._names.append((match[1], bytes.fromhex(match[2])))
        if not self._names:
            raise UserError(f"{path}: holds no key; `dragoman serve --new-key NAME` makes one")

    @property
    def names(self) -> tuple[str, ...]:
        """Of whom there is a key."""
        return tuple(name for name, _ in self._names)

    def owner(self, authorization: str) -> str | None:
        """The name behind an `Authorization` header; None when it holds no key of ours. Takes as long for any of them."""
        scheme, _, key = authorization.partition(" ")
        given = hashlib.sha256(key.strip().encode("utf-8", "replace")).digest()
        owner = None
        for name, stored in self._names:
            if hmac.compare_digest(given, stored):
                owner = name
        return owner if scheme.lower() == "bearer" else None


def make_key(path: Path, name: str) -> str:
    """Add a key for `name` to the file. Returns the key, which is stored nowhere.

    Raises:
        UserError: the name is empty or has blanks.
    """
    if not re.fullmatch(r"[^\s#]\S*", name):
        raise UserError(f"--new-key {name!r}: give a name without blanks")
    key = PREFIX + secrets.token_urlsafe(32)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    begins = "" if path.read_bytes()[-1:] in (b"", b"\n") else "\n"  # somebody may have edited the file
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{begins}{name} {hashlib.sha256(key.encode()).hexdigest()}\n")
    return key
