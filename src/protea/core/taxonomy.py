"""The NCBI taxonomy (taxdump) as three Arrow tables: the tree, the merged ids, the deleted ids.

Called by ingest and inspect; calls textio. A taxdump is a directory or a tar archive, gzipped or not, with nodes.dmp
and, where there are any, merged.dmp and delnodes.dmp; each may be gzipped too.
"""

import tarfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numba import njit

from protea.core import fs
from protea.core.textio import HashingReader, blocks, is_directory, open_text
from protea.errors import InputError, StorageError

_FILES = {"nodes.dmp": ("tax_id", "parent"), "merged.dmp": ("old", "new"), "delnodes.dmp": ("tax_id",)}
MAX_HEADER = 1 << 20
"""Bytes of a long name or of extended headers in a tar archive."""
_HINT = "give the directory of an NCBI taxdump, or taxdump.tar.gz"


@dataclass(frozen=True, eq=False)
class Taxonomy:
    """The tables of a taxdump: int32 columns, sorted by the first one, which is distinct.

    The parent of the one root is the root itself; every other parent is a node, and every node reaches the root. No
    merged id leads to itself; what one leads to need not be a node.
    """

    nodes: pa.Table  # tax_id, parent
    merged: pa.Table  # old, new
    deleted: pa.Table  # tax_id

    def save(self, directory: Path) -> None:
        """Write nodes.parquet, merged.parquet and deleted.parquet; the same tables give the same bytes."""
        for name in ("nodes", "merged", "deleted"):
            with fs.create(directory / f"{name}.parquet") as f:
                pq.write_table(getattr(self, name), f, compression="zstd")

    @classmethod
    def load(cls, directory: Path) -> "Taxonomy":
        """Read what `save` wrote. Errors: StorageError when a file is missing or damaged."""
        try:
            return cls(*(pq.read_table(directory / f"{n}.parquet") for n in ("nodes", "merged", "deleted")))
        except (OSError, pa.ArrowException) as e:
            raise StorageError(f"{directory}: the stored taxonomy cannot be read: {e}", hint="load it again") from e


@dataclass
class TaxReport:
    """What a taxdump holds."""

    sha256: dict[str, str]  # of the uncompressed bytes, by the name of the file
    nodes: int
    merged: int
    deleted: int
    max_depth: int  # nodes of the longest lineage, from the root on
    merged_to_nowhere: int  # merged ids that lead to no node
    missing: list[str]  # files that are not there; empty tables stand for them

    def to_json(self) -> dict:
        return asdict(self)


def read_taxdump(path: str | Path, progress: Callable[[int], None] | None = None) -> tuple[Taxonomy, TaxReport]:
    """Read a taxdump; `progress` is given the bytes read so far, as they lie on disk.

    Errors (InputError, with the line where there is one): no nodes.dmp, the same file twice, a line that does not begin
    with the ids it should, an id with two parents or two successors, a parent that is no node, no or several roots, a
    cycle; and those of textio.
    """
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    sha256: dict[str, str] = {}
    for name, reader in _members(Path(path), progress):
        if name in found:
            raise InputError(f"{path} holds {name} twice", hint="keep one of them")
        found[name] = _distinct(reader.name, *_read(reader, len(_FILES[name])))
        sha256[name] = reader.sha256
    if "nodes.dmp" not in found:
        raise InputError(f"{path} holds no nodes.dmp", hint=_HINT)
    empty = np.empty((0, 2), np.int64), np.empty(0, np.int64)
    nodes, lines = found["nodes.dmp"]
    if not len(nodes):
        raise InputError(f"{path}, nodes.dmp: it is empty", hint=_HINT)
    merged, deleted = (found.get(n, empty)[0] for n in ("merged.dmp", "delnodes.dmp"))
    ids, parents = nodes.T
    up = _position(ids, parents)
    if (lost := np.flatnonzero(up < 0)).size:
        i = lost[np.argmin(lines[lost])]
        raise InputError(f"{path}, nodes.dmp, line {lines[i]}: the parent {parents[i]} of {ids[i]} is no node")
    roots = ids[ids == parents]
    # Without any root everything ends in a cycle, which is then what is named.
    if len(roots) > 1:
        raise InputError(
            f"{path}, nodes.dmp: {len(roots)} roots (their own parents), such as {roots[0]} and {roots[1]}"
        )
    depth = _check_acyclic(f"{path}, nodes.dmp", ids, np.where(ids == parents, -1, up))
    _check_acyclic(f"{path}, merged.dmp", merged[:, 0], _position(merged[:, 0], merged[:, 1]))
    tables = [_table(rows, _FILES[n]) for n, rows in zip(_FILES, (nodes, merged, deleted), strict=True)]
    report = TaxReport(
        sha256=dict(sorted(sha256.items())),
        nodes=len(nodes),
        merged=len(merged),
        deleted=len(deleted),
        max_depth=int(depth.max()),
        merged_to_nowhere=_count_lost(ids, merged),
        missing=[n for n in _FILES if n not in found],
    )
    return Taxonomy(*tables), report


