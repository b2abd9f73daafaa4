"""The staging directory alone: what counts as finished, the lock, and removal, at every instant."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from killing import Child, Counter
from protea.core import fs
from protea.core.parquet_export import FileInfo
from protea.core.staging import MARKER, Stage, Staging, canonical, digest
from protea.errors import BusyError, StorageError

KEY = {"stage": "cut", "pair": "v1-v2", "settings": {"k": 5}}
RESULT = {"counts": {"nk": {"mfo": {"rows": 1, "members": 2}, "bpo": {}}, "lk": {}}, "a": 0.1}
"""Keys in an order that sorting would change."""


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    made = Staging(tmp_path / "resume", "d", "f" * 64)
    made.acquire()
    return made


def finish(staging: Staging, name: str = "v1-v2", key: dict[str, Any] = KEY) -> Stage:
    directory, attempt = staging.begin(name)
    (directory / "nk.parquet").write_bytes(b"rows")
    info = FileInfo("nk.parquet", 1, 4, fs.sha256_file(directory / "nk.parquet"), ("a", "b"))
    return staging.finish(name, key, {"nk": info}, RESULT, attempt, "1.0")


# ---------------------------------------------------------------------------------------------------------------- stages


def test_a_finished_stage_comes_back_as_it_was(staging: Staging) -> None:
    """The order of the result's keys too: it is the order of the manifest."""
    made = finish(staging)
    stage, why = staging.restore("v1-v2", KEY)
    assert why is None
    assert stage == made
    assert json.dumps(stage.result) == json.dumps(made.result) == json.dumps(RESULT)
    marker = json.loads((made.directory / MARKER).read_bytes())
    assert (marker["key"], marker["attempt"], marker["software"]) == (digest(KEY), 1, "1.0")
    assert marker["files"]["nk"]["name"] == "nk.parquet"  # relative: the directory may move


def test_never_begun_and_begun(staging: Staging) -> None:
    assert staging.restore("v1-v2", KEY) == (None, None)
    staging.begin("v1-v2")
    assert staging.restore("v1-v2", KEY) == (None, "it was interrupted before its marker was written")


def test_another_key(staging: Staging) -> None:
    finish(staging)
    stage, why = staging.restore("v1-v2", {**KEY, "settings": {"k": 6}})
    assert (stage, why) == (None, "it was made from something else: settings.k: 5 -> 6")


def test_any_flipped_bit_of_a_marker_is_noticed(staging: Staging) -> None:
    marker = finish(staging).directory / MARKER
    data = marker.read_bytes()
    for i in range(len(data)):
        for bit in (0x01, 0x20) if i % 16 else (0x01, 0x80):
            marker.write_bytes(data[:i] + bytes([data[i] ^ bit]) + data[i + 1 :])
            assert staging.restore("v1-v2", KEY) == (None, "its marker is damaged"), (i, bit)
    for n in range(len(data)):
        marker.write_bytes(data[:n])
        assert staging.restore("v1-v2", KEY)[0] is None


def test_a_marker_with_other_fields(staging: Staging) -> None:
    """Well-formed, but written by a version that records something else of a file."""
    marker = finish(staging).directory / MARKER
    found = json.loads(marker.read_bytes())
    del found["check"]
    found["files"]["nk"]["colour"] = "blue"
    marker.write_bytes(canonical({**found, "check": digest(found)}))
    assert staging.restore("v1-v2", KEY) == (None, "its marker is of another version of PROTEA")


def test_attempts_are_counted_over_damage(staging: Staging) -> None:
    assert [staging.begin("v1-v2")[1] for _ in range(3)] == [1, 2, 3]
    (staging.path / "attempts" / "v1-v2").write_bytes(b"\xff")
    assert staging.begin("v1-v2")[1] == 1


def test_begin_empties_the_directory(staging: Staging) -> None:
    finish(staging)
    directory, attempt = staging.begin("v1-v2")
    assert attempt == 2
    assert not list(directory.iterdir())
    assert finish(staging, "v2-v3", {**KEY, "pair": "v2-v3"}).files["nk"].rows == 1


def test_begin_killed_anywhere(tmp_path: Path) -> None:
    """Beginning again a finished stage: either it is still whole, or it is not finished."""
    for n in range(1, 100):

        def work(report: Callable[..., None], n: int = n) -> None:
            staging = Staging(tmp_path / str(n), "d", "f" * 64)
            staging.acquire()
            finish(staging)
            Counter(n).install()
            staging.begin("v1-v2")

        outcome = Child(work, tmp_path / "log").join()
        staging = Staging(tmp_path / str(n), "d", "f" * 64)
        staging.acquire()
        stage, why = staging.restore("v1-v2", KEY)
        assert stage is None or (stage.directory / "nk.parquet").read_bytes() == b"rows"
        assert why in (None, "it was interrupted before its marker was written", "nk.parquet is missing")
        finish(staging)
        assert staging.restore("v1-v2", KEY)[0] is not None
        staging.remove()
        assert not staging.path.exists()
        if not outcome.killed:
            break
    assert n > 5


