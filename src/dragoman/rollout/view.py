"""The tree of one episode as an HTML page: coloured by credit, with prompts and actions on click."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from pydantic_core import to_json

from dragoman.core import files
from dragoman.rollout.credit import credit
from dragoman.rollout.record import Episode


def tree_html(episode: Episode, reward: str) -> str:
    """A page that shows the whole episode, with credit by the named reward. It needs a browser and nothing else.

    The page holds the episode as JSON, so it is also a full record. `#<node id>` or `#trajectory-<number from 1>` after
    its address opens that node or trajectory.
    """
    template = resources.files(__package__).joinpath("view.html").read_text(encoding="utf-8")
    page = {"reward": reward, "credit": credit(episode, reward), "episode": episode}
    data = to_json(page, inf_nan_mode="null").decode()
    # In a script, HTML looks for `</script` and `<!--` even inside JSON strings: without a `<` it finds neither.
    return template.replace("{{ data }}", data.replace("<", "\\u003c"))


def write_tree(episode: Episode, reward: str, path: Path) -> None:
    """Write `tree_html` to `path`, all or nothing."""
    files.write_text(path, tree_html(episode, reward))
