"""HDF5 embeddings: one dataset for each protein (UniProt's layout), or an array of ids and a matrix.

Called by `readers`. Links are listed, never followed: a soft or external link is skipped and counted, and data that
live in another file (external storage, virtual datasets) are refused, so a file can only show what it holds itself.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
from h5py import h5d, h5l, h5o, h5s, h5t

from protea.core import limits
from protea.core.embeddings import source as common
from protea.core.embeddings import trial
from protea.core.embeddings.source import Source
from protea.errors import InputError

POOL_ROWS = 256  # per-residue matrices averaged for one block
TWO_ARRAYS = 64  # a file of more objects than this is not looked at as "ids and a matrix"
DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError)  # what h5py raises on damaged files


@dataclass
class _Index:
    """The datasets of a file. `stored`: type with the file's byte order; `offset`: where the values start in the file,
    -1 when only HDF5 can read them; `length`: rows of a per-residue matrix, else 1."""

    keys: list[bytes] = field(default_factory=list)
    original: list[bytes] = field(default_factory=list)
    length: list[int] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    dim: int = 0
    stored: np.dtype = field(default_factory=lambda: np.dtype(np.float32))


def open_hdf5(path: Path, *, pool: bool = False) -> Source:
    """The vectors of an HDF5 file; InputError for what cannot be one vector for each accession."""
    where = str(path)
    try:
        with h5py.File(path, "r") as file:
            keys, places, skipped = _hard_links(file)
            if len(keys) <= TWO_ARRAYS:
                opened = ((key, h5o.open(file.id, key)) for key in keys)
                small = {key: dataset for key, dataset in opened if isinstance(dataset, h5d.DatasetID)}
                texts = [key for key, dataset in small.items() if dataset.get_type().get_class() == h5t.STRING]
                if texts:
                    if any(small[key].get_type().is_variable_str() for key in texts):
                        trial.ask("hdf5", path)
                    return _two_arrays(file, path, small, texts, skipped)
            index = _index(file, keys, places, path, pool)
    except DAMAGE as e:
        raise InputError(
            f"{where}: not readable as HDF5 (truncated, damaged, or open elsewhere for writing): {e}"
        ) from e
    if not index.keys:
        raise InputError(f"{where}: there are no vectors in it ({skipped} links, which are not followed)")
    ids = common.accessions(pa.array(index.original or index.keys, pa.binary()), where, groups=not index.original)
    dtype = index.stored.newbyteorder("=")
    pooled = sum(length != 1 for length in index.length)
    return Source(
        where, "hdf5", ids, index.dim, dtype, lambda: _blocks(path, index), pooled=pooled, links_skipped=skipped
    )


def _hard_links(file: h5py.File) -> tuple[list[bytes], list[int], int]:
    """Path and object header address of everything in the file, and the number of links of other kinds."""
    keys: list[bytes] = []
    places: list[int] = []
    skipped = 0

    def see(name: bytes, info: h5l.LinkInfo) -> None:
        nonlocal skipped
        if info.type == h5l.TYPE_HARD:
            keys.append(name)
            places.append(info.u)
        else:
            skipped += 1

    file.id.links.visit(see, info=True)
    return keys, places, skipped


def _index(file: h5py.File, keys: list[bytes], places: list[int], path: Path, pool: bool) -> _Index:
    """Shape, type and place of every dataset: a few low-level calls for each whose header is not like the first's."""
    index = _Index()
    where = str(path)
    kind, direct, known = None, False, [-1] * len(keys)
    for at, key in enumerate(keys):
        if known[at] >= 0:
            index.keys.append(key)
            index.offset.append(known[at])
            index.length.append(index.length[0])
            continue
        dataset = h5o.open(file.id, key)
        if not isinstance(dataset, h5d.DatasetID):
            continue
        shape, this_kind = dataset.shape, dataset.get_type()
        if this_kind != kind:
            dtype = dataset.dtype
            common.float_dtype(dtype, f"{where}: {_text(key)}")
            if kind is None:
                kind, index.stored = this_kind, dtype
                direct = h5t.py_create(dtype) == kind  # bytes that numpy reads as HDF5 does
            elif dtype != index.stored:
                first = _text(index.keys[0])
                raise InputError(
                    f"{where}: {_text(key)} is {dtype} but {first} is {index.stored}; use one type for all"
                )
        if not shape or 0 in shape or len(shape) > 2 or not (pool or len(shape) == 1 or shape[0] == 1):
            raise InputError(common.per_residue_or(where, _text(key), shape or (), pool=True))
        if math.prod(shape) * dataset.dtype.itemsize > limits.LARGE:
            raise InputError(f"{where}: {_text(key)} has shape {shape}, too large for a matrix of one protein")
        if not index.keys:
            common.check_width(shape[-1], where)
            index.dim = shape[-1]
        elif shape[-1] != index.dim:
            first = _text(index.keys[0])
            raise InputError(
                f"{where}: {_text(key)} has {shape[-1]} values but {first} has {index.dim}; all vectors of "
                "an embedding have one dimension"
            )
        offset = dataset.get_offset()
        if offset is None:
            _refuse_elsewhere(dataset, where, key)
        index.offset.append(-1 if offset is None or not direct or this_kind != kind else offset)
        index.length.append(1 if len(shape) == 1 else shape[0])
        if index.original or not index.keys:
            _read_original_id(path, file, key, index)
        index.keys.append(key)
        if len(index.keys) == 1 and index.offset[0] >= 0 and not index.original and not file.userblock_size:
            known = _like_first(path, np.array(places), at, index.offset[0])
    if index.original and len(index.original) != len(index.keys):
        raise InputError(f"{where}: only {len(index.original)} of {len(index.keys)} datasets have an original_id")
    return index


