"""Nothing is lost: every operation on the disk fails in every way, and every commit to the catalogue is cut off.

A trial runs something with a fault at operation n in a forked child, runs it again undisturbed, and compares with a run
that nothing happened to. CI tries a seeded sample of the operations; PROTEA_TEST_ALL=1 tries n = 1, 2, 3, ... until no fault
fires. `pytest -s` prints the table.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine.default import DefaultDialect
from test_families import EVERYTHING
from test_ingest import KINDS, load, make

import protea
from faults import ENDS, KILLED, Disk
from faults import KINDS as FAULTS
from killing import Child, FileRows, Outcome, fixed_commit, small_world
from product import Product, contents
from protea import collecting, ingest, upkeep
from protea.catalog import INPUTS, open_catalog
from protea.core.alignment_cache import AlignmentCache
from protea.core.operations.export_minijobs import partition, run, validate
from protea.settings import Settings
from protea.storage import ObjectStore
from worlds import World, random_world

ALL = os.environ.get("PROTEA_TEST_ALL") == "1"
Report = Callable[..., None]
Table = Counter[tuple[str, str, str]]


@pytest.fixture(scope="module")
def table() -> Iterator[Table]:
    """(stage, operation, kind of fault) -> trials survived; printed at the end."""
    table: Table = Counter()
    yield table
    print("\n" + as_markdown(table))


def as_markdown(table: Table) -> str:
    kinds = [k for k in (*FAULTS, "before", "after") if any(k == key[2] for key in table)]
    lines = [f"| stage | operation | {' | '.join(kinds)} |", "| --- | --- |" + " ---: |" * len(kinds)]
    rows = list(dict.fromkeys((stage, operation) for stage, operation, _ in table))
    for stage, operation in sorted(rows, key=lambda r: [s for s, _ in rows].index(r[0])):
        lines.append(
            f"| {stage} | {operation} | " + " | ".join(str(table[stage, operation, k] or "") for k in kinds) + " |"
        )
    totals = [sum(n for key, n in table.items() if key[2] == k) for k in kinds]
    return "\n".join([*lines, f"| **tried and survived: {sum(totals):,}** | | " + " | ".join(map(str, totals)) + " |"])


def trials(kind: str, attempt: Callable[[str, int], dict[str, int] | None], known: dict[str, int], sample: int,
           step: int = 1) -> None:  # fmt: skip
    """Call attempt(kind, n) for n = 1, 2, ... (by `step`) until no fault fires, or for a sample. It gives the numbers of
    operations of the run when none fired; `known` keeps them."""
    if ALL:
        n = 1 + FAULTS.index(kind) % step
        while attempt(kind, n) is None:
            n += step
        assert n > 2
        return
    if not known:
        known.update(attempt(kind, 10**9) or {})
    operations, pick = known[kind], random.Random(f"{kind} {sorted(known.items())}")
    assert operations > 1
    for part in range(sample):
        n = pick.randint(1 + part * operations // sample, (part + 1) * operations // sample)
        assert attempt(kind, n) is None or n > operations - 3  # its last removals may be one more or less


class Trial:
    """One fault in one run of `work(root, report)`; `fired` says where."""

    def __init__(
        self, root: Path, kind: str, n: int, work: Callable[[Path, Report], Any], rows: FileRows | None = None
    ) -> None:
        def disturbed(report: Report) -> None:
            disk = Disk(root, kind, n, lambda operation, path: report("fault", operation=operation, path=path))
            if rows is not None:
                rows.before = lambda: disk.step("row")
            disk.install()
            work(root, report)
            report("operations", of=disk.counts)

        self.outcome = Child(disturbed, root.with_name(f"{root.name}.log")).join()
        self.fault = next(iter(self.outcome.of("fault")), None)
        self.operations = None if self.fault else self.outcome.of("operations")[0]["of"]
        if self.fault is not None and kind in ENDS:
            assert self.outcome.status == KILLED, self.outcome.events
        elif self.outcome.status:  # ours in one line, whatever it was
            assert self.outcome.status == 2, (self.outcome.status, self.outcome.events)
            assert "\n" not in self.outcome.error
            assert self.outcome.of("error")[0]["code"] in ("storage", "database"), self.outcome.events

    @property
    def where(self) -> str:
        """The stage of an export in which it fired."""
        before = self.outcome.events[: self.outcome.events.index(self.fault)]
        kind = next((e["kind"] for e in reversed(before) if e["kind"].startswith(("export.", "cut.", "assembly."))), "")
        if kind in ("", "export.started"):
            return "start"
        if kind.startswith("cut."):
            return "cuts"
        return "staging removed" if kind in ("export.published", "export.unchanged") else "assembly and publication"


def undisturbed(work: Callable[[Report], Any], log: Path) -> Outcome:
    def quickly(report: Report) -> Any:
        os.fsync = lambda fd: None  # type: ignore[assignment]
        return work(report)

    return Child(quickly, log).join()


# -------------------------------------------------------------------------------------------------------------- exports


class Exports:
    """Exports of a small world below a directory, with rows in a file."""

    def __init__(self, directory: Path, world: World, settings: Mapping[str, Any] = {}, cache: bool = False) -> None:
        self.directory, self.cache = directory, cache
        directory.mkdir()
        self.product = Product(world, directory)
        self.settings = {**world.names(), "name": "d", **settings}
        self.cleans: dict[int, dict[str, bytes]] = {}
        self.known: dict[str, dict[str, int]] = defaultdict(dict)

    def rows(self, root: Path) -> FileRows:
        return FileRows(root.with_name(f"{root.name}.rows"))

    def serial(self, rows: FileRows, **changed: Any) -> Callable[[Path, Report], Any]:
        replace = changed.pop("replace", False)

        def work(root: Path, report: Report) -> None:
            cache = AlignmentCache(root / "alignments") if self.cache else None
            self.product.export({**self.settings, **changed}, root.name, report, rows=rows, queries_per_block=4,
                                alignments=cache, replace=replace)  # fmt: skip

        return work

    def minijobs(self, rows: FileRows) -> Callable[[Path, Report], Any]:
        def work(root: Path, report: Report) -> None:
            context = self.product.context(self.settings, root.name, queries_per_block=4, report=report, registry=rows)
            if validate(context) is None:
                for job in partition(context):
                    run(context, job)

        return work

    def clean(self, **changed: Any) -> dict[str, bytes]:
        key = changed.get("k", 0)
        if key not in self.cleans:
            root = self.directory / f"clean{key}"
            self.serial(self.rows(root), **changed)(root, lambda kind, **what: None)
            self.cleans[key] = contents(root / "datasets" / "d")
        return self.cleans[key]

    def survives(self, kind: str, n: int, table: Table, name: str, how: str = "serial", before: Path | None = None,
                 **changed: Any) -> dict[str, int] | None:  # fmt: skip
        root = self.directory / "trial"
        for path in (root, root.with_name("trial.gone")):
            shutil.rmtree(path, ignore_errors=True)
        rows = self.rows(root)
        rows.path.unlink(missing_ok=True)
        if before is None:
            root.mkdir()
        else:
            shutil.copytree(before, root)
            rows.path.write_text(self.rows(before).path.read_text().replace(f"{before}/", f"{root}/"))
        registered = len(rows.history)
        work = self.minijobs if how == "minijobs" else self.serial
        trial = Trial(root, kind, n, work(rows, **changed), rows)
        if trial.fault is None:
            return trial.operations
        finished = set(trial.outcome.cuts("cut.finished")) | set(trial.outcome.cuts("cut.restored"))
        published = len(rows.history) > registered
        rows.before = lambda: None
        again = undisturbed(lambda report: work(rows, **changed)(root, report), root.with_name("trial.again"))
        told = (kind, n, trial.fault, trial.outcome.events[-3:], again.events)
        assert again.status == 0, told
        assert not finished & set(again.cuts("cut.started")), told
        assert not (published and again.of("cut.started")), told
        assert contents(root / "datasets" / "d") == self.clean(**changed), told
        assert len(rows.history) == registered + 1, told
        assert {p.name for p in (root / "datasets").iterdir()} == {"d", ".lock"}, told
        assert not list((root / "resume").iterdir()), told
        assert again.of("export.published") or again.of("export.unchanged"), told
        table[f"{name}: {trial.where}", trial.fault["operation"], kind] += 1
        return None


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exports]:
    with fixed_commit():
        exports = Exports(tmp_path_factory.mktemp("faults") / "small", small_world())
        exports.clean()  # compiles what the children would compile each
        yield exports


@pytest.mark.parametrize("kind", FAULTS)
def test_an_export(exports: Exports, table: Table, kind: str) -> None:
    trials(kind, lambda kind, n: exports.survives(kind, n, table, "export"), exports.known["export"], 2)


@pytest.mark.parametrize("kind", FAULTS)
def test_an_export_in_minijobs(exports: Exports, table: Table, kind: str) -> None:
    trials(
        kind, lambda kind, n: exports.survives(kind, n, table, "minijobs", "minijobs"), exports.known["minijobs"], 1, 8
    )


@pytest.mark.parametrize("kind", FAULTS)
def test_a_replacement(exports: Exports, table: Table, kind: str) -> None:
    """The dataset of other settings, in place of one that is there."""
    before = exports.directory / "before"
    if not before.exists():
        exports.serial(exports.rows(before))(before, lambda kind, **what: None)
    how = {"before": before, "k": 3, "replace": True}
    trials(
        kind, lambda kind, n: exports.survives(kind, n, table, "replacement", **how), exports.known["replacement"], 1, 3
    )


if ALL:

    @pytest.mark.parametrize("kind", FAULTS)
    def test_every_family_and_the_alignment_cache(tmp_path: Path, table: Table, kind: str) -> None:
        """A sample: the other tests have the same operations but for the cache's."""
        with fixed_commit():
            exports = Exports(tmp_path / "full", random_world(3, size=16, families=True), EVERYTHING, cache=True)
            exports.clean()
            for n in sorted(random.Random(kind).sample(range(1, 150), 12)):
                exports.survives(kind, n, table, "all families")


