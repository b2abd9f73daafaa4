"""A stored annotation set as integer arrays under the export's ontology: resolved, counted, split by NOT.

Called by the cut and the plan; calls the ontology. Contract section 1 (GAF rows, resolving, NOT) and section 2 (date cuts).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from . import evidence
from .arrays import I32, I64, Bool, contains, csr_gather, distinct
from .ontology import Ontology

DEFAULT_QUALIFIERS = ("enables", "involved_in", "located_in")
"""What a row without a more telling qualifier says, by aspect (F, P, C)."""


@dataclass(frozen=True)
class AnnotationSource:
    """Where a set's rows are, and what the catalogue knows of it. `cut_date`: only rows dated up to that day."""

    version: int | str
    path: Path
    identity: str
    cut_date: date | None = None
    stats: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AnnotationSet:
    """The rows of a set that are resolved, no root, no ND and (if NOT) no isoform's.

    accessions   string[A], ascending by bytes: every accession that occurs (in a derived set: at any date)
    protein      int32[n], index into `accessions`
    term         int32[n], term code
    evidence     int8[n], index into `evidence.CODES`
    qualifier    int16[n], index into `qualifiers` (normalised, the aspect's default spelt out)
    negated      bool[n]
    taxon        int32[A], of the accession's first row that has one; -1 without
    dropped      reason -> rows
    """

    accessions: pa.Array
    protein: I32
    term: I32
    evidence: npt.NDArray[np.int8]
    qualifier: npt.NDArray[np.int16]
    qualifiers: tuple[str, ...]
    negated: Bool
    taxon: I32
    dropped: dict[str, int]
    groups: dict[str, int]


def load(source: AnnotationSource, onto: Ontology) -> AnnotationSet:
    """Read the stored rows of `source` and resolve them under `onto`."""
    columns = ["accession", "go", "evidence", "qualifier", "negated", "isoform", "date", "taxon"]
    table = pq.read_table(source.path / "rows.parquet", columns=columns, read_dictionary=["accession", "qualifier"])
    accession = _dictionary(table["accession"])
    names, protein = _sorted_dictionary(accession)
    code = table["evidence"].to_numpy()
    keep = np.ones(len(code), dtype=bool)
    if source.cut_date is not None:
        days = (source.cut_date - date(1970, 1, 1)).days
        keep = table["date"].cast(pa.int32()).to_numpy() <= days
    taxon = _first_taxa(table["taxon"], protein, keep, len(names))
    dropped = _file_counts(source)

    def drop(reason: str, rows: Bool) -> None:
        rows = rows & keep
        if n := int(np.count_nonzero(rows)):
            dropped[reason] = dropped.get(reason, 0) + n
        keep[rows] = False

    drop("no_data", code == evidence.ND)
    term = onto.resolve(table["go"].to_numpy()).astype(np.int32)
    drop("unknown", term == -2)
    drop("obsolete", term == -1)
    drop("root", onto.is_root[np.maximum(term, 0)] & (term >= 0))
    negated = table["negated"].to_numpy()
    drop("not_isoform", negated & table["isoform"].to_numpy())

    qualifiers, qualifier = _qualifiers(_dictionary(table["qualifier"]), onto.aspect[np.maximum(term, 0)])
    kept_codes = np.bincount(code[keep], minlength=evidence.ND)
    groups = {"experimental": 0, "curated": 0, "electronic": 0}
    for i, name in enumerate(evidence.CODES):
        groups[evidence.group(name)] += int(kept_codes[i])
    return AnnotationSet(
        names, protein[keep], term[keep], code[keep], qualifier[keep], qualifiers, negated[keep], taxon, dropped, groups
    )


