"""What a feature family gets to see: the old release of a cut, a block of queries, and their candidates. No new release.

Built by the cut; read by the feature modules.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..arrays import I32, I64, Bool, Memo, nothing
from ..config import ExportConfig
from ..donors import Donors
from ..embeddings.store import VectorStore
from ..knn.exact import Neighbours
from ..ontology import Ontology
from ..side_tables import ByProtein, ProteinTerms, SideTables, by_protein
from ..votes import Candidates

if TYPE_CHECKING:
    from ..alignment_cache import AlignmentCache


@dataclass(frozen=True)
class CutArrays:
    """The old release of a cut, over the proteins of its universe (codes ascend by accession bytes).

    length     int32[U], residues; -1 without a sequence
    sequence   int32[U], number of the sequence in `sequences` (distinct ones); -1 without
    taxon      int32[U], of the FASTA header, else of the old set; -1 without
    frequency  int32[T]; accretion float32[T], NaN where a supplied file lacks the term
    store      the embedding config's vectors and PCA; vector_row int32[U]: a protein's row in it, -1 without a vector
    known      E_old of every protein as int64 keys protein * T + term, ascending
    curated, electronic   likewise: the usable non-experimental terms, whatever `donor_evidence` is
    words      dictionary column -> the strings its codes stand for
    """

    config: ExportConfig
    onto: Ontology
    donors: Donors
    frequency: I32
    accretion: npt.NDArray[np.float32]
    accessions: pa.Array
    length: I32
    sequence: I32
    sequences: pa.Array
    taxon: I32
    store: VectorStore
    vector_row: I32
    known: I64
    curated: I64
    electronic: I64
    side: SideTables
    words: dict[str, pa.Array]
    threads: int = 0
    alignments: "AlignmentCache | None" = None
    checkpoint: Callable[[], None] = nothing
    """Called many times a second where much is computed; it raises when the work is to stop."""
    memo: Memo = field(default_factory=Memo)
    """What a family computes once for the cut, under the family's name."""

    def rows_of(self, name: str, table: ProteinTerms) -> ByProtein:
        """The rows of a side table by protein, sorted once a cut."""
        return self.memo.once(f"rows of {name}", lambda: by_protein(table, self.accessions))

    @cached_property
    def taxon_node(self) -> I32:
        """int32[U]: a protein's node of the taxonomy; -1 for a taxon that is deleted, unknown or missing."""
        assert self.side.taxonomy is not None
        return self.side.taxonomy.nodes(self.taxon)


@dataclass(frozen=True)
class QueryBlock:
    """Some queries of a cut and their neighbours: what is computed once for them, whatever their candidates.

    queries   int32[n], universe codes, ascending
    near      their neighbours; proteins int32: universe codes of all neighbours; local int64[n, 3, k]: the neighbours as
              indices into `proteins`; offered (ptr, term, best): A(r, ·) of `proteins`
    known     (ptr, term): E_old of each query; std float32[n]: `neighbor_distance_std`
    """

    cut: CutArrays
    queries: I32
    near: Neighbours
    proteins: I32
    local: I64
    offered: tuple[I64, I32, I32]
    known: tuple[I64, I32]
    std: npt.NDArray[np.float32]
    memo: Memo
    """What a family computes once for the block, under the family's name."""


@dataclass(frozen=True)
class Block:
    """The candidates of some members of a query block.

    candidates  n of them, grouped by member; query int64[n]: index into `of.queries`; donor int32[n]: universe code, -1
                for a term without a voter
    """

    of: QueryBlock
    candidates: Candidates
    query: I64
    donor: I32

    @property
    def cut(self) -> CutArrays:
        return self.of.cut

    @property
    def queries(self) -> I32:
        return self.of.queries

    @cached_property
    def voted(self) -> Bool:
        """bool[n]: the term has a voter."""
        return self.donor >= 0

    def of_donor(self, values: npt.NDArray, mask: npt.NDArray | None = None) -> pa.Array:
        """A column that is null without a voter (and where `mask`)."""
        missing = ~self.voted if mask is None else ~self.voted | mask
        return pa.array(values, mask=missing if missing.any() else None)
