"""Looking after a home: what nothing refers to any more (`protea gc`), what is damaged (`protea doctor`, `dataset
verify`), and the removal of a dataset.

Called by the command line; calls the catalogue, the object store, staging and the alignment cache. What another process
may be using is known by the locks of the kernel, not by ages: an age alone removes nothing that is locked, and a clock
that is wrong can cost at most finished cuts of an export that nobody runs.
"""

import contextlib
import fcntl
import json
import os
import platform
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .catalog import INPUTS, REVISIONS, Catalog, Dataset, open_catalog
from .core import fs
from .core.arrays import cores
from .errors import ConfigError, ProteaError
from .exporting import alignment_cache, bucket_of, located, lost
from .settings import Settings
from .storage import ObjectStore

OLD = 14 * 86400.0
"""Seconds after which `gc` takes what nobody holds for given up."""
_STAGING = re.compile(r"(?P<name>.+)-[0-9a-f]{12}")
_GONE = re.compile(r"\..+\.[0-9a-f]{12}\.gone")
_NEW = re.compile(r"\..+\.[0-9a-f]{12}-[0-9a-f]{12}\.new")
_OLD = re.compile(r"\.(?P<name>.+)\.old")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass(frozen=True)
class Litter:
    """Something that `gc` removes. `bytes`: its size on disk; `age`: seconds since it was last written (0: unknown)."""

    kind: str
    path: str
    bytes: int
    age: float
    why: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Check:
    """One line of `doctor`: `state` is ok, warn or bad; `hint` says what to do."""

    check: str
    state: str
    what: str
    hint: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def seconds(age: str) -> float:
    """`14d`, `36h`, `90m`, `20s` or `2w` as seconds. ConfigError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", age.strip())
    if not found:
        raise ConfigError(f"{age!r} is no age", hint="write it like 14d, 36h or 0s")
    return float(found[1]) * _UNITS[found[2]]


# ------------------------------------------------------------------------------------------------------------------- gc


def gc(settings: Settings, *, older_than: float = OLD, dry_run: bool = False) -> tuple[list[Litter], list[str]]:
    """Remove what nothing refers to; gives what went (or would go), and remarks on what was left and why.

    Never touched: what a living process has locked, the staging directory of a job that is queued or runs, what another
    database refers to. `older_than` (seconds since the last write) goes for staging directories, objects without a row
    and alignments nobody asked for; what a lock shows to be abandoned goes at any age. Errors: DatabaseError; StorageError
    for a directory that cannot be written.
    """
    found: list[Litter] = []
    with open_catalog(settings) as catalog, fs.one_line_errors(settings.storage):
        sweeping = _Sweeping(settings, catalog, time.time() - older_than, dry_run)
        for part in (sweeping.staging, sweeping.datasets, sweeping.objects, sweeping.alignments):
            found += part()
    return found, sweeping.remarks


class _Sweeping:
    def __init__(self, settings: Settings, catalog: Catalog, before: float, dry_run: bool) -> None:
        self.settings, self.catalog, self.before, self.dry_run = settings, catalog, before, dry_run
        self.store = ObjectStore(settings.storage)
        self.remarks: list[str] = []

    def staging(self) -> Iterator[Litter]:
        """Staging directories that nobody has, and what killed processes were removing."""
        for path in _entries(self.settings.resume_dir):
            if _GONE.fullmatch(path.name):
                yield self._litter("half removed", path, "a run was killed while it removed it")
                self._remove(path)
            elif (name := _STAGING.fullmatch(path.name)) and path.is_dir():
                litter = self._litter("staging", path, "no run has it, and no job is queued for it")
                if time.time() - litter.age >= self.before or name["name"] in self._wanted():
                    continue
                with self._held(path) as ours:
                    if ours:
                        yield litter
                        if not self.dry_run:
                            gone = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.gone")
                            os.rename(path, gone)  # in one step: a run that begins now begins anew
                            fs.remove_tree(gone)

    def _wanted(self) -> set[str]:
        """Names of exports that are queued or run, asked anew each time: one may just have been submitted."""
        jobs = self.catalog.jobs
        alive = [*jobs.recent(state="queued", limit=10**6)]
        alive += [job for job in jobs.recent(state="running", limit=10**6) if not lost(job)]
        return {job.config.get("name", "") for job in alive}

    @contextlib.contextmanager
    def _held(self, staging: Path) -> Iterator[bool]:
        """Within the block no run can have the staging directory; False when one has it."""
        create = 0 if self.dry_run else os.O_CREAT  # killed while it was made, or while it was removed, it has no lock
        try:
            fd = os.open(staging / "lock", os.O_RDWR | os.O_CLOEXEC | create, 0o666)
        except FileNotFoundError:
            yield True
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        except OSError as e:
            self.remarks.append(f"{staging} was left: it cannot be locked: {e.strerror}")
            yield False
        else:
            yield True
        finally:
            os.close(fd)

    def datasets(self) -> Iterator[Litter]:
        """What killed publications and removals left beside the datasets."""
        place = self.settings.datasets_dir
        if not place.is_dir():
            return
        with fs.locked(place / ".lock"):
            for path in _entries(place):
                if _NEW.fullmatch(path.name) and fs.abandoned(path):
                    yield self._litter("half assembled", path, "its run was killed")
                    if not self.dry_run:
                        fs.remove_abandoned(path)
                elif _GONE.fullmatch(path.name):
                    yield self._litter("half removed", path, "the dataset was removed")
                    self._remove(path)
                elif (old := _OLD.fullmatch(path.name)) and self._replaced(old["name"]):
                    yield self._litter("replaced dataset", path, "the one that replaced it is in place")
                    self._remove(path)

    def _replaced(self, name: str) -> bool:
        from .core.operations.export_research_dataset import read_manifest, whole

        path = self.settings.datasets_dir / name
        found = read_manifest(path)
        row = next((r for r in self.catalog.datasets() if r.name == name), None)
        same = (
            found is not None and row is not None and (row.fingerprint, row.path) == (found["fingerprint"], str(path))
        )
        return found is not None and same and whole(path, found)

    def objects(self) -> Iterator[Litter]:
        """What killed loads left, and objects without a row in any database that ever loaded anything here."""
        owner = self.catalog.place
        for path in self.store.abandoned(owner):
            yield self._litter("unfinished load", path, "its process was killed")
        if not self.dry_run:
            self.store.sweep(owner, self.catalog.uses_object)
        unused = [o for o in self.store.each() if not self._referenced(*o)]
        unused = [o for o in unused if time.time() - _age(self.store.objects / o[0] / o[1]) < self.before]
        if not unused:
            return
        others = self.store.owners() - {owner}
        if others - {"embedded"}:
            some = ", ".join(sorted(others - {"embedded"}))
            self.remarks.append(f"{len(unused)} objects without a row were left: {some} has loaded into this home too")
            return
        with contextlib.ExitStack() as stack:
            asked = [self._referenced]
            if others:  # the embedded database of this home, beside the server that is named
                embedded = stack.enter_context(open_catalog(self.settings.model_copy(update={"database_url": None})))
                asked.append(lambda kind, digest: kind in INPUTS and embedded.uses_object(kind, digest))

            def wanted(kind: str, digest: str) -> bool:
                return any(ask(kind, digest) for ask in asked)

            for kind, digest in unused:
                if wanted(kind, digest):
                    continue
                litter = self._litter("object", self.store.objects / kind / digest, "no input refers to it")
                if self.dry_run or self.store.drop(kind, digest, wanted):
                    yield litter

    def _referenced(self, kind: str, digest: str) -> bool:
        return kind in INPUTS and self.catalog.uses_object(kind, digest)

    def alignments(self) -> Iterator[Litter]:
        """Segments of the alignment cache that no export has read for so long."""
        if not (self.settings.storage / "alignments").is_dir():
            return
        cache = alignment_cache(self.settings)
        unused = {p: self._litter("alignments", p, "not used since") for p in cache.unused(self.before)}
        for path in unused if self.dry_run else cache.drop(unused):
            yield unused[path]

    def _litter(self, kind: str, path: Path, why: str) -> Litter:
        return Litter(kind, str(path), _size(path), round(_age(path)), why)

    def _remove(self, path: Path) -> None:
        if not self.dry_run:
            with contextlib.suppress(FileNotFoundError):  # another process is doing the same
                fs.remove_tree(path)


def _entries(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _walk(path: Path) -> Iterator[os.stat_result]:
    with contextlib.suppress(OSError):
        yield path.lstat()
        if path.is_dir() and not path.is_symlink():
            for p in path.iterdir():
                yield from _walk(p)


def _size(path: Path) -> int:
    return sum(s.st_size for s in _walk(path))


def _age(path: Path) -> float:
    """Seconds since anything of it was written; 0 when that is in the future (the clock was set back)."""
    return max(0.0, time.time() - max((s.st_mtime for s in _walk(path)), default=time.time()))


# ------------------------------------------------------------------------------------------------------------- datasets


def verify_dataset(row: Dataset, settings: Settings) -> list[Check]:
    """A check for each file of a published dataset, against the digests in its row; reads all of it."""
    from .core import manifest
    from .core.operations.export_research_dataset import read_manifest

    path, remote = located(row, settings)
    again = "run its export again"
    found = read_manifest(path, remote)
    if found is None:
        gone = "is not readable" if isinstance(path, Path) and path.exists() else "is gone"
        checks = [Check("manifest.json", "bad", f"{path}/manifest.json {gone}", again)]
    elif found["fingerprint"] != row.fingerprint:
        checks = [Check("manifest.json", "bad", f"{path} holds another dataset: it was being replaced", again)]
    elif json.loads(manifest.dumps(row.manifest)) != found:
        checks = [Check("manifest.json", "bad", f"{path}/manifest.json is not what was recorded", again)]
    else:
        checks = [Check("manifest.json", "ok", "as recorded")]
    for name, want in row.manifest["files"].items():
        file, size, sha256 = f"{path}/{name}", None, None
        if isinstance(path, Path):
            size = (path / name).stat().st_size if (path / name).is_file() else None
            sha256 = fs.sha256_file(path / name) if size == want["size"] else None
        elif remote is not None:
            size = remote.sizes(remote.name(path)).get(name)
            sha256 = remote.sha256(remote.name(file)) if size == want["size"] else None
        if size is None:
            checks.append(Check(name, "bad", f"{file} is gone", again))
        elif size != want["size"]:
            checks.append(Check(name, "bad", f"{file} has {size} bytes, not {want['size']}", again))
        elif sha256 != want["sha256"]:
            checks.append(Check(name, "bad", f"{file} is damaged (another SHA-256)", again))
        else:
            checks.append(Check(name, "ok", f"{want['size']:,} bytes, SHA-256 as recorded"))
    return checks


def remove_dataset(settings: Settings, name: str) -> Path | str:
    """Remove a dataset, its files and its row; gives where it was. NotFoundError.

    The files go out of the way in one step, then the row, then the files for good. Killed in between, there is a row
    whose files are gone (remove it again), or files under a name that `gc` removes. In a bucket the manifest stands for
    the files; objects that a kill leaves go when a dataset of that name is published again.
    """
    with open_catalog(settings) as catalog:
        where = catalog.find_dataset(name).path
        if "://" in where:
            if (bucket := bucket_of(settings, catalog)) is None:
                raise ConfigError(f"dataset {name!r} lies in {where}", hint="set PROTEA_STORAGE_URL to that bucket")
            bucket.remove(name, lambda: catalog.find_dataset(name).path, lambda: catalog.remove_dataset(name))
            return where
        path = Path(where)
        gone = path.with_name(f".{name}.{uuid.uuid4().hex[:12]}.gone")
        with contextlib.ExitStack() as stack, fs.one_line_errors(path):
            if path.parent.is_dir():  # else there is nothing to move, nor anybody to keep out
                stack.enter_context(fs.locked(path.parent / ".lock"))
            path = Path(catalog.find_dataset(name).path)  # as it is now that nobody can replace it
            if path.exists():
                os.rename(path, gone)
                fs.fsync_dir(path.parent)
            catalog.remove_dataset(name)
            fs.remove_tree(gone)
            fs.remove_tree(path.with_name(f".{name}.old"))  # of a replacement that was cut short
    return path


# --------------------------------------------------------------------------------------------------------------- doctor


def doctor(settings: Settings) -> Iterator[Check]:
    """The checks of a home, one after the other. Nothing is repaired (the embedded database is started and migrated)."""
    yield _versions()
    yield _threads(settings)
    try:
        _ = settings.remote
    except ConfigError as e:
        yield Check("storage", "bad", e.message, e.hint)
        return
    yield from _disk(settings)
    try:
        with open_catalog(settings) as catalog:
            yield from _database(catalog)
            yield from _inputs(settings, catalog)
            yield from _datasets(settings, catalog)
            yield from _jobs(catalog)
    except ProteaError as e:
        yield Check("database", "bad", e.message, e.hint)
        yield Check("inputs and datasets", "warn", "not checked: the database is needed for it")
        return
    try:
        litter, remarks = gc(settings, dry_run=True)
    except ProteaError as e:
        yield Check("litter", "bad", e.message, e.hint)
        return
    total = sum(one.bytes for one in litter)
    yield Check("litter", "warn", f"{len(litter)} things of {total:,} bytes that nothing refers to",
                "`protea gc --dry-run` lists them, `protea gc` removes them") if litter else Check(
                "litter", "ok", "none" + "".join(f"; {r}" for r in remarks))  # fmt: skip


def _versions() -> Check:
    import psycopg

    names = ("protea", "numpy", "numba", "pyarrow")
    found = [f"python {platform.python_version()}", *(f"{n} {version(n)}" for n in names)]
    return Check("versions", "ok", ", ".join([*found, f"psycopg {psycopg.__version__}"]))


def _threads(settings: Settings) -> Check:
    import numpy  # noqa: F401  its BLAS is what is looked at
    from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

    blas = [f"{i['internal_api']} {i['version']}, {i['num_threads']} threads" for i in threadpool_info()
            if i["user_api"] == "blas"]  # fmt: skip
    threads = settings.threads or cores()
    what = f"{cores()} cores, {threads} threads of ours; BLAS: {'; '.join(blas) or 'not known'}"
    if threads > cores():
        return Check("threads", "warn", what, "PROTEA_THREADS is more than there are cores")
    return Check("threads", "ok", what)


def _disk(settings: Settings) -> Iterator[Check]:
    """Whether the places can be written and locked, and how much room they have."""
    places = {"home": settings.storage, "staging": settings.resume_dir}
    if settings.resume_dir.is_relative_to(settings.storage):
        del places["staging"]
    for name, place in places.items():
        probe = place / f".doctor.{uuid.uuid4().hex[:12]}.tmp"
        try:
            place.mkdir(parents=True, exist_ok=True)
            try:
                with fs.locked(probe):
                    fs.fsync_file(probe)
            finally:
                probe.unlink(missing_ok=True)
            free = shutil.disk_usage(place).free
        except OSError as e:
            yield Check(name, "bad", f"{place} cannot be written or locked: {e.strerror}",
                        "it needs a writable file system with locks; see docs/reliability.md")  # fmt: skip
            continue
        state, hint = ("warn", "an export needs what `protea export plan` says") if free < 10**9 else ("ok", None)
        yield Check(name, state, f"{place}: writable, with locks, {free / 1e9:.1f} GB free", hint)


def _database(catalog: Catalog) -> Iterator[Check]:
    from sqlalchemy import text

    with catalog.session() as session:
        server = session.scalar(text("SHOW server_version"))
        careless = [n for n in ("fsync", "full_page_writes") if session.scalar(text(f"SHOW {n}")) != "on"]
        now = float(session.scalar(text("SELECT extract(epoch FROM clock_timestamp())")) or 0)
    what = f"{catalog.place}: PostgreSQL {server}, tables {REVISIONS[-1]}"
    if careless:
        yield Check(
            "database", "warn", f"{what}, {' and '.join(careless)} off", "a power cut can destroy it: switch on"
        )
    else:
        yield Check("database", "ok", what)
    try:
        catalog.prepare_queue()
        yield Check("queue", "ok", "its tables are current")
    except ProteaError as e:
        yield Check("queue", "bad", e.message, e.hint)
    off = abs(now - time.time())
    yield Check("clock", "ok" if off < 5 else "warn", f"{off:.1f} s from the database's",
                None if off < 5 else "set the clock: leases count by the database's, ages by this one's")  # fmt: skip


def _inputs(settings: Settings, catalog: Catalog) -> Iterator[Check]:
    store, whole = ObjectStore.of(settings), dict[tuple[str, str], bool]()
    n = 0
    for kind in INPUTS:
        for row in catalog.inputs(kind):
            n += 1
            address = (kind, row.object_digest)
            if address not in whole:
                whole[address] = store.there(*address) if store.remote else store.intact(*address)
            if not whole[address]:
                where = (
                    f"{store.remote.uri if store.remote else store.objects.parent}/objects/{kind}/{row.object_digest}"
                )
                what = "is gone" if store.remote is None and not Path(where).exists() else "is damaged"
                yield Check(f"{kind} {row.name}", "bad", f"{where} {what}", f"load {row.source_file} again")
    if all(whole.values()):
        yield Check("inputs", "ok", f"{n} loaded, every file as recorded")


def _datasets(settings: Settings, catalog: Catalog) -> Iterator[Check]:
    rows = catalog.datasets()
    good = 0
    for row in rows:
        bad = [c for c in verify_dataset(row, settings) if c.state != "ok"]
        good += not bad
        for c in bad:
            yield Check(f"dataset {row.name}", "bad", c.what, f"{c.hint}, or `protea dataset remove {row.name}`")
    if good == len(rows):
        yield Check("datasets", "ok", f"{good} published, every file as recorded")
    known = {row.path for row in rows}
    for path in _entries(settings.datasets_dir):
        if not path.name.startswith(".") and str(path) not in known:
            yield Check(f"dataset {path.name}", "warn", f"{path} has no row in this database",
                        "run its export again to register it, or remove the directory")  # fmt: skip
        elif (old := _OLD.fullmatch(path.name)) and str(path.with_name(old["name"])) not in known:
            yield Check(f"dataset {old['name']}", "warn", f"{path} is left of a replacement that was cut short",
                        "run its export again")  # fmt: skip


def _jobs(catalog: Catalog) -> Iterator[Check]:
    gone = [job for job in catalog.jobs.recent(state="running", limit=10**6) if lost(job)]
    for job in gone:
        yield Check(f"job {job.id}", "warn", f"{job.config.get('name')} ran in {job.owner}, which is gone",
                    "the same command goes on where it was")  # fmt: skip
    if not gone:
        yield Check("jobs", "ok", "none that runs in a process that is gone")


def failed(checks: list[Check]) -> bool:
    """Whether anything is bad."""
    return any(c.state == "bad" for c in checks)
