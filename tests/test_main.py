"""The entry point, before the command line is imported."""

import sys
from types import ModuleType

import pytest

from dragoman import __main__
from dragoman.core import exits


class InterruptedImport(ModuleType):
    def __getattr__(self, name: str) -> object:
        raise KeyboardInterrupt


def test_ctrl_c_while_the_command_line_is_imported_ends_in_a_sentence(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "dragoman.cli", InterruptedImport("dragoman.cli"))
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == exits.INTERRUPTED and capsys.readouterr().err == "interrupted; nothing was begun\n"


def test_python_m_dragoman_is_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["dragoman", "--help"])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 0 and "rollout" in capsys.readouterr().out
