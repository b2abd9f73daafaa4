"""`protea gc`, `doctor`, `dataset verify` and `remove`: a broken home of each kind, and what must never be touched."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_cli import Home
from test_damage import flip
from test_ingest import KILLED, environment, npz

from protea import collecting, ingest, upkeep
from protea.catalog import open_catalog
from protea.core.fs import own_dir
from protea.errors import ConfigError, NotFoundError, StorageError
from protea.exporting import open_dataset
from protea.jobs.local import submit
from protea.settings import Settings
from worlds import random_world

DAY = 86400


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, _new_database: Callable[[str], str], _migrated: str) -> Home:
    """A home with a dataset `d` in it."""
    path = tmp_path_factory.mktemp("upkeep")
    world = random_world(3, size=12)
    files = world.write(path / "files")
    home = Home(path, _new_database(_migrated), world, files)
    home.ok("load", "ontology", files["ontology"])
    home.ok("load", "proteins", files["proteins"])
    home.ok("load", "embeddings", files["embeddings"]["npz"], "--name", "vectors")
    for version, file in files["annotations"].items():
        home.ok("load", "annotations", file, "--source", "goa", "--version", version, "--max-rejected", 1)
    home.ok("export", "run", home.settings("d"))
    return home


@pytest.fixture
def settings_of(home: Home) -> Settings:
    return Settings(home=home.path / "home", database_url=home.url)


@pytest.fixture
def mended(settings_of: Settings) -> Iterator[Path]:
    """The home's storage; whatever a test breaks there is as before afterwards."""
    storage, kept = settings_of.storage, settings_of.storage.with_name("kept")
    shutil.copytree(storage, kept)
    yield storage
    shutil.rmtree(storage)
    kept.rename(storage)


def doctor(home: Home) -> dict[str, dict[str, Any]]:
    """What is not ok; exit 1 exactly when something is bad."""
    ended = home("doctor", "--json")
    found = ended.json
    assert ended.code == (0 if found["ok"] else 1)
    assert found["ok"] == all(c["state"] != "bad" for c in found["checks"])
    # the tests' server runs without fsync, which is told
    return {c["check"]: c for c in found["checks"] if c["state"] != "ok" and "fsync off" not in c["what"]}


def gc(home: Home, *options: str) -> list[tuple[str, str]]:
    """(kind, name) of what goes; a dry run lists the same and removes nothing."""
    would = home.ok("gc", "--json", "--dry-run", *options).json["removed"]
    assert all(Path(one["path"]).exists() for one in would)
    did = home.ok("gc", "--json", *options).json["removed"]
    assert [one["path"] for one in did] == [one["path"] for one in would]
    assert not any(Path(one["path"]).exists() for one in did)
    assert gc_again(home, *options) == []
    return [(one["kind"], Path(one["path"]).name) for one in did]


def gc_again(home: Home, *options: str) -> list[Any]:
    return home.ok("gc", "--json", *options).json["removed"]


def aged(path: Path, seconds: float) -> Path:
    """Everything below looks as if written so long ago."""
    for p in [*path.rglob("*"), path]:
        os.utime(p, (time.time() - seconds,) * 2)
    return path


