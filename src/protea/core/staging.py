"""Staging: where an export keeps what it has finished, so that a run can stop anywhere and go on (house plan, Staging).

A stage counts as done only when its marker parses, its key is the expected one and every file has the recorded size and
digest; otherwise it is computed again, and the reason is told. Called by the export operation; calls `core.fs`.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import BusyError, StorageError
from . import fs
from .arrays import nothing
from .parquet_export import FileInfo

MARKER = "done.json"
LOOKED_AT = 0.5
"""Seconds for which the lock may be held by somebody who only looks whether it is (`gc`, `doctor`)."""


def canonical(document: Mapping[str, Any]) -> bytes:
    """Canonical JSON: sorted keys, no blanks, UTF-8."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(document)).hexdigest()


@dataclass(frozen=True)
class Stage:
    """A finished stage: its files by name, and what else it found (`result`, JSON)."""

    directory: Path
    files: Mapping[str, FileInfo]
    result: Mapping[str, Any]


class Staging:
    """The staging directory of one export, locked for one run at a time, or for the minijobs of one (`shared`).

    The lock is the kernel's: it goes with the process that holds it, however that dies. Sharing processes never wait for
    each other, since one of them may be paused: each computes a stage in a directory of its own, and what is whole is
    moved into place. `guard` is called right before that (or before a marker is written), and raises when this process
    has lost the right to commit.

    cuts/<pair>/            a finished cut               blocks/<pair>/<stage>/  a finished stage of some of its queries
    open/<stage>.<random>/  what a sharing process works on, locked by it        attempts/  a number a stage
    """

    def __init__(self, base: Path, name: str, fingerprint: str, guard: Callable[[], None] = nothing) -> None:
        self.path = base / f"{name}-{fingerprint[:12]}"
        self.guard = guard
        self.shared = False
        self._lock: int | None = None
        self._mine: dict[str, tuple[Path, int]] = {}

    def acquire(
        self,
        *,
        shared: bool = False,
        create: bool = True,
        wait: bool = False,
        waiting: Callable[[str], None] | None = None,
    ) -> bool:
        """Take the lock; BusyError naming the holder if another run has it (or wait for it).

        False when there is no such directory and none is to be made (not `create`).
        """
        told, first = False, time.monotonic()
        while True:
            try:
                fd = self._open(create)
            except FileNotFoundError:
                if create:
                    continue  # another run has just finished and removed the directory
                return False
            except OSError as e:
                raise StorageError(f"{self.path}: the staging directory cannot be used: {e.strerror}") from None
            try:
                fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                if not self._same_file(fd):
                    os.close(fd)  # the directory was removed between opening and locking
                    continue
                what = " (and other minijobs)" if shared else ""
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}{what}\n".encode(), 0)
            except BlockingIOError:
                holder = os.pread(fd, 200, 0).decode(errors="replace").strip()
                os.close(fd)
                if not wait and time.monotonic() < first + LOOKED_AT:
                    time.sleep(0.05)
                    continue
                message = f"another run of this export is going on: {holder or 'just starting'}"
                if not wait:
                    raise BusyError(message, hint="wait for it, or use --wait") from None
                if waiting and not told:
                    waiting(message)
                    told = True
                time.sleep(0.2)
                continue
            except OSError as e:
                os.close(fd)
                raise StorageError(
                    f"{self.path}: the staging directory cannot be locked: {e.strerror}", hint=fs.advice(e)
                ) from None
            self._lock, self.shared = fd, shared
            return True

    def _open(self, create: bool) -> int:
        """The lock file, opened; FileNotFoundError when the directory is removed meanwhile."""
        if not create:
            return os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        fs.make_dirs(self.path.parent)
        with contextlib.suppress(FileExistsError):  # not exist_ok: the directory may come and go
            self.path.mkdir()
            fs.fsync_dir(self.path.parent)
        if self.path.is_symlink() and not self.path.exists():
            raise NotADirectoryError(errno.ENOTDIR, "it is a link to nothing")
        return os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def idle(self) -> bool:
        """Whether no run holds this export; nothing is created."""
        try:
            fd = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
        return True

    def present(self) -> bool:
        """Whether the directory that was locked is still there."""
        return self._lock is not None and self._same_file(self._lock)

    def sweep(self) -> None:
        """Remove what a killed process was removing."""
        for gone in self.path.parent.glob(f".{self.path.name}.*.gone"):
            with contextlib.suppress(FileNotFoundError):
                fs.remove_tree(gone)

    def _same_file(self, fd: int) -> bool:
        try:
            on_disk = os.stat(self.path / "lock")
        except FileNotFoundError:
            return False
        mine = os.fstat(fd)
        return (on_disk.st_dev, on_disk.st_ino) == (mine.st_dev, mine.st_ino)

    def release(self) -> None:
        """Let go of the lock, and drop what was begun and not finished in a directory of this process's own."""
        for name in list(self._mine):
            self._drop(name)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def remove(self) -> None:
        """Remove the directory, the lock last, and release it.

        When it is shared it goes in one step, lest another process makes something in what is being removed.
        """
        if self.shared:
            if Staging.present(self):  # here, wherever else it may be gone from
                gone = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex[:12]}.gone")
                with contextlib.suppress(FileNotFoundError):  # another process is doing the same
                    os.rename(self.path, gone)
                    fs.remove_tree(gone)
            self.release()
            return
        for p in sorted(self.path.iterdir()):
            if p.name != "lock":
                fs.remove_tree(p)
        (self.path / "lock").unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()  # unless a run that was waiting has begun in it
        self.release()

    def stage_dir(self, name: str) -> Path:
        """Where a stage lies. `name`: the pair of a cut, or the pair and a stage of a block, `v1-v2/knn-2000-0`."""
        return self.path / ("blocks" if "/" in name else "cuts") / name

    def untouched(self) -> bool:
        """Whether nothing has been begun here."""
        return {p.name for p in self.path.iterdir()} <= {"lock"}

    def discard_blocks(self, pair: str) -> None:
        """Remove the stages of a cut's blocks, when the cut is finished."""
        if (blocks := self.path / "blocks" / pair).exists():
            with contextlib.suppress(FileNotFoundError):  # another process is doing the same
                fs.remove_tree(blocks)

    def restore(self, name: str, key: Mapping[str, Any]) -> tuple[Stage | None, str | None]:
        """The finished stage, or None and why it cannot be used (None when it was never finished)."""
        return verify(self.stage_dir(name), key)

    def begin(self, name: str) -> tuple[Path, int]:
        """An empty directory for a stage that is to be computed, and which attempt this is.

        It is the stage's own, or when the lock is shared one for this process alone, which `finish` moves into place.
        """
        directory = self._alone(name) if self.shared else self.stage_dir(name)
        attempt = 1
        counter = self.path / "attempts" / name.replace("/", ".")
        if counter.is_file():
            text = counter.read_text(errors="replace").strip()
            attempt = int(text) + 1 if text.isdigit() else 1
        _mkdirs(self.path, counter.parent)
        if not self.shared:
            fs.remove_tree(directory)
            _mkdirs(self.path, directory)
        fs.write_file(counter, str(attempt).encode())
        return directory, attempt

    def finish(
        self, name: str, key: Mapping[str, Any], files: Mapping[str, FileInfo], result: Mapping[str, Any], attempt: int,
        software: str,
    ) -> Stage:  # fmt: skip
        """Write the marker of a stage whose files are all in place."""
        final = self.stage_dir(name)
        directory = self._mine[name][0] if self.shared else final
        result = json.loads(json.dumps(result, allow_nan=False))  # as a later run will read it
        marker = {
            "key": digest(key),
            "document": key,
            "files": {which: asdict(info) for which, info in files.items()},
            "result": result,
            "attempt": attempt,
            "software": software,
        }
        fs.fsync_dir(directory)
        if not self.shared:
            fs.fsync_dir(directory.parent)
            self.guard()
        # not canonical: the order of the counts is that of the manifest
        text = json.dumps({**marker, "check": digest(marker)}, separators=(",", ":"), allow_nan=False).encode()
        self._publish(name, directory, files, text)
        fs.write_file(directory / MARKER, text)
        if self.shared:
            return self._move(name, directory, key, self.guard) or Stage(final, files, result)
        return Stage(final, files, result)

    def _publish(self, name: str, directory: Path, files: Mapping[str, FileInfo], marker: bytes) -> None:
        """Where other machines are to see a stage, make it known to them before its marker is written here."""

    def _alone(self, name: str) -> Path:
        """A new directory below `open/`, locked; what processes that are gone have left there is removed."""
        self._drop(name)
        place = self.path / "open"
        _mkdirs(self.path, place)
        for p in place.iterdir():
            fs.remove_abandoned(p)
        self._mine[name] = fs.own_dir(place, name.replace("/", "-") + ".")
        return self._mine[name][0]

    def _drop(self, name: str) -> None:
        directory, fd = self._mine.pop(name, (None, -1))
        if directory is not None:
            with contextlib.suppress(OSError):
                fs.remove_tree(directory)
            os.close(fd)

    def _move(self, name: str, directory: Path, key: Mapping[str, Any], guard: Callable[[], None]) -> Stage | None:
        """Give a whole stage its place, unless another process has put one there, which is returned."""
        final = self.stage_dir(name)
        _mkdirs(self.path, final.parent)
        while True:
            guard()
            try:
                os.rename(directory, final)
            except OSError as e:
                if e.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            else:
                fs.fsync_dir(final.parent)
                os.close(self._mine.pop(name)[1])
                return None
            stage, _ = verify(final, key)
            if stage is not None:
                self._drop(name)
                return stage
            with contextlib.suppress(FileNotFoundError):
                gone = self.path / "open" / f"gone.{uuid.uuid4().hex[:12]}"
                os.rename(final, gone)
                fs.remove_tree(gone)


