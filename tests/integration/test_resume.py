"""An export killed anywhere goes on where it was, and ends in the same bytes (house plan, Staging; acceptance 4, 5)."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_families import EVERYTHING

from killing import Bench, Child, Counter, Outcome, die, fixed_commit, full, no_database
from product import contents
from protea import exporting, ingest, planning
from protea.catalog import open_catalog
from protea.core.alignment_cache import AlignmentCache
from protea.core.config import REQUIRES, ExportConfig
from protea.core.operations.export_research_dataset import read_manifest, whole
from protea.errors import ConflictError, DatabaseError, StorageError
from protea.settings import Settings
from worlds import TABLES, World, random_world

STRIDE = 6
"""The sweeps are cut into as many tests, so that they can run side by side."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with fixed_commit():
        yield Bench(tmp_path_factory.mktemp("bench"))


def at_event(kind: str, number: int = 1, then: Callable[[], None] = die) -> Callable[[dict[str, Any], int], None]:
    """Act at the `number`-th event of that kind."""
    seen = 0

    def at(event: dict[str, Any], _: int) -> None:
        nonlocal seen
        seen += event["kind"] == kind
        if event["kind"] == kind and seen == number:
            then()

    return at


def resumed(bench: Bench, where: str, registered: int | None = 1, **how: Any) -> Outcome:
    """Run again, undisturbed: just what has no marker is computed, and the result is the undisturbed one."""
    finished, published = bench.finished(where), bool(bench.rows(where).history) or bench.dataset(where).exists()
    outcome = bench.run(where, **how)
    assert outcome.status == 0, outcome.events
    if published:
        assert not outcome.of("cut.started")
        assert [e["kind"] for e in outcome.events] in (["export.unchanged"], ["export.published"])
    else:
        assert outcome.cuts("cut.restored") == finished
        assert outcome.cuts("cut.started") == [c for c in ("v1-v2", "v2-v5") if c not in finished]
    bench.check(where, registered)
    return outcome


# ------------------------------------------------------------------------------------------------ killed at any point


@pytest.mark.parametrize("start", range(1, STRIDE + 1))
def test_killed_at_any_operation(bench: Bench, start: int) -> None:
    """SIGKILL at file-system operation n = 1, 2, 3, … of the whole run, to the removal of the staging directory."""
    kills = 0
    for n in range(start, 1000, STRIDE):
        where = f"operation{n}"
        first = bench.run(where, counter=Counter(n))
        if not first.killed:
            assert first.status == 0
            break
        kills += 1
        resumed(bench, where)
        bench.drop(where)
    assert kills > 100 / STRIDE


@pytest.mark.parametrize("start", [1, 2])
def test_killed_at_any_event(bench: Bench, start: int) -> None:
    """At every event, those between the blocks of a cut included."""
    seen: set[str] = set()
    for n in range(start, 1000, 2):
        where = f"event{n}"
        first = bench.run(where, lambda _, number, n=n: die() if number == n else None)
        if not first.killed:
            assert first.status == 0
            break
        seen.add(first.events[-1]["kind"])
        resumed(bench, where)
        bench.drop(where)
    assert seen >= {"cut.progress", "assembly.started"}


def test_killed_again_and_again(bench: Bench) -> None:
    """Killed a little later each time, in one place: every attempt begins with what the earlier ones finished."""
    finished: list[str] = []
    attempts = []
    for n in range(10, 1000, 10):
        outcome = bench.run("again", counter=Counter(n))
        assert outcome.cuts("cut.restored") == finished[: len(outcome.cuts("cut.restored"))]
        if not outcome.killed:
            break
        for cut in bench.staging("again"):
            attempts += [p.read_text() for p in (cut / "attempts").glob("v*")]
        finished = bench.finished("again") or finished
    assert outcome.status == 0
    assert int(max(attempts)) > 2
    bench.check("again")


@pytest.fixture(scope="module")
def replacing(bench: Bench) -> dict[str, Any]:
    """In `ready` a dataset is published and another is about to be assembled in its place; how to go on."""
    change = {"changed": {"k": 3}, "replace": True}
    assert bench.run("ready").status == 0
    assert bench.run("ready", at_event("assembly.started"), **change).killed
    assert len(bench.finished("ready")) == 2
    return change


