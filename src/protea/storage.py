"""Where bulk data lives: immutable directories addressed by content, `<storage>/objects/<kind>/<digest>/`.

A load writes into a staging directory, then `committed` moves it to its address while the catalogue's row goes in.
Killed at any instant it leaves at most a staging directory, whose lock the kernel frees; the next load's `sweep`
removes it, and the object too if the row did not make it. Called by `protea.ingest` and the export; calls `core.fs`.

With PROTEA_STORAGE_URL an object is stored in the bucket too, under the same address and its index last, before its row
goes in; the local one is a copy, fetched and verified when it is missing, damaged or other than the bucket's.

    <storage>/tmp/.lock            held while a staging directory is made or swept and while an object is committed
    <storage>/tmp/.fetch           held while an object is fetched
    <storage>/tmp/load-*/lock      held while the owner of the staging directory lives
    <storage>/tmp/load-*/data/     what becomes the object
    <storage>/tmp/load-*/intent    written before the object gets its address: which one, and whose row it waits for
    <storage>/owners/*             a line each: the databases whose rows lie in this store
"""

import contextlib
import fcntl
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from protea.core.fs import commit_dir, fsync_dir, locked, make_dirs, remove_tree, sha256_file, write_file
from protea.errors import StorageError, UserError

if TYPE_CHECKING:
    from protea.core.remote import Remote
    from protea.settings import Settings

INDEX = "files.json"
"""In every object: the size and sha256 of each of its files."""


