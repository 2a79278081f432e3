"""README, CONTRIBUTING and the pages of docs/ name only commands, options, make targets, settings and files that exist; their example runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from dragoman.cli import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {
    os.path.relpath(path, DOCS): path.read_text(encoding="utf-8")
    for pattern in ("README.md", "CONTRIBUTING.md", "docs/*.md", "docs/systems/*.md", "docs/results/*.md")
    for path in sorted(ROOT.glob(pattern))
}
DRAGOMAN: Any = typer.main.get_command(app)


def code(text: str) -> list[str]:
    """The lines of fenced blocks, lines that go on joined, and whatever stands between backticks, without comments."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)
    lines = [line for block in blocks for line in re.sub(r"\\\n\s*", " ", block).splitlines()]
    rest = re.sub(r"^```\w*\n.*?^```", "", text, flags=re.M | re.S)
    return [line.partition("  #")[0] for line in lines] + [" ".join(c.split()) for c in re.findall(r"`([^`]+)`", rest)]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_option_exists(page):
    for line in code(PAGES[page]):
        match = re.match(r"(?:\S*/)?dragoman ([a-z][a-z-]*)(.*)", line) or re.search(
            r"(?:exec \w+|bin/|=\S*/)dragoman ([a-z][a-z-]*)(.*)", line
        )
        if match is None or match[1] == "needs":  # `dragoman needs Python 3.11` is a message
            continue
        name, rest = match.groups()
        assert name in DRAGOMAN.commands, line
        command = DRAGOMAN.commands[name]
        if inner := getattr(command, "commands", None):  # `dragoman data get`
            first = rest.split()[:1]
            assert not first or first[0] in {*inner, "..."}, line
            command = inner[first[0]] if first and first[0] in inner else command
        known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
        assert set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", rest)) <= known, line


def test_a_stage_that_is_forced_takes_none_along_that_makes_what_it_reads():
    forced = [line for page in PAGES.values() for line in code(page) if "dvc repro" in line and "--force" in line]
    assert forced
    assert [line for line in forced if "--single-item" not in line] == []


def test_no_validation_of_a_page_lies_where_the_gate_looks():
    lines = [line for page in PAGES.values() for line in code(page) if re.search(r"dragoman validate [\w/]", line)]
    assert lines
    for line in lines:
        (out,) = re.findall(r"--out (\S+)", line) or [""]
        assert out and Path("results/validate") not in (Path(out), *Path(out).parents), line


def test_the_page_on_data_says_what_each_variant_is():
    from dragoman.published.catalogue import catalogue

    (part,) = re.findall(r"^## Variants, splits, samples\n(.*?)(?=^##)", PAGES["data.md"], re.M | re.S)
    variants = {variant for data_set in catalogue().values() for variant in data_set.variants}
    assert variants == set(re.findall(r"^- `(\w+)`:", part, re.M))


@pytest.mark.parametrize("page", PAGES)
def test_every_target_and_link_exists(page):
    makefile = (ROOT / "Makefile").read_text()
    for line in code(PAGES[page]):
        if match := re.match(r"make ([a-z]+)", line):
            assert re.search(rf"^{match[1]}:", makefile, re.M), line
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", PAGES[page]):
        assert (DOCS / page).parent.joinpath(link).exists(), link


def test_the_index_lists_every_page():
    pages = [*DOCS.glob("*.md"), *DOCS.glob("systems/*.md"), *DOCS.glob("results/*.md")]
    listed = set(re.findall(r"^\| \[.*?\]\(([^)#]+)\)", PAGES["README.md"], re.M))
    assert {page.relative_to(DOCS).as_posix() for page in pages} - {"README.md"} <= listed


def test_every_anchor_exists():
    def anchors(page):
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in re.findall(r"^#+ (.*)", text, re.M)}

    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]:
        for file, anchor in re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
            assert anchor in anchors(page.parent / file if file else page), f"{page}: {file}#{anchor}"


def test_defaults_that_the_pages_on_training_state_are_those_of_the_code():
    """Rows of a setting with its default and its value in the profile cpu."""
    import yaml

    from dragoman.config import Params, load_params

    def value(params, setting):
        for key in setting.split("."):
            params = getattr(params, key)
        return list(params) if isinstance(params, tuple) else params

    def stated(word, known):
        if known is None:
            return None if word in ("none", "all") else word
        if isinstance(known, str | float):  # YAML takes 5e-07 for a word
            return type(known)(word)
        return yaml.safe_load(word)

    cpu = load_params(ROOT / "params.yaml", profile="cpu")
    by = {name: cpu.changed({"train.algorithm": name}, origin="") for name in ("mygo", "selftrain")}
    tables = PAGES["algorithms.md"] + PAGES["tuning.md"]
    rows = re.findall(r"^\| `([a-z_.]+)` \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", tables, re.M)
    assert len(rows) > 50
    for setting, default, of_cpu in rows:
        known = value(Params(), setting), value(by.get(setting.split(".")[1], cpu), setting)
        assert (stated(default, known[0]), stated(of_cpu, known[1])) == known, setting


