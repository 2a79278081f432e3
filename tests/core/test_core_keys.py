"""Files of keys that an editor has saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.core.errors import UserError
from dragoman.core.keys import Keys, make_key


def test_a_key_file_in_another_encoding_is_refused_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    make_key(path, "alice")
    path.write_bytes(path.read_bytes() + b"# J\xfcrgen\n")
    with pytest.raises(UserError, match=r"keys:2: not UTF-8; save the file in that encoding"):
        Keys(path)