# -------------------------------------------------------------------------------------------------------------- loaders


class Loads:
    """Loads of one file of a kind into a home and a database."""

    def __init__(self, directory: Path, url: str, kind: str) -> None:
        self.directory, self.url, self.kind = directory, url, kind
        self.file = make(kind, directory / "in")
        clean = self.settings("clean")
        load(clean, kind, self.file, "x")
        self.bytes = self.objects("clean")
        self.forget()

    def settings(self, where: str) -> Settings:
        return Settings(home=self.directory / where, database_url=self.url)

    def objects(self, where: str) -> dict[str, bytes]:
        base = self.directory / where / "storage" / "objects"
        return {str(p.relative_to(base)): p.read_bytes() for p in base.rglob("*") if p.is_file()}

    def rows(self) -> list[Any]:
        with open_catalog(self.settings("trial")) as catalog:
            return catalog.inputs(self.kind)

    def forget(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"DELETE FROM {INPUTS[self.kind].__tablename__}")

    def work(self, report: Report) -> None:
        load(self.settings("trial"), self.kind, self.file, "x")

    def check(self) -> None:
        """Loaded, whole, and nothing else is there."""
        storage = self.directory / "trial" / "storage"
        assert len(self.rows()) == 1
        assert self.objects("trial") == self.bytes
        assert {p.name for p in (storage / "tmp").iterdir()} <= {".lock"}
        assert len(list((storage / "objects").glob("*/*"))) == 1

    def survives(self, kind: str, n: int, table: Table) -> dict[str, int] | None:
        root = self.directory / "trial"
        for path in (root, root.with_name("trial.gone")):
            shutil.rmtree(path, ignore_errors=True)
        root.mkdir()
        trial = Trial(root, kind, n, lambda _, report: self.work(report))
        if trial.fault is None:
            self.forget()
            return trial.operations
        told = (kind, n, trial.fault)
        rows, store = self.rows(), ObjectStore(self.settings("trial").storage)
        assert len(rows) <= 1, told
        assert all(store.intact(self.kind, row.object_digest) for row in rows), told
        assert trial.outcome.status or rows, told
        with open_catalog(self.settings("trial")) as catalog:  # as the next load, of whatever, begins
            store.sweep(catalog.place, catalog.uses_object)
        assert len(list(store.objects.glob("*/*"))) == len(rows), told
        assert undisturbed(self.work, root.with_name("trial.again")).status == 0, told
        self.check()
        self.forget()
        table[f"load {self.kind}", trial.fault["operation"], kind] += 1
        return None