def _like_first(path: Path, places: np.ndarray, first: int, offset: int) -> list[int]:
    """Where the values of each object start if its header is that of object `first`, byte for byte but for this address
    (so: a dataset of the same shape, type and layout); -1 for every other object, and when that cannot be told.

    Opening 60,000 datasets takes HDF5 seconds, comparing their headers a tenth of one. Version 1 object headers (the
    default of every HDF5 library) begin: version, 0, number of messages, references, size; 16 bytes in all.
    """
    data = np.memmap(path, np.uint8, "r")
    start = int(places[first])
    size = 16 + int.from_bytes(data[start + 8 : start + 12].tobytes(), "little")
    header = data[start : start + size].tobytes()
    layout = b"\x03\x01" + offset.to_bytes(8, "little")  # version 3, contiguous, address
    field_at = header.find(layout) + 2
    out = np.full(len(places), -1, np.int64)
    if header[:2] != b"\x01\0" or len(header) < size or header.count(layout) != 1:
        return out.tolist()
    rest = np.flatnonzero(places + size <= data.size)
    same = np.frombuffer(header, np.uint8)
    for part in np.array_split(rest, 1 + rest.size * size // common.BLOCK_BYTES):
        found = np.lib.stride_tricks.sliding_window_view(data, size)[places[part]]
        addresses = found[:, field_at : field_at + 8].copy()
        found[:, field_at : field_at + 8] = same[field_at : field_at + 8]
        alike = (found == same).all(axis=1)
        out[part[alike]] = addresses.view("<i8")[alike, 0]
    return out.tolist()


def _read_original_id(path: Path, file: h5py.File, key: bytes, index: _Index) -> None:
    """bio_embeddings names its datasets 0, 1, ... or by checksum and keeps the FASTA header in an attribute."""
    attributes = file[key].attrs
    if not index.keys and "original_id" in attributes:
        trial.ask("hdf5", path)
    value = attributes.get("original_id")
    if value is not None:
        index.original.append(value if isinstance(value, bytes) else str(value).encode())


def _refuse_elsewhere(dataset: h5d.DatasetID, where: str, key: bytes) -> None:
    made = dataset.get_create_plist()
    if made.get_layout() == h5d.VIRTUAL or made.get_external_count():
        raise InputError(f"{where}: {_text(key)} keeps its values in another file, which is not followed; copy them in")


def _blocks(path: Path, index: _Index) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    length, offset = np.array(index.length), np.array(index.offset)
    width = index.dim * index.stored.itemsize
    plain = np.flatnonzero((offset >= 0) & (length == 1))
    plain = plain[np.argsort(offset[plain], kind="stable")]
    if plain.size:
        data = np.memmap(path, np.uint8, "r")
        if offset[plain[-1]] > data.size - width:
            raise InputError(f"{path}: truncated: {_text(index.keys[plain[-1]])} lies beyond the end of the file")
        windows = np.lib.stride_tricks.sliding_window_view(data, width)
        step = common.rows_per_block(index.dim, index.stored)
        for start in range(0, plain.size, step):
            rows = plain[start : start + step]
            yield rows, windows[offset[rows]].view(index.stored)
    others = np.flatnonzero((offset < 0) | (length != 1))
    if not others.size:
        return
    with h5py.File(path, "r") as file:
        for start in range(0, others.size, POOL_ROWS):
            rows = others[start : start + POOL_ROWS]
            block = np.empty((rows.size, index.dim), index.stored.newbyteorder("="))
            for out, row in enumerate(rows):
                values = np.empty((length[row], index.dim), block.dtype)
                try:
                    _read(h5d.open(file.id, index.keys[row]), values)
                except DAMAGE as e:
                    raise InputError(f"{path}: {_text(index.keys[row])} cannot be read: {e}") from e
                block[out] = values.mean(axis=0, dtype=np.float64) if len(values) > 1 else values[0]
            yield rows, block


def _read(dataset: h5d.DatasetID, values: np.ndarray) -> None:
    dataset.read(h5s.ALL, h5s.ALL, values.reshape(dataset.shape))


def _two_arrays(
    file: h5py.File, path: Path, datasets: dict[bytes, h5d.DatasetID], texts: list[bytes], skipped: int
) -> Source:
    where = str(path)
    id_key = common.pick([_text(k) for k in texts], common.ID_NAMES, "accessions", where)
    others = [_text(k) for k, d in datasets.items() if k not in texts and d.rank > 1]
    key = common.pick(others, common.MATRIX_NAMES, "matrix of embeddings", where)
    ids, matrix = file[id_key], file[key]
    for name, dataset in ((id_key, ids), (key, matrix)):
        _refuse_elsewhere(dataset.id, where, name.encode())
    dtype = common.float_dtype(matrix.dtype, f"{where}: {key}")
    if matrix.ndim != 2:
        raise InputError(common.per_residue_or(where, key, matrix.shape))
    if ids.shape != matrix.shape[:1]:
        raise InputError(f"{where}: {id_key} has shape {ids.shape} but {key} has {matrix.shape}; one id for each row")
    common.check_width(matrix.shape[1], where)
    for name, dataset in ((id_key, ids), (key, matrix)):
        limits.check_size(f"{where}: {name}", dataset.id.get_storage_size(), dataset.nbytes)
    texts_read = pa.array(ids[()].astype(object), pa.binary())
    step = common.rows_per_block(matrix.shape[1], dtype)

    def blocks() -> Iterator[tuple[slice, np.ndarray]]:
        with h5py.File(path, "r") as again:
            for start in range(0, len(texts_read), step):
                try:
                    yield slice(start, start + step), again[key][start : start + step]
                except DAMAGE as e:
                    raise InputError(f"{where}: {key} cannot be read from row {start + 1} on: {e}") from e

    accessions = common.accessions(texts_read, where)
    return Source(where, "hdf5", accessions, matrix.shape[1], dtype, blocks, links_skipped=skipped)


def _text(key: bytes) -> str:
    return key.decode("utf-8", "replace")
