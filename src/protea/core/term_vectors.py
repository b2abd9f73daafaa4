"""Vectors of GO terms, such as Anc2Vec's: NPZ archives and word2vec text, as one matrix with its ids.

Called by `ingest` and `protea inspect`; calls `delimited` for text. Contract section 11. Anc2Vec's own archive is a pickled
dict of arrays: it is read by an unpickler that knows numpy's arrays and looks up no other name, so it can run nothing.
"""

import pickle
import re
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from protea.core import delimited, fs, limits, spans
from protea.core.delimited import TableReport
from protea.core.embeddings.readers import NPZ_DAMAGE, npy_header, npz_headers
from protea.core.embeddings.source import ID_NAMES, MATRIX_NAMES, float_dtype, listed, pick
from protea.core.textio import BLOCK_SIZE, open_text
from protea.errors import InputError

_GO = re.compile(r"GO:[0-9]{7}")
_IDS = ("go", "go_id", "go_ids", "term", "terms", "go_term", "go_terms", *ID_NAMES)
_ADVICE = (
    "unpack it once where you trust it: d = numpy.load(FILE, allow_pickle=True)[KEY].item(); "
    "numpy.savez(NEW, ids=list(d), vectors=list(d.values()))"
)


@dataclass
class TermVectorsReport(TableReport):
    """What a file of term vectors holds; `kept` vectors are stored, `filtered` has the `repeated` ones."""

    dim: int = 0
    dtype: str = ""  # as stored: float32 or float64
    file_dtype: str = ""


def read_term_vectors(
    path: str | Path,
    out_dir: Path | None,
    progress: Callable[[int], None] | None = None,
    *,
    block_size: int = BLOCK_SIZE,
) -> TermVectorsReport:
    """Read one vector a GO id into `out_dir`: ids.parquet (`go` int32, ascending, distinct) and matrix.npy [n, d].

    NPZ with an array of ids and a matrix; NPZ with one vector an id, named by it; or word2vec text (GO id and numbers,
    separated by blanks; the header `n d` may be there). Text is stored as float64, float16 as float32. Ids that are no
    GO ids are counted as `go_id`; see `delimited.check_rejected`. Memory: about twice the matrix.
    Errors (InputError, naming lines or ids): vectors of two dimensions, what is no number, NaN, infinity, a vector of
    zeros, one id with two vectors, pickled arrays, integers, no vector; and those of textio.
    """
    report = TermVectorsReport(str(path))
    head = _head(path)
    if head.startswith(b"\x93NUMPY"):
        raise InputError(
            f"{path}: an .npy file has no GO ids", hint="save both: numpy.savez(NEW, ids=..., vectors=...)"
        )
    if head.startswith(b"PK"):
        ids, matrix = _npz(Path(path), report)
        report.sha256 = fs.sha256_file(Path(path))
        if progress is not None:
            progress(Path(path).stat().st_size)
    else:
        ids, matrix = _text(path, report, progress, block_size)
    ids, matrix = _distinct(path, report, ids, matrix)
    report.kept, report.dim, report.dtype = len(ids), matrix.shape[1], str(matrix.dtype)
    if out_dir is not None:
        schema = pa.schema([pa.field("go", pa.int32(), nullable=False)])
        with fs.create(out_dir / "ids.parquet") as f:
            pq.write_table(pa.Table.from_arrays([pa.array(ids)], schema=schema), f)
        with fs.create(out_dir / "matrix.npy") as f:
            np.save(f, matrix)
    return report


def _head(path: str | Path) -> bytes:
    try:
        with open(path, "rb") as f:
            return f.read(8)
    except OSError:
        return b""  # open_text says what is wrong