def test_every_block_of_settings_can_be_read_by_dvc():
    from ruamel.yaml import YAML

    blocks = [block for text in PAGES.values() for block in re.findall(r"```ya?ml\n(.*?)```", text, re.S)]
    assert len(blocks) > 20
    for block in blocks:
        assert YAML(typ="safe").load(block)


def test_every_block_of_settings_is_taken_in_params_yaml(tmp_path):
    import yaml

    from dragoman.config import load_params
    from dragoman.core.settings import merged

    own = yaml.safe_load((ROOT / "params.yaml").read_text())
    own["corpus"]["ours"] = {"source": "path/to/corpus.jsonl"}  # as some blocks have it, others go on from
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    blocks = [(page, b) for page, text in PAGES.items() for b in re.findall(r"```ya?ml\n(.*?)```", text, re.S)]
    settings = [(page, yaml.safe_load(block)) for page, block in blocks]
    suites = [page for page, block in settings if "served" in block]  # cells of a bench
    assert suites == ["bench.md"]
    for page, block in settings:
        if page not in suites:
            (tmp_path / "params.yaml").write_text(yaml.safe_dump(merged(own, block)))
            assert load_params(tmp_path / "params.yaml"), f"{page}: {block}"


def test_every_setting_of_a_command_is_taken():
    from dragoman.cli.command import parse_change
    from dragoman.config import load_params

    entered = {"corpus.2wiki": {}}  # by a page, before it names the data set
    params, seen = load_params(ROOT / "params.yaml").changed(entered, origin=""), 0
    for page, text in PAGES.items():
        for line in code(text):
            if "--set" not in line:
                continue
            words = shlex.split(line)
            given = dict(pairwise(words))
            aliases = {"--system": "train.system", "--algorithm": "train.algorithm"}
            changes = {key: given[flag] for flag, key in aliases.items() if flag in given}
            said = [text.replace("$price", "0.1") for flag, text in pairwise(words) if flag == "--set"]
            said = [text for text in said if not re.search("=[A-Z]+$", text)]  # `KEY=VALUE` stands for any
            params.changed(changes | dict(map(parse_change, said)), origin=f"{page}: {line}")
            seen += len(said)
    assert seen > 50


def test_the_tables_of_a_section_have_every_key_with_its_default():
    """Rows of a key with its default; null is none."""
    import yaml

    from dragoman.core.settings import Section
    from dragoman.engines.settings import EngineParams
    from dragoman.evaluation.settings import Measure
    from dragoman.quality.settings import ValidateParams
    from dragoman.serving.settings import ServeParams

    def defaults(section: Section, above: str = "") -> dict[str, Any]:
        known: dict[str, Any] = {}
        for key in type(section).model_fields:
            value = getattr(section, key)
            known |= defaults(value, f"{key}.") if isinstance(value, Section) else {above + key: value}
        return known

    for page, heading, section in (
        ("tuning.md", "What runs the models", EngineParams()),
        ("serving.md", "Settings", ServeParams()),
        ("questions.md", "Data is checked before it is trained on", ValidateParams()),
    ):
        (part,) = re.findall(rf"^## {heading}\n(.*?)(?=^##)", PAGES[page] + "\n##", re.M | re.S)
        stated = dict(re.findall(r"^\| `([a-z_.]+)` \| ([^|]+) \| [^|]+ \|$", part, re.M))
        known = defaults(section)
        assert stated.keys() == known.keys(), page
        for key, word in stated.items():
            read = {"none": None, "all": list(get_args(Measure))}.get(word, yaml.safe_load(word))
            assert read == (list(known[key]) if isinstance(known[key], tuple) else known[key]), f"{page}: {key}"


def test_the_modules_of_the_architecture_exist():
    modules, _, state = PAGES["architecture.md"].partition("## Where state lies")
    assert state
    rows = [row for row in modules.splitlines() if row.startswith("|")]
    named = {path for row in rows for path in re.findall(r"`((?:[a-z_]+/)?[a-z_]+\.py|[a-z]+/)`", row)}
    assert len(named) > 20
    for path in named:
        assert (ROOT / "src" / "dragoman" / path).exists() or (ROOT / path).exists(), path


def test_what_only_one_place_knows_only_one_place_imports():
    for library, place in {
        "mlflow": "src/dragoman/tracking/", "prefect": "flows/", "vllm": "src/dragoman/engines/vllm.py",
        "trl": "src/dragoman/training/sft.py", "pyserini": "src/dragoman/retrieval/java.py",
        "great_expectations": "src/dragoman/quality/", "gepa": "src/dragoman/training/gepa/",
    }.items():  # fmt: skip
        assert f"`{place.removeprefix('src/dragoman/')}`" in PAGES["architecture.md"], place
        for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "flows").glob("*.py")]:
            if re.search(rf"^\s*(?:import|from) {library}\b", path.read_text(encoding="utf-8"), re.M):
                assert path.relative_to(ROOT).as_posix().startswith(place), path