def _first_taxa(column: pa.ChunkedArray, protein: I32, keep: Bool, n: int) -> I32:
    """The taxon of each accession's first kept row that has one, in file order; -1 without."""
    taxon = pc.fill_null(column, -1).to_numpy().astype(np.int32)
    rows = np.flatnonzero(keep & (taxon >= 0))[::-1]  # the first row is written last
    out = np.full(n, -1, dtype=np.int32)
    out[protein[rows]] = taxon[rows]
    return out


def _file_counts(source: AnnotationSource) -> dict[str, int]:
    """The rows that loading dropped: malformed ones of the whole file, others up to the cut date."""
    dropped = {reason: int(n) for reason, n in source.stats.get("rejected", {}).items()}
    for reason in ("other_database", "not_in_proteins"):
        by_date = source.stats.get(f"{reason}_by_date", {})
        limit = source.cut_date.isoformat() if source.cut_date else "9999"
        if n := sum(int(n) for day, n in by_date.items() if day <= limit):
            dropped[reason] = n
    return dropped


def _dictionary(column: pa.ChunkedArray) -> pa.DictionaryArray:
    unified = column.unify_dictionaries().combine_chunks()
    if isinstance(unified, pa.ChunkedArray):
        unified = unified.chunk(0) if unified.num_chunks else pa.array([], type=column.type)
    return unified


def _sorted_dictionary(column: pa.DictionaryArray) -> tuple[pa.Array, I32]:
    """The dictionary in byte order without repeats, and the codes under it."""
    words = column.dictionary.cast(pa.string())
    names = pc.unique(words)
    names = names.take(pc.sort_indices(names))
    where = pc.index_in(words, value_set=names).to_numpy().astype(np.int32)
    return names, where[column.indices.to_numpy()] if len(column) else np.zeros(0, dtype=np.int32)


def _qualifiers(column: pa.DictionaryArray, aspect: npt.NDArray) -> tuple[tuple[str, ...], npt.NDArray[np.int16]]:
    words: list[str] = column.dictionary.to_pylist()  # a handful of distinct qualifiers
    names = tuple(sorted({*filter(None, words), *DEFAULT_QUALIFIERS}, key=str.encode))
    # rows of the lookup are the file's words, columns the aspects: only the blank one depends on the aspect
    lookup = np.array([[names.index(w or d) for d in DEFAULT_QUALIFIERS] for w in words] or [[0, 0, 0]], dtype=np.int16)
    codes = column.indices.to_numpy() if len(column) else np.zeros(0, dtype=np.int32)
    return names, lookup[codes, aspect]


def pair_keys(protein: npt.NDArray, term: npt.NDArray, n_terms: int) -> I64:
    """(protein, term) as one int64 that sorts by protein, then term."""
    return protein.astype(np.int64) * n_terms + term


def negated_pairs(s: AnnotationSet, onto: Ontology, codes: frozenset[str] | None = None) -> I64:
    """Ascending keys of the (protein, term) that a NOT row of `s` names; only rows of evidence `codes` if given."""
    rows = s.negated if codes is None else s.negated & code_mask(codes)[s.evidence]
    return distinct(pair_keys(s.protein[rows], s.term[rows], len(onto.ids)))


def is_negated(protein: npt.NDArray, term: npt.NDArray, not_pairs: I64, onto: Ontology) -> Bool:
    """Whether (protein, term) is negated: a NOT row names the term or one of its ancestors."""
    n_terms = len(onto.ids)
    out = np.zeros(len(protein), dtype=bool)
    if not len(not_pairs):
        return out
    concerned = np.flatnonzero(contains(distinct(not_pairs // n_terms), protein.astype(np.int64)))
    owner, above = csr_gather(onto.closure_ptr, onto.closure, term[concerned])
    hit = contains(not_pairs, pair_keys(protein[concerned][owner], above, n_terms))
    out[concerned[owner[hit]]] = True
    return out


def code_mask(codes: frozenset[str]) -> Bool:
    """bool[25]: which evidence codes are in `codes`."""
    return np.array([c in codes for c in evidence.CODES], dtype=bool)