# -------------------------------------------------------------------------------------------------------------- the lock


def test_one_at_a_time(staging: Staging) -> None:
    second = Staging(staging.path.parent, "d", "f" * 64)
    with pytest.raises(BusyError, match=f"process {os.getpid()} on "):
        second.acquire()
    assert not second.idle()
    staging.release()
    assert second.idle()
    second.acquire()
    second.release()


def test_other_exports_are_free(staging: Staging) -> None:
    Staging(staging.path.parent, "d", "e" * 64).acquire()
    Staging(staging.path.parent, "e", "f" * 64).acquire()
    assert Staging(staging.path.parent, "never", "f" * 64).idle()
    assert not (staging.path.parent / "never-ffffffffffff").exists()


def test_the_lock_dies_with_its_holder(tmp_path: Path) -> None:
    def hold(report: Callable[..., None]) -> None:
        Staging(tmp_path, "d", "f" * 64).acquire()
        report("held")
        signal.pause()

    child = Child(hold, tmp_path / "log")
    child.until("held")
    staging = Staging(tmp_path, "d", "f" * 64)
    with pytest.raises(BusyError, match=f"process {child.pid} "):
        staging.acquire()
    os.kill(child.pid, signal.SIGKILL)
    assert child.join().killed
    staging.acquire()


def test_waiting_says_so_once(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            staging.release()

    monkeypatch.setattr("protea.core.staging.time.sleep", nap)
    Staging(staging.path.parent, "d", "f" * 64).acquire(wait=True, waiting=heard.append)
    assert len(naps) == 3
    assert len(heard) == 1


def test_a_run_that_begins_while_the_directory_goes(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the removal of the lock and of the directory another run makes a new lock: it keeps it."""
    second = Staging(staging.path.parent, "d", "f" * 64)
    real = os.rmdir

    def rmdir(path: Any, **how: Any) -> None:
        if Path(path) == staging.path and second.idle():
            second.acquire()
        real(path, **how)

    finish(staging)
    monkeypatch.setattr(os, "rmdir", rmdir)
    staging.remove()
    assert (second.path / "lock").exists()
    assert not second.idle()
    monkeypatch.undo()
    second.remove()
    assert not second.path.exists()


def test_a_directory_that_goes_while_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staging = Staging(tmp_path, "d", "f" * 64)
    staging.path.mkdir()
    real = os.mkdir

    def mkdir(path: Any, *args: Any, **how: Any) -> None:
        try:
            real(path, *args, **how)
        except FileExistsError:
            if Path(path) == staging.path:
                staging.path.rmdir()  # just now, by the run that has finished
            raise

    monkeypatch.setattr(os, "mkdir", mkdir)
    staging.acquire()
    assert staging.path.is_dir()


def test_no_two_hold_it(tmp_path: Path) -> None:
    """Several processes take the lock, work and remove the directory, again and again."""

    def work(report: Callable[..., None]) -> None:
        for _ in range(40):
            staging = Staging(tmp_path / "resume", "d", "f" * 64)
            staging.acquire(wait=True)
            alone = os.open(tmp_path / "alone", os.O_CREAT | os.O_EXCL)
            finish(staging)
            os.close(alone)
            os.unlink(tmp_path / "alone")
            staging.remove()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("protea.core.staging.time.sleep", lambda _: None)
        patch.setattr(os, "fsync", lambda _: None)
        outcomes = [c.join() for c in [Child(work, tmp_path / f"log{i}") for i in range(4)]]
    assert [o.status for o in outcomes] == [0] * 4, [o.events for o in outcomes]
    assert not list((tmp_path / "resume").iterdir())


def test_removal_killed_anywhere(tmp_path: Path) -> None:
    """What is left is a directory that the next run can take, without a stage that looks finished and is not."""
    for n in range(1, 100):

        def work(report: Callable[..., None], n: int = n) -> None:
            staging = Staging(tmp_path / str(n), "d", "f" * 64)
            staging.acquire()
            finish(staging)
            Counter(n).install()
            staging.remove()

        outcome = Child(work, tmp_path / "log").join()
        staging = Staging(tmp_path / str(n), "d", "f" * 64)
        staging.acquire()
        stage, _ = staging.restore("v1-v2", KEY)
        assert stage is None or (stage.directory / "nk.parquet").read_bytes() == b"rows"
        staging.remove()
        assert not staging.path.exists()
        if not outcome.killed:
            break
    assert n > 5


@pytest.mark.parametrize("what", ["file", "dangling", "base", "link"])
def test_a_place_that_cannot_be_used(tmp_path: Path, what: str) -> None:
    staging = Staging(tmp_path / "resume", "d", "f" * 64)
    if what == "dangling":
        (tmp_path / "resume").symlink_to("nowhere")
    elif what == "link":
        (tmp_path / "resume").mkdir()
        staging.path.symlink_to("nowhere")
    elif what == "base":
        (tmp_path / "resume").write_text("a file")
    else:
        (tmp_path / "resume").mkdir()
        staging.path.write_text("a file")
    with pytest.raises(StorageError, match="cannot be used"):
        staging.acquire()
