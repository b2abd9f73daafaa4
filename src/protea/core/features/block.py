"""What a feature family gets to see: the arrays of a cut's old release and one block of candidates. No new release.

Built by the cut; read by the feature modules.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..arrays import I32, I64
from ..config import ExportConfig
from ..donors import Donors
from ..embeddings.store import VectorStore
from ..ontology import Ontology
from ..votes import Candidates


@dataclass(frozen=True)
class CutArrays:
    """The old release of a cut, over the proteins of its universe (codes ascend by accession bytes).

    length     int32[U], residues; -1 without a sequence
    frequency  int32[T]; accretion float32[T]
    store      the embedding config's vectors and PCA; vector_row int32[U]: a protein's row in it, -1 without a vector
    known      E_old of every protein as int64 keys protein * T + term, ascending
    words      dictionary column -> the strings its codes stand for
    """

    config: ExportConfig
    onto: Ontology
    donors: Donors
    frequency: I32
    accretion: npt.NDArray[np.float32]
    length: I32
    store: VectorStore
    vector_row: I32
    known: I64
    words: dict[str, pa.Array]


@dataclass(frozen=True)
class Block:
    """The candidates of some members of a cut.

    candidates  n of them; query int64[n]: the query of each, as an index into `queries`
    queries     int32, universe codes; std float32 per query: `neighbor_distance_std`
    known       (ptr, term): E_old of each query
    donor       int32[n]: universe code of each candidate's donor
    """

    cut: CutArrays
    candidates: Candidates
    query: I64
    queries: I32
    std: npt.NDArray[np.float32]
    known: tuple[I64, I32]
    donor: I32
