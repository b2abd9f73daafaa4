"""Alignment statistics kept between exports: a directory of immutable sorted segments, found by content.

Called by `core/alignment.py`; calls numpy and `core/fs.py`. The directory is `<home>/storage/alignments/`.

A row is 16 bytes of key (both sequences' digests, the scoring and the kernel's version, mixed) and the ten integers.
Each insert writes one segment under a temporary name and renames it, so writers in any number of processes need no
lock, a killed one leaves nothing but a temporary file, and readers map whole files. Look-up and insert are a sort and a
binary search over arrays, 0.1 s each for 300,000 pairs; SQLite, with its objects a row, took 1.1 and 2.0 s. Every row has
a check sum; a segment with a bad row among those asked for is renamed away (`last.damaged`, one is kept) and its pairs
are computed again. A segment's modification time is its last use: past `max_bytes` the least recently used are dropped;
many small ones are merged.

Nothing here ever raises for the state of the disk: `problems` says in one line each what went wrong.
"""

import contextlib
import fcntl
import hashlib
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from protea.core.fs import commit_file, create

U64 = npt.NDArray[np.uint64]
I32 = npt.NDArray[np.int32]

VALUES = 10
_MAGIC = b"PROTEA-ALIGN-1\r\n"
_HEADER = len(_MAGIC) + 8
_ROW = 16 + 4 * VALUES + 4
_MANY = 24  # segments; each costs a look-up one binary search
_STALE = 3600.0  # seconds after which a temporary file has no writer


