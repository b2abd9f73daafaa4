"""What every origin of vectors looks like to the store: accessions, a shape, and blocks of rows.

Made by `readers`, `hdf5`, `kmer` and `unirep`; consumed by `store`. Also the rules that all of them share: what an
accession is, which number types are accepted, how array names are recognised.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from protea.core import limits
from protea.errors import InputError

# fmt: off
ID_NAMES = (
    "accession", "accessions", "id", "ids", "protein_accession", "protein_id", "protein_ids", "protein", "proteins",
    "uniprot", "uniprot_id", "entry", "entries", "name", "names", "key", "keys", "identifier", "identifiers", "index",
    "__index_level_0__",
)
MATRIX_NAMES = (
    "embedding", "embeddings", "vector", "vectors", "matrix", "features", "representation", "representations", "x",
)
# fmt: on

BLOCK_BYTES = 16 << 20
NAMED = 20  # accessions that one message names at most


@dataclass(frozen=True)
class Source:
    """Vectors to be stored.

    `ids`: string array, accessions in source order. `dtype`: float16, float32 or float64, as in the file, native byte
    order. `blocks()` yields (rows, block): positions in `ids` (slice or int array) and their vectors [m, dim]; together
    they cover every row once. It may be called again.
    """

    where: str
    format: str
    ids: pa.Array
    dim: int
    dtype: np.dtype
    blocks: Callable[[], Iterator[tuple[slice | np.ndarray, np.ndarray]]]
    pooled: int = 0
    links_skipped: int = 0


def from_array(ids: pa.Array, matrix: np.ndarray, *, where: str = "array", format: str = "array") -> Source:
    """A source over an array [n, d] (a memory map is never read whole); raises InputError on a bad shape or type."""
    if matrix.ndim != 2:
        raise InputError(per_residue_or(where, "embeddings", matrix.shape))
    if len(ids) != len(matrix):
        raise InputError(f"{where}: {len(ids)} ids but {len(matrix)} vectors; there must be one id for each row")
    dtype = float_dtype(matrix.dtype, where)
    check_width(matrix.shape[1], where)
    step = rows_per_block(matrix.shape[1], dtype)

    def blocks() -> Iterator[tuple[slice, np.ndarray]]:
        for start in range(0, len(matrix), step):
            yield slice(start, start + step), matrix[start : start + step]

    return Source(where, format, ids, matrix.shape[1], dtype, blocks)


def check_width(dim: int, where: str) -> None:
    if dim > limits.MAX_VALUES:
        raise InputError(f"{where}: vectors of {dim:,} values; at most {limits.MAX_VALUES:,} are read")


def rows_per_block(dim: int, dtype: np.dtype) -> int:
    return max(1, BLOCK_BYTES // max(1, dim * dtype.itemsize))


def float_dtype(dtype: np.dtype, where: str) -> np.dtype:
    """The native form of an accepted number type; InputError for every other one."""
    if dtype.kind == "f" and dtype.itemsize in (2, 4, 8):
        return dtype.newbyteorder("=")
    raise InputError(
        f"{where}: vectors of type {dtype} are not accepted, only float16, float32 and float64 (turn quantised ones back "
        "into floating point)"
    )


def per_residue_or(where: str, key: str, shape: Sequence[int], pool: bool = False) -> str:
    """The message for an array that is not a vector (or matrix of vectors)."""
    if len(shape) == 2 or (len(shape) == 3 and shape[0] != 1):
        how = "mean-pool them: --pool mean" if pool else "mean-pool them first, one vector for each protein"
        return f"{where}: {key} has shape {tuple(shape)}: these are per-residue matrices, not one vector each ({how})"
    return f"{where}: {key} has shape {tuple(shape)}, which is not one vector for each accession"


def accessions(keys: pa.Array, where: str, *, groups: bool = False) -> pa.Array:
    """Keys or ids -> accessions: `sp|P10001|NAME` and `tr|...` give the middle part, others their first word.

    With `groups` (HDF5, where a slash in a key makes groups) only the last part of the path counts, unless an earlier
    part is a UniProt header whose description held the slash. InputError for ids that are empty or not UTF-8.
    """
    try:
        keys = keys.cast(pa.string()) if not pa.types.is_string(keys.type) else keys
    except pa.ArrowInvalid as e:
        raise InputError(f"{where}: the ids are not UTF-8 text") from e
    head = "(?s)^(?:.*/)?" if groups else r"(?s)^\s*"
    uniprot = head + r"(?:sp|tr)\|([^|/\s]+).*$"
    plain = pc.replace_substring_regex(keys, "(?s)^.*/", "") if groups else keys
    plain = pc.replace_substring_regex(plain, r"(?s)^\s*(\S*).*$", r"\1")
    is_header = pc.match_substring_regex(keys, uniprot)
    out = pc.if_else(is_header, pc.replace_substring_regex(keys, uniprot, r"\1"), plain)
    empty = pc.fill_null(pc.equal(pc.utf8_length(out), 0), True)
    if pc.any(empty).as_py():
        row = pc.index(empty, True).as_py()
        raise InputError(f"{where}: id {row + 1} of {len(out)} is empty; every vector needs an accession")
    return out.combine_chunks() if isinstance(out, pa.ChunkedArray) else out


def pick(candidates: Sequence[str], known: Sequence[str], what: str, where: str) -> str:
    """The one array or column that is `what`: the only candidate, else the only one with a known name."""
    if len(candidates) == 1:
        return candidates[0]
    named = [c for c in candidates if c.rsplit("/", 1)[-1].lower() in known]
    if len(named) == 1:
        return named[0]
    found = ", ".join(candidates[:NAMED]) or "none"
    raise InputError(f"{where}: cannot tell which one holds the {what} (found: {found}; name it {known[0]!r})")


def listed(names: Sequence[str], total: int | None = None) -> str:
    """`A, B, C and 7 more`: names for one message."""
    total = len(names) if total is None else total
    text = ", ".join(names[:NAMED])
    return text if total <= NAMED else f"{text} and {total - NAMED} more"