@pytest.mark.parametrize("start", [1, 2, 3])
def test_replacement_killed_at_any_operation(bench: Bench, replacing: dict[str, Any], start: int) -> None:
    """With --replace: at every instant the files are one dataset's, and the name finds its way whoever runs next."""
    change = replacing
    outcomes: dict[str, int] = {"old": 0, "new": 0}
    for n in range(start, 1000, 3):
        where = f"replace{n}"
        bench.copy("ready", where)
        first = bench.run(where, counter=Counter(n), **change)
        if not first.killed:
            assert first.status == 0
            bench.check(where, 2, k=3)
            break
        place = bench.dataset(where)
        held = [read_manifest(p) for p in (place, place.with_name(".d.old"))]
        assert any(m and whole(p, m) for p, m in zip((place, place.with_name(".d.old")), held, strict=True)), n
        if start == 1:  # the export that was to be replaced: either still there, or replaced for good
            other = bench.run(where, log="other")
            if other.status == 0:
                assert [e["kind"] for e in other.events] == ["export.unchanged"]
                assert contents(place) == bench.clean()
                outcomes["old"] += 1
            else:
                assert "exists with other settings" in other.error
                assert contents(place) == bench.clean(k=3)
                outcomes["new"] += 1
            assert len(bench.staging(where)) <= 1
        elif start == 2:  # a third one is refused, and the row and the files agree
            other = bench.run(where, log="other", changed={"k": 4})
            assert other.status == 2
            assert "exists with other settings" in other.error
            found = read_manifest(place)
            assert found
            assert found["fingerprint"] == bench.rows(where).history[-1]["fingerprint"]
            assert whole(place, found)
            assert len(bench.staging(where)) <= 1
        last = bench.run(where, log="last", **change)
        assert last.status == 0
        bench.check(where, 2, k=3)
        bench.drop(where)
    assert n > 30
    assert start != 1 or min(outcomes.values()) > 2


def test_an_abandoned_assembly_of_other_settings_goes(bench: Bench) -> None:
    """What a killed run was assembling goes with the next run of that name, also when it has other settings."""
    assert bench.run("left", at_event("assembly.started", 3)).killed
    datasets = bench.dataset("left").parent
    assert [p.name[-4:] for p in datasets.iterdir() if p.is_dir()] == [".new"]
    assert bench.run("left", changed={"k": 2}).status == 0
    assert {p.name for p in datasets.iterdir()} == {"d", ".lock"}
    assert contents(bench.dataset("left")) == bench.clean(k=2)
    assert len(bench.staging("left")) == 1  # the finished cuts of the first one are still there to go on from


def test_the_staging_directory_deleted(bench: Bench) -> None:
    import shutil

    assert bench.run("deleted", at_event("cut.started", 2)).killed
    shutil.rmtree(bench.directory / "deleted" / "resume")
    outcome = bench.run("deleted")
    assert outcome.cuts("cut.started") == ["v1-v2", "v2-v5"]
    assert not outcome.of("cut.restored")
    assert not outcome.of("cut.discarded")
    bench.check("deleted")


def test_the_database_down_at_registration(bench: Bench) -> None:
    """The files are in place already: the next run only inserts the row."""
    rows = bench.rows("down")
    (bench.directory / "down").mkdir()
    rows.before = no_database
    with pytest.raises(DatabaseError):
        bench.product.export(bench.settings, "down", rows=rows)
    assert contents(bench.dataset("down")) == bench.clean()
    assert not rows.history
    outcome = bench.run("down")
    assert [e["kind"] for e in outcome.events] == ["export.published"]
    bench.check("down")


