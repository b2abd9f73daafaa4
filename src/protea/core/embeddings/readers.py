"""Files of embeddings -> `Source`: recognises the format by content; NPZ, NPY with a file of ids, and Parquet.

Called by `store`; HDF5 is in `hdf5`. Nothing is unpickled. Arrays are read in blocks, so a file larger than memory is
fine (except a Fortran-ordered array inside an NPZ, which has to be read whole).
"""

import io
import lzma
import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from protea.core import limits
from protea.core.embeddings import source as common
from protea.core.embeddings import trial
from protea.core.embeddings.hdf5 import open_hdf5
from protea.core.embeddings.source import Source
from protea.core.textio import is_directory
from protea.errors import ConfigError, InputError, NotFoundError

PARQUET_ROWS = 4096
MAX_ID = 10_000
PARQUET_DAMAGE = (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError)
NPZ_DAMAGE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, KeyError, RuntimeError,
    SyntaxError, TypeError, MemoryError, OverflowError, struct.error, tokenize.TokenError,
)  # fmt: skip
"""What zipfile and numpy raise on damaged files."""
MAX_NPY_HEADER = 10_000
NpyHeader = tuple[tuple[int, ...], bool, np.dtype]


def open_source(path: Path, *, ids: str | os.PathLike[str] | None = None, pool: str | None = None) -> Source:
    """The vectors of a file; see `store.build_store` for the arguments and errors."""
    if pool not in (None, "mean"):
        raise ConfigError(f"pool {pool!r} is unknown; the only way to pool per-residue matrices is 'mean'")
    kind = _format(path)
    if kind == "npy":
        if ids is None:
            raise InputError(f"{path}: an .npy file has no accessions (give a text file, one a line, with --ids)")
        return _npy(path, Path(ids))
    if ids is not None:
        raise ConfigError(f"{path}: --ids goes with an .npy file; this is {kind}, which names its vectors itself")
    if kind == "hdf5":
        return open_hdf5(path, pool=pool == "mean")
    return _npz(path) if kind == "npz" else _parquet(path)


def _format(path: Path) -> str:
    if is_directory(path):
        raise InputError(f"{path}: this is a directory; give one HDF5, NPZ, NPY or Parquet file")
    try:
        with path.open("rb") as f:
            head = f.read(8)
            for magic, kind in ((b"PK", "npz"), (b"\x93NUMPY", "npy"), (b"PAR1", "parquet")):
                if head.startswith(magic):
                    return kind
            if head.startswith(b"\x1f\x8b"):
                raise InputError(f"{path}: this is a gzip file; unpack it first (gunzip)")
            at = 0  # HDF5 allows a user block of 512, 1024, ... bytes before its signature
            while head != b"\x89HDF\r\n\x1a\n":
                at = at * 2 or 512
                f.seek(at)
                head = f.read(8)
                if not head:
                    raise InputError(f"{path}: not an HDF5, NPZ, NPY or Parquet file")
    except OSError as e:
        raise InputError(f"{path}: cannot be read: {e.strerror}") from e
    return "hdf5"


def _npy(path: Path, ids: Path) -> Source:
    try:
        matrix = np.load(path, mmap_mode="r")
    except (ValueError, EOFError, OSError) as e:
        raise InputError(f"{path}: not a readable .npy array of numbers, truncated or damaged: {e}") from e
    return common.from_array(_id_lines(ids), matrix, where=str(path), format="npy")


def _id_lines(path: Path) -> pa.Array:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as e:
        raise NotFoundError(f"{path}: there is no such file of ids") from e
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(f"{path}: not a readable UTF-8 text file of ids, one a line") from e
    lines = pc.split_pattern(pa.array([text.rstrip("\r\n")], pa.large_string()), "\n").flatten()
    return common.accessions(lines.cast(pa.string()), str(path))


