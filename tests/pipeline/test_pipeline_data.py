"""Published data sets as a user gets them: `dragoman data list`, `get`, `import` and `export`."""

import hashlib
import json
from pathlib import Path

import pytest
import small_sets
import yaml
from command import run
from shelf import shelf

from dragoman.config import load_params
from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.corpus import load_corpus, load_questions
from dragoman.pipeline import data
from dragoman.pipeline.corpus import Options as CorpusOptions
from dragoman.pipeline.corpus import run as corpus_stage
from dragoman.pipeline.project import Project
from dragoman.published.catalogue import DataSet, catalogue, find
from dragoman.published.formats import NAMES


@pytest.fixture
def stock():
    with shelf() as stock:
        yield stock


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def small(stock, tmp_path, monkeypatch) -> DataSet:
    """A data set of two files with checksums and a corpus-wide variant, in the catalogue under the name `small`."""
    train = small_sets.array(tmp_path / "x" / "train.json", *[small_sets.HOTPOT | {"_id": f"t{n}"} for n in range(10)])
    test = small_sets.array(tmp_path / "x" / "dev.json", small_sets.HOTPOT)
    archive = small_sets.zipped(small_sets.beir(tmp_path / "x" / "small"), tmp_path / "x" / "small.zip")
    for file in (train, test, archive):
        stock.files[file.name] = file.read_bytes()

    def sha256(file):
        return hashlib.sha256(file.read_bytes()).hexdigest()

    made = DataSet.model_validate({
        "title": "Small", "home": "http://home.test", "licence": "CC0", "good_for": "tests",
        "variants": {
            "distractor": {"format": "hotpotqa", "about": "a few", "hold_out": 3, "files": [
                {"split": "train", "url": f"{stock.url}/train.json", "bytes": train.stat().st_size, "sha256": sha256(train)},
                {"split": "test", "url": f"{stock.url}/dev.json", "sha256": sha256(test)},
            ]},
            "fullwiki": {"format": "beir", "about": "all", "files": [{"url": f"{stock.url}/small.zip"}]},
        },
    })  # fmt: skip
    monkeypatch.setitem(catalogue(), "small", made)
    return made


# --- the catalogue ---------------------------------------------------------------------------------------------------


def test_the_catalogue_has_the_sets_that_were_asked_for_and_says_nothing_that_cannot_be():
    assert set(catalogue()) >= {
        "hotpotqa", "2wiki", "musique", "nq", "popqa", "triviaqa", "bamboogle", "freshqa", "multihop-rag", "qald-10"
    }  # fmt: skip
    for name, data_set in catalogue().items():
        for variant in data_set.variants.values():
            assert len({r.name for r in variant.downloads}) == len(variant.downloads), name
            for remote in variant.files:
                assert remote.format in NAMES and remote.url.startswith("http") and remote.name, name
                assert remote.sha256 is None or len(bytes.fromhex(remote.sha256)) == 32, name
                assert remote.md5 is None or len(bytes.fromhex(remote.md5)) == 16, name
            files = [(r.name, r.member, r.split) for r in variant.files]
            assert len(set(files)) == len(files), name


def test_list_shows_sizes_licences_and_what_is_not_verified(capsys):
    code, out, _ = run(capsys, "data", "list")
    assert code == 0
    lines = {line.split("  ")[0]: line for line in out.splitlines()}
    assert "613 MB" in lines["hotpotqa distractor"] and "90,447 train, 7,405 test" in lines["hotpotqa distractor"]
    assert "5,233,329" in lines["hotpotqa fullwiki"] and "CC BY-SA 4.0" in lines["hotpotqa fullwiki"]
    assert lines["freshqa questions"].count("?") == 3  # size, counts, licence
    assert run(capsys, "data", "get") == (code, out, "")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["hotpot"], "no data set 'hotpot' (near: hotpotqa"),
        (["hotpotqa", "--variant", "full"], "HotpotQA has no variant 'full'; there are: distractor, fullwiki"),
        (["hotpotqa", "--questions", "0"], "--questions must be at least 1"),
        (["hotpotqa", "--mirror", "ftp://x"], "--mirror: 'ftp://x' is not an http(s) URL"),
    ],
)
def test_bad_arguments_end_with_code_2(capsys, arguments, complaint):
    code, _, err = run(capsys, "data", "get", *arguments)
    assert code == 2 and complaint in err


@pytest.mark.parametrize("command", ["list", "get", "import", "export"])
def test_every_command_has_help_with_an_example(capsys, command):
    code, out, _ = run(capsys, "data", command, "--help")
    assert code == 0 and f"Example: dragoman data {command}" in " ".join(out.split())


# --- get -------------------------------------------------------------------------------------------------------------


