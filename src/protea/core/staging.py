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
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import BusyError, StorageError
from . import fs
from .parquet_export import FileInfo

MARKER = "done.json"


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
    """The staging directory of one export, locked for one run at a time.

    The lock is the kernel's: it goes with the process that holds it, however that dies.
    """

    def __init__(self, base: Path, name: str, fingerprint: str) -> None:
        self.path = base / f"{name}-{fingerprint[:12]}"
        self._lock: int | None = None

    def acquire(self, *, wait: bool = False, waiting: Callable[[str], None] | None = None) -> None:
        """Take the lock; BusyError naming the holder if another run has it (or wait for it)."""
        told = False
        while True:
            try:
                fd = self._open()
            except FileNotFoundError:
                continue  # another run has just finished and removed the directory
            except OSError as e:
                raise StorageError(f"{self.path}: the staging directory cannot be used: {e.strerror}") from None
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not self._same_file(fd):
                    os.close(fd)  # the directory was removed between opening and locking
                    continue
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
            except BlockingIOError:
                holder = os.pread(fd, 200, 0).decode(errors="replace").strip()
                os.close(fd)
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
                raise StorageError(f"{self.path}: the staging directory cannot be locked: {e.strerror}") from None
            self._lock = fd
            return

    def _open(self) -> int:
        """The lock file, opened; FileNotFoundError when the directory is removed meanwhile."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # not exist_ok: the directory may come and go
            self.path.mkdir()
        if self.path.is_symlink() and not self.path.exists():
            raise NotADirectoryError(errno.ENOTDIR, "it is a link to nothing")
        return os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

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

    def _same_file(self, fd: int) -> bool:
        try:
            on_disk = os.stat(self.path / "lock")
        except FileNotFoundError:
            return False
        mine = os.fstat(fd)
        return (on_disk.st_dev, on_disk.st_ino) == (mine.st_dev, mine.st_ino)

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def remove(self) -> None:
        """Remove the directory, the lock last, and release it."""
        for p in sorted(self.path.iterdir()):
            if p.name != "lock":
                fs.remove_tree(p)
        (self.path / "lock").unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()  # unless a run that was waiting has begun in it
        self.release()

    def stage_dir(self, name: str) -> Path:
        return self.path / "cuts" / name

    def restore(self, name: str, key: Mapping[str, Any]) -> tuple[Stage | None, str | None]:
        """The finished stage, or None and why it cannot be used (None when it was never finished)."""
        return verify(self.stage_dir(name), key)

    def begin(self, name: str) -> tuple[Path, int]:
        """An empty directory for a stage that is to be computed, and which attempt this is."""
        directory = self.stage_dir(name)
        attempt = 1
        counter = self.path / "attempts" / name
        if counter.is_file():
            text = counter.read_text(errors="replace").strip()
            attempt = int(text) + 1 if text.isdigit() else 1
        counter.parent.mkdir(exist_ok=True)
        fs.remove_tree(directory)
        directory.mkdir(parents=True)
        fs.write_file(counter, str(attempt).encode())
        return directory, attempt

    def finish(
        self, name: str, key: Mapping[str, Any], files: Mapping[str, FileInfo], result: Mapping[str, Any], attempt: int,
        software: str,
    ) -> Stage:  # fmt: skip
        """Write the marker of a stage whose files are all in place."""
        directory = self.stage_dir(name)
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
        fs.fsync_dir(directory.parent)
        # not canonical: the order of the counts is that of the manifest
        text = json.dumps({**marker, "check": digest(marker)}, separators=(",", ":"), allow_nan=False)
        fs.write_file(directory / MARKER, text.encode())
        return Stage(directory, files, result)


def verify(directory: Path, key: Mapping[str, Any]) -> tuple[Stage | None, str | None]:
    """Read the marker of a stage and check it and every file it names."""
    if not directory.exists():
        return None, None
    marker = read_marker(directory)
    if marker is None:
        return None, "its marker is missing" if not (directory / MARKER).exists() else "its marker is damaged"
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
        marker = json.loads((directory / MARKER).read_bytes())
        check = marker.pop("check")
        return marker if check == digest(marker) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
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