def _npz(path: Path) -> Source:
    where = str(path)
    try:
        with zipfile.ZipFile(path) as archive:
            heads = npz_headers(archive, where)
            texts = [k for k, (shape, _, dtype) in heads.items() if len(shape) == 1 and dtype.kind in "USOT"]
            id_name = common.pick(texts, common.ID_NAMES, "ids", where)
            if heads[id_name][2].hasobject:
                raise InputError(
                    f"{where}: {id_name} is a pickled object array, which is not loaded (save text: dtype=str)"
                )
            with archive.open(f"{id_name}.npy") as f:
                ids = pa.array(np.lib.format.read_array(f, allow_pickle=False))
    except NPZ_DAMAGE as e:
        raise InputError(f"{where}: not a readable .npz archive, truncated or damaged: {e}") from e
    matrices = [k for k, (shape, _, dtype) in heads.items() if len(shape) > 1]
    key = common.pick(matrices, common.MATRIX_NAMES, "embeddings", where)
    shape, fortran, stored = heads[key]
    dtype = common.float_dtype(stored, f"{where}: {key}")
    if len(shape) != 2:
        raise InputError(common.per_residue_or(where, key, shape))
    if len(ids) != shape[0]:
        raise InputError(
            f"{where}: {len(ids)} {id_name} but {shape[0]} rows of {key}; there must be one id for each row"
        )
    common.check_width(shape[1], where)
    step = shape[0] if fortran else common.rows_per_block(shape[1], dtype)

    def blocks() -> Iterator[tuple[slice, np.ndarray]]:
        try:
            with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as f:
                npy_header(f, archive.getinfo(f"{key}.npy").file_size)
                for start in range(0, shape[0], step):
                    rows = min(step, shape[0] - start)
                    values = np.frombuffer(f.read(rows * shape[1] * stored.itemsize), stored)
                    yield slice(start, start + rows), values.reshape((rows, shape[1]), order="F" if fortran else "C")
        except NPZ_DAMAGE as e:
            raise InputError(f"{where}: {key} cannot be read, truncated or damaged: {e}") from e

    return Source(where, "npz", common.accessions(ids, where), shape[1], dtype, blocks)


def npz_headers(archive: zipfile.ZipFile, where: str) -> dict[str, NpyHeader]:
    """Shape, order and type of every array of an archive that is named .npy, by its name without that; nothing else
    of it is read. InputError for an archive that unpacks to far more than it is."""
    for info in archive.infolist():
        limits.check_size(f"{where}: {info.filename[:100]!r}", info.compress_size, info.file_size)
    out = {}
    for info in archive.infolist():
        if info.filename.endswith(".npy"):
            with archive.open(info) as f:
                out[info.filename[:-4]] = npy_header(f, info.file_size)
    return out


def npy_header(f: IO[bytes], size: int) -> NpyHeader:
    """The header of an array in a file of `size` bytes. ValueError when it is damaged, or promises another size."""
    head = f.read(10)
    version = np.lib.format.read_magic(io.BytesIO(head))
    if version > (1, 0):
        head += f.read(2)
    length = int.from_bytes(head[8:], "little")
    if length > MAX_NPY_HEADER:
        raise ValueError(f"a header of {length:,} bytes")
    whole = io.BytesIO(head + f.read(length))
    whole.seek(8)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(whole)
    if not dtype.hasobject and (
        not dtype.itemsize or math.prod(shape) * dtype.itemsize != size - len(whole.getvalue())
    ):
        raise ValueError(f"shape {shape} of {dtype} in {size - len(whole.getvalue()):,} bytes")
    return shape, fortran, dtype


def _parquet(path: Path) -> Source:
    where = str(path)
    try:
        file = open_parquet(path)
        schema = file.schema_arrow
        if twice := [name for name, n in Counter(schema.names).items() if n > 1]:
            raise InputError(
                f"{where}: more than one column is called {twice[0]!r}", hint="give each a name of its own"
            )
        texts = [f.name for f in schema if _is_text(f.type)]
        lists = [f.name for f in schema if _is_list(f.type)]
        id_name = common.pick(texts, common.ID_NAMES, "accessions", where)
        read = [texts_of(column, where) for column in parquet_texts(path, id_name)]
        keys = pa.concat_arrays(read or [pa.array([], pa.binary())])
    except PARQUET_DAMAGE as e:
        raise InputError(f"{where}: not a readable Parquet file, truncated or damaged: {first_line(e)}") from e
    if lists:
        columns = [common.pick(lists, common.MATRIX_NAMES, "embeddings", where)]
        value_type = schema.field(columns[0]).type.value_type
        if _is_list(value_type):
            raise InputError(common.per_residue_or(where, columns[0], (-1, -1)))
        stored = _numpy_dtype(value_type, f"{where}: {columns[0]}")
    else:
        columns = [f.name for f in schema if f.name != id_name]
        dtypes = [_numpy_dtype(schema.field(c).type, f"{where}: column {c}") for c in columns]
        if not dtypes:
            raise InputError(f"{where}: no column of vectors beside {id_name} (a list of floats, or float columns)")
        stored = np.result_type(*dtypes)
    if keys.null_count:
        raise InputError(f"{where}: {keys.null_count} rows have no {id_name}; every vector needs an accession")
    ids = common.accessions(keys, where)

    def blocks() -> Iterator[tuple[slice, np.ndarray]]:
        start = 0
        try:
            for batch in file.iter_batches(PARQUET_ROWS, columns=columns, use_threads=False):
                rows = slice(start, start + len(batch))
                yield rows, _rows_of_batch(batch, ids[start : rows.stop], dim, stored, where)
                start = rows.stop
        except PARQUET_DAMAGE as e:
            raise InputError(
                f"{where}: row {start + 1} or later cannot be read, truncated or damaged: {first_line(e)}"
            ) from e

    dim = len(columns)
    if lists and len(ids):
        try:
            first = next(file.iter_batches(1, columns=columns, use_threads=False), None)
        except PARQUET_DAMAGE as e:
            raise InputError(f"{where}: row 1 cannot be read, truncated or damaged: {first_line(e)}") from e
        dim = len(first.column(0)[0]) if first is not None and first.column(0)[0].is_valid else 0
    common.check_width(dim, where)
    return Source(where, "parquet", ids, dim, stored, blocks)