def test_interrupted(bench: Bench) -> None:
    """SIGINT in the middle of a cut stops cleanly: no unfinished file, the lock is free, and the next run goes on."""
    stop = bench.directory / "never"
    child = bench.start("interrupted", at_event("cut.progress", 5, lambda: _sleep_until(stop)))
    for _ in range(5):
        child.until("cut.progress")
    while len([e for e in child.events() if e["kind"] == "cut.progress"]) < 5:
        os.sched_yield()
    os.kill(child.pid, signal.SIGINT)
    outcome = child.join()
    assert outcome.status == 130
    (staging,) = bench.staging("interrupted")
    assert not list((staging / "cuts" / "v2-v5").iterdir())
    assert resumed(bench, "interrupted").cuts("cut.restored") == ["v1-v2"]


def _sleep_until(path: Path) -> None:
    from killing import blocked

    blocked(path)


# ------------------------------------------------------------------------------------------------------ failing disks


@pytest.mark.parametrize("start", [1, 5])
def test_a_full_disk_anywhere(bench: Bench, start: int) -> None:
    """ENOSPC at operation n: one line, what was finished is kept, and nothing half-published is left."""
    failures = 0
    for n in range(start, 1000, 8):
        where = f"full{n}"
        first = bench.run(where, counter=Counter(n, full))
        if first.status == 0:  # after the last operation, or where nothing depends on it
            bench.drop(where)
            if failures > 5:
                break
            continue
        failures += 1
        (error,) = first.of("error")
        assert error["code"] == "storage"
        assert "\n" not in error["text"]
        assert "No space left" in error["text"]
        finished = bench.finished(where)
        second = bench.run(where, log="again")
        assert second.status == 0, second.events
        if second.of("cut.restored"):
            assert second.cuts("cut.restored") == finished
        bench.check(where)
        bench.drop(where)
    assert failures > 8


def test_a_real_limit_on_file_size(bench: Bench) -> None:
    """The kernel refuses a write in the middle of a file: one line, nothing half-written is taken for whole."""
    limit = max(len(v) for v in bench.clean().values()) // 2

    def limited(report: Callable[..., None]) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        bench.work("limited")(report)

    outcome = Child(limited, bench.directory / "limited.log").join()
    assert outcome.status == 2, outcome.events
    assert outcome.of("error")[0]["code"] == "storage"
    assert "\n" not in outcome.error
    assert not list(bench.directory.glob("limited/resume/*/cuts/*/.*.tmp"))
    resumed(bench, "limited")


def test_a_staging_directory_that_cannot_be_made(bench: Bench) -> None:
    (bench.directory / "file").mkdir()
    (bench.directory / "file" / "resume").write_text("a file")
    with pytest.raises(StorageError, match="staging directory cannot be used"):
        bench.product.export(bench.settings, "file")
    (bench.directory / "file" / "resume").unlink()
    (bench.directory / "file" / "resume").symlink_to("nowhere")
    with pytest.raises(StorageError, match="staging directory cannot be used"):
        bench.product.export(bench.settings, "file")


def test_a_taken_name_leaves_nothing(bench: Bench) -> None:
    assert bench.run("taken").status == 0
    with pytest.raises(ConflictError, match="--replace"):
        bench.product.export({**bench.settings, "k": 3}, "taken", rows=bench.rows("taken"))
    bench.check("taken")


@pytest.mark.parametrize(("kind", "number"), [("cut.progress", 1), ("cut.finished", 1), ("assembly.started", 2)])
def test_killed_with_every_family_on(tmp_path: Path, kind: str, number: int) -> None:
    """The same promise when every later family is on, alignments and their cache included."""
    with fixed_commit():
        full = Bench(tmp_path, random_world(3, size=24, families=True))
        full.settings |= EVERYTHING
        cache = AlignmentCache(tmp_path / "alignments")
        outcomes = [full.run("killed", at_event(kind, number), alignments=cache), full.run("killed", alignments=cache)]
        assert outcomes[0].killed
        assert outcomes[1].status == 0
        full.check("killed")


# ------------------------------------------------------------------------------------------------ changed and unchanged

