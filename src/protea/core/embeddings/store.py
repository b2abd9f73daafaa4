"""The vector store: one directory for one embedding config, read through a memory map.

    matrix.npy           [n, d] float16 or float32, C order, rows sorted by accession bytes
    ids.parquet          accession, in the same order
    pca_mean.npy         [d] float64        } contract section 12
    pca_components.npy   [c, d] float64     }
    store.json           shape, type and identity

The same vectors give the same bytes, whatever file they came from and in whatever order. Called by the loaders
(`build_store`, `inspect_embeddings`) and by the export (`VectorStore`); calls `readers` and `pca`.
"""

import errno
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from protea.core import fs
from protea.core.embeddings import pca
from protea.core.embeddings.readers import open_source
from protea.core.embeddings.source import BLOCK_BYTES, NAMED, Source, listed
from protea.errors import InputError, StorageError

FORMAT = 1
Progress = Callable[[int], None]


@dataclass(frozen=True)
class EmbReport:
    """What a source of vectors holds. `identity` is None when nothing was built."""

    format: str
    vectors: int
    dim: int
    dtype: str
    file_dtype: str
    pooled: int
    links_skipped: int
    accessions: pa.Array
    identity: str | None = None

    @property
    def narrowed(self) -> bool:
        return self.dtype != self.file_dtype

    def to_json(self, *, detail: bool = False) -> dict:
        keys = ("format", "vectors", "dim", "dtype", "file_dtype", "narrowed", "pooled", "links_skipped", "identity")
        out = {key: getattr(self, key) for key in keys}
        return out | {"accessions": self.accessions.to_pylist()} if detail else out


@dataclass(frozen=True)
class VectorStore:
    """An embedding config, opened. `ids` string [n] sorted by bytes; `matrix` memory map [n, d] as stored;
    `pca_mean` float64 [d]; `pca_components` float64 [c, d]."""

    path: Path
    ids: pa.Array
    matrix: np.ndarray
    pca_mean: np.ndarray
    pca_components: np.ndarray
    identity: str

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def dim(self) -> int:
        return self.matrix.shape[1]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "VectorStore":
        """Map a store and check shapes and types (not the bytes); StorageError when it is missing or damaged."""
        path = Path(path)
        try:
            meta = json.loads((path / "store.json").read_bytes())
            matrix = np.load(path / "matrix.npy", mmap_mode="r")
            mean, components = np.load(path / "pca_mean.npy"), np.load(path / "pca_components.npy")
            ids = pq.read_table(path / "ids.parquet")["accession"].combine_chunks()
            n, d, identity = int(meta["vectors"]), int(meta["dim"]), str(meta["identity"])
            c = pca.component_count(n, d)
            want = (FORMAT, f"{meta['dtype']}[{n}, {d}]", n, f"float64[{d}]", f"float64[{c}, {d}]")
            have = (meta["format"], _shape(matrix), len(ids), _shape(mean), _shape(components))
        except (OSError, ValueError, KeyError, TypeError, EOFError, pa.ArrowException) as e:
            raise StorageError(f"{path}: the vector store is missing or damaged: {e}", hint="load it again") from e
        if want != have or not matrix.flags.c_contiguous:
            raise StorageError(f"{path}: the vector store is damaged: {have}, expected {want}", hint="load it again")
        return cls(path, ids, matrix, mean, components, identity)

    def rows(self, accessions: pa.Array) -> np.ndarray:
        """Row of each accession, int32; -1 for one without a vector."""
        return pc.fill_null(pc.index_in(accessions, self.ids), -1).to_numpy(zero_copy_only=False)

    def project(self, rows: np.ndarray) -> np.ndarray:
        """PCA values of these rows, float64 [m, c]."""
        return pca.project(self.matrix[rows], self.pca_mean, self.pca_components)


def build_store(
    source: str | os.PathLike[str] | Source,
    out_dir: str | os.PathLike[str],
    *,
    ids: str | os.PathLike[str] | None = None,
    pool: str | None = None,
    progress: Progress | None = None,
) -> EmbReport:
    """Read `source` and write a store into the existing directory `out_dir`, one block in memory at a time.

    `ids`: text file of accessions, one a line (for .npy). `pool="mean"`: average per-residue matrices (HDF5).
    `progress` is given the bytes of vectors read so far. InputError for a file that cannot be used: two dimensions,
    duplicates, or vectors that are NaN, infinite or zero as stored; StorageError when the disk is full.
    """
    src = source if isinstance(source, Source) else open_source(Path(source), ids=ids, pool=pool)
    out = Path(out_dir)
    accessions, position = _sorted_ids(src)
    matrix = _allocate(out / "matrix.npy", (len(accessions), src.dim), _stored_dtype(src))
    _read(src, matrix, position, progress)
    matrix.flush()
    mean, components = pca.fit(matrix)
    for name, array in (("pca_mean", mean), ("pca_components", components)):
        with fs.create(out / f"{name}.npy") as f:
            np.save(f, array)
    with fs.create(out / "ids.parquet") as f:
        pq.write_table(pa.table({"accession": accessions}), f, compression="zstd")
    identity = _identity(matrix, accessions, mean, components)
    meta = {
        "format": FORMAT, "vectors": len(accessions), "dim": src.dim, "dtype": matrix.dtype.name, "identity": identity,
    }  # fmt: skip
    with fs.create(out / "store.json") as f:
        f.write((json.dumps(meta, sort_keys=True) + "\n").encode())
    return _report(src, accessions, identity)