def _mixed(x: U64) -> U64:
    """The finaliser of splitmix64: a bijection in which every bit depends on every bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def pair_keys(first: U64, second: U64, scoring: str) -> U64:
    """uint64[n, 2] keys of pairs of sequence digests uint64[n, 2]; `scoring` names whatever else decides the values."""
    seeds = np.frombuffer(hashlib.blake2b(scoring.encode(), digest_size=16).digest(), np.uint64)
    keys = np.empty((len(first), 2), np.uint64)
    for half in range(2):
        state = np.full(len(first), seeds[half])
        for digest in (first, second):
            for word in range(2):
                state = _mixed(state ^ digest[:, word])
        keys[:, half] = state
    return keys


def _checks(keys: U64, values: I32) -> npt.NDArray[np.uint32]:
    total = _mixed(keys[:, 0] ^ _mixed(keys[:, 1]))
    for column in range(VALUES):
        total = (total ^ values[:, column].astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        total ^= total >> np.uint64(29)
    return (total >> np.uint64(32)).astype(np.uint32)


class _Segment:
    """One mapped file: `heads` uint64[n] ascending (first halves of the keys), `tails`, `values`, `checks`."""

    def __init__(self, path: Path) -> None:
        raw = np.memmap(path, np.uint8, "r")
        rows = (len(raw) - _HEADER) // _ROW
        if len(raw) < _HEADER or raw[: len(_MAGIC)].tobytes() != _MAGIC or len(raw) != _HEADER + rows * _ROW:
            raise ValueError("its size or its first bytes are wrong")
        if int(raw[len(_MAGIC) : _HEADER].view(np.uint64)[0]) != rows:
            raise ValueError("its number of rows is wrong")
        at = np.cumsum([_HEADER, 8 * rows, 8 * rows, 4 * VALUES * rows, 4 * rows])
        self.path = path
        self.heads = raw[at[0] : at[1]].view(np.uint64)
        self.tails = raw[at[1] : at[2]].view(np.uint64)
        self.values = raw[at[2] : at[3]].view(np.int32).reshape(rows, VALUES)
        self.checks = raw[at[3] : at[4]].view(np.uint32)

    def rows(self, at: npt.NDArray[np.int64] | slice) -> tuple[U64, I32]:
        """Keys and values of some rows. Raises ValueError when one is not what was written."""
        keys = np.stack([self.heads[at], self.tails[at]], axis=1)
        values = np.asarray(self.values[at])
        if not np.array_equal(_checks(keys, values), self.checks[at]):
            raise ValueError("a check sum is wrong")
        return keys, values


class AlignmentCache:
    """Alignment statistics by pair key, in the directory `path`, of at most about `max_bytes` (60 a pair)."""

    def __init__(self, path: Path, max_bytes: int = 2 << 30) -> None:
        self.path = Path(path)
        self.max_bytes = max_bytes
        self.problems: list[str] = []
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._problem(f"alignments cannot be kept in {self.path}: {error.strerror}")

    def lookup(self, keys: U64) -> tuple[npt.NDArray[np.bool_], I32]:
        """(found bool[n], values int32[n, 10]) of keys uint64[n, 2]; values of what is not found are 0."""
        found = np.zeros(len(keys), np.bool_)
        values = np.zeros((len(keys), VALUES), np.int32)
        order = np.argsort(keys[:, 0])  # neighbouring look-ups share pages
        for path in self._newest_first():
            if not len(order):
                break
            segment = self._open(path)
            if segment is None or not len(segment.heads):
                continue
            wanted = keys[order]
            at = np.minimum(np.searchsorted(segment.heads, wanted[:, 0]), len(segment.heads) - 1)
            hit = (segment.heads[at] == wanted[:, 0]) & (segment.tails[at] == wanted[:, 1])
            if not hit.any():
                continue
            try:
                _, kept = segment.rows(at[hit])
            except ValueError as error:
                self._discard(path, error)
                continue
            values[order[hit]] = kept
            found[order[hit]] = True
            order = order[~hit]
            with contextlib.suppress(OSError):
                os.utime(path)
        return found, values

    def insert(self, keys: U64, values: I32) -> None:
        """Keep values int32[n, 10] under keys uint64[n, 2]."""
        room = max(1, self.max_bytes // 8 // _ROW)
        try:
            for start in range(0, len(keys), room):
                self._write(keys[start : start + room], values[start : start + room])
            self._tidy()
        except OSError as error:
            self._problem(f"alignments cannot be kept in {self.path}: {error.strerror}")

    def unused(self, before: float) -> list[Path]:
        """Segments that nobody has read since the time `before` (as of `time.time`), stale temporaries, and what was set
        aside as damaged."""
        found = []
        for path in [*self._newest_first(), *self.path.glob("*.tmp"), *self.path.glob("*.damaged")]:
            with contextlib.suppress(OSError):
                limit = before if path.suffix == ".segment" else time.time() - _STALE
                if path.stat().st_mtime < limit:
                    found.append(path)
        return found

    def drop(self, paths: Iterable[Path]) -> list[Path]:
        """Remove files of the cache, unless another process is tidying it; which went."""
        gone = []
        with self._alone() as alone:
            for path in paths if alone else ():
                path.unlink(missing_ok=True)  # who has it mapped keeps it
                gone.append(path)
        return gone

    def _problem(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)

    def _newest_first(self) -> list[Path]:
        def used(path: Path) -> float:
            try:
                return path.stat().st_mtime
            except OSError:  # dropped or merged by another process meanwhile
                return 0.0

        try:
            return sorted((p for p in self.path.iterdir() if p.suffix == ".segment"), key=used, reverse=True)
        except OSError:
            return []

    def _open(self, path: Path) -> _Segment | None:
        try:
            return _Segment(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._problem(f"{path} cannot be read: {error.strerror}")
        except ValueError as error:
            self._discard(path, error)
        return None

    def _discard(self, path: Path, why: Exception) -> None:
        self._problem(f"{path} is damaged ({why}); it was set aside and its alignments are computed again")
        with contextlib.suppress(OSError):
            os.replace(path, path.with_name("last.damaged"))

    def _write(self, keys: U64, values: I32, used: float | None = None) -> None:
        _, order = np.unique(keys[:, 0], return_index=True)
        keys, values = keys[order], np.ascontiguousarray(values[order], np.int32)
        name = uuid.uuid4().hex
        temporary = self.path / f"{name}.tmp"
        try:
            with create(temporary) as file:
                file.write(_MAGIC + len(keys).to_bytes(8, "little"))
                for part in (keys[:, 0], keys[:, 1], values, _checks(keys, values)):
                    file.write(np.ascontiguousarray(part).data)
            if used is not None:
                os.utime(temporary, (used, used))
            commit_file(temporary, self.path / f"{name}.segment")
        finally:
            temporary.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether this process is the one that tidies; never waits."""
        with (self.path / "lock").open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def _tidy(self) -> None:
        """Drop what is least recently used beyond `max_bytes`, and stale temporaries; merge small segments."""
        with self._alone() as alone:
            if not alone:
                return
            for path in self.path.glob("*.tmp"):
                with contextlib.suppress(OSError):
                    if time.time() - path.stat().st_mtime > _STALE:
                        path.unlink()
            total, small = 0, []
            segments = self._newest_first()
            for path in segments:
                with contextlib.suppress(OSError):
                    size = path.stat().st_size
                    total += size
                    if total > self.max_bytes:
                        path.unlink()
                    elif size <= self.max_bytes // 32:
                        small.append(path)
            if len(segments) > _MANY:
                # Neighbours in age, at most 32 of at most 1/32 of the room each, and few enough to load.
                for start in range(0, len(small), 8):
                    self._merge(small[start : start + 8])

    def _merge(self, paths: list[Path]) -> None:
        parts, merged = [], []
        for path in paths:
            segment = self._open(path)
            if segment is not None:
                try:
                    parts.append(segment.rows(slice(None)))
                    merged.append(path)
                except ValueError as error:
                    self._discard(path, error)
        if len(merged) > 1:
            used = merged[0].stat().st_mtime
            self._write(np.concatenate([k for k, _ in parts]), np.concatenate([v for _, v in parts]), used)
            for path in merged:
                path.unlink(missing_ok=True)
