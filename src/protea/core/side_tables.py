"""The optional inputs of an export, resolved under its ontology: taxonomy, term vectors, InterPro, scores, supplied IA.

Loaded once an export and shared by its cuts. Called by the export operation and the plan; calls the ontology and the
stored tables. Contract sections 10, 11, 16, 17 and 18.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .arrays import I32, I64, csr_gather, csr_pointers
from .dots import padded
from .lineages import Lineages
from .ontology import Ontology

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TermVectors:
    """unit float64[m, d]: vectors of length 1, padded with zeros for `dots.dot`; row int32[T]: a term's row, -1 without."""

    unit: F64
    row: I32


@dataclass(frozen=True)
class ProteinTerms:
    """Rows of a (protein, term) table: accessions string[A]; protein int32[n] (index), term int32[n], and values."""

    accessions: pa.Array
    protein: I32
    term: I32
    values: Mapping[str, npt.NDArray]


@dataclass(frozen=True)
class SideTables:
    """What the settings name; None where they do not. `dropped`: table name -> reason -> rows."""

    taxonomy: Lineages | None = None
    term_vectors: TermVectors | None = None
    interpro: ProteinTerms | None = None
    external_scores: ProteinTerms | None = None
    information_accretion: npt.NDArray[np.float32] | None = None
    """float32[T], NaN for a term that the file lacks."""
    dropped: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def load(paths: Mapping[str, Path], onto: Ontology) -> SideTables:
    """Open the tables by the names of their settings."""
    dropped: dict[str, dict[str, int]] = {}
    vectors = accretion = interpro = scores = None
    if path := paths.get("term_vectors"):
        vectors = _term_vectors(path, onto, dropped.setdefault("term_vectors", {}))
    if path := paths.get("information_accretion"):
        accretion = _accretion(path, onto, dropped.setdefault("information_accretion", {}))
    if path := paths.get("interpro"):
        names = ["score", "databases", "signatures"]
        interpro = _protein_terms(path, onto, names, dropped.setdefault("interpro", {}))
    if path := paths.get("external_scores"):
        scores = _protein_terms(path, onto, ["score"], dropped.setdefault("external_scores", {}))
    taxonomy = Lineages.load(paths["taxonomy"]) if "taxonomy" in paths else None
    return SideTables(taxonomy, vectors, interpro, scores, accretion, dropped)


def _first_rows(ids: I32, onto: Ontology, dropped: dict[str, int]) -> I32:
    """int32[T]: for each live term the row of its own id, else of the smallest id that resolves to it; -1 for none."""
    code = onto.resolve(ids)
    _count(code, dropped)
    out = np.full(len(onto.ids), -1, dtype=np.int32)
    rows = np.flatnonzero(code >= 0)[::-1]  # ids ascend: the smallest is written last
    out[code[rows]] = rows
    own = rows[onto.ids[code[rows]] == ids[rows]]
    out[code[own]] = own
    return out


def _count(code: npt.NDArray, dropped: dict[str, int], root: npt.NDArray[np.bool_] | None = None) -> None:
    """Count the ids that are of no use, by reason."""
    root = np.zeros(len(code), dtype=bool) if root is None else root
    for reason, bad in (("unknown", code == -2), ("obsolete", code == -1), ("root", root)):
        if n := int(np.count_nonzero(bad)):
            dropped[reason] = n


def _term_vectors(path: Path, onto: Ontology, dropped: dict[str, int]) -> TermVectors:
    ids = pq.read_table(path / "ids.parquet")["go"].to_numpy().astype(np.int32)
    matrix = np.load(path / "matrix.npy", mmap_mode="r")
    rows = _first_rows(ids, onto, dropped)
    used = np.flatnonzero(rows >= 0)
    vectors = matrix[rows[used]].astype(np.float64)
    _normalise(vectors)
    row = np.full(len(onto.ids), -1, dtype=np.int32)
    row[used] = np.arange(len(used), dtype=np.int32)
    return TermVectors(padded(vectors), row)


@numba.njit(cache=True, nogil=True)
def _normalise(vectors):
    """Scale each row to length 1, in float64 and index order; by its largest entry first, so that no square overflows."""
    for i in range(vectors.shape[0]):
        largest = 0.0
        for j in range(vectors.shape[1]):
            largest = max(largest, abs(vectors[i, j]))
        s = 0.0
        for j in range(vectors.shape[1]):
            vectors[i, j] /= largest
            s += vectors[i, j] * vectors[i, j]
        s = np.sqrt(s)
        for j in range(vectors.shape[1]):
            vectors[i, j] /= s


def _accretion(path: Path, onto: Ontology, dropped: dict[str, int]) -> npt.NDArray[np.float32]:
    table = pq.read_table(path / "rows.parquet")
    rows = _first_rows(table["go"].to_numpy().astype(np.int32), onto, dropped)
    values = table["ia"].to_numpy()
    return np.where(rows >= 0, values[rows], np.nan).astype(np.float32)


def _protein_terms(path: Path, onto: Ontology, names: list[str], dropped: dict[str, int]) -> ProteinTerms:
    table = pq.read_table(path / "rows.parquet", columns=["accession", "go", *names], read_dictionary=["accession"])
    column = table["accession"].unify_dictionaries().combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks else pa.array([], type=table["accession"].type)
    go, inverse = np.unique(table["go"].to_numpy(), return_inverse=True)
    code = onto.resolve(go.astype(np.int32))[inverse].astype(np.int32)
    root = onto.is_root[np.maximum(code, 0)] & (code >= 0)
    _count(code, dropped, root)
    keep = (code >= 0) & ~root
    return ProteinTerms(
        column.dictionary.cast(pa.string()),
        column.indices.to_numpy()[keep].astype(np.int32),
        code[keep],
        {name: table[name].to_numpy()[keep] for name in names},
    )


@dataclass(frozen=True)
class ByProtein:
    """The rows of a table by universe code: ptr int64[U+1], row int64, those of each protein in file order."""

    ptr: I64
    row: I64

    def of(self, proteins: I32) -> tuple[I64, I64]:
        """The rows of some proteins as (ptr int64[len+1], row int64)."""
        owner, rows = csr_gather(self.ptr, self.row, proteins)
        return csr_pointers(owner, len(proteins)), rows


def by_protein(table: ProteinTerms, accessions: pa.Array) -> ByProtein:
    """Sort a table's rows by the proteins of a cut's universe; rows of other proteins are left out."""
    code = pc.fill_null(pc.index_in(table.accessions, value_set=accessions), -1).to_numpy().astype(np.int64)
    whose = code[table.protein] if len(code) else np.zeros(0, dtype=np.int64)
    rows = np.flatnonzero(whose >= 0)
    rows = rows[np.argsort(whose[rows], kind="stable")]
    return ByProtein(csr_pointers(whose[rows], len(accessions)), rows)
