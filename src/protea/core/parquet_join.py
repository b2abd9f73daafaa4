"""Parquet files one after the other into one, without decoding a page: data are copied, footers are joined.

A row group's pages do not know where they lie; only the footer does, as offsets into the file. So the joined file is what
one writer with the same settings would have written, byte for byte. pyarrow can read and print a footer but not move its
row groups, hence the few lines of Thrift's compact protocol. Called by `parquet_export`.
"""

import hashlib
import io
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ..errors import StorageError
from .arrays import nothing

MAGIC = b"PAR1"
BLOCK = 4 << 20
# Compact protocol: the types that a Parquet footer has
_TRUE, _FALSE, _I8, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 12
# parquet.thrift: ids of the fields that change when a row group moves
_NUM_ROWS, _ROW_GROUPS = 3, 4  # of FileMetaData
_COLUMNS, _GROUP_OFFSET, _ORDINAL = 1, 5, 7  # of RowGroup
_GROUP_ROWS = 3
_CHUNK_OFFSET, _CHUNK_META, _OFFSET_INDEX, _COLUMN_INDEX = 2, 3, 4, 6  # of ColumnChunk
_PAGE_OFFSETS = (9, 10, 11, 14)  # of ColumnMetaData: data, index and dictionary pages, bloom filter

Struct = dict[int, tuple[int, Any]]
"""Field id -> (type, value), in the order of the file."""


class Joined(NamedTuple):
    """What was written: rows, row groups, bytes, and their SHA-256."""

    rows: int
    groups: int
    size: int
    sha256: str


def join(out: BinaryIO, empty: bytes, files: Iterable[Path], checkpoint: Callable[[], None] = nothing) -> Joined:
    """Write `files`, which have the schema and settings of `empty` (a file without rows), into `out`, in order.

    `checkpoint` is called before every 4 MB, and raises when this is to stop.
    Errors: StorageError for what is no such file, or was written otherwise; OSError as files raise it.
    """
    sink = _Hashed(out)
    sink.write(MAGIC)
    footer = _footer(io.BytesIO(empty), "an empty file")[0]
    constant = {k: v for k, v in footer.items() if k not in (_NUM_ROWS, _ROW_GROUPS)}
    groups: list[Struct] = []
    for path in files:
        with path.open("rb") as f:
            found, end = _footer(f, str(path))
            if {k: v for k, v in found.items() if k not in (_NUM_ROWS, _ROW_GROUPS)} != constant:
                raise StorageError(f"{path}: written with another schema or other settings than what it is joined to")
            for group in found[_ROW_GROUPS][1][1]:
                _move(group, sink.size - len(MAGIC), len(groups))
                groups.append(group)
            f.seek(len(MAGIC))
            while block := f.read(min(BLOCK, end - f.tell())):
                checkpoint()
                sink.write(block)
            if f.tell() != end:
                raise StorageError(f"{path}: ends before its footer says so; the disk may be faulty")
    rows = sum(g[_GROUP_ROWS][1] for g in groups)
    footer[_NUM_ROWS] = (_I64, rows)
    footer[_ROW_GROUPS] = (_LIST, (_STRUCT, groups))
    encoded = bytearray()
    _put_struct(encoded, footer)
    sink.write(encoded)
    sink.write(struct.pack("<I", len(encoded)) + MAGIC)
    return Joined(rows, len(groups), sink.size, sink.hash.hexdigest())


class _Hashed:
    def __init__(self, out: BinaryIO) -> None:
        self.out, self.hash, self.size = out, hashlib.sha256(), 0

    def write(self, data: bytes | bytearray) -> None:
        self.out.write(data)
        self.hash.update(data)
        self.size += len(data)


def _move(group: Struct, by: int, ordinal: int) -> None:
    """Give a row group its new place."""

    def shift(s: Struct, *fields: int) -> None:
        for field in fields:
            if field in s and s[field][1]:  # 0: not given
                s[field] = (s[field][0], s[field][1] + by)

    shift(group, _GROUP_OFFSET)
    if _ORDINAL in group:
        group[_ORDINAL] = (_I16, ordinal)
    for chunk in group[_COLUMNS][1][1]:
        shift(chunk, _CHUNK_OFFSET, _OFFSET_INDEX, _COLUMN_INDEX)
        shift(chunk[_CHUNK_META][1], *_PAGE_OFFSETS)


def _footer(f: BinaryIO, name: str) -> tuple[Struct, int]:
    """The footer of a Parquet file, and where it starts."""
    try:
        size = f.seek(0, io.SEEK_END)
        f.seek(max(0, size - 8))
        length, magic = struct.unpack("<I4s", f.read(8))
        start = size - 8 - length
        if magic != MAGIC or start < len(MAGIC):
            raise ValueError("no footer")
        f.seek(start)
        return _Reader(f.read(length)).struct(), start
    except (ValueError, IndexError, struct.error) as e:
        raise StorageError(f"{name}: not a whole Parquet file: {e}") from None


class _Reader:
    """Decodes a struct of the compact protocol."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def integer(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def struct(self) -> Struct:
        out: Struct = {}
        field = 0
        while head := self.data[self.at]:
            self.at += 1
            field = field + (head >> 4) if head >> 4 else self.integer()
            kind = head & 15
            out[field] = (kind, self.value(kind))
        self.at += 1
        return out

    def value(self, kind: int) -> Any:
        if kind in (_I16, _I32, _I64):
            return self.integer()
        if kind == _BINARY:
            return self.take(self.varint())
        if kind == _STRUCT:
            return self.struct()
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind == _LIST:
            head = self.take(1)[0]
            size = head >> 4 if head >> 4 < 15 else self.varint()
            of = head & 15
            return of, [self.take(1) if of in (_TRUE, _FALSE) else self.value(of) for _ in range(size)]
        if kind in (_I8, _DOUBLE):
            return self.take(1 if kind == _I8 else 8)
        raise ValueError(f"unknown type {kind} in the footer")

    def take(self, n: int) -> bytes:
        self.at += n
        if self.at > len(self.data):
            raise ValueError("the footer is cut short")
        return self.data[self.at - n : self.at]


def _put_varint(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def _put_struct(out: bytearray, fields: Struct) -> None:
    last = 0
    for field, (kind, value) in fields.items():
        if 0 < field - last < 16:
            out.append((field - last) << 4 | kind)
        else:
            out.append(kind)
            _put_varint(out, field << 1)
        last = field
        _put(out, kind, value)
    out.append(0)


def _put(out: bytearray, kind: int, value: Any) -> None:
    if kind in (_I16, _I32, _I64):
        _put_varint(out, value << 1 if value >= 0 else (-value << 1) - 1)
    elif kind == _BINARY:
        _put_varint(out, len(value))
        out += value
    elif kind == _STRUCT:
        _put_struct(out, value)
    elif kind == _LIST:
        of, items = value
        out.append((min(len(items), 15) << 4) | of)
        if len(items) >= 15:
            _put_varint(out, len(items))
        for item in items:
            if isinstance(item, bytes) and of != _BINARY:
                out += item
            else:
                _put(out, of, item)
    elif kind in (_I8, _DOUBLE):
        out += value