class _Header(tarfile.TarInfo):
    """A member's header, checked before tarfile reads all of a long name or of extended headers into memory."""

    @classmethod
    def frombuf(cls, buf, encoding, errors):
        found = super().frombuf(buf, encoding, errors)
        if not (found.isreg() or found.isdir()) and not 0 <= found.size <= MAX_HEADER:
            raise tarfile.ReadError(f"a header of {found.size:,} bytes")
        return found


def _members(path: Path, progress: Callable[[int], None] | None) -> Iterator[tuple[str, HashingReader]]:
    """(name as in _FILES, its reader) of the files of a taxdump that are ours, one after the other."""
    if is_directory(path):
        done = 0
        for name in _FILES:
            for file in (path / name, path / f"{name}.gz"):
                if file.exists():
                    with open_text(file) as reader:
                        yield name, reader
                        done += reader.consumed
                    if progress:
                        progress(done)
        return
    with open_text(path) as archive:
        try:
            with tarfile.open(fileobj=archive, mode="r|", tarinfo=_Header) as tar:
                for member in tar:
                    tar.members.clear()  # type: ignore[attr-defined]  # it keeps a list of what has passed
                    name = Path(member.name).name.removesuffix(".gz")
                    if name in _FILES and (raw := tar.extractfile(member)) is not None:
                        with HashingReader(raw, f"{path}, {name}") as reader:  # type: ignore[arg-type]  # reads bytes
                            yield name, reader
                    if progress:
                        progress(archive.consumed)
        except (tarfile.TarError, RecursionError, ValueError, OverflowError) as e:
            raise InputError(f"{path} is no tar archive, or a damaged one: {e}", hint=_HINT) from e