def first_line(e: BaseException) -> str:
    """Of what a library says, which may be pages."""
    return (str(e).strip() or type(e).__name__).split("\n")[0]


def open_parquet(path: Path) -> pq.ParquetFile:
    """A Parquet file; InputError when its metadata promise far more than it is: dictionaries, run lengths and
    compression make any number of equal values of a few bytes. PARQUET_DAMAGE as Arrow's."""
    file = pq.ParquetFile(path, buffer_size=1 << 20)
    uncompressed, values = trial.ask("parquet", path)
    for unpacked in (uncompressed, 4 * values, 4 * file.metadata.num_rows):
        limits.check_size(str(path), path.stat().st_size, unpacked)
    return file


def parquet_texts(path: Path, *columns: str, also: Sequence[str] = (), rows: int = PARQUET_ROWS) -> Iterator[Any]:
    """Batches of `columns` as dictionary arrays, so that a long text repeated in a million rows is there once, and of
    the columns `also` as they are."""
    file = pq.ParquetFile(path, buffer_size=1 << 20, read_dictionary=columns)
    for batch in file.iter_batches(rows, columns=[*columns, *also], use_threads=False):
        found = [batch.column(name) for name in (*columns, *also)]
        yield found if len(found) > 1 else found[0]


def texts_of(column: pa.DictionaryArray, where: str) -> pa.Array:
    """The texts of a dictionary array; InputError for one that can be no accession or header: over 10,000 bytes."""
    longest = pc.max(pc.binary_length(column.dictionary)).as_py() or 0
    if longest > MAX_ID:
        raise InputError(f"{where}: an id of {longest:,} bytes")
    # binary: what is marked as text need not be UTF-8, and is checked only when it is made into text
    return column.cast(column.type.value_type).cast(pa.binary())


def _rows_of_batch(batch: pa.RecordBatch, ids: pa.Array, dim: int, dtype: np.dtype, where: str) -> np.ndarray:
    for column in batch.columns:
        if column.null_count:
            raise InputError(f"{where}: {ids[pc.index(column.is_null(), True).as_py()]} has no vector (null)")
    if not _is_list(batch.schema.field(0).type):
        return np.column_stack([column.to_numpy() for column in batch.columns]).astype(dtype, copy=False)
    column = batch.column(0)
    lengths = pc.list_value_length(column)
    odd = pc.not_equal(lengths, dim)
    if pc.any(odd).as_py():
        row = pc.index(odd, True).as_py()
        raise InputError(
            f"{where}: {ids[row]} has {lengths[row]} values but the first vector has {dim}; all vectors of an "
            "embedding have one dimension"
        )
    values = column.flatten()
    if values.null_count:
        row = pc.index(values.is_null(), True).as_py() // dim
        raise InputError(f"{where}: the vector of {ids[row]} has missing values (null)")
    return values.to_numpy().reshape(-1, dim)


def _numpy_dtype(kind: pa.DataType, where: str) -> np.dtype:
    try:
        return common.float_dtype(np.dtype(kind.to_pandas_dtype()), where)
    except NotImplementedError as e:
        raise InputError(f"{where}: vectors of type {kind} are not accepted, only floating point") from e


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)  # text that its writer did not mark as such
    return is_binary or pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