async def test_what_get_prints_makes_the_pipeline_use_the_set(capsys, small, tmp_path):
    code, out, err = run(capsys, "data", "get", "small")
    assert code == 0, err
    assert "Small, http://home.test; licence: CC0" in out
    assert "data/sets/small-distractor: 3 passages; questions: 9 train, 1 dev, 1 test" in out
    lines = out.partition("leave the others:\n\n")[2]
    assert yaml.safe_load(lines)["train"] == {"dataset": "small"}
    (tmp_path / "params.yaml").write_text(lines)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "cpu.yaml").write_text("{}")
    counts = await corpus_stage(Project(params=load_params(tmp_path / "params.yaml")), CorpusOptions(dataset="small"))
    assert counts == {"passages": 3, "train": 9, "dev": 1, "test": 1}


def test_get_again_fetches_and_converts_nothing(small, stock, tmp_path):
    first = data.get(tmp_path, "small", wait=0)
    before = (first.folder / "corpus.jsonl").stat().st_mtime_ns
    assert data.get(tmp_path, "small", wait=0).manifest == first.manifest
    assert len(stock.asked) == 2 and (first.folder / "corpus.jsonl").stat().st_mtime_ns == before


def test_variants_and_samples_have_folders_of_their_own(small, tmp_path):
    assert data.get(tmp_path, "small", "fullwiki", wait=0).manifest["questions"] == {"train": 1, "test": 1}
    sample = data.get(tmp_path, "small", questions=2, wait=0)
    assert sample.manifest["questions"] == {"train": 2, "test": 1}  # of so few none is held out
    assert sorted(p.name for p in (tmp_path / "data" / "sets").iterdir()) == ["small-distractor-2", "small-fullwiki"]


def test_where_the_network_refuses_files_put_by_hand_are_gone_on_with(small, stock, tmp_path, capsys):
    stock.statuses["dev.json"] = 403
    code, _, err = run(capsys, "data", "get", "small")
    assert code == 2
    sha256 = small.variants["distractor"].files[1].sha256
    assert f"{stock.url}/dev.json: HTTP 403. Fetch what is missing where there is a network" in err
    assert f"{stock.url}/dev.json\n    -> data/downloads/small/dev.json (SHA256 {sha256})" in err
    assert "train.json\n" not in err  # it has come
    assert "then go on with: dragoman data get small --variant distractor" in err
    assert (
        "from a mirror, a URL with NAME/FILE below it: dragoman data get small --variant distractor --mirror http"
        in err
    )
    (tmp_path / "data" / "downloads" / "small" / "dev.json").write_bytes(stock.files["dev.json"])
    code, out, _ = run(capsys, "data", "get", "small", "--variant", "distractor")
    assert code == 0 and "9 train, 1 dev, 1 test" in out


def test_where_the_network_refuses_the_command_to_go_on_with_asks_for_as_many_questions(small, stock, capsys):
    stock.statuses["dev.json"] = 403
    code, _, err = run(capsys, "data", "get", "small", "--questions", "5")
    assert code == 2 and "then go on with: dragoman data get small --variant distractor --questions 5\n" in err


def test_a_wrong_checksum_is_refused_and_nothing_is_converted(small, stock, tmp_path):
    stock.files["dev.json"] = b"[]"
    with pytest.raises(UserError, match=r"data/downloads/small/dev\.json: not the file that was expected"):
        data.get(Path(), "small", wait=0)
    assert not (tmp_path / "data" / "sets").exists()