def interrupted(home: Home, name: str) -> Path:
    """The staging directory of a run that was killed with a finished cut."""
    code = f"""
    import os, signal, protea
    def report(kind, **what):
        if kind == "cut.finished":
            os.kill(os.getpid(), signal.SIGKILL)
    protea.export({str(home.settings(name))!r}, report=report)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=home.environment, check=False)
    assert done.returncode == -signal.SIGKILL
    (place,) = (home.path / "home" / "storage" / "export_resume").glob(f"{name}-*")
    return place


# --------------------------------------------------------------------------------------------------------------- doctor


def test_a_sound_home(home: Home) -> None:
    assert doctor(home) == {}
    said = home.ok("doctor").out.splitlines()
    assert [line.split()[1] for line in said if line.split()[0] != "ok"] == ["database:"]
    assert [line.split()[1].rstrip(":") for line in said][:4] == ["versions", "threads", "home", "database"]
    assert "1 published" in home.ok("doctor").out
    assert gc(home, "--older-than", "0s") == []


@pytest.mark.parametrize("how", [flip, Path.unlink], ids=["flipped", "gone"])
@pytest.mark.parametrize("file", ["train.parquet", "known.parquet", "manifest.json"])
def test_a_broken_dataset(home: Home, mended: Path, file: str, how: Callable[[Path], None]) -> None:
    how(mended / "datasets" / "d" / file)
    assert list(doctor(home)) == ["dataset d"]
    ended = home("dataset", "verify", "d", "--json")
    assert (ended.code, ended.json["ok"]) == (1, False)
    assert [f["check"] for f in ended.json["files"] if f["state"] == "bad"] == [file]
    assert f"bad   {file}: " in home("dataset", "verify", "d").out
    home.ok("export", "run", home.settings("d"))  # what the hint says
    assert home.ok("dataset", "verify", "d", "--json").json["ok"]
    assert doctor(home) == {}


def test_a_dataset_whose_files_are_gone(home: Home, mended: Path) -> None:
    (mended / "datasets" / "d" / "eval.parquet").unlink()
    assert "eval.parquet" in home("dataset", "head", "d", "--split", "eval").err
    assert not home.ok("dataset", "list", "--json").json[0]["in_place"]
    explained = home.ok("export", "explain", "d", "--json").json
    assert not explained["published"]
    assert "its files are gone" in explained["cuts"][0]["reason"]
    shutil.rmtree(mended / "datasets" / "d")
    assert "GONE" in home.ok("list", "datasets").out
    for command in ("show", "head"):
        ended = home("dataset", command, "d")
        assert (ended.code, ended.err.count("\n")) == (1, 1)
        assert "are gone from" in ended.err
        assert "protea dataset remove d" in ended.err


@pytest.mark.parametrize("kind", ["embeddings", "annotations"])
@pytest.mark.parametrize("how", ["flipped", "gone"])
def test_a_broken_input(home: Home, mended: Path, kind: str, how: str) -> None:
    (row, *_) = home.ok("list", kind, "--json").json[kind]
    objects = mended / "objects" / kind
    victim = next(p for p in objects.glob("*/*") if p.name in ("matrix.npy", "rows.parquet"))
    if how == "gone":
        shutil.rmtree(victim.parent)
    else:
        flip(victim)
    found = doctor(home)
    assert len(found) == 1
    (check,) = found.values()
    assert check["state"] == "bad"
    assert check["hint"].startswith("load ")
    assert row


def test_a_home_without_its_database(home: Home, tmp_path: Path) -> None:
    """Not reachable; not migrated; and a home that nothing can be written to."""
    lost = Home(home.path, "postgresql://postgres@/none?host=/nowhere", home.world, home.files)
    assert doctor(lost)["database"]["state"] == "bad"
    (tmp_path / "home").write_text("a file")
    broken = Home(tmp_path, home.url, home.world, home.files)
    assert doctor(broken)["home"]["state"] == "bad"


def test_an_empty_database(home: Home, blank_url: str) -> None:
    found = doctor(Home(home.path, blank_url, home.world, home.files))
    assert found["database"]["hint"] == "run `protea db upgrade`"


def test_litter_and_strangers(home: Home, mended: Path, settings_of: Settings) -> None:
    """Files under `datasets/` without a row are told and never removed; a dead job is told."""
    shutil.copytree(mended / "datasets" / "d", mended / "datasets" / "stranger")
    (mended / "datasets" / ".d.0123456789ab.gone").mkdir()
    with open_catalog(settings_of) as catalog:
        job = catalog.jobs.create("export_research_dataset", {"name": "dead"})
        catalog.jobs.start(job.id, f"{os.uname().nodename}:{2**22 + 1}")
    found = doctor(home)
    assert set(found) == {"dataset stranger", "litter", f"job {job.id}"}
    assert {c["state"] for c in found.values()} == {"warn"}
    assert gc(home, "--older-than", "0s") == [("half removed", ".d.0123456789ab.gone")]
    assert (mended / "datasets" / "stranger").exists()
    with open_catalog(settings_of) as catalog:
        catalog.jobs.finish(job.id, "failed")


# ------------------------------------------------------------------------------------------------------------------- gc


def test_abandoned_staging(home: Home, mended: Path, settings_of: Settings) -> None:
    """By age; never one that a run holds or that a job is queued for; and a run goes on from one that was left."""
    place = interrupted(home, "left")
    assert gc(home) == []  # of today
    aged(place, 15 * DAY)
    assert gc(home, "--older-than", "16d") == []
    job = submit(home.settings("left"), settings=settings_of)
    assert gc(home) == []
    with open_catalog(settings_of) as catalog:
        catalog.jobs.finish(job.id, "cancelled")
    os.utime(place / "attempts", (time.time() + DAY,) * 2)  # written tomorrow: the clock was set back
    assert gc(home, "--older-than", "1s") == []
    aged(place, 15 * DAY)
    assert gc(home) == [("staging", place.name)]


def test_what_a_run_is_using(home: Home, mended: Path, settings_of: Settings) -> None:
    """A run that is stopped in the middle loses nothing to gc, however old its files look."""
    code = f"""
    import sys, protea
    said = []
    def report(kind, **what):
        said.append(kind)
        if said.count("cut.started") == 2 and kind == "cut.started" or kind == "assembly.started" and "go" not in said:
            print(kind, flush=True)
            if sys.stdin.readline() == "assembly\\n":
                said.append("go")
    protea.export({str(home.settings("busy"))!r}, report=report)
    """
    pipe = subprocess.PIPE
    run = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], env=home.environment, stdin=pipe, stdout=pipe, text=True
    )
    assert run.stdin is not None
    assert run.stdout is not None
    assert run.stdout.readline() == "cut.started\n"
    (place,) = settings_of.resume_dir.glob("busy-*")
    aged(place, 15 * DAY)
    assert gc(home, "--older-than", "0s") == []
    run.stdin.write("cut\n")
    run.stdin.flush()
    assert run.stdout.readline() == "assembly.started\n"
    assert list((mended / "datasets").glob(".busy.*.new"))
    assert gc(home, "--older-than", "0s") == []
    run.communicate("assembly\n", timeout=120)
    assert run.returncode == 0
    assert home.ok("dataset", "verify", "busy", "--json").json["ok"]
    home.ok("dataset", "remove", "busy", "--yes")


def test_what_publications_left(home: Home, mended: Path) -> None:
    datasets = mended / "datasets"
    held, lock = own_dir(datasets, f".d.{'0' * 12}-", ".new")
    dead, other = own_dir(datasets, f".d.{'1' * 12}-", ".new")
    os.close(other)
    shutil.copytree(datasets / "d", datasets / ".d.old")
    assert sorted(gc(home)) == [("half assembled", dead.name), ("replaced dataset", ".d.old")]
    assert held.exists()
    assert not dead.exists()
    assert not (datasets / ".d.old").exists()
    os.close(lock)
    (datasets / "d").rename(datasets / ".d.old")  # a replacement that was cut short: all there is of it
    assert gc(home) == [("half assembled", held.name)]
    assert (datasets / ".d.old").exists()


def test_killed_loads_and_unreferenced_objects(settings: Settings, tmp_path: Path) -> None:
    path = npz(tmp_path / "v.npz")
    subprocess.run([sys.executable, "-c", KILLED, "before the row", "embeddings", path], env=environment(settings))
    (place,) = (settings.storage / "tmp").glob("load-*")
    (orphan,) = (settings.storage / "objects" / "embeddings").iterdir()
    found, _ = collecting.gc(settings, dry_run=True)
    assert [one.path for one in found] == [str(place)]
    collecting.gc(settings)
    assert not place.exists()
    assert not orphan.exists()
    row = ingest.load_embeddings(settings, path, name="v").row
    kept = settings.storage / "objects" / "embeddings" / row.object_digest
    shutil.copytree(kept, orphan.with_name("0" * 64))
    shutil.copytree(kept, aged(shutil.copytree(kept, orphan.with_name("1" * 64)), 15 * DAY).with_name("2" * 64))
    found, remarks = collecting.gc(settings)
    assert ([Path(one.path).name for one in found], remarks) == (["1" * 64], [])
    collecting.gc(settings, older_than=0)
    assert [p.name for p in kept.parent.iterdir()] == [row.object_digest]


def test_objects_of_another_database(settings: Settings, own_settings: Settings, tmp_path: Path) -> None:
    """One home, two databases: what the other one refers to stays, be it the embedded one or a server."""
    mine = ingest.load_proteins(own_settings, tmp_path_fasta(tmp_path), name="p").row
    where = settings.storage / "objects" / "proteins" / mine.object_digest
    assert collecting.gc(settings, older_than=0) == ([], [])  # the embedded one is asked
    assert where.exists()
    ingest.load_embeddings(settings, npz(tmp_path / "v.npz"), name="v")
    found, (remark,) = collecting.gc(own_settings, older_than=0)  # the server cannot be
    assert found == []
    assert "1 objects without a row were left" in remark
    assert where.exists()


def tmp_path_fasta(folder: Path) -> Path:
    from test_ingest import fasta

    return fasta(folder / "p.fasta")


def test_loading_while_gc_runs(settings: Settings, tmp_path: Path) -> None:
    """Loads of a few inputs again and again in one process, gc of everything in this one: no row loses its object."""
    code = """
    import sys
    from test_ingest import npz
    from pathlib import Path
    from protea import ingest
    from protea.settings import Settings
    for i in range(8):
        ingest.load_embeddings(Settings(), npz(Path(sys.argv[1]) / f"{i}.npz", seed=i), name=f"v{i}")
    """
    env = environment(settings) | {"PYTHONPATH": os.pathsep.join(sys.path)}
    loading = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), tmp_path], env=env)
    rounds = 0
    while loading.poll() is None:
        collecting.gc(settings, older_than=0)
        rounds += 1
    assert loading.returncode == 0
    assert rounds
    assert [c for c in upkeep.doctor(settings) if c.state == "bad"] == []
    with open_catalog(settings) as catalog:
        assert len(catalog.inputs("embeddings")) == 8


def test_old_alignments(settings: Settings) -> None:
    import numpy as np

    from protea.exporting import alignment_cache

    cache = alignment_cache(settings)
    for i in range(3):
        keys = np.array([[i, i]], np.uint64)
        cache.insert(keys, np.zeros((1, 10), np.int32))
    segments = sorted(cache.path.glob("*.segment"))
    aged(segments[0], 15 * DAY)
    aged(Path(shutil.copy(segments[1], cache.path / "half.tmp")), 2 * 3600)
    shutil.copy(segments[1], cache.path / "fresh.tmp")
    found, _ = collecting.gc(settings)
    assert sorted(Path(one.path).name for one in found) == sorted([segments[0].name, "half.tmp"])
    assert sorted(p.name for p in cache.path.iterdir()) == sorted(
        [s.name for s in segments[1:]] + ["fresh.tmp", "lock"]
    )


def test_ages() -> None:
    assert [collecting.seconds(a) for a in ("14d", "36h", "0s", "1.5m", "2w")] == [14 * DAY, 36 * 3600, 0, 90, 14 * DAY]
    for wrong in ("", "14", "d", "-1d", "1y"):
        with pytest.raises(ConfigError, match="is no age"):
            collecting.seconds(wrong)


# ------------------------------------------------------------------------------------------------------- dataset remove


def test_removing_a_dataset(home: Home, mended: Path, settings_of: Settings) -> None:
    home.ok("export", "run", home.settings("e"))
    refused = home.process("dataset", "remove", "e")  # nobody to ask
    assert "--yes" in refused.error
    assert home.ok("dataset", "remove", "e", "--yes", "--json").json["path"] == str(mended / "datasets" / "e")
    assert {p.name for p in (mended / "datasets").iterdir()} == {"d", ".lock"}
    assert "no dataset 'e'" in home("dataset", "remove", "e", "--yes").error
    assert "no dataset 'e'" in home("dataset", "verify", "e").error
    home.ok("export", "run", home.settings("e"))  # the name is free again
    shutil.rmtree(mended / "datasets" / "e")
    home.ok("dataset", "remove", "e", "--yes")  # of which there is just the row
    with pytest.raises(NotFoundError):
        open_dataset("e", settings=settings_of)


REMOVING = """
import os, signal, sys
from protea import upkeep
from protea.catalog import Catalog
from protea.core import fs
from protea.settings import Settings
def die(*a, **k): os.kill(os.getpid(), signal.SIGKILL)
where = sys.argv[1]
rename, remove = os.rename, fs.remove_tree
if where == "before": os.rename = die
if where == "files moved": Catalog.remove_dataset = die
if where == "row gone": fs.remove_tree = die
upkeep.remove_dataset(Settings(), "f")
"""


@pytest.mark.parametrize("where", ["before", "files moved", "row gone"])
def test_removing_killed_at_any_instant(home: Home, mended: Path, settings_of: Settings, where: str) -> None:
    """The dataset is whole, or it says that its files are gone; removing it again ends it."""
    home.ok("export", "run", home.settings("f"))
    done = subprocess.run([sys.executable, "-c", REMOVING, where], env=home.environment, check=False)
    assert done.returncode == -signal.SIGKILL
    if where == "before":
        assert home.ok("dataset", "verify", "f", "--json").json["ok"]
    elif where == "files moved":
        with pytest.raises(StorageError, match="are gone"):
            open_dataset("f", settings=settings_of)
    if where != "row gone":
        home.ok("dataset", "remove", "f", "--yes")
    with pytest.raises(NotFoundError):
        open_dataset("f", settings=settings_of)
    gc_again(home)
    assert {p.name for p in (mended / "datasets").iterdir()} == {"d", ".lock"}
    assert json.loads((mended / "datasets" / "d" / "manifest.json").read_bytes())["name"] == "d"
    assert doctor(home) == {}
