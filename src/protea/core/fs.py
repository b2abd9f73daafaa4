"""The few file-system operations that commit anything: temporary names, fsync, rename, remove.

Everything that must survive a kill at any instant goes through here, so that there is one place to test.
Called by staging, the object store and publication.
"""

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from ..errors import StorageError


class _File(io.RawIOBase):
    """A new file for writing. Its errors name it. It has no `fileno`, so that nobody writes past it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        try:
            return os.write(self._fd, data)
        except OSError as e:
            raise OSError(e.errno, e.strerror, str(self.path)) from None

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
            finally:
                os.close(self._fd)


def create(path: Path) -> BinaryIO:
    """A new, empty file, opened for writing; all that is ever committed is written through this. Close it."""
    return cast(BinaryIO, io.BufferedWriter(_File(path), 1 << 16))


def fsync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_dir(path: Path) -> None:
    """Make the entries of a directory durable; a no-op where directories cannot be opened."""
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except OSError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_dirs(path: Path) -> None:
    """Make a directory and those above it that are missing, and make their names durable."""
    if not path.is_dir():
        make_dirs(path.parent)
        path.mkdir(exist_ok=True)
        fsync_dir(path.parent)


def commit_file(tmp: Path, final: Path) -> None:
    """fsync `tmp`, give it its final name (same directory) and make the name durable."""
    fsync_file(tmp)
    os.replace(tmp, final)
    fsync_dir(final.parent)


def write_file(path: Path, data: bytes) -> None:
    """Write a small file so that it is there whole, or not at all."""
    tmp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with create(tmp) as f:
        f.write(data)
    commit_file(tmp, path)


def commit_dir(tmp: Path, final: Path) -> None:
    """fsync every file of `tmp` and give the directory its final name (same file system; `final` must not exist)."""
    for p in sorted(tmp.rglob("*")):
        if p.is_dir():
            fsync_dir(p)
        else:
            fsync_file(p)
    fsync_dir(tmp)
    os.rename(tmp, final)
    fsync_dir(final.parent)


def remove_tree(path: Path) -> None:
    """Remove a directory or file if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path` (made if it is not there, and left there), waiting for it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _flock(directory: Path) -> int:
    """The directory, opened and locked; BlockingIOError when another process holds it."""
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd


def own_dir(parent: Path, start: str, end: str = "") -> tuple[Path, int]:
    """A new directory `<start><12 hex digits><end>` in `parent`, and the descriptor that locks it until it is closed."""
    while True:
        directory = parent / f"{start}{uuid.uuid4().hex[:12]}{end}"
        directory.mkdir()
        with contextlib.suppress(BlockingIOError, FileNotFoundError):  # swept before it was locked: another one then
            fd = _flock(directory)
            if directory.exists():
                return directory, fd
            os.close(fd)


def abandoned(directory: Path) -> bool:
    """Whether the process that made a directory of `own_dir` is gone."""
    with contextlib.suppress(BlockingIOError, FileNotFoundError):
        os.close(_flock(directory))
        return True
    return False


def remove_abandoned(directory: Path) -> None:
    """Remove a directory of `own_dir` if the process that made it is gone."""
    with contextlib.suppress(BlockingIOError, FileNotFoundError):
        fd = _flock(directory)
        try:
            remove_tree(directory)
        finally:
            os.close(fd)


def advice(error: OSError) -> str | None:
    """What to do about a file system that refuses."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "free some disk space"
    if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
        return "it must lie on a file system with locks (flock)"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return "it must be writable"
    return None


class one_line_errors:
    """Turns a failing file system into one line: what happened, and where."""

    def __init__(self, where: Path) -> None:
        self.where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, ConnectionError):  # a pipe that nobody reads is no disk
            raise StorageError(
                f"{error.filename or self.where}: {error.strerror or error}",
                hint="; ".join(
                    [*([told] if (told := advice(error)) else []), "what was finished is kept; run it again"]
                ),
            ) from error


def sha256_file(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
