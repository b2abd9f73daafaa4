"""Staging and publication for machines that share no disk: in an object store, with local copies.

Used by the operations in place of `Staging` and `Place` when there is a bucket; calls `core.remote`. Who may run an export
among all machines is decided elsewhere (`Right`): a lock file is only one machine's.

    export_resume/<name>-<fingerprint>/begun                 while the export is neither finished nor given up
    export_resume/<name>-<fingerprint>/{cuts,blocks}/...     finished stages, the marker of each stored last
    datasets/<name>/<fingerprint>/                           a published dataset; the catalogue's row says which one counts
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..errors import BusyError, StorageError
from . import fs
from .arrays import nothing
from .manifest import dumps
from .operations.export_research_dataset import Place, as_recorded, name_taken, read_manifest
from .parquet_export import FileInfo
from .remote import Remote
from .staging import MARKER, Stage, Staging, digest, parse_marker, verify

STAGING, DATASETS, BEGUN = "export_resume", "datasets", "begun"


class Right(Protocol):
    """The right to do something, among all machines: alone, or shared with others that share it."""

    def take(self, *, shared: bool) -> str | None:
        """Take it; None, or who has it."""

    def check(self) -> None:
        """BusyError when it was lost."""

    def release(self) -> None:
        """Give it back."""


@dataclass(frozen=True)
class Bucket:
    """An object store for one catalogue: `right(what)` makes the right to do something."""

    remote: Remote
    right: Callable[[str], Right]

    def staging(self, base: Path, name: str, fingerprint: str, guard: Callable[[], None]) -> "RemoteStaging":
        return RemoteStaging(base, name, fingerprint, guard, self)

    def place(self, *what: Any) -> "RemotePlace":
        return RemotePlace(*what, bucket=self)  # type: ignore[misc]  # mypy takes `what` to be longer than it is

    def remove(self, name: str, where: Callable[[], str], forget: Callable[[], None]) -> None:
        """Remove the dataset at the URI `where()`, its row (`forget`) right after its manifest, without which it is none."""
        right = self.right(f"{DATASETS}/{name}")
        take(right, False, "", wait=True)
        try:
            prefix = self.remote.name(where())  # asked now that nobody can replace it
            self.remote.delete(f"{prefix}/manifest.json")
            forget()
            self.remote.delete_all(prefix)
        finally:
            right.release()


class RemoteStaging(Staging):
    """As `Staging`; the directory holds copies of what is in the bucket. A stage that is finished here is there too."""

    def __init__(self, base: Path, name: str, fingerprint: str, guard: Callable[[], None], bucket: Bucket) -> None:
        super().__init__(base, name, fingerprint, self._both)
        self.remote, self.prefix = bucket.remote, f"{STAGING}/{self.path.name}"
        self.right = bucket.right(self.prefix)
        self._guard = guard

    def _both(self) -> None:
        self.right.check()
        self._guard()

    def acquire(self, *, shared: bool = False, create: bool = True, wait: bool = False,
                waiting: Callable[[str], None] | None = None) -> bool:  # fmt: skip
        """As `Staging.acquire`, and the right to run the export among all machines."""
        if not create and not self.begun():
            return False
        try:
            take(self.right, shared, "another run of this export is going on", wait, waiting)
            super().acquire(shared=shared, create=True, wait=wait, waiting=waiting)
            if create:
                self.remote.put(f"{self.prefix}/{BEGUN}", b"")
        except BaseException:
            self.release()
            raise
        return True

    def begun(self) -> bool:
        return self.remote.exists(f"{self.prefix}/{BEGUN}")

    def present(self) -> bool:
        return super().present() and self.begun()

    def untouched(self) -> bool:
        return super().untouched() and self.remote.sizes(self.prefix).keys() <= {BEGUN}

    def release(self) -> None:
        super().release()
        self.right.release()

    def remove(self) -> None:
        self.remote.delete(f"{self.prefix}/{BEGUN}")  # first: whoever comes late sees that there is nothing to do
        self.remote.delete_all(self.prefix)
        super().remove()

    def discard_blocks(self, pair: str) -> None:
        self.remote.delete_all(f"{self.prefix}/blocks/{pair}")
        super().discard_blocks(pair)

    def _there(self, name: str) -> str:
        return f"{self.prefix}/{self.stage_dir(name).relative_to(self.path)}"

    def _publish(self, name: str, directory: Path, files: Mapping[str, FileInfo], marker: bytes) -> None:
        there = self._there(name)
        self.guard()
        for info in files.values():
            self.remote.put(f"{there}/{info.name}", directory / info.name)
        self.guard()
        self.remote.put(f"{there}/{MARKER}", marker)
        if not self.begun():  # published and removed meanwhile, perhaps before this was stored
            self.remote.delete_all(there)
            raise StorageError(f"{self.remote.uri}/{self.prefix}: the export was finished by another process")

    def restore(self, name: str, key: Mapping[str, Any]) -> tuple[Stage | None, str | None]:
        """The finished stage, from here or fetched. Without the lock nothing is fetched: its files are not there then."""
        stage, why = super().restore(name, key)
        if stage is not None:
            return stage, None
        there = self._there(name)
        data = self.remote.read(f"{there}/{MARKER}")
        if data is None:
            return None, why
        marker = parse_marker(data)
        files = marker["files"].values() if marker is not None and marker["key"] == digest(key) else ()
        if self._lock is None:
            sizes = self.remote.sizes(there)
            whole = bool(marker and files) and all(sizes.get(f["name"]) == f["size"] for f in files)
            if not whole:
                return None, f"it is damaged (in {self.remote.uri}/{there})"
            return Stage(self.stage_dir(name), {}, {}), None
        directory = self._alone(name)
        try:
            for info in files:
                if Path(info["name"]).name == info["name"]:
                    self.remote.get(f"{there}/{info['name']}", directory / info["name"])
            fs.write_file(directory / MARKER, data)
            stage, why = verify(directory, key)
            if stage is None:
                return None, f"{why} (in {self.remote.uri}/{there})"
            moved = self._move(name, directory, key, nothing)
            return moved or Stage(self.stage_dir(name), stage.files, stage.result), None
        finally:
            self._drop(name)


@dataclass(frozen=True)
class RemotePlace(Place):
    """As `Place`, for a dataset in the bucket. It is assembled below `final`'s directory here.

    Each dataset has a prefix of its own, so that one that is replaced stays whole until the row names the new one.
    """

    bucket: Bucket | None = None

    @property
    def remote(self) -> Remote:
        assert self.bucket is not None
        return self.bucket.remote

    @property
    def prefix(self) -> str:
        return f"{DATASETS}/{self.name}/{self.mark[:12]}"

    @property
    def where(self) -> str:
        return f"{self.remote.uri}/{self.prefix}"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        with self._alone():
            yield

    @contextlib.contextmanager
    def _alone(self) -> Iterator[Right]:
        """Alone among all machines with what is published under this name."""
        assert self.bucket is not None
        right = self.bucket.right(f"{DATASETS}/{self.name}")
        take(right, False, "", wait=True)
        try:
            yield right
        finally:
            right.release()

    def settled(self) -> bool:
        with super().locked():
            self.sweep()
        with self._alone() as right:
            row, found = self._row(), read_manifest(self.where, self.remote)
            recorded = row is not None and (row["fingerprint"], row["path"]) == (self.mark, self.where)
            if found is None or not as_recorded(found, row) or not self._whole(found):
                if recorded:
                    self.report("export.warning", text=f"{self.where} is damaged; its files are made again")
                return False
            if recorded:
                self.report("export.unchanged", name=self.name, path=self.where)
            else:  # a publication that was cut short
                right.check()
                self._register(found)
        if not recorded:
            self._published(found, finished=True)
        return True

    def put(self, tmp: Path, document: Mapping[str, Any]) -> None:
        self.guard()
        self._upload(tmp, document)
        with self._alone() as right:
            self._row()  # another export may have taken the name, or replaced the dataset, and what was uploaded is gone
            self.guard()
            if not self._whole(document):
                self._upload(tmp, document)
            right.check()  # all of it was read meanwhile, and the connection may have been lost
            self._register(document)
        self._published(document)

    def _row(self) -> Mapping[str, Any] | None:
        row = self.registry.find(self.name)
        if row is not None and row["fingerprint"] != self.mark and not self.replace:
            raise name_taken(self.name)
        return row

    def _upload(self, tmp: Path, document: Mapping[str, Any]) -> None:
        for name in (*document["files"], "run.json", "manifest.json"):  # the manifest last: without it nothing is there
            self.remote.put(f"{self.prefix}/{name}", tmp / name)

    def _whole(self, document: Mapping[str, Any]) -> bool:
        """Whether the bucket has every file of a dataset as recorded; all of it is read."""
        if read_manifest(self.where, self.remote) != json.loads(dumps(document)):
            return False
        return all(self.remote.sha256(f"{self.prefix}/{n}") == f["sha256"] for n, f in document["files"].items())

    def _register(self, document: Mapping[str, Any]) -> None:
        """Insert the row, and remove what else was published or begun under the name."""
        self.registry.register(self.name, self.mark, self.where, document)
        for other in self.remote.children(f"{DATASETS}/{self.name}") - {self.mark[:12]}:
            self.remote.delete_all(f"{DATASETS}/{self.name}/{other}")


def take(right: Right, shared: bool, what: str, wait: bool, waiting: Callable[[str], None] | None = None) -> None:
    """Take a right; BusyError naming who has it (or wait for it)."""
    told = False
    while (holder := right.take(shared=shared)) is not None:
        if not wait:
            raise BusyError(f"{what}: {holder}", hint="wait for it, or use --wait")
        if waiting and not told:
            waiting(f"{what}: {holder}")
            told = True
        time.sleep(0.2)


def tidy(base: Path, remote: Remote) -> None:
    """Remove the local copies, below `base`, of exports that are finished: that no process here has in use, and whose
    staging is gone from the bucket."""
    for lock in base.glob("*/lock"):
        if remote.exists(f"{STAGING}/{lock.parent.name}/{BEGUN}"):
            continue
        with contextlib.suppress(OSError):  # in use, or another process does the same
            fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fs.remove_tree(lock.parent)
            finally:
                os.close(fd)