@pytest.mark.parametrize("kind", KINDS)
def test_loading(settings: Settings, tmp_path: Path, table: Table, kind: str) -> None:
    loads = Loads(tmp_path, str(settings.database_url), kind)
    faults = FAULTS if ALL else random.Random(kind).sample(FAULTS, 3)
    known: dict[str, int] = {}
    for fault in faults:
        trials(fault, lambda fault, n: loads.survives(fault, n, table), known, 1, 1 if fault in ("exit", "lost") else 2)


# ---------------------------------------------------------------------------------------------------------- the catalogue


class Lost(psycopg.OperationalError):
    """The connection went."""


def drop_connection(n: int, when: str, report: Report) -> None:
    """For good, in a child: the connection is cut at the n-th commit, before the server hears of it, or after it did it."""
    count, commit = 0, DefaultDialect.do_commit

    def do_commit(self: DefaultDialect, connection: Any) -> None:
        nonlocal count
        count += 1
        if count != n:
            return commit(self, connection)
        report("fault", operation="commit", path="")
        if when == "after":
            commit(self, connection)
        os.dup2(os.open(os.devnull, os.O_RDWR), connection.pgconn.socket)  # cut off, as by a pulled plug
        raise Lost("server closed the connection unexpectedly")

    DefaultDialect.do_commit = do_commit  # type: ignore[method-assign]