def _mkdirs(base: Path, path: Path) -> None:
    """`path` and what is between it and `base`, which must exist: a directory that was removed is not made again."""
    if path != base and not path.is_dir():
        _mkdirs(base, path.parent)
        path.mkdir(exist_ok=True)
        fs.fsync_dir(path.parent)


def verify(directory: Path, key: Mapping[str, Any]) -> tuple[Stage | None, str | None]:
    """Read the marker of a stage and check it and every file it names."""
    if not directory.exists():
        return None, None
    marker = read_marker(directory)
    if marker is None:
        return None, "it was interrupted before its marker was written" if not (
            directory / MARKER
        ).exists() else "its marker is damaged"
    if marker["key"] != digest(key):
        changed = ", ".join(changes(marker["document"], key)) or "the key"
        return None, f"it was made from something else: {changed}"
    try:
        files = {which: FileInfo(**{**f, "digests": tuple(f["digests"])}) for which, f in marker["files"].items()}
    except (TypeError, KeyError):
        return None, "its marker is of another version of PROTEA"
    for info in files.values():
        path = directory / info.name
        if not path.is_file():
            return None, f"{info.name} is missing"
        if path.stat().st_size != info.size:
            return None, f"{info.name} has {path.stat().st_size} bytes, not {info.size}"
        if fs.sha256_file(path) != info.sha256:
            return None, f"{info.name} is damaged (another SHA-256)"
    return Stage(directory, files, marker["result"]), None


def read_marker(directory: Path) -> dict[str, Any] | None:
    """The marker of a stage, or None when it is missing, unreadable or not what was written."""
    try:
        return parse_marker((directory / MARKER).read_bytes())
    except OSError:
        return None


def parse_marker(data: bytes) -> dict[str, Any] | None:
    """A marker from its bytes, or None when they are not what was written."""
    try:
        marker = json.loads(data)
        check = marker.pop("check")
        return marker if check == digest(marker) else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def changes(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What differs between two key documents, as `path: old -> new`."""
    out = []
    for k in sorted({*old, *new}):
        a, b = old.get(k), new.get(k)
        if isinstance(a, dict) and isinstance(b, dict):
            out += changes(a, b, f"{prefix}{k}.")
        elif a != b:
            out.append(f"{prefix}{k}: {_short(a)} -> {_short(b)}")
    return out


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:12] + "…" if len(text) == 64 and isinstance(value, str) else text