CHANGED: dict[str, Any] = {
    "k": 7,
    "metric": "l2",
    "distance_threshold": 0.5,
    "donor_evidence": "experimental",
    "experimental_codes": "cafa",
    "label_mode": "direct",
    "keep_known": True,
    "exclude_binding_only": False,
    "exclude_identical_sequences": True,
    "expand_votes_to_ancestors": True,
    "use_embedding_pca": True,
    "compute_alignments": True,
    "compute_taxonomy": True,
    "compute_self_prior": True,
    "compute_association": True,
    "interpro_candidates": True,
    **TABLES,
    "max_alignment_cells": 10,
    "train_versions": lambda world: world.train_versions[:3],
    "test_versions": lambda world: world.train_versions[2:3],
    "name": "another",
}
NAMES = {"ontology", "proteins", "embedding_config", "annotation_source"}
"""Settings that name an input: `test_keys.py` has them, and `test_explain` here."""


@pytest.fixture(scope="module")
def half(bench: Bench) -> Bench:
    """Killed in the second cut, the first one finished."""
    assert bench.run("half", at_event("cut.progress", 4)).killed
    assert bench.finished("half") == ["v1-v2"]
    return bench


def test_every_setting_has_a_change() -> None:
    assert set(CHANGED) | NAMES | {"search_backend"} == set(ExportConfig.model_fields)


@pytest.mark.parametrize("setting", CHANGED)
def test_a_changed_setting_reuses_nothing(half: Bench, setting: str) -> None:
    value = CHANGED[setting](random_world(3, size=12)) if callable(CHANGED[setting]) else CHANGED[setting]
    half.copy("half", f"half-{setting}")
    stop = {"cut.started", "cut.restored"}
    needed = {REQUIRES[setting]: TABLES[REQUIRES[setting]]} if setting in REQUIRES else {}
    outcome = half.run(
        f"half-{setting}",
        lambda e, _: die() if e["kind"] in stop else None,
        changed={setting: value, **needed},
        log="log2",
    )
    assert outcome.cuts("cut.started") == ["v1-v2"]
    assert not outcome.of("cut.restored")
    half.drop(f"half-{setting}")


def test_unchanged_settings_reuse_the_cut(half: Bench) -> None:
    """Said in another way, they are the same: an alias, a default spelt out, a list in another order, a threshold of 2."""
    half.copy("half", "same")
    same = {"search_backend": "numpy", "k": 5, "metric": "cosine", "distance_threshold": None}
    resumed(half, "same", changed=same)


# ---------------------------------------------------------------------------------------- with a catalogue and its rows


def load(world: World, settings: Settings, directory: Path) -> dict[str, Any]:
    """Load a world's files; the settings of its export."""
    files = world.write(directory)
    ingest.load_ontology(settings, files["ontology"], name="go")
    ingest.load_proteins(settings, files["proteins"], name="proteins")
    ingest.load_embeddings(settings, files["embeddings"]["npz"], name="vectors")
    for version, path in files["annotations"].items():
        ingest.load_annotations(settings, path, source="goa", version=version, max_rejected=1)
    return {**world.names(), "name": "d", "ontology": "go", "proteins": "proteins"}


def killed_in_cut_two(settings: Settings, values: dict[str, Any], log: Path) -> None:
    at = at_event("cut.started", 2)
    outcome = Child(lambda report: exporting.export(settings=settings, report=report, **values), log, at).join()
    assert outcome.killed