def cut_off(work: Callable[[Report], Any], log: Path, n: int, when: str) -> Outcome:
    def disturbed(report: Report) -> None:
        drop_connection(n, when, report)
        work(report)

    outcome = Child(disturbed, log).join()
    assert outcome.status in (0, 2), outcome.events
    if outcome.status:
        assert outcome.of("error")[0]["code"] == "database", outcome.events
        assert "\n" not in outcome.error
    return outcome


DROPPED = [(kind, when) for kind in KINDS for when in ("before", "after")]


@pytest.mark.parametrize(("kind", "when"), DROPPED if ALL else DROPPED[::3])
def test_a_load_without_its_connection(settings: Settings, tmp_path: Path, table: Table, kind: str, when: str) -> None:
    loads = Loads(tmp_path, str(settings.database_url), kind)
    for n in range(1, 100):
        shutil.rmtree(tmp_path / "trial", ignore_errors=True)
        outcome = cut_off(loads.work, tmp_path / "log", n, when)
        if not outcome.of("fault"):
            break
        rows, store = loads.rows(), ObjectStore(loads.settings("trial").storage)
        assert all(store.intact(kind, row.object_digest) for row in rows)
        assert undisturbed(loads.work, tmp_path / "again").status == 0
        loads.check()
        loads.forget()
        table[f"load {kind}", "commit", when] += 1
    assert n > 2


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_export_without_its_connection(settings: Settings, tmp_path: Path, table: Table, when: str) -> None:
    """At each commit: the job's, its events', the dataset's row; and of `dataset remove`."""
    world = small_world()
    files = world.write(tmp_path / "files")
    ingest.load_ontology(settings, files["ontology"])
    ingest.load_proteins(settings, files["proteins"])
    ingest.load_embeddings(settings, files["embeddings"]["npz"], name="vectors")
    for version, path in files["annotations"].items():
        ingest.load_annotations(settings, path, source="goa", version=version, max_rejected=1)

    def work(report: Report) -> None:
        protea.export(settings=settings, report=report, **world.names())

    def remove(report: Report) -> None:
        upkeep.remove_dataset(settings, world.names()["name"])

    place = settings.datasets_dir / world.names()["name"]
    with fixed_commit():
        assert Child(work, tmp_path / "log").join().status == 0
        clean = contents(place)
        remove(lambda kind, **what: None)
        for n in range(1, 100) if ALL else (4, 12):
            outcome = cut_off(work, tmp_path / "log", n, when)
            if not outcome.of("fault"):
                break
            again = undisturbed(work, tmp_path / "again")
            assert again.status == 0, again.events
            assert not set(outcome.cuts("cut.finished")) & set(again.cuts("cut.started"))
            assert contents(place) == clean
            with open_catalog(settings) as catalog:
                assert len(catalog.datasets()) == 1
                assert not catalog.jobs.recent(state="running")
            assert not list(settings.resume_dir.iterdir())
            table["export: its job and row", "commit", when] += 1
            removed = cut_off(remove, tmp_path / "log", 1 + n % 3, when)
            if removed.of("fault"):
                table["dataset remove", "commit", when] += 1
            with open_catalog(settings) as catalog:
                left = catalog.datasets()
            if left:
                remove(lambda kind, **what: None)
            collecting.gc(settings)
            assert {p.name for p in settings.datasets_dir.iterdir()} == {".lock"}
    assert table["export: its job and row", "commit", when] > 1