def _read(reader: HashingReader, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """(int64[n, columns], int64[n] line numbers) of the first columns of a .dmp file."""
    parts, line = [], 1
    for block in blocks(reader):
        values, lines, end = _ids(np.frombuffer(block, np.uint8), columns, line)
        if end < 0:
            what = "two tax ids" if columns == 2 else "a tax id"
            raise InputError(f"{reader.name}, line {-end}: does not begin with {what} and |", hint=_HINT)
        parts.append((values, lines))
        line = end
    if not parts:
        return np.empty((0, columns), np.int64), np.empty(0, np.int64)
    return np.concatenate([v for v, _ in parts]), np.concatenate([n for _, n in parts])


def _distinct(name: str, rows: np.ndarray, lines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows sorted by the first column, repeated ones once. InputError when they differ."""
    order = np.argsort(rows[:, 0], kind="stable")
    rows, lines = rows[order], lines[order]
    again = np.append(False, rows[1:, 0] == rows[:-1, 0])[: len(rows)]
    differs = np.flatnonzero(again[1:] & (rows[1:] != rows[:-1]).any(axis=1))
    if differs.size:
        i = differs[0]
        raise InputError(
            f"{name}, line {lines[i + 1]}: {rows[i, 0]} leads to {rows[i + 1, 1]}, but at line {lines[i]} to {rows[i, 1]}"
        )
    return rows[~again], lines[~again]


def _position(ids: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Index in the ascending `ids` of each of `of`; -1 where it is not there."""
    if not len(ids):
        return np.full(len(of), -1, np.int64)
    at = np.minimum(np.searchsorted(ids, of), len(ids) - 1)
    return np.where(ids[at] == of, at, -1)


def _count_lost(ids: np.ndarray, merged: np.ndarray) -> int:
    """How many merged ids lead to no node, however many steps it takes."""
    now = merged[:, 1]
    while (more := np.flatnonzero((_position(ids, now) < 0) & ((at := _position(merged[:, 0], now)) >= 0))).size:
        now = now.copy()
        now[more] = merged[at[more], 1]
    return int(np.count_nonzero(_position(ids, now) < 0))


def _check_acyclic(name: str, ids: np.ndarray, up: np.ndarray) -> np.ndarray:
    """int32 depth of each id, 1 where up is -1. InputError that names the ids of a cycle in order."""
    depth, on_cycle = _depths(up)
    if on_cycle < 0:
        return depth
    ring = [int(on_cycle)]
    while (i := int(up[ring[-1]])) != ring[0]:
        ring.append(i)
    least = ring.index(min(ring))
    shown = " -> ".join(str(ids[i]) for i in [*ring[least:], *ring[: least + 1]])
    raise InputError(f"{name}: a cycle: {shown}", hint="fetch the taxdump again")


def _table(rows: np.ndarray, names: tuple[str, ...]) -> pa.Table:
    schema = pa.schema([pa.field(n, pa.int32(), nullable=False) for n in names])
    return pa.Table.from_arrays([pa.array(rows[:, i].astype(np.int32)) for i in range(len(names))], schema=schema)


@njit(cache=True, nogil=True)
def _ids(data, columns, line):
    """(int64[n, columns], lines, the next line's number) of lines `id \\t|\\t id ...`, blank ones skipped.

    The number is negated when that line is malformed.
    """
    n = 1
    for i in range(len(data)):
        n += data[i] == 10
    values = np.empty((n, columns), np.int64)
    lines = np.empty(n, np.int64)
    row, i, end = 0, 0, len(data)
    while i < end:
        while i < end and (data[i] == 32 or data[i] == 9 or data[i] == 13):
            i += 1
        if i < end and data[i] != 10:
            for c in range(columns):
                while i < end and (data[i] == 32 or data[i] == 9):
                    i += 1
                value, digits = 0, 0
                while i < end and 48 <= data[i] <= 57 and digits < 10:
                    value = value * 10 + (data[i] - 48)
                    digits += 1
                    i += 1
                while i < end and (data[i] == 32 or data[i] == 9):
                    i += 1
                if digits == 0 or not 0 < value < 1 << 31 or i == end or data[i] != 124:
                    return values[:row], lines[:row], -line
                values[row, c] = value
                i += 1
            lines[row] = line
            row += 1
            while i < end and data[i] != 10:
                i += 1
        i += 1
        line += 1
    return values[:row], lines[:row], line


@njit(cache=True, nogil=True)
def _depths(up):
    """(int32 depths, an index on a cycle or -1)."""
    depth = np.zeros(len(up), np.int32)
    path = np.empty(len(up), np.int64)
    for start in range(len(up)):
        i, size = start, 0
        while i >= 0 and depth[i] == 0:
            depth[i] = -1
            path[size] = i
            size += 1
            i = up[i]
        if i >= 0 and depth[i] < 0:
            return depth, i
        below = depth[i] if i >= 0 else 0
        for k in range(size - 1, -1, -1):
            below += 1
            depth[path[k]] = below
    return depth, -1