class ObjectStore:
    """The objects under one `<storage>` directory, which may be copies of those in a bucket (`remote`)."""

    def __init__(self, storage: Path, remote: "Remote | None" = None) -> None:
        self.objects = storage / "objects"
        self.tmp = storage / "tmp"
        self.remote = remote

    @classmethod
    def of(cls, settings: "Settings") -> Self:
        return cls(settings.storage, settings.remote)

    def path(self, kind: str, digest: str) -> Path:
        """The directory of an object, fetched if it is not here. StorageError when it is nowhere."""
        path = self.objects / kind / digest
        if not path.is_dir() and not (self.remote and self.intact(kind, digest)):
            raise StorageError(f"{path}: the stored {kind} object is missing", hint="load its file again")
        return path

    def intact(self, kind: str, digest: str) -> bool:
        """Whether an object is here with every file as it was written (reads all of it), if need be fetched."""
        there = self._index_there(kind, digest)
        if self._here(kind, digest, there):
            return True
        return there is not None and self._fetch(kind, digest, there)

    def _here(self, kind: str, digest: str, as_there: dict[str, Any] | None = None) -> bool:
        """Whether the local object is as it was written, and as `as_there` says."""
        path = self.objects / kind / digest
        index = _index_of((path / INDEX).read_bytes)
        try:
            return index is not None and index == (as_there or index) == _index(path)
        except OSError:
            return False

    # -- the bucket

    def there(self, kind: str, digest: str) -> bool:
        """Whether the bucket, if there is one, has an object, its files of the recorded sizes; nothing is fetched."""
        if self.remote is None:
            return True
        if (index := self._index_there(kind, digest)) is None:
            return False
        sizes = self.remote.sizes(f"objects/{kind}/{digest}")
        return all(sizes.get(name) == f["bytes"] for name, f in index.items())

    def _index_there(self, kind: str, digest: str) -> dict[str, Any] | None:
        if (remote := self.remote) is None:
            return None
        return _index_of(lambda: remote.read(f"objects/{kind}/{digest}/{INDEX}"))

    def _fetch(self, kind: str, digest: str, index: dict[str, Any]) -> bool:
        """Copy an object of the bucket here, in place of what is; False when it is not as its index says."""
        self.tmp.mkdir(parents=True, exist_ok=True)
        with locked(self.tmp / ".fetch"):
            if self._here(kind, digest, index):
                return True  # by another process, meanwhile
            with self.staging() as data:
                if not self._download(kind, digest, index, data):
                    return False
                final = self.objects / kind / digest
                with self._locked():
                    final.parent.mkdir(parents=True, exist_ok=True)
                    if final.exists():
                        os.rename(final, data.parent / "damaged")
                    commit_dir(data, final)
        return True

    def _download(self, kind: str, digest: str, index: dict[str, Any], data: Path) -> bool:
        assert self.remote is not None
        for name, want in index.items():
            (data / name).parent.mkdir(parents=True, exist_ok=True)
            if self.remote.get(f"objects/{kind}/{digest}/{name}", data / name) != want["sha256"]:
                return False
        write_file(data / INDEX, _text(index))
        return True

    def _adopt(self, data: Path, kind: str, digest: str) -> bool:
        """Make the staged `data` what the bucket has at this address; False when nothing whole is there.

        One file may give other bytes on another machine (compression, the last bits of principal components): the first
        that was stored is everybody's.
        """
        index = self._index_there(kind, digest)
        if index is None or self.remote is None:
            return False
        if _text(index) == (data / INDEX).read_bytes():
            return all(self.remote.sha256(f"objects/{kind}/{digest}/{n}") == f["sha256"] for n, f in index.items())
        theirs = data.parent / "theirs"
        theirs.mkdir()
        if not self._download(kind, digest, index, theirs):
            return False
        os.rename(data, data.parent / "mine")
        os.rename(theirs, data)
        return True

    def _upload(self, kind: str, digest: str) -> None:
        assert self.remote is not None
        place, path = f"objects/{kind}/{digest}", self.objects / kind / digest
        for name in (*json.loads((path / INDEX).read_bytes()), INDEX):
            self.remote.put(f"{place}/{name}", path / name)

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """An empty directory to write an object into; gone at the end of the block."""
        with self._locked():
            place = self._place()
            lock = os.open(place / "lock", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(lock, fcntl.LOCK_EX)
        data = place / "data"
        try:
            data.mkdir()
            yield data
        finally:
            if not (place / "intent").exists():  # else nobody knows what became of the row: the next sweep asks
                with contextlib.suppress(OSError):
                    remove_tree(place)
            os.close(lock)

    @contextlib.contextmanager
    def committed(self, data: Path, kind: str, digest: str, owner: str) -> Iterator[Path]:
        """Within the block the staged `data` is the object `<kind>/<digest>`; the block inserts its row.

        An intact object that is already there is kept. `owner` is the database of the row. When the block raises a
        UserError (the row was refused) the object goes again, unless it was there before.
        """
        final, intent = self.objects / kind / digest, data.parent / "intent"
        write_file(data / INDEX, _text(_index(data)))
        adopted = self._adopt(data, kind, digest)
        with self._locked():
            self._remember(owner)
            there = final.exists()
            if there and not self._here(kind, digest, _index_of((data / INDEX).read_bytes) if adopted else None):
                os.rename(final, data.parent / "damaged")
            if not final.exists():
                if not there:
                    write_file(intent, json.dumps({"kind": kind, "digest": digest, "owner": owner}).encode())
                make_dirs(final.parent)
                commit_dir(data, final)
            if self.remote and not adopted:
                self._upload(kind, digest)
            try:
                yield final
            except UserError:
                if intent.exists():
                    os.rename(final, data)
                intent.unlink(missing_ok=True)
                raise
            intent.unlink(missing_ok=True)

    def owners(self) -> set[str]:
        """The databases that have committed anything here: what none of them refers to is of no use."""
        return {p.read_text() for p in (self.objects.parent / "owners").glob("[0-9a-f]*")}

    def _remember(self, owner: str) -> None:
        path = self.objects.parent / "owners" / hashlib.sha256(owner.encode()).hexdigest()[:12]
        if not path.exists():
            make_dirs(path.parent)
            write_file(path, owner.encode())

    def abandoned(self, owner: str) -> list[Path]:
        """What `sweep` would remove of staging directories: nobody holds their lock."""
        found = []
        for place in sorted(self.tmp.glob("load-*")):
            with contextlib.suppress(OSError, ValueError, KeyError):
                lock = os.open(place / "lock", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    intent = place / "intent"
                    if not intent.exists() or json.loads(intent.read_bytes())["owner"] == owner:
                        found.append(place)
                finally:
                    os.close(lock)
        return found

    def each(self) -> list[tuple[str, str]]:
        """Kind and digest of every object that is there."""
        return sorted((p.parent.name, p.name) for p in self.objects.glob("*/*") if p.is_dir())

    def drop(self, kind: str, digest: str, referenced: Callable[[str, str], bool]) -> bool:
        """Remove an object unless a row has it by now (loads put in object and row under this same lock)."""
        with self._locked():
            if referenced(kind, digest):
                return False
            place = self._place()  # killed half-way: the next sweep goes on
            os.rename(self.objects / kind / digest, place / "unwanted")
            remove_tree(place)
            return True

    def sweep(self, owner: str, referenced: Callable[[str, str], bool]) -> None:
        """Remove what killed loads left. `referenced(kind, digest)`: whether the database `owner` has a row for it."""
        if not self.tmp.is_dir():
            return
        with self._locked():
            for place in self.tmp.glob("load-*"):
                with contextlib.suppress(OSError):
                    self._sweep_one(place, owner, referenced)

    def _sweep_one(self, place: Path, owner: str, referenced: Callable[[str, str], bool]) -> None:
        lock = os.open(place / "lock", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: its owner lives
            if (place / "intent").exists():
                intent = json.loads((place / "intent").read_bytes())
                if intent["owner"] != owner:
                    return  # only that database knows
                final = self.objects / intent["kind"] / intent["digest"]
                if final.exists() and not referenced(intent["kind"], intent["digest"]):
                    os.rename(final, place / "unwanted")  # at once, so that a kill leaves no half of it there
                    fsync_dir(final.parent)
            remove_tree(place)
        finally:
            os.close(lock)

    def _place(self) -> Path:
        place = self.tmp / f"load-{uuid.uuid4().hex[:12]}"
        place.mkdir()
        fsync_dir(self.tmp)  # an intent in it must outlast the object that it is about
        return place

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        make_dirs(self.tmp)
        fd = os.open(self.tmp / ".lock", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _text(index: dict[str, Any]) -> bytes:
    return json.dumps(index, sort_keys=True).encode()


def _index_of(read: Callable[[], bytes | None]) -> dict[str, Any] | None:
    """An object's index; None when it is missing or damaged."""
    with contextlib.suppress(OSError, ValueError):
        index = json.loads(read() or b"null")
        if isinstance(index, dict) and index and not any(".." in Path(n).parts or Path(n).is_absolute() for n in index):
            return index
    return None


def _index(directory: Path) -> dict[str, dict[str, int | str]]:
    files = (p for p in sorted(directory.rglob("*")) if p.is_file() and p.name != INDEX)
    return {str(p.relative_to(directory)): {"bytes": p.stat().st_size, "sha256": sha256_file(p)} for p in files}
