"""Settings as frozen models: unknown keys are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from dragoman.core.errors import UserError


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


S = TypeVar("S", bound=Section)


def parse_section(section: type[S], values: dict[str, Any], *, origin: str) -> S:
    """Values as a section, or a UserError that names the origin and every key that is refused."""
    try:
        return section.model_validate(values)
    except ValidationError as e:
        faults = []
        for error in e.errors():
            key = ".".join(map(str, error["loc"]))
            what = "unknown key" if error["type"] == "extra_forbidden" else error["msg"].removeprefix("Value error, ")
            faults.append(f"{key}: {what}" if key else what)
        raise UserError(f"{origin}: " + "; ".join(faults)) from None


def read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        hint = "; run from the project's folder, or name the file with --params" if path.name == "params.yaml" else ""
        raise UserError(f"{path}: no such file{hint}")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        raise UserError(f"{path}{where}: not valid YAML ({getattr(e, 'problem', e)})") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected a mapping of sections, found {type(values).__name__}")
    return values