def test_the_example_of_a_fork_prints_what_the_page_says():
    page = PAGES["architecture.md"]
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == re.search(r"^prints `([^`]+)`", page, re.M)[1]


def test_the_retriever_of_ones_own_speaks_as_the_client_does(monkeypatch):
    from types import SimpleNamespace

    from fastapi.testclient import TestClient

    from dragoman.retrieval.http import wire

    def find(query, first, n):
        return [{"id": f"{query}{i}", "title": "", "text": "text", "score": -i} for i in range(7)][first : first + n]

    monkeypatch.setitem(sys.modules, "my_search", SimpleNamespace(find=find))
    program, _ = re.findall(r"^```python\n(.*?)^```", PAGES["retrieval.md"], re.M | re.S)
    scope: dict[str, Any] = {}
    exec(compile(program, "my_server", "exec", dont_inherit=True), scope)
    client = TestClient(scope["app"])
    health = wire.Health.model_validate(client.get("/healthz").json())
    asked = wire.SearchRequest(queries=["a", "b"], k=3, page=2).model_dump()
    found = wire.SearchResponse.model_validate(client.post("/v1/search", json=asked).json())
    assert found.fingerprint == health.fingerprint and health.passages is None
    assert [[hit.id for hit in hits] for hits in found.results] == [["a6"], ["b6"]]


def test_a_question_asked_from_python_as_the_page_shows_is_answered(monkeypatch, capsys):
    from contextlib import asynccontextmanager
    from types import SimpleNamespace

    from fakes import ListRetriever, ScriptedEngine

    from dragoman import config, runtime
    from dragoman.core.types import Passage
    from dragoman.rollout.backends import Backends
    from dragoman.systems import build

    llm = ScriptedEngine(lambda prompt, rng: "Bhutan")
    found = ListRetriever([Passage("country-bt", "Bhutan", "Its capital is Thimphu.")])

    @asynccontextmanager
    async def without_models(params, index):
        yield SimpleNamespace(open=lambda name: (build("standard"), Backends(llm, llm, found)))

    monkeypatch.setattr(config, "load_params", lambda: None)
    monkeypatch.setattr(runtime, "open_runtime", without_models)
    _, program = re.findall(r"^```python\n(.*?)^```", PAGES["serving.md"], re.M | re.S)
    exec(compile(program, "from_python", "exec", dont_inherit=True), {})
    assert capsys.readouterr().out == "Bhutan ['country-bt'] answered\n"


def test_settings_that_the_pages_name_exist():
    from dragoman.config import Params
    from dragoman.systems import build

    sections = {field.alias or name: field.annotation for name, field in Params.model_fields.items()}
    stages = "serve|promote|train|policies|llm|seeds|sft|rl|gepa|evaluate|llm_cache"
    named, of_systems = set(), set()
    for page in PAGES.values():
        named |= set(re.findall(rf"(?:`|--set\s+\"?)((?:{stages})(?:\.(?!jsonl)[a-z_]+)+)(?=[`:=])", page))
        of_systems |= set(
            re.findall(r"(?:`|--set\s+\"?)(?:systems\.)?(c3po|maps|mrag|mujica)\.([a-z_]+)(?=[`:=])", page)
        )
    assert {"serve.champion_poll_s", "seeds.exploration.breadth"} <= named and ("c3po", "decide") in of_systems
    for setting in named:
        section, *keys = setting.split(".")
        holder: Any = sections[section]
        for key in keys:
            holder = next((kind for kind in get_args(holder) if hasattr(kind, "model_fields")), holder)  # of `X | None`
            assert key in holder.model_fields, setting
            holder = holder.model_fields[key].annotation
    for system, key in of_systems:
        assert hasattr(build(system), key), f"{system}.{key}"


def test_services_and_metrics_that_the_guide_names_exist():
    import yaml

    from dragoman.serving.metrics import Metrics

    compose = (ROOT / "compose.yaml").read_text()
    services = set(yaml.safe_load(re.sub(r"\$\{[^}]*\}", "x", compose))["services"])
    guide = PAGES["operations.md"]
    for line in code(guide):
        if match := re.match(r"docker compose (?:--profile gpu )?(up|exec|restart|create)\b(.*)", line):
            words = [word for word in match[2].split() if not word.startswith("-") and word != "x"]
            for service in words[:1] if match[1] == "exec" else [w for w in words if re.fullmatch(r"[a-z]+", w)]:
                assert service in services, line
    counted = {sample.name for family in Metrics().registry.collect() for sample in family.samples}
    families = {family.name for family in Metrics().registry.collect()}
    for name in re.findall(r"`(dragoman_[a-z_]+)", guide):
        assert name in counted or name.removesuffix("_total") in families, name