def test_ctrl_c_says_that_the_same_command_goes_on(capsys, small, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(data, "fetch", interrupted)
    code, _, err = run(capsys, "data", "get", "small")
    assert code == 130 and "run the same command to go on" in err


def test_two_at_once_are_refused(small, tmp_path):
    with (
        files.only_writer(tmp_path / "data" / "downloads" / "small"),
        pytest.raises(UserError, match="is writing there"),
    ):
        data.get(tmp_path, "small", wait=0)


def test_a_set_without_passages_says_so(capsys, stock):
    stock.files["bamboogle/bamboogle.csv"] = small_sets.BAMBOOGLE.encode()
    code, out, err = run(capsys, "data", "get", "bamboogle", "--mirror", stock.url)
    assert code == 0, err
    assert "data/sets/bamboogle-questions: 0 passages; questions: 2 test" in out
    assert "It has no passages: open-domain questions only" in out
    assert "dragoman evaluate --corpus CORPUS --questions data/sets/bamboogle-questions/test.jsonl" in out
    assert "source: path/to/corpus.jsonl    # yours: this set has none" in out and "train:" not in out
    assert "no checksum is published of bamboogle.csv: a later file that differs will be refused" in out


@pytest.mark.parametrize("name", ["popqa", "freshqa", "multihop-rag", "qald-10"])
def test_sets_of_files_without_checksums_come_from_a_mirror(stock, tmp_path, name):
    content = {
        "popqa.tsv": small_sets.POPQA, "freshqa.csv": small_sets.FRESHQA,
        "corpus.json": json.dumps([small_sets.ARTICLE]), "MultiHopRAG.json": json.dumps([small_sets.MULTIHOP]),
        "qald_9_plus_train_wikidata.json": json.dumps(small_sets.QALD), "qald_10.json": json.dumps(small_sets.QALD),
    }  # fmt: skip
    for remote in find(name).variant(None)[1].files:
        stock.files[f"{name}/{remote.name}"] = content[remote.name].encode()
    made = data.get(tmp_path, name, mirror=stock.url, wait=0)
    for split in made.manifest["questions"]:
        assert load_questions(made.folder / f"{split}.jsonl")
    if name == "multihop-rag":
        gold = load_questions(made.folder / "test.jsonl")[0].supporting_ids
        assert gold == tuple(p.id for p in load_corpus(made.folder))


# --- import and export -----------------------------------------------------------------------------------------------


def test_import_reads_splits_off_the_names_of_files(capsys, tmp_path):
    small_sets.array(tmp_path / "hotpot_train_v1.1.json", small_sets.HOTPOT)
    small_sets.array(tmp_path / "hotpot_dev_distractor_v1.json", small_sets.HOTPOT | {"_id": "h2"})
    code, out, err = run(
        capsys, "data", "import", "hotpot_train_v1.1.json", "test=hotpot_dev_distractor_v1.json", "--format", "hotpotqa"
    )
    assert code == 0, err
    assert "data/sets/hotpot_train_v1: 3 passages; questions: 1 train, 1 test" in out


@pytest.mark.parametrize("name", ["latest", "device_qa", "contest", "contrains"])
def test_a_name_that_only_holds_the_word_of_a_split_says_nothing_of_it(capsys, tmp_path, name):
    small_sets.array(tmp_path / f"{name}.json", small_sets.HOTPOT)
    code, _, err = run(capsys, "data", "import", f"{name}.json", "--format", "hotpotqa")
    assert code == 2 and f"{name}.json: whose questions are these?" in err


@pytest.mark.parametrize("name", ["trainset", "hotpot-Train", "training_v1", "train2"])
def test_a_name_with_another_form_of_the_word_of_a_split_says_it(capsys, tmp_path, name):
    small_sets.array(tmp_path / f"{name}.json", small_sets.HOTPOT)
    code, out, err = run(capsys, "data", "import", f"{name}.json", "--format", "hotpotqa")
    assert code == 0 and "questions: 1 train" in out, err


def test_files_of_one_name_do_not_replace_what_was_imported_from_others(capsys, tmp_path):
    for place in ("one", "other"):
        (tmp_path / place).mkdir()
        small_sets.array(tmp_path / place / "train.json", small_sets.HOTPOT)
    assert run(capsys, "data", "import", "one/train.json", "--format", "hotpotqa")[0] == 0
    code, _, err = run(capsys, "data", "import", "other/train.json", "--format", "hotpotqa")
    assert (
        code == 2 and "data/sets/train: has what was imported from other files; name another folder with --out" in err
    )
    small_sets.array(tmp_path / "one" / "train.json", small_sets.HOTPOT | {"question": "Another?"})
    assert run(capsys, "data", "import", "one/train.json", "--format", "hotpotqa")[0] == 0  # the same file, made anew


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["none.json", "--format", "hotpotqa"], "none.json: no such file or folder"),
        (["some.json", "--format", "hotpot"], "no format 'hotpot'; there are: hotpotqa, 2wiki"),
        (["some.json", "--format", "hotpotqa"], "some.json: whose questions are these? Say so: train=some.json"),
        (["test=some.json", "--format", "musique"], "some.json:1: expected a JSON object, found list"),
        (["test=some.json", "--format", "squad"], "some.json:1: expected an object with a list 'data', found a list"),
        (["test=folder", "--format", "beir"], "a BEIR folder names its splits itself; give folder alone"),
        (["folder", "--format", "squad"], "folder: the format squad is a file; name it"),
    ],
)
def test_bad_imports_end_with_code_2_and_leave_nothing(capsys, tmp_path, arguments, complaint):
    small_sets.array(tmp_path / "some.json", small_sets.HOTPOT)
    (tmp_path / "folder").mkdir()
    code, _, err = run(capsys, "data", "import", *arguments)
    assert code == 2 and complaint in err
    assert not list(tmp_path.glob("data/sets/*"))


def test_an_export_is_imported_again(capsys, tmp_path):
    small_sets.array(tmp_path / "dev.json", small_sets.TWO_WIKI)
    assert run(capsys, "data", "import", "test=dev.json", "--format", "2wiki", "--out", "mine")[0] == 0
    code, out, _ = run(capsys, "data", "export", "mine", "--out", "beir")
    assert (code, out) == (0, "beir: 3 passages, 1 test\n")
    assert run(capsys, "data", "import", "beir", "--format", "beir", "--out", "again")[0] == 0
    for name in ("corpus.jsonl", "test.jsonl"):
        assert (tmp_path / "again" / name).read_text() == (tmp_path / "mine" / name).read_text()
