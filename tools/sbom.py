"""What is installed, as a software bill of materials: CycloneDX 1.6 in JSON, of a lock.

    python -m tools.sbom > sbom.json           # of requirements/cpu.txt
    python -m tools.sbom gpu > sbom.json

A component has the hashes of all files of its release, of which a machine installs one. Licences are those that an installed
package states; of one that is not installed here, none is said. Versions that `advisories.toml` lists are named in
`vulnerabilities`. The exit code is 1 when one of them is not accepted there.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
ADVISORIES = Path(__file__).with_name("advisories.toml")


@dataclass(frozen=True)
class Pin:
    """One version that is installed."""

    name: str
    version: str
    hashes: tuple[str, ...]
    """SHA-256 of each file of the release, in hexadecimal digits."""

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


def pins(text: str) -> list[Pin]:
    """The pins of a lock, in its order."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        if match := re.match(r"([\w.-]+)==([^\s;]+)", line):
            name, version = match.groups()
            found.append(
                Pin(canonicalize_name(name), version, tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", line)))
            )
    return found


def installed(device: str, root: Path = ROOT) -> list[Pin]:
    """All that `make setup` installs on a device: its lock, the model, and torch where the lock leaves it out."""
    found = [pin for name in (device, "models") for pin in pins((root / "requirements" / f"{name}.txt").read_text())]
    if all(pin.name != "torch" for pin in found):
        (torch,) = re.findall(r"^TORCH := (\S+)$", (root / "Makefile").read_text(), re.M)
        found += pins(torch)
    return sorted(found, key=lambda pin: pin.name)


def advisories(path: Path = ADVISORIES) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = tomllib.loads(path.read_text())["advisory"]
    return entries


def known(found: list[Pin], entries: list[dict[str, Any]]) -> list[tuple[Pin, dict[str, Any]]]:
    """The pins that an advisory lists, each with it."""
    return [
        (pin, entry)
        for entry in entries
        for pin in found
        if pin.name in entry["packages"] and SpecifierSet(entry["versions"]).contains(pin.version, prereleases=True)
    ]


def licence(name: str) -> list[dict[str, Any]]:
    """What an installed package says of its licence, in CycloneDX's form; nothing where it is not installed or says nothing."""
    try:
        said = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return []
    if expression := said.get("License-Expression"):
        return [{"expression": expression}]
    prefix = "License :: "
    named = [text.rpartition(" :: ")[2] for text in said.get_all("Classifier") or () if text.startswith(prefix)]
    if not named and (free := (said.get("License") or "").strip()):
        named = [free.splitlines()[0]]  # some put the whole text there
    return [{"license": {"name": text}} for text in named]


def bill(found: list[Pin], entries: list[dict[str, Any]]) -> dict[str, Any]:
    """The bill of materials. Equal locks, packages and advisories give equal bills: it has no date and no serial number."""
    components = [
        {
            "type": "library",
            "bom-ref": pin.purl,
            "name": pin.name,
            "version": pin.version,
            "purl": pin.purl,
            "licenses": licence(pin.name),
            "hashes": [{"alg": "SHA-256", "content": value} for value in pin.hashes],
        }
        for pin in found
    ]
    vulnerabilities = [
        {
            "id": entry["id"],
            "description": entry["what"],
            "affects": [{"ref": pin.purl}],
            "analysis": {"state": "exploitable"}
            if "accepted" not in entry
            else {"state": "not_affected", "detail": entry["accepted"]},
        }
        for pin, entry in known(found, entries)
    ]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = {"type": "application", "name": project["name"], "version": project["version"]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own | {"licenses": [{"expression": project["license"]}]}},
        "components": components,
        "vulnerabilities": vulnerabilities,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="The software bill of materials of a lock, in CycloneDX's JSON.")
    parser.add_argument("device", choices=("cpu", "gpu"), nargs="?", default="cpu", help="whose lock")
    found, entries = installed(parser.parse_args().device), advisories()
    sys.stdout.write(json.dumps(bill(found, entries), indent=1, ensure_ascii=False) + "\n")
    bad = [(pin, entry) for pin, entry in known(found, entries) if "accepted" not in entry]
    for pin, entry in bad:
        sys.stderr.write(f"{pin.name} {pin.version}: {entry['id']}, {entry['what']}\n")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
