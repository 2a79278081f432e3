"""From what an endpoint has kept to a data set that can be trained on, and what is refused on the way."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import run
from serving_parts import PASSAGES, Parts, ask

from dragoman.config import load_params
from dragoman.core import files
from dragoman.core.keys import make_key
from dragoman.corpus import load_corpus, load_questions
from dragoman.pipeline.project import Project
from dragoman.rollout.feedback import aside, served_rows
from dragoman.rollout.record import Call, Episode, Trajectory
from dragoman.serving.episodes import episode_writer
from dragoman.systems.base import StopReason

ROOT = Path(__file__).parents[2]
PARAMS = """
datasets: [lands]
corpus: {lands: {source: corpus.jsonl}}
train: {dataset: served}
harvests: [served]
harvest: {dataset: lands}
serve: {episodes: kept}
"""


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Great Expectations, for tests of what comes before them: they take seconds."""
    monkeypatch.setattr("dragoman.pipeline.harvest.validate", lambda *arguments, **more: None)


def gold(number: int, question: str, answer: str) -> dict[str, Any]:
    return {"id": f"g{number}", "question": question, "answers": [answer], "supporting_ids": ["wool"]}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a small data set, whose endpoint has kept nothing yet."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "cpu.yaml").write_text("{}")
    (tmp_path / "params.yaml").write_text(PARAMS)
    lands = tmp_path / "data" / "lands"
    files.write(lands / "corpus.jsonl", ({"id": p.id, "title": p.title, "text": p.text} for p in PASSAGES))
    files.write(lands / "train.jsonl", [gold(1, "What is Woolton known for?", "wool")])
    files.write(lands / "test.jsonl", [gold(2, "Which river flows past Port Salt?", "the Merin")])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def episode(key: str, question: str, *answers: str, by: str | None = None) -> Episode:
    given = [Trajectory(nodes=[], steps=[], answer=a, passages=[], stop=StopReason.ANSWERED) for a in answers]
    more: dict[str, Any] = {"nodes": [], "calls": [], "started": 0, "seconds": 0}
    return Episode(
        key=key,
        asked_by=by,
        question={"id": key, "question": question},
        system="c3po",
        config={},
        trajectories=given,
        **more,
    )


def keep(folder: Path, *episodes: Episode, **ratings: str) -> None:
    files.write(folder / "episodes.jsonl", (e.model_dump(mode="json") for e in episodes))
    files.write(folder / "feedback.jsonl", ({"id": key, "rating": rating, "at": 1} for key, rating in ratings.items()))


def metrics(project: Path, name: str = "served") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((project / "results" / "harvest" / name / "metrics.json").read_text())
    return found


async def test_what_the_endpoint_has_answered_and_users_have_corrected_becomes_a_data_set(project, capsys):
    """From HTTP to a validated folder: the files are those that the endpoint itself has written."""
    with episode_writer(project / "kept", 1 << 20) as written:
        parts = Parts(feedback=project / "kept")
        async with parts.client() as client:
            ids = [
                (await ask(client, question)).json()["id"]
                for question in ("What is the capital of Brisa?", "Who is j@x.org?")
            ]
            ids.append((await ask(client, "Where is the wool of Jorvik from?")).json()["id"])
            await client.post("/v1/feedback", json={"id": ids[0], "rating": "up", "passages": ["brisa"]})
            await client.post("/v1/feedback", json={"id": ids[1], "rating": "up"})
            await client.post("/v1/feedback", json={"id": ids[2], "answer": "Woolton", "rating": "down"})
        for kept in parts.episodes:
            written(kept)
    code, out, err = await in_thread(capsys, "harvest")
    assert code == 0, err
    assert "2 questions out of 3 episodes: 1 confirmed, 1 corrected" in out
    assert "dropped: 1 without sense once masked" in out
    served = project / "data" / "served"
    harvested = {q.question: q for split in ("train", "dev") for q in load_if_there(served / f"{split}.jsonl")}
    assert harvested["What is the capital of Brisa?"].answers == ("Port Salt",)
    assert harvested["What is the capital of Brisa?"].supporting_ids == ("brisa",)
    assert harvested["Where is the wool of Jorvik from?"].answers == ("Woolton",)
    assert "What is Woolton known for?" in harvested, "the data set's own questions are there too"
    assert load_corpus(served) == PASSAGES
    assert [q.id for q in load_questions(served / "test.jsonl")] == ["g2"], "what was held out stays as it was"
    assert json.loads((project / "results/validate/served/metrics.json").read_text())["failed"] == 0
    params = load_params(project / "params.yaml")
    assert params.train.dataset == "served" and Project(params=params).corpus() == Path("data/served/corpus.jsonl")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """An endpoint's log, and one that was put aside before."""
    files.write(aside(tmp_path / "episodes.jsonl"), [{"n": 0}, {"n": 1}])
    files.write(tmp_path / "episodes.jsonl", [{"n": 2}, {"n": 3}])
    return tmp_path / "episodes.jsonl"


