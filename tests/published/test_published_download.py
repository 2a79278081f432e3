"""Downloads against a server on this machine: gone on with, verified, and refused with a reason."""

import hashlib
import json

import pytest
from shelf import shelf

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.published import download
from dragoman.published.catalogue import Remote
from dragoman.published.download import RECEIVED, TRIES, Unreachable, fetch

CONTENT = b"0123456789" * 3
SHA = hashlib.sha256(CONTENT).hexdigest()
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def stock():
    with shelf() as stock:
        stock.files["a.json"] = CONTENT
        yield stock


def remote(stock, **more) -> Remote:
    return Remote(url=f"{stock.url}/a.json?dl=1", format="hotpotqa", **more)


def get(stock, folder, **more):
    # the query of the address is not part of the name, nor of the path on the shelf
    return fetch(remote(stock, **more), folder, url=f"{stock.url}/a.json", first_wait=0)


@pytest.mark.parametrize("checksum", [{"sha256": SHA}, {"md5": MD5}])
def test_a_file_is_fetched_once_and_verified(stock, tmp_path, checksum):
    done = get(stock, tmp_path / "d", bytes=30, **checksum)
    assert done.path == tmp_path / "d" / "a.json" and done.path.read_bytes() == CONTENT
    assert (done.sha256, done.known) == (SHA, True)
    assert get(stock, tmp_path / "d", **checksum) == done and len(stock.asked) == 1
    assert [p.name for p in done.path.parent.iterdir()] == ["a.json"]


def test_what_was_fetched_is_on_the_disk_before_it_has_a_record_or_its_name(stock, tmp_path, monkeypatch):
    synced, target = [], tmp_path / "a.json"
    sync = files.sync

    def watched(path):
        synced.append(
            (
                path.name,
                path.is_file() and path.read_bytes() == CONTENT,
                target.exists(),
                (tmp_path / RECEIVED).exists(),
            )
        )
        sync(path)

    monkeypatch.setattr(files, "sync", watched)
    get(stock, tmp_path)
    whole = [(name, named, recorded) for name, whole, named, recorded in synced if whole]
    assert whole == [("a.json.part", False, False)]
    assert synced[-1][0] == tmp_path.name and synced[-1][2]


def test_a_transfer_that_breaks_off_goes_on_where_it_was(stock, tmp_path):
    stock.cuts["a.json"] = [7, 4]
    assert get(stock, tmp_path, sha256=SHA).path.read_bytes() == CONTENT
    assert stock.asked == [("a.json", None), ("a.json", "bytes=7-"), ("a.json", "bytes=11-")]


def test_half_a_file_of_a_process_that_was_killed_is_gone_on_with(stock, tmp_path):
    stock.cuts["a.json"] = [12] + [0] * TRIES
    with pytest.raises(Unreachable):
        get(stock, tmp_path, sha256=SHA)
    assert (tmp_path / "a.json.part").read_bytes() == CONTENT[:12] and not (tmp_path / "a.json").exists()
    stock.asked.clear()
    stock.cuts.clear()
    assert get(stock, tmp_path, sha256=SHA).path.read_bytes() == CONTENT
    assert stock.asked == [("a.json", "bytes=12-")]


def test_half_of_a_file_that_has_changed_meanwhile_is_not_gone_on_with(stock, tmp_path):
    stock.cuts["a.json"] = [12] + [0] * TRIES
    with pytest.raises(Unreachable):
        get(stock, tmp_path)
    stock.files["a.json"] = other = b"abcdefghij" * 3
    stock.cuts.clear()
    assert get(stock, tmp_path).path.read_bytes() == other


def test_a_server_that_knows_no_ranges_sends_the_whole_again(stock, tmp_path):
    stock.ranges = False
    stock.cuts["a.json"] = [7]
    assert get(stock, tmp_path, sha256=SHA).path.read_bytes() == CONTENT