def _text(
    path: str | Path, report: TermVectorsReport, progress: Callable[[int], None] | None, block_size: int
) -> tuple[np.ndarray, np.ndarray]:
    report.format, report.file_dtype = "word2vec", "text"
    head = delimited.peek(path, 2)
    first = head[0].split() if head else []
    header = len(first) == 2 and all(x.isdigit() for x in first)
    row = (head[1].split() if len(head) > 1 else []) if header else first
    dim = len(row) - 1
    if header and dim != int(first[1]):
        raise InputError(f"{path}: the header says {first[1]} values a vector, but the first one has {dim}")
    if dim < 1:
        raise InputError(f"{path}: no vectors in it", hint="give NPZ, or lines of a GO id and its numbers")
    ids, parts = [], []
    with open_text(path) as reader:
        blocks = delimited.read_blocks(
            reader,
            report,
            dim + 1,
            (dim + 1, dim + 1),
            separator=delimited.BLANKS,
            header=header,
            progress=progress,
            block_size=block_size,
        )
        for block in blocks:
            if report.problems and "columns" in report.rejected:
                line, _, text = next(p for p in report.problems if p[1] == "columns")
                raise InputError(f"{path}, line {line}: not {dim} values like the first vector: {text!r}")
            go = block.go(0)
            values, number = spans.floats(block.data, block.cut.spans[:, 1:].reshape(-1, 2))
            values, number = values.reshape(-1, dim), number.reshape(-1, dim)
            good = block.keep(report, ("go_id", go < 0))
            block.refuse("a value is no number", good & ~number.all(axis=1))
            block.refuse("a value is not finite", good & ~np.isfinite(values).all(axis=1))
            ids.append(go[good])
            parts.append(values[good])
    if header and report.rows != int(first[0]):
        raise InputError(f"{path}: the header says {first[0]} vectors, the file has {report.rows}", hint="is it whole?")
    return np.concatenate(ids), np.concatenate(parts)


def _npz(path: Path, report: TermVectorsReport) -> tuple[np.ndarray, np.ndarray]:
    report.format = "npz"
    try:
        with zipfile.ZipFile(path) as archive:
            heads = npz_headers(archive, str(path))
            if any(dtype.hasobject for _, _, dtype in heads.values()):
                names, matrix = _pickled(path)
            elif any(_GO.fullmatch(name) for name in heads):
                names, matrix = _by_name(path, _arrays(archive, heads))
            else:
                names, matrix = _ids_and_matrix(path, _arrays(archive, heads))
    except NPZ_DAMAGE as e:
        raise InputError(f"{path}: not a readable .npz archive, truncated or damaged: {e}") from e
    report.file_dtype = str(matrix.dtype)
    report.rows = len(matrix)
    if not report.rows:
        raise InputError(f"{path}: no vectors in it")
    stored = float_dtype(matrix.dtype, str(path))
    ids = spans.go_numbers(names)
    bad = np.flatnonzero(ids < 0)
    if len(bad):
        some = bad[: delimited.MAX_PROBLEMS].tolist()
        report.reject("go_id", len(bad), [(i + 1, str(names[i])[:80]) for i in some])
    matrix = matrix.astype(np.float32 if stored == np.float16 else stored, copy=False)
    return ids[ids >= 0], matrix[ids >= 0]


class _Dtype:
    """Stands for numpy's dtype in a pickle, whose own state could make a type that points anywhere into memory."""

    def __init__(self, name: str, *_: Any) -> None:
        if not isinstance(name, str) or not re.fullmatch(r"[<>=|]?[fiuSUO][0-9]{0,4}", name):
            raise pickle.UnpicklingError(f"it would use the type {name!r}")
        self.type = np.dtype(name)

    def __setstate__(self, state: Any) -> None:
        if state[1] == ">":
            self.type = self.type.newbyteorder(">")


class _Array:
    """Stands for an array in a pickle. `value`: the array; of objects, the list of them."""

    value: Any = None

    def __setstate__(self, state: Any) -> None:
        shape, dtype, fortran, raw = state[-4:]
        self.value = raw if dtype.type.hasobject else _frombuffer(raw, dtype, shape, "F" if fortran else "C").value


def _frombuffer(raw: Any, dtype: _Dtype, shape: Any, order: str, *_: Any) -> _Array:
    made = _Array()
    made.value = np.frombuffer(raw, dtype.type).reshape(shape, order="F" if order == "F" else "C")
    return made


class _Arrays(pickle._Unpickler):  # in C its list of remembered objects can be made huge
    """Unpickles dicts of strings and arrays, the latter as our own objects; any other name is refused unseen."""

    read: Any  # set by load(), and append
    append: Any

    def _bytearray8(self) -> None:
        """Reads what is there, where pickle makes room for what is promised."""
        self.append(bytearray(self.read(int.from_bytes(self.read(8), "little"))))

    dispatch: ClassVar[Any] = pickle._Unpickler.dispatch | {pickle.BYTEARRAY8[0]: _bytearray8}

    def __init__(self, file: Any, where: str, size: int) -> None:
        super().__init__(file)
        self._where, self._size, self._made = where, size, 0

    def _latin1(self, text: str, encoding: str) -> bytes:
        """How pickles of old protocols write the bytes of an array."""
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"it would use the encoding {encoding}")
        self._made += len(text)
        limits.check_size(self._where, self._size, self._made)
        return text.encode("latin1")

    def find_class(self, module: str, name: str) -> Any:
        known: dict[str, Any] = {
            "_reconstruct": lambda *_: _Array(),
            "_frombuffer": _frombuffer,
            "scalar": lambda dtype, raw: np.frombuffer(raw, dtype.type)[0],
            "ndarray": _Array,
            "dtype": _Dtype,
            "encode": self._latin1,
        }
        if re.fullmatch(r"numpy(\._?core\.(multiarray|numeric))?|_codecs", module) and name in known:
            return known[name]
        raise pickle.UnpicklingError(f"it would use {module}.{name}")