def test_a_log_that_is_put_aside_while_it_is_read_loses_and_doubles_no_row(log):
    rows = served_rows(log)
    found = [next(rows)[2]["n"]]
    log.replace(aside(log))
    files.write(log, [{"n": 4}])
    found += [row["n"] for _, _, row in rows]
    assert found == [0, 1, 2, 3]


@pytest.mark.parametrize("moment", ["before it is opened", "after it is opened"])
def test_a_log_that_is_put_aside_over_the_earlier_one_as_it_is_opened_is_read_once(log, monkeypatch, moment):
    opens = Path.open

    def put_aside(path: Path, *mode: str) -> Any:
        if path == log and moment.startswith("before"):
            log.replace(aside(log))
        opened = opens(path, *mode)
        if path == log:
            log.replace(aside(log))
        return opened

    monkeypatch.setattr(Path, "open", put_aside)
    assert [row["n"] for _, _, row in served_rows(log)] == [2, 3]


def test_a_harvest_that_is_killed_as_it_copies_leaves_the_earlier_corpus(project, capsys, unchecked, monkeypatch):
    def die(source, target):
        Path(target).write_bytes(Path(source).read_bytes()[:9])
        raise KeyboardInterrupt

    keep(project / "kept", episode("e1", "What is the capital of Brisa?", "Port Salt"), e1="up")
    assert run(capsys, "harvest", "--no-track")[0] == 0
    monkeypatch.setattr(shutil, "copyfile", die)
    assert run(capsys, "harvest", "--no-track")[0] == 130
    assert load_corpus(project / "data/served") == PASSAGES
    assert not [path for path in (project / "data/served").iterdir() if path.name.startswith(".")]


def test_triples_that_the_searched_data_set_no_longer_has_are_gone_after_the_next_harvest(project, capsys, unchecked):
    keep(project / "kept", episode("e1", "What is the capital of Brisa?", "Port Salt"), e1="up")
    triples, copy = project / "data/lands/triples.tsv", project / "data/served/triples.tsv"
    triples.write_text("Brisa\tcapital\tPort Salt\n")
    assert run(capsys, "harvest", "--no-track")[0] == 0 and copy.read_text() == triples.read_text()
    triples.unlink()
    assert run(capsys, "harvest", "--no-track")[0] == 0 and not copy.exists()


def test_a_folder_with_a_data_set_that_no_harvest_wrote_is_refused_and_kept(project, capsys, unchecked):
    keep(project / "kept", episode("e1", "What is the capital of Brisa?", "Port Salt"), e1="up")
    (project / "data/mine").mkdir()
    (project / "data/mine/dev.jsonl").write_text("mine\n")
    code, _, err = run(capsys, "harvest", "--no-track", "--out", "data/mine")
    assert code == 2 and "data/mine/dev.jsonl would be written anew, and is not of an earlier harvest" in err
    assert [path.name for path in (project / "data/mine").iterdir()] == ["dev.jsonl"]