def inspect_embeddings(
    source: str | os.PathLike[str] | Source,
    *,
    ids: str | os.PathLike[str] | None = None,
    pool: str | None = None,
    progress: Progress | None = None,
) -> EmbReport:
    """The checks and the report of `build_store`, writing nothing."""
    src = source if isinstance(source, Source) else open_source(Path(source), ids=ids, pool=pool)
    accessions, _ = _sorted_ids(src)
    _read(src, None, None, progress)
    return _report(src, accessions, None)


def _shape(array: np.ndarray) -> str:
    return f"{array.dtype.name}{list(array.shape)}"


def _stored_dtype(src: Source) -> np.dtype:
    return np.dtype(np.float16 if src.dtype.itemsize == 2 else np.float32)


def _report(src: Source, accessions: pa.Array, identity: str | None) -> EmbReport:
    dtype = _stored_dtype(src).name
    return EmbReport(
        src.format, len(accessions), src.dim, dtype, src.dtype.name, src.pooled, src.links_skipped, accessions, identity
    )


def _sorted_ids(src: Source) -> tuple[pa.Array, np.ndarray]:
    """Accessions sorted by bytes, and the sorted position of each source row."""
    if len(src.ids) == 0 or src.dim == 0:
        raise InputError(f"{src.where}: there are no vectors in it")
    order = pc.sort_indices(src.ids)
    ids = src.ids.take(order)
    same = pc.equal(ids[1:], ids[:-1])
    if pc.any(same).as_py():
        twice = ids[1:].filter(same).unique()
        names = listed(twice[:NAMED].to_pylist(), len(twice))
        raise InputError(f"{src.where}: accessions with more than one vector: {names}; keep one of each")
    position = np.empty(len(ids), np.int64)
    position[order.to_numpy()] = np.arange(len(ids))
    return ids, position


def _allocate(path: Path, shape: tuple[int, int], dtype: np.dtype) -> np.memmap:
    """A writable memory map whose disk space is really there: a hole on a full disk would kill us with SIGBUS."""
    matrix = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):
        try:
            with path.open("r+b") as f:
                os.posix_fallocate(f.fileno(), 0, path.stat().st_size)
        except OSError as e:
            if e.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                return matrix  # a file system that cannot promise space
            raise StorageError(f"{path}: no room for {matrix.nbytes >> 20} MB of vectors: {e.strerror}") from e
    return matrix


def _read(src: Source, matrix: np.ndarray | None, position: np.ndarray | None, progress: Progress | None) -> None:
    """Check every vector as it will be stored, and put it in its place."""
    dtype = _stored_dtype(src)
    bits = np.dtype(f"u{dtype.itemsize}")
    magnitude = bits.type(np.iinfo(bits).max >> 1)
    infinity = np.array(np.inf, dtype).view(bits)
    bad: list[tuple[np.ndarray, np.ndarray]] = []
    done = seen = 0
    for rows, block in src.blocks():
        if block.shape[1] != src.dim:
            raise InputError(f"{src.where}: vectors of {src.dim} and of {block.shape[1]} values")
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            values = np.ascontiguousarray(block, dtype)
        # Without its sign bit a float orders like an integer: 0 < finite < infinity < NaN.
        largest = (values.view(bits) & magnitude).max(axis=1)
        kind = np.where(largest > infinity, 1, np.where(largest == infinity, 2, np.where(largest == 0, 3, 0)))
        if kind.any():
            at = np.arange(len(src.ids))[rows] if isinstance(rows, slice) else rows
            bad.append((at[kind > 0], kind[kind > 0]))
        if matrix is not None and position is not None:
            matrix[position[rows]] = values
        done, seen = done + block.nbytes, seen + len(block)
        if progress is not None:
            progress(done)
    if bad:
        raise InputError(_bad_vectors(src, dtype, bad))
    if seen != len(src.ids):
        raise InputError(f"{src.where}: {len(src.ids)} ids but {seen} vectors; there must be one id for each vector")


def _bad_vectors(src: Source, dtype: np.dtype, bad: list[tuple[np.ndarray, np.ndarray]]) -> str:
    ids, kind = src.ids.take(pa.array(np.concatenate([b[0] for b in bad]))), np.concatenate([b[1] for b in bad])
    words = ("", "NaN", "infinite", "zero")
    first = pc.sort_indices(ids)[:NAMED].to_pylist()
    names = listed([f"{ids[i].as_py()} ({words[kind[i]]})" for i in first], len(ids))
    stored = f" as {dtype.name}, which they are stored as" if dtype.itemsize < src.dtype.itemsize else ""
    return f"{src.where}: vectors that are NaN, infinite or zero{stored}: {names}; leave them out or compute them again"


def _identity(matrix: np.ndarray, ids: pa.Array, mean: np.ndarray, components: np.ndarray) -> str:
    """sha256 over a header (types, shapes), the matrix, the ids (int32 offsets, text) and the PCA."""
    header = [[str(a.dtype), *a.shape] for a in (matrix, mean, components)]
    digest = hashlib.sha256(json.dumps(["protea-vectors", FORMAT, header]).encode() + b"\n")
    step = max(1, BLOCK_BYTES // (matrix.shape[1] * matrix.itemsize))
    for start in range(0, len(matrix), step):
        digest.update(np.ascontiguousarray(matrix[start : start + step]).data)
    _, offsets, text = ids.buffers()  # sorted by take(): its own buffers, from 0
    ends = np.frombuffer(offsets, np.int32, len(ids) + 1)
    digest.update(ends.data)
    digest.update(memoryview(text)[: ends[-1]])
    digest.update(mean.data)
    digest.update(components.data)
    return digest.hexdigest()
