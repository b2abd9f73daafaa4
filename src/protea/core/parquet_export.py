"""The published Parquet files: row groups as the contract has them, the same bytes from whatever batches arrive.

`_SplitWriter` writes shards from coded batches, each row group while the next one is computed, unless there is one thread;
`_stream_assemble` joins shards without decoding them. Called by the cut runner and the export operation; calls pyarrow.
"""

import contextlib
import hashlib
import io
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import StorageError
from . import fs
from .arrays import cores, nothing
from .parquet_join import join
from .schema import ROW_GROUP

PARQUET = {
    "compression": "zstd",
    "compression_level": 1,
    "version": "2.6",
    "data_page_version": "1.0",
    "write_statistics": True,
    "dictionary_pagesize_limit": 1 << 30,  # a dictionary never falls back to plain encoding
}


@dataclass(frozen=True)
class FileInfo:
    """A finished file. `digests`: one SHA-256 a row group, over its values (see `logical_digest`)."""

    name: str
    rows: int
    size: int
    sha256: str
    digests: tuple[str, ...]


class _SplitWriter:
    """Writes one Parquet file of `schema`: row groups of 200,000 rows, a shorter last one at the end of each part.

    Batches have int32 codes in dictionary columns (`words` says what they stand for) and may lack columns, which are
    null. The file appears under its final name only when it is whole, checked and durable (`close`); `abandon`, or a
    kill, leaves nothing under that name. Unless `threads` is 1, one row group at a time is encoded by a thread of the
    writer's; what goes wrong there is raised by the next call.
    """

    def __init__(
        self, path: Path, schema: pa.Schema, words: Mapping[str, pa.Array] | None = None, threads: int = 0
    ) -> None:
        self.path, self.schema, self.words = path, schema, words or {}
        self.rows = 0
        self.digests: list[str] = []
        self._tmp = path.with_name(f".{path.name}.tmp")
        self._held: list[pa.Table] = []
        self._n_held = 0
        self._file = fs.create(self._tmp)
        self._writer = _writer(self._file, schema)
        # it starts with the first row group
        self._thread = ThreadPoolExecutor(1, "protea-write") if (threads or cores()) > 1 else None
        self._encoding: Future[None] | None = None

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Append rows to the current part."""
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        if table.num_rows:
            self._held.append(table)
            self._n_held += table.num_rows
        while self._n_held >= ROW_GROUP:
            self._flush(ROW_GROUP)

    def end_part(self) -> None:
        """Close the part: its last row group holds what is left."""
        if self._n_held:
            self._flush(self._n_held)

    def _flush(self, n: int) -> None:
        held = pa.concat_tables(self._held)
        rest = held.slice(n)
        self._held, self._n_held = ([rest] if rest.num_rows else []), rest.num_rows
        self.write_group(held.slice(0, n))

    def write_group(self, table: pa.Table) -> None:
        """Write one row group as it is."""
        self._wait()
        self.rows += len(table)
        if self._thread is None:
            self._encode(table, self._writer.write_table)
        else:
            self._encoding = self._thread.submit(self._encode, table, self._writer.write_table)

    def _encode(self, table: pa.Table, write: Callable[..., None]) -> None:
        group = self._whole(table)
        write(group, row_group_size=max(1, len(group)))
        self.digests.append(logical_digest(group))

    def _wait(self) -> None:
        encoding, self._encoding = self._encoding, None
        if encoding is not None:
            encoding.result()

    def _whole(self, table: pa.Table) -> pa.Table:
        """All columns of the file, with the words of its dictionaries."""
        return pa.table([self._column(table, f) for f in self.schema], schema=self.schema)

    def _column(self, table: pa.Table, field: pa.Field) -> pa.Array:
        if field.name not in table.column_names:
            return _nulls(table.num_rows, field.type)
        column = table[field.name]
        if not pa.types.is_dictionary(field.type):
            return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        return by_appearance(column.combine_chunks(), self.words[field.name])

    def close(self) -> FileInfo:
        """Finish the file: close, reopen and check, fsync, rename, fsync the directory."""
        self.end_part()
        self._wait()
        self._end_thread()
        self._writer.close()
        self._file.close()
        check(self._tmp, self.schema, self.rows)
        info = FileInfo(
            self.path.name, self.rows, self._tmp.stat().st_size, fs.sha256_file(self._tmp), tuple(self.digests)
        )
        fs.commit_file(self._tmp, self.path)
        return info

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()

    def abandon(self) -> None:
        """Drop the unfinished file."""
        self._end_thread()
        with contextlib.suppress(OSError, pa.ArrowException):  # on a full disk the footer cannot be written either
            self._writer.close()
        self._writer.is_open = False  # else it tries once more when it is freed, and says so on standard error
        with contextlib.suppress(OSError):
            self._file.close()
        self._tmp.unlink(missing_ok=True)


def _writer(where: BinaryIO, schema: pa.Schema) -> pq.ParquetWriter:
    coded = [f.name for f in schema if pa.types.is_dictionary(f.type)]
    return pq.ParquetWriter(where, schema, use_dictionary=coded, **PARQUET)


def check(path: Path, schema: pa.Schema, rows: int) -> None:
    """Refuse a Parquet file whose footer has other rows or another schema: a failed writer leaves a short file."""
    try:
        with pq.ParquetFile(path) as f:
            found, n = f.schema_arrow, f.metadata.num_rows
    except (OSError, pa.ArrowException) as e:
        raise StorageError(f"{path}: what was written cannot be read back: {e}") from None
    if n != rows or not found.equals(schema):
        raise StorageError(f"{path}: {rows} rows were written and {n} read back; the disk may be full or faulty")


def _nulls(n: int, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(pa.nulls(n, pa.int32()), pa.array([], pa.string()))
    return pa.nulls(n, kind)


def by_appearance(codes: pa.Array, words: pa.Array) -> pa.DictionaryArray:
    """A dictionary array with just the words that `codes` (int32, nullable) use, by first appearance."""
    if isinstance(codes, pa.ChunkedArray):
        codes = codes.combine_chunks()
    missing = codes.is_null().to_numpy(zero_copy_only=False) if codes.null_count else None
    raw = codes.fill_null(-1).to_numpy() if codes.null_count else codes.to_numpy()
    new, used = _first_appearance(raw, len(words))
    return pa.DictionaryArray.from_arrays(pa.array(new, mask=missing), words.take(pa.array(used)).cast(pa.string()))


@numba.njit(cache=True, nogil=True)
def _first_appearance(codes, n_words):
    where = np.full(n_words, -1, dtype=np.int32)
    used = np.empty(min(n_words, len(codes)), dtype=np.int32)
    out = np.zeros(len(codes), dtype=np.int32)
    n = 0
    for i in range(len(codes)):
        c = codes[i]
        if c < 0:
            continue
        if where[c] < 0:
            where[c] = n
            used[n] = c
            n += 1
        out[i] = where[c]
    return out, used[:n]


def logical_digest(group: pa.Table) -> str:
    """SHA-256 over the values of a row group, whatever their encoding.

    Per column: rows and nulls as int64, the bits of the nulls if there are any, and the values that are not null, little
    endian; a string column is hashed as its words by first appearance (lengths, then UTF-8) and each row's word number.
    """
    h = hashlib.sha256()
    for column in group.columns:
        array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        h.update(np.array([len(array), array.null_count], dtype="<i8").tobytes())
        if array.null_count:
            h.update(np.packbits(array.is_null().to_numpy(zero_copy_only=False)).tobytes())
            if array.null_count == len(array):
                continue
        if pa.types.is_dictionary(array.type):
            text = array.dictionary.cast(pa.large_string())
            offsets = np.frombuffer(text.buffers()[1], dtype="<i8")[text.offset : text.offset + len(text) + 1]
            h.update(np.diff(offsets).tobytes())
            if len(text):
                h.update(memoryview(text.buffers()[2])[offsets[0] : offsets[-1]])
            array = array.indices
        values = array.drop_null().to_numpy(zero_copy_only=False)
        h.update(np.ascontiguousarray(_little(values)).data)
    return h.hexdigest()


def _little(values: npt.NDArray) -> npt.NDArray:
    return values.astype(values.dtype.newbyteorder("<"), copy=False)


def split_digest(digests: Iterable[str]) -> str:
    """The logical SHA-256 of a file: over the digests of its row groups, which the contract fixes."""
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _stream_assemble(
    path: Path,
    schema: pa.Schema,
    shards: Iterable[tuple[Path, tuple[str, ...]]],
    checkpoint: Callable[[], None] = nothing,
) -> FileInfo:
    """Join shards (with the digests of their row groups) into `path`; memory does not grow with them.

    Shards already have the contract's row groups, so joining moves row groups; nothing is decoded, sliced or sorted again.
    """
    shards = list(shards)
    digests = tuple(d for _, of_shard in shards for d in of_shard)
    empty = io.BytesIO()
    _writer(empty, schema).close()
    tmp = path.with_name(f".{path.name}.tmp")
    try:
        with fs.create(tmp) as out:
            joined = join(out, empty.getvalue(), (shard for shard, _ in shards), checkpoint)
        if joined.groups != len(digests):
            raise StorageError(f"{path}: {joined.groups} row groups were joined and {len(digests)} are known of")
        check(tmp, schema, joined.rows)
        fs.commit_file(tmp, path)
        return FileInfo(path.name, joined.rows, joined.size, joined.sha256, digests)
    except BaseException:
        tmp.unlink(missing_ok=True)
        raise