async def in_thread(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The command has an event loop of its own."""
    import asyncio

    return await asyncio.to_thread(run, capsys, *arguments, "--no-track")


def load_if_there(path: Path) -> list[Any]:
    return load_questions(path) if path.is_file() else []


def test_the_same_traffic_gives_the_same_files_also_while_a_line_is_being_written(project, unchecked, capsys):
    keep(
        project / "kept",
        *(episode(f"{n}", f"What comes after {n}?", "x") for n in range(9)),
        **dict.fromkeys("012345678", "up"),
    )
    assert run(capsys, "harvest", "--no-track")[0] == 0
    before = {path.name: path.read_bytes() for path in (project / "data/served").iterdir()}
    with (project / "kept" / "episodes.jsonl").open("a") as file:
        file.write('{"schema_version":1,"key":"half')
    assert run(capsys, "harvest", "--no-track")[0] == 0
    assert {path.name: path.read_bytes() for path in (project / "data/served").iterdir()} == before
    assert metrics(project)["episodes"] == 9


def test_an_episode_of_another_schema_is_refused_by_its_line(project, unchecked, capsys):
    keep(project / "kept", episode("1", "What comes after 1?", "2"))
    path = project / "kept" / "episodes.jsonl"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 0}) + "\n")
    code, _, err = run(capsys, "harvest", "--no-track")
    assert code == 2 and "episodes.jsonl:1: written with schema 0" in err


def test_without_gold_there_are_only_harvested_questions_and_a_split_may_be_gone_again(project, unchecked, capsys):
    keep(project / "kept", *(episode(f"{n}", f"What comes after {n}?", "x") for n in range(60)))
    ratings = [{"id": str(n), "rating": "up", "at": 1} for n in range(60)]
    files.write(project / "kept" / "feedback.jsonl", ratings)
    assert run(capsys, "harvest", "--no-track", "--set", "harvest.gold=false")[0] == 0
    served = project / "data" / "served"
    assert all((served / f"{split}.jsonl").is_file() for split in ("train", "dev", "test"))
    assert sum(metrics(project)["questions"].values()) == 60
    alone = {q.id for split in ("train", "dev", "test") for q in load_questions(served / f"{split}.jsonl")}
    assert len(alone) == 60 and not alone & {"g1", "g2"}
    shares = "harvest.shares={train: 1, dev: 0, test: 0}"
    assert run(capsys, "harvest", "--no-track", "--set", "harvest.gold=false", "--set", shares)[0] == 0
    assert len(load_questions(served / "train.jsonl")) == 60 and not (served / "dev.jsonl").exists()


def test_draws_may_come_from_a_rollout_beside_the_traffic(project, unchecked, capsys):
    keep(project / "kept", episode("1", "What is the capital of Brisa?", "Port Salt"))
    drawn = episode("r", "What is the capital of Brisa?", "Port Salt", "port salt")
    keep(project / "rollout", drawn.model_copy(update={"config": {"temperature": 1}}))
    code, out, _ = run(capsys, "harvest", "--no-track", "--episodes", "kept,rollout", "--draws", "3")
    assert code == 0 and "1 questions out of 2 episodes: 1 agreed" in out


def test_a_key_that_forbids_it_leaves_nothing_in_the_folder(project, unchecked, capsys):
    make_key(project / "keys", "alice")
    keep(project / "kept", episode("1", "What is the secret of alice?", "gold", by="alice"), **{"1": "up"})
    forbidden = ("--set", "harvest.forbidden=[alice]", "--set", "serve.keys=keys")
    assert run(capsys, "harvest", "--no-track", *forbidden)[0] == 0
    assert metrics(project)["dropped"] == {"forbidden by their key": 1}
    assert not any("alice" in path.read_text() for path in (project / "data/served").iterdir())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--set", "serve.episodes=null"], "serve.episodes in params.yaml names no folder; name one with --episodes"),
        (["--episodes", "nowhere"], "nowhere/episodes.jsonl: no such file"),
        (["--dataset", "seas"], "data/seas/corpus.jsonl: no such file; `dragoman corpus --dataset seas` makes it"),
        (["--out", "data/lands"], "data/lands: that is the data set that was searched"),
        (["--set", "harvest.forbidden=[alcie]"], "harvest.forbidden: 'alcie' is the name of no key (near: alice)"),
        (["--set", "harvest.gold=false"], "none of 1 episodes can be used: 1 without a label"),
        (["--set", "harvest.shares={tain: 1}"], "expected shares of train, dev, test"),
        (["--set", "harvests=[lands]"], "harvests: 'lands' is the name of a data set under corpus"),
        (["--set", "train.dataset=seas"], "train.dataset: 'seas' has no entry under corpus"),
    ],
)
def test_what_can_be_mended_is_said(project, capsys, options, sentence):
    keep(project / "kept", episode("1", "What is the capital of Brisa?", "Port Salt", by="alice"))
    code, _, err = run(capsys, "harvest", "--no-track", *options)
    assert code == 2 and sentence in err
    assert len(list((project / "data" / "lands").iterdir())) == 3


SEARCH = {"id": "s", "kind": "search", "name": "search", "input": {}, "started": 0, "seconds": 0}


def having_found(kept: Episode, *passages: str, by: str) -> Episode:
    """The same after a search that gave these passages, or an answer that was written from them."""
    if by == "answer":
        return kept.model_copy(
            update={"trajectories": [t.model_copy(update={"passages": list(passages)}) for t in kept.trajectories]}
        )
    return kept.model_copy(update={"calls": [Call(**SEARCH, output=list(passages))]})


@pytest.mark.parametrize("by", ["answer", "search"])
def test_a_data_set_of_which_nothing_was_searched_is_refused_by_its_key_and_nothing_is_written(project, capsys, by):
    asked = episode("1", "What is the capital of Brisa?", "Port Salt")
    keep(
        project / "kept",
        episode("0", "What comes after 1?", "2"),
        having_found(asked, "os-17", "os-4", by=by),
        **{"1": "up"},
    )
    code, _, err = run(capsys, "harvest", "--no-track")
    assert code == 2 and "harvest.dataset: lands is not what was searched: its corpus lacks passage 'os-17'" in err
    assert not (project / "data" / "served").exists()


@pytest.mark.parametrize("by", ["answer", "search"])
def test_a_data_set_that_has_lost_most_of_what_was_searched_is_harvested(project, capsys, unchecked, by):
    asked = episode("1", "What is the capital of Brisa?", "Port Salt")
    keep(project / "kept", having_found(asked, "gone", "brisa", by=by), **{"1": "up"})
    assert run(capsys, "harvest", "--no-track")[0] == 0


def test_a_line_that_is_no_episode_is_named(project, capsys):
    keep(project / "kept", episode("1", "What is the capital of Brisa?", "Port Salt"))
    with (project / "kept" / "episodes.jsonl").open("a") as file:
        file.write('{"key": "2"}\n')
    code, _, err = run(capsys, "harvest", "--no-track")
    assert code == 2 and "kept/episodes.jsonl:2: not an episode (question: Field required)" in err


def test_dvc_runs_it_where_it_is_named_and_trains_on_what_it_makes(tmp_path):
    from dvc.repo import Repo

    for name in ("dvc.yaml", ".dvcignore"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".dvc").mkdir()
    shutil.copy(ROOT / ".dvc" / "config", tmp_path / ".dvc")
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    params = yaml.safe_load((ROOT / "params.yaml").read_text())

    def edges() -> dict[str, set[str]]:
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
        with Repo(str(tmp_path)) as repo:
            graph = repo.index.graph
            return {stage.name: {other.name for other in graph.successors(stage)} - {"sources"} for stage in graph}

    assert not any("harvest" in stage for stage in edges())
    params["harvests"], params["train"]["dataset"] = ["served"], "served"
    found = edges()
    assert found["harvest@served"] == {"corpus@atlas"} and found["index-harvest@served"] == {"harvest@served"}
    assert found["seeds"] >= {"harvest@served", "index-harvest@served"}


def test_a_set_that_breaks_an_expectation_is_refused(project, capsys):
    keep(project / "kept", episode("1", "What is the capital of Brisa?", "Port Salt"), **{"1": "up"})
    files.write(
        project / "data/lands/train.jsonl", [gold(1, "What is Woolton known for?", "wool") | {"supporting_ids": ["x"]}]
    )
    code, _, err = run(capsys, "harvest", "--no-track")
    assert code == 2 and "supporting passages are in the corpus" in err and "data/served/train.jsonl" in err
