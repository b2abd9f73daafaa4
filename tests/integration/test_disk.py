"""Disks that are full, read-only, forbidden or without locks: one line each, a clean stop, and what was finished stays."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_cli import Home
from test_ingest import load, make

from killing import Bench, Child, Outcome, fixed_commit
from protea import ingest, upkeep
from protea.errors import InputError, ProteaError, StorageError
from protea.settings import Settings
from worlds import random_world

NOBODY = 65534


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with fixed_commit():
        bench = Bench(tmp_path_factory.mktemp("bench"))
        bench.clean()
        yield bench


@contextmanager
def mounted(place: Path, *options: str) -> Iterator[Path]:
    """A mount at `place`; skips where none may be made."""
    place.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, str(place)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def one_line(outcome: Outcome, *words: str) -> str:
    (error,) = outcome.of("error")
    assert (outcome.status, error["code"]) == (2, "storage"), outcome.events  # `Child` says 2 for any ProteaError
    assert "\n" not in error["text"]
    for word in words:
        assert word in error["text"]
    return error["text"]


def test_the_disk_fills_up_while_a_cut_is_made(bench: Bench, tmp_path: Path) -> None:
    """A real one: the message names the file; the finished cut is kept, and with more room the run goes on from it."""
    (bench.directory / "full").mkdir()
    with mounted(bench.directory / "full" / "resume", "-t", "tmpfs", "-o", "size=4m", "tmpfs") as disk:
        hog = disk / "hog"

        def fill(event: dict[str, object], _: int) -> None:
            if event["kind"] == "cut.finished" and not hog.exists():
                with hog.open("wb", buffering=0) as f:
                    while True:
                        try:
                            f.write(bytes(4096))
                        except OSError:
                            break

        said = one_line(bench.run("full", fill), "No space left on device", str(disk), "free some disk space")
        assert "what was finished is kept" in said
        assert bench.finished("full") == ["v1-v2"]
        assert not [p for p in disk.rglob("*.tmp") if p.stat().st_size]
        hog.unlink()
        again = bench.run("full", log="again")
        assert again.cuts("cut.restored") == ["v1-v2"]
        bench.check("full")


def test_a_read_only_home(settings: Settings, tmp_path: Path) -> None:
    """Every command that writes says so; looking still works."""
    load(settings, "proteins", make("proteins", tmp_path), "p")
    home = Path(str(settings.home))
    other = make("embeddings", tmp_path / "in")
    with mounted(home, "--bind", str(home)):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(home)], check=True)
        with pytest.raises(StorageError, match=rf"^{home}.*cannot be written: Read-only file system \(it must be") as e:
            load(settings, "embeddings", other, "v")
        assert "\n" not in str(e.value)
        checks = {c.check: c for c in upkeep.doctor(settings)}
        assert checks["home"].state == "bad"
        assert "Read-only file system" in checks["home"].what
        assert checks["inputs"].state == "ok"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("which", ["resume", "datasets"])
def test_a_missing_permission(bench: Bench, which: str) -> None:
    where = f"forbidden-{which}"
    base = bench.directory / where
    for name in ("resume", "datasets"):
        (base / name).mkdir(parents=True)
        (base / name).chmod(0o755 if name == which else 0o777)
    for p in base.parents:  # the way there
        if not p.stat().st_mode & stat.S_IXOTH:
            p.chmod(stat.S_IMODE(p.stat().st_mode) | stat.S_IXOTH)
    work = bench.work(where)
    base.chmod(0o777)

    def as_nobody(report: Callable[..., None]) -> None:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        work(report)

    outcome = Child(as_nobody, bench.directory / f"{where}.log").join()
    one_line(outcome, "Permission denied", str(base / which))
    assert not (base / "datasets" / "d").exists()


def test_a_file_system_without_locks(bench: Bench, settings: Settings, tmp_path: Path) -> None:
    """As network file systems may be: nothing is written without a lock."""

    def without(work: Callable[[Callable[..., None]], object], log: str) -> Outcome:
        def run(report: Callable[..., None]) -> None:
            def flock(fd: object, how: int) -> None:
                raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

            fcntl.flock = flock  # type: ignore[assignment]
            work(report)

        return Child(run, tmp_path / log).join()

    one_line(without(bench.work("lockless"), "export.log"), "No locks available", "a file system with locks")
    assert not bench.dataset("lockless").exists()
    file = make("proteins", tmp_path / "in")
    one_line(
        without(lambda report: load(settings, "proteins", file, "p"), "load.log"),
        "No locks available",
        "a file system with locks",
    )
    assert not (settings.storage / "objects").exists()


def test_an_input_that_cannot_be_read(settings: Settings, tmp_path: Path) -> None:
    """It is the input that is named, not the home."""
    (tmp_path / "folder.fasta").mkdir()
    with pytest.raises(InputError, match=r"folder\.fasta cannot be read: Is a directory") as e:
        ingest.load_proteins(settings, tmp_path / "folder.fasta")
    assert isinstance(e.value, ProteaError)


@pytest.mark.parametrize("umask", [0o002, 0o027, 0o077])
def test_files_have_the_modes_that_the_umask_gives(settings: Settings, tmp_path: Path, umask: int) -> None:
    """All below the home: a group can share one, and one can be closed to others."""
    world = random_world(3, size=12)
    home = Home(tmp_path, str(settings.database_url), world, world.write(tmp_path / "files"))
    before = os.umask(umask)
    try:
        home.ok("load", "ontology", home.files["ontology"])
        home.ok("load", "proteins", home.files["proteins"])
        home.ok("load", "embeddings", home.files["embeddings"]["npz"], "--name", "vectors")
        for version, file in home.files["annotations"].items():
            home.ok("load", "annotations", file, "--source", "goa", "--version", version, "--max-rejected", 1)
        home.ok("export", "run", home.settings("d"), "--compute-alignments")
    finally:
        os.umask(before)
    found = {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "home").rglob("*") if p.is_file()}
    assert found == {0o666 & ~umask}
    found = {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "home").rglob("*") if p.is_dir()}
    assert found == {0o777 & ~umask}
    shutil.rmtree(tmp_path / "home")