def test_half_a_file_of_unknown_origin_is_not_gone_on_with(stock, tmp_path):
    (tmp_path / "a.json.part").write_bytes(b"something")
    assert get(stock, tmp_path, sha256=SHA).path.read_bytes() == CONTENT
    assert stock.asked == [("a.json", None)]


def test_a_whole_file_that_was_not_yet_verified_is_not_fetched_again(stock, tmp_path, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(download, "_checked", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            get(stock, tmp_path, bytes=30, sha256=SHA)
    assert get(stock, tmp_path, bytes=30, sha256=SHA).path.read_bytes() == CONTENT and len(stock.asked) == 1


@pytest.mark.parametrize(("status", "asked"), [(403, 1), (404, 1), (503, TRIES)])
def test_a_refusal_is_final_or_asked_again_by_its_status(stock, tmp_path, status, asked):
    stock.statuses["a.json"] = status
    with pytest.raises(Unreachable, match=f"HTTP {status}"):
        get(stock, tmp_path)
    assert len(stock.asked) == asked


def test_a_server_that_is_not_there_is_unreachable(tmp_path):
    nowhere = Remote(url="http://127.0.0.1:9/a.json", format="hotpotqa")
    with pytest.raises(Unreachable, match="ConnectError"):
        fetch(nowhere, tmp_path, first_wait=0)


def test_a_wrong_checksum_puts_the_file_aside_and_the_next_try_begins_anew(stock, tmp_path):
    stock.files["a.json"] = b"x" * 30
    found = hashlib.sha256(b"x" * 30).hexdigest()
    with pytest.raises(UserError, match=rf"a\.json: .*its SHA-256 is {found}, published is {SHA}.*a\.json\.refused"):
        get(stock, tmp_path, bytes=30, sha256=SHA)
    assert (tmp_path / "a.json.refused").read_bytes() == b"x" * 30
    stock.files["a.json"] = CONTENT
    assert get(stock, tmp_path, bytes=30, sha256=SHA).path.read_bytes() == CONTENT


def test_a_file_of_another_size_is_refused_before_it_is_sent(stock, tmp_path):
    with pytest.raises(UserError, match="has 30 bytes, published are 31"):
        get(stock, tmp_path, bytes=31, sha256=SHA)
    assert not (tmp_path / "a.json.part").exists()


def test_a_file_put_there_by_hand_is_verified_too(stock, tmp_path):
    (tmp_path / "a.json").write_bytes(b"by hand")
    with pytest.raises(UserError, match=f"published is {SHA}"):
        get(stock, tmp_path, sha256=SHA)
    assert stock.asked == []


def test_a_file_without_a_checksum_is_recorded_and_a_later_one_that_differs_refused(stock, tmp_path, caplog):
    caplog.set_level("INFO", "dragoman")
    done = get(stock, tmp_path)
    assert not done.known and "no checksum of it is known" in caplog.text and SHA in caplog.text
    assert json.loads((tmp_path / RECEIVED).read_text())["a.json"] | {"url": ""} == {
        "bytes": 30,
        "sha256": SHA,
        "url": "",
    }
    done.path.unlink()
    stock.files["a.json"] = b"another edition"
    with pytest.raises(UserError, match=rf"{SHA} was received before.*take 'a.json' out of .*received\.json"):
        get(stock, tmp_path)
    (tmp_path / RECEIVED).unlink()
    assert get(stock, tmp_path).path.read_bytes() == b"another edition"


def test_a_web_page_in_the_place_of_a_file_is_not_taken(stock, tmp_path):
    stock.content_type = "text/html; charset=utf-8"
    with pytest.raises(Unreachable, match="a web page was sent"):
        get(stock, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_before_anything_is_written(stock, tmp_path, monkeypatch):
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 29}))
    with pytest.raises(UserError, match="30 bytes are still to come, and 29 are free"):
        get(stock, tmp_path)