def test_with_a_catalogue(bench: Bench, settings: Settings, tmp_path: Path) -> None:
    """The real rows: killed in the second cut, explained, finished; one row; another setting explained."""
    values = {**load(bench.product.world, settings, tmp_path / "files"), **_small(bench)}
    killed_in_cut_two(settings, values, tmp_path / "log")
    explained = planning.explain("d", settings=settings)
    assert [(c["pair"], c["reused"]) for c in explained.cuts] == [("v1-v2", True), ("v2-v5", False)]
    changed = planning.explain("d", settings=settings, overrides={"k": 7}).cuts[0]
    assert not changed["reused"]
    assert changed["changes"] == ["settings.k: 5 -> 7"]
    assert "something changed" in changed["reason"]

    shorter = tmp_path / "files" / "shorter.fasta"
    shorter.write_text((tmp_path / "files" / "proteins.fasta").read_text().replace(" A protein", " Another"))
    ingest.load_proteins(settings, shorter, name="others")
    (change,) = planning.explain("d", settings=settings, overrides={"proteins": "others"}).cuts[0]["changes"]
    assert re.fullmatch(r"inputs\.proteins: [0-9a-f]{12}… -> [0-9a-f]{12}…", change)

    heard: list[str] = []
    dataset = exporting.export(settings=settings, report=lambda kind, **what: heard.append(kind), **values)
    assert heard.count("cut.restored") == 1
    assert heard.count("cut.started") == 1
    elsewhere = exporting.export(
        settings=Settings(home=settings.home, database_url=settings.database_url, threads=1), **values
    )
    assert contents(elsewhere.path) == contents(dataset.path)
    assert not list(settings.resume_dir.iterdir())
    with open_catalog(settings) as catalog:
        (row,) = catalog.datasets()
    assert row.fingerprint == dataset.manifest["fingerprint"] == explained.fingerprint
    assert exporting.open_dataset("d", settings=settings).path == dataset.path

    undisturbed = exporting.export(settings=settings, **{**values, "name": "e"})
    for name, data in contents(dataset.path).items():
        other = (undisturbed.path / name).read_bytes()
        assert data == other or name == "manifest.json"
    assert {k: v for k, v in dataset.manifest.items() if k not in ("name", "config", "fingerprint")} == {
        k: v for k, v in undisturbed.manifest.items() if k not in ("name", "config", "fingerprint")
    }


def _small(bench: Bench) -> dict[str, Any]:
    return {k: bench.settings[k] for k in ("train_versions", "test_versions")}


def test_killed_between_the_move_and_the_row(bench: Bench, settings: Settings, tmp_path: Path) -> None:
    """A replacement whose row did not make it: opening says so, and the next run of either puts it right."""
    values = {**load(bench.product.world, settings, tmp_path / "files"), **_small(bench)}
    exporting.export(settings=settings, **values)

    def run(report: Callable[..., None]) -> None:
        exporting.Rows.register = lambda *a: die()  # type: ignore[assignment,method-assign]
        exporting.export(settings=settings, replace=True, **{**values, "k": 2})

    assert Child(run, tmp_path / "log").join().killed
    with pytest.raises(StorageError, match="was being replaced"):
        exporting.open_dataset("d", settings=settings)
    with pytest.raises(ConflictError):
        exporting.export(settings=settings, **values)
    dataset = exporting.open_dataset("d", settings=settings)
    assert dataset.manifest["k"] == 2
    heard: list[str] = []
    exporting.export(settings=settings, report=lambda kind, **what: heard.append(kind), **{**values, "k": 2})
    assert heard == ["export.unchanged"]
    assert [p.name for p in settings.datasets_dir.iterdir() if p.is_dir()] == ["d"]
    assert not list(settings.resume_dir.iterdir())


SCRIPT = """
import json, os, signal, sys
import protea
from protea.settings import Settings
seen = 0
def report(kind, **what):
    global seen
    seen += kind == "cut.started"
    if kind == "cut.prepared" and seen == 2:
        os.kill(os.getpid(), signal.SIGKILL)
protea.export(settings=Settings(home=sys.argv[1]), report=report, **json.loads(sys.argv[2]))
"""


def test_with_an_embedded_server(bench: Bench, own_settings: Settings, tmp_path: Path) -> None:
    """A separate interpreter is killed in the middle of a cut, and leaves the embedded server as it was."""
    import json

    with open_catalog(own_settings):  # kept running, as another command would
        values = {**load(bench.product.world, own_settings, tmp_path / "files"), **_small(bench)}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(own_settings.home), json.dumps(values)], capture_output=True, check=False
        )
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    heard: list[str] = []
    exporting.export(settings=own_settings, report=lambda kind, **what: heard.append(kind), **values)
    assert (heard.count("cut.restored"), heard.count("cut.started")) == (1, 1)
    with open_catalog(own_settings) as catalog:
        assert len(catalog.datasets()) == 1
