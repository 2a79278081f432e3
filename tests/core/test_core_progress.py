"""What a terminal shows of a long job, and that nothing else is shown anything."""

import io
import logging
import sys

from dragoman.core import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_grid_fills_with_a_bar_inside(monkeypatch):
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("TQDM_DISABLE", raising=False)  # a command that a test has run may have set it
    monkeypatch.setattr(sys, "stderr", terminal)
    handler = logging.StreamHandler(terminal)
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    with progress.grid("system", ["direct", "[odd]"], ["atlas"]) as show:
        assert handler.stream is sys.stderr is not terminal  # through rich, which draws the table anew below it
        show("[odd]", "atlas", "0.50 [0.40, 0.60]")
        logging.getLogger().warning("a line of the log")
        with progress.bar("direct", 2) as advance:
            advance("cover-EM 1.00")
    for text in ("system", "atlas", "[odd]", "0.50 [0.40, 0.60]", "cover-EM 1.00", "a line of the log"):
        assert text in terminal.getvalue()
    assert handler.stream is terminal


def test_nothing_is_shown_where_there_is_no_terminal(capsys):
    with progress.grid("system", ["direct"], ["atlas"]) as show, progress.bar("direct", 1) as advance:
        show("direct", "atlas", "done")
        advance()
    assert capsys.readouterr() == ("", "")


def test_nothing_is_shown_on_a_terminal_where_bars_are_switched_off(monkeypatch):
    terminal = Terminal()
    monkeypatch.setenv("TQDM_DISABLE", "1")
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.bar("direct", 1) as advance:
        advance()
    assert terminal.getvalue() == ""
