"""Where MLflow keeps what is recorded: a store that is half made, and a server that does not answer."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing

import pytest
from command import run

from dragoman import tracking

PATIENCE = ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT")


def test_a_store_without_tables_is_left_to_mlflow_as_it_is(tmp_path):
    (tmp_path / "mlflow.db").touch()
    tracking.follow_folder(tmp_path)  # the first thing that is done with a store
    assert (tmp_path / "mlflow.db").read_bytes() == b""


@pytest.mark.parametrize(("given", "expected"), [((None, None), ["1", "30"]), (("5", "60"), ["5", "60"])])
def test_an_endpoint_waits_for_mlflow_s_server_no_longer_than_the_environment_says(
    tmp_path, capsys, monkeypatch, given, expected
):
    async def note(*_: object, **more: object) -> None:
        found.extend(os.environ[name] for name in PATIENCE)

    found: list[str] = []
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "cpu.yaml").write_text("{}")
    (tmp_path / "params.yaml").write_text("serve: {models: [direct]}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dragoman.serving.run.run_server", note)
    for name, value in zip(PATIENCE, given, strict=True):
        monkeypatch.setenv(name, value or "")
        if value is None:
            monkeypatch.delenv(name)  # having been set, it is as it was before after the test
    code, _, err = run(capsys, "serve", "--port", "0")
    assert (code, found) == (0, expected), err


def test_a_store_of_another_version_of_mlflow_is_named_with_what_to_do(tmp_path, capsys, monkeypatch, empty_store):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "cpu.yaml").write_text("{}")
    (tmp_path / "params.yaml").write_text("{}")
    shutil.copytree(empty_store, tmp_path / "mlruns")
    with closing(sqlite3.connect(tmp_path / "mlruns" / "mlflow.db")) as store, store:
        store.execute("update alembic_version set version_num = '451aebb31d03'")
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, "lineage", "champion")
    assert code != 0 and "was made by another version: copy the database, then run `mlflow db upgrade" in err
    assert "Traceback" not in err
