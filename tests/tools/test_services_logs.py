"""The logs of the services that `make up` starts."""

import sys

from tools import services


def test_a_log_that_has_grown_large_is_put_aside_when_its_service_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(services, "MOST_LOGGED", 10)
    ours = services.Services(tmp_path, 4200, 5000)
    ours.folder.mkdir()
    for said in ("x" * 11, "short"):
        (ours.folder / "mlflow.log").write_text(said)
        ours._start("mlflow", sys.executable, "-c", "print('begun')").wait()
    assert (ours.folder / "mlflow.1.log").read_text() == "x" * 11
    assert (ours.folder / "mlflow.log").read_text() == "shortbegun\n"
