"""Looking after a home: what is damaged (`protea doctor`, `dataset verify`), and the removal of a dataset.

Called by the command line; calls the catalogue, the object store and the alignment cache.
"""

import contextlib
import json
import os
import platform
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .catalog import INPUTS, REVISIONS, Catalog, Dataset, open_catalog
from .collecting import REPLACED, entries, gc
from .core import fs
from .core.arrays import cores
from .errors import ConfigError, ProteaError
from .exporting import bucket_of, located, lost
from .settings import Settings
from .storage import ObjectStore


@dataclass(frozen=True)
class Check:
    """One line of `doctor`: `state` is ok, warn or bad; `hint` says what to do."""

    check: str
    state: str
    what: str
    hint: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


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
    for path in entries(settings.datasets_dir):
        if not path.name.startswith(".") and str(path) not in known:
            yield Check(f"dataset {path.name}", "warn", f"{path} has no row in this database",
                        "run its export again to register it, or remove the directory")  # fmt: skip
        elif (old := REPLACED.fullmatch(path.name)) and str(path.with_name(old["name"])) not in known:
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
