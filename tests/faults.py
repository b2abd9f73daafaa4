"""A disk that fails: counts the calls of `os` that change anything below a directory, and at the n-th one does its worst.

Installed in a forked child. Everything that PROTEA commits passes here: `core/fs.py` writes through `os.write`, and the
rest are renames, removals and fsyncs of `os`. What is not fsynced is known, so that a power cut can be played: of a file
the contents at its last fsync are left, of a directory the names at its last fsync.

exit     the process ends before the operation
enospc   this and all later operations that need room fail
eio      this operation fails, once
short    half of a write is written, then as enospc
torn     half of a write is written, then the process ends
lost     the power goes before the operation: nothing that was not fsynced is left
zeroed   likewise, but all names are as they were last, and what was not fsynced of the contents is gone
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

KINDS = ("exit", "enospc", "eio", "short", "torn", "lost", "zeroed")
ENDS = ("exit", "torn", "lost", "zeroed")
"""The kinds after which the process is gone."""
KILLED = 113
_ROOM = ("create", "mkdir", "write", "fsync")
_REPLACED = ("open", "write", "pwrite", "fsync", "mkdir", "rmdir", "unlink", "rename", "replace")
Key = tuple[int, int]


def concerns(kind: str, operation: str, halves: bool) -> bool:
    """Whether a fault of this kind can befall an operation; `halves`: half of it can be done."""
    return halves if kind in ("short", "torn") else operation in _ROOM if kind == "enospc" else True


class Disk:
    """What becomes of the operations below `root`. `told(operation, path)` is called when the fault fires."""

    def __init__(self, root: Path, kind: str, n: int, told: Callable[[str, str], None]) -> None:
        self.root, self.kind, self.n, self.told = os.path.realpath(root), kind, n, told
        self.count, self.full = 0, False
        self.counts = dict.fromkeys(KINDS, 0)
        """How many operations there were for each kind of fault."""
        self.real = {name: getattr(os, name) for name in _REPLACED}
        self.files: dict[Key, bytes] = {}
        self.names: dict[Key, dict[str, tuple[Key, bool]]] = {}
        self.held: dict[Key, int] = {}
        if kind in ("lost", "zeroed"):
            self._all_durable(self.root)

    def install(self) -> None:
        """For good: only a child calls this."""
        os.open, os.write, os.fsync = self._open, self._write, self._fsync  # type: ignore[assignment]
        os.pwrite = self._pwrite  # type: ignore[assignment]
        for name, operation in (("mkdir", "mkdir"), ("rmdir", "rmdir"), ("unlink", "unlink")):
            setattr(os, name, self._one(name, operation))
        os.remove = os.unlink
        for name in ("rename", "replace"):
            setattr(os, name, self._one(name, "rename"))

    def step(self, operation: str, path: str = "", half: Callable[[], None] | None = None) -> None:
        """One operation is about to happen."""
        if self.full and operation in _ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        for kind in KINDS:
            self.counts[kind] += concerns(kind, operation, half is not None)
        if not concerns(self.kind, operation, half is not None):
            return
        self.count += 1
        if self.count != self.n:
            return
        self.told(operation, path)
        if half is not None and self.kind in ("short", "torn"):
            half()
        if self.kind in ("lost", "zeroed"):
            self._power_cut()
        if self.kind in ENDS:
            os._exit(KILLED)
        if self.kind in ("enospc", "short"):
            self.full = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    # ------------------------------------------------------------------------------------------------------ the operations

    def _below(self, path: Any, dir_fd: int | None = None) -> str | None:
        """The path if it is below the root."""
        if isinstance(path, int):
            return None
        name = os.fspath(path)
        if dir_fd is not None:
            name = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), name)
        name = os.path.abspath(name)
        return name if name.startswith(self.root + "/") else None

    def _of(self, fd: int) -> str | None:
        try:
            name = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            return None
        return name if f"{name}/".startswith(f"{self.root}/") else None

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        where = self._below(path, dir_fd) if flags & os.O_CREAT else None
        if where and not os.path.exists(where):
            self.step("create", where)
        return self.real["open"](path, flags, mode, dir_fd=dir_fd)

    def _write(self, fd: int, data: Any) -> int:
        where = self._of(fd)
        if where:
            view = memoryview(data).cast("B")
            self.step("write", where, lambda: self.real["write"](fd, view[: len(view) // 2]))
        return self.real["write"](fd, data)

    def _pwrite(self, fd: int, data: bytes, offset: int) -> int:
        if where := self._of(fd):
            self.step("write", where)
        return self.real["pwrite"](fd, data, offset)

    def _fsync(self, fd: int) -> None:
        where = self._of(fd)
        if where:
            self.step("fsync", where)
            if self.kind in ("lost", "zeroed"):
                self._durable(where, fd)

    def _one(self, name: str, operation: str) -> Callable[..., Any]:
        real = self.real[name]

        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            where = self._below(path, kwargs.get("dir_fd", kwargs.get("src_dir_fd")))
            if where and not (operation == "mkdir" and os.path.exists(where)):
                self.step(operation, where)
            return real(path, *args, **kwargs)

        return call

    # --------------------------------------------------------------------------------------------- what is durable

    def _key(self, path: str) -> Key:
        s = os.lstat(path)
        key = (s.st_dev, s.st_ino)
        if key not in self.held:  # so that its number is not given to another file
            self.held[key] = self.real["open"](path, os.O_RDONLY)
        return key

    def _durable(self, path: str, fd: int | None = None) -> None:
        """The state of this file or directory survives from now on."""
        real = f"/proc/self/fd/{fd}" if fd is not None else path
        s = os.stat(real)
        key = (s.st_dev, s.st_ino)
        if key not in self.held:
            self.held[key] = self.real["open"](real, os.O_RDONLY)
        if os.path.isdir(real):
            self.names[key] = {e.name: (self._key(e.path), e.is_dir()) for e in os.scandir(real)}
        else:
            with open(real, "rb") as f:
                self.files[key] = f.read()

    def _all_durable(self, path: str) -> None:
        self._durable(path)
        if os.path.isdir(path):
            for e in os.scandir(path):
                self._all_durable(e.path)

    def _power_cut(self) -> None:
        if self.kind == "zeroed":
            for folder, _, names in os.walk(self.root):
                for name in names:
                    path = os.path.join(folder, name)
                    kept = self.files.get(self._key(path), b"")
                    if Path(path).read_bytes() != kept:
                        Path(path).write_bytes(kept)
            return
        new = f"{self.root}.new"
        self._rebuild(self._key(self.root), new)
        self.real["rename"](self.root, f"{self.root}.gone")
        self.real["rename"](new, self.root)

    def _rebuild(self, key: Key, to: str) -> None:
        self.real["mkdir"](to)
        for name, (child, is_dir) in self.names.get(key, {}).items():
            path = os.path.join(to, name)
            if is_dir:
                self._rebuild(child, path)
            else:
                Path(path).write_bytes(self.files.get(child, b""))
