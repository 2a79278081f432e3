"""Commands of flows without a server of Prefect: what is logged of their output, and what is tried again."""

import asyncio
import logging

import pytest

from flows import commands


@pytest.fixture
def said(stub, monkeypatch):
    """Runs a program in the place of `dragoman sft`, and returns what was logged."""
    monkeypatch.setattr(commands, "get_run_logger", logging.getLogger)

    async def run(program: str, caplog: pytest.LogCaptureFixture) -> list[str]:
        (stub.bin / "dragoman").write_text(f"#!/bin/sh\n{program}\n")
        with caplog.at_level(logging.INFO):
            await commands.execute(["dragoman", "sft"])
        return [record.getMessage() for record in caplog.records if record.name == "root"]

    return run


async def test_a_line_without_an_end_is_no_fault_and_its_last_part_is_kept(said, caplog):
    (line,) = await said("head -c 3000000 /dev/zero | tr '\\0' x; echo end", caplog)
    assert line.endswith("xend") and len(line) <= commands.LONGEST_LINE


async def test_of_progress_that_is_written_over_the_last_state_is_logged(said, caplog):
    lines = await said(r"printf 'begin\r\n\n 1%%\r 2%%\r100%%\nend\r50%%\r'", caplog)
    assert lines == ["begin", "100%", "50%"]


async def test_a_character_that_is_read_in_two_parts_stays_whole():
    reader = asyncio.StreamReader()
    for part in ("é".encode()[:1], "é".encode()[1:] + b"\n"):
        reader.feed_data(part)
    reader.feed_eof()
    assert [line async for line in commands._lines(reader)] == ["é", ""]


STAGE = "stages: {a: {cmd: exit 1}}"


@pytest.mark.parametrize(
    ("pipeline", "target", "again"),
    [
        (STAGE, "a", True),
        (STAGE, "b", False),
        ("stages: {a: {cmd: '${no.such}'}}", "a", False),
        ("stages: {a: {comd: 'true'}}", "a", False),
        ("stages: {a: [}", "a", False),
        ("stages: {a: {cmd: 'true', params: [x]}}", "a", False),
        ("stages: {a: {cmd: 'true', outs: [x]}, b: {cmd: 'true', outs: [x]}}", "a", False),
        ("stages: {a: {cmd: 'true', outs: [x], deps: [x]}}", "a", False),
    ],
    ids=("fails", "stage", "template", "key", "syntax", "params", "outs", "cycle"),
)
async def test_what_dvc_refuses_is_not_tried_again(tmp_path, monkeypatch, pipeline, target, again):
    monkeypatch.setattr(commands, "get_run_logger", logging.getLogger)
    monkeypatch.delenv("DRAGOMAN_BIN", raising=False)
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text("[core]\nno_scm = True\n")
    (tmp_path / "params.yaml").write_text("x: [" if "params" in pipeline else "{}")
    (tmp_path / "dvc.yaml").write_text(pipeline)
    with pytest.raises(commands.CommandFailed) as failed:
        await commands.execute(["dvc", "repro", target], folder=str(tmp_path))
    assert failed.value.code == 255 and failed.value.retriable is again, failed.value