def _pickled(path: Path) -> tuple[pa.Array, np.ndarray]:
    """Anc2Vec's archive: one object array that holds a dict of GO id and vector."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as f:
            npy_header(f, archive.infolist()[0].file_size)
            held = _Arrays(f, str(path), path.stat().st_size).load()
        held = held.value if isinstance(held, _Array) else held
        found = held[0] if isinstance(held, list) and len(held) == 1 else held
        if not isinstance(found, dict) or not all(isinstance(k, str) for k in found):
            raise pickle.UnpicklingError("it holds no dict of GO id and vector")
        vectors = [np.asarray(v.value if isinstance(v, _Array) else v) for v in found.values()]
        if len({v.shape for v in vectors}) != 1 or vectors[0].ndim != 1 or vectors[0].dtype.kind != "f":
            raise pickle.UnpicklingError("its vectors are not all of one dimension")
        return pa.array(list(found), pa.string()), np.stack(vectors)
    except (pickle.UnpicklingError, *NPZ_DAMAGE, AttributeError, IndexError) as e:
        raise InputError(f"{path} holds pickled objects that are not loaded: {e}", hint=_ADVICE) from e


def _arrays(archive: zipfile.ZipFile, names: Iterable[str]) -> dict[str, np.ndarray]:
    def read(name: str) -> np.ndarray:
        with archive.open(f"{name}.npy") as f:
            return np.asarray(np.lib.format.read_array(f, allow_pickle=False))

    return {name: read(name) for name in names}


def _by_name(path: Path, arrays: dict[str, np.ndarray]) -> tuple[pa.Array, np.ndarray]:
    """An archive with one vector an id."""
    names, vectors = list(arrays), list(arrays.values())
    for name, vector in zip(names, vectors, strict=True):
        if vector.shape != vectors[0].shape or vector.ndim != 1 or not len(vector):
            raise InputError(
                f"{path}: {name} has the shape {vector.shape}, {names[0]} {vectors[0].shape}; every id needs one vector "
                "of one dimension"
            )
    return pa.array(names, pa.string()), np.stack(vectors)


def _ids_and_matrix(path: Path, arrays: dict[str, np.ndarray]) -> tuple[pa.Array, np.ndarray]:
    ids = pick([n for n, a in arrays.items() if a.ndim == 1 and a.dtype.kind in "UST"], _IDS, "ids", str(path))
    key = pick([n for n, a in arrays.items() if a.ndim > 1], MATRIX_NAMES, "vectors", str(path))
    names, matrix = pa.array(arrays[ids]), arrays[key]
    if matrix.ndim != 2 or not matrix.shape[1]:
        raise InputError(f"{path}: {key} has the shape {matrix.shape}; it must be one vector an id")
    if len(names) != len(matrix):
        raise InputError(
            f"{path}: {len(names)} {ids} but {len(matrix)} rows of {key}; there must be one id for each row"
        )
    return names, matrix


def _distinct(
    path: str | Path, report: TermVectorsReport, ids: np.ndarray, matrix: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Sorted by id, equal vectors of one id once; InputError for what may not be stored."""
    order = np.argsort(ids, kind="stable")
    ids, matrix = ids[order], matrix[order]
    again = np.append(False, ids[1:] == ids[:-1])[: len(ids)]
    rows = np.flatnonzero(again)
    for bad, what in (
        (ids[~np.isfinite(matrix).all(axis=1)], "hold NaN or infinity"),
        (ids[~matrix.any(axis=1)], "are all zeros"),
        (ids[rows[(matrix[rows] != matrix[rows - 1]).any(axis=1)]], "are there twice and differ"),
    ):
        if len(bad):
            names = [f"GO:{i:07}" for i in np.unique(bad)]
            raise InputError(f"{path}: the vectors of {listed(names)} {what}", hint="repair them, or leave them out")
    if len(rows):
        report.filtered["repeated"] = len(rows)
        ids, matrix = ids[~again], matrix[~again]
    return ids, matrix
