"""`protea gc`: removes what nothing refers to any more.

Called by the command line and `doctor`; calls the catalogue, the object store, staging and the alignment cache. What
another process may be using is known by the locks of the kernel, not by ages: an age alone removes nothing that is locked,
and a clock that is wrong can cost at most finished cuts of an export that nobody runs.
"""

import contextlib
import fcntl
import os
import re
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .catalog import INPUTS, Catalog, open_catalog
from .core import fs
from .errors import ConfigError
from .exporting import alignment_cache, lost
from .settings import Settings
from .storage import ObjectStore

OLD = 14 * 86400.0
"""Seconds after which `gc` takes what nobody holds for given up."""
_STAGING = re.compile(r"(?P<name>.+)-[0-9a-f]{12}")
_GONE = re.compile(r"\..+\.[0-9a-f]{12}\.gone")
_NEW = re.compile(r"\..+\.[0-9a-f]{12}-[0-9a-f]{12}\.new")
REPLACED = re.compile(r"\.(?P<name>.+)\.old")
"""A dataset that is out of the way of its replacement."""
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


def seconds(age: str) -> float:
    """`14d`, `36h`, `90m`, `20s` or `2w` as seconds. ConfigError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", age.strip())
    if not found:
        raise ConfigError(f"{age!r} is no age", hint="write it like 14d, 36h or 0s")
    return float(found[1]) * _UNITS[found[2]]


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
        for path in entries(self.settings.resume_dir):
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
            for path in entries(place):
                if _NEW.fullmatch(path.name) and fs.abandoned(path):
                    yield self._litter("half assembled", path, "its run was killed")
                    if not self.dry_run:
                        fs.remove_abandoned(path)
                elif _GONE.fullmatch(path.name):
                    yield self._litter("half removed", path, "the dataset was removed")
                    self._remove(path)
                elif (old := REPLACED.fullmatch(path.name)) and self._replaced(old["name"]):
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


def entries(directory: Path) -> list[Path]:
    """What lies in a directory, if it is there, by name."""
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
