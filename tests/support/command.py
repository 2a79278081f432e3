"""Commands, run in this process as a person would type them."""

import sys

import pytest

from dragoman import cli


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    """Run a command in this process. Returns exit code, standard output, standard error."""
    old, sys.argv = sys.argv, ["dragoman", *arguments]
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main()
            raise SystemExit(0)
    finally:
        sys.argv = old
    out, err = capsys.readouterr()
    return ended.value.code or 0, out, err


def dragoman(capsys, *arguments: str) -> str:
    """Run a command that ends well. Returns its standard output."""
    code, out, err = run(capsys, *arguments)
    assert code == 0, err
    return out
