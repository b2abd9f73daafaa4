"""One cut, end to end: two annotation sets and an embedding config in, labelled rows and counts out.

`prepare` reads the two releases and finds members, donors and queries; `rows` yields the rows of some queries. The serial
runner, the plan and later the minijobs call these same functions. Calls the ground truth, donors, KNN, votes, features.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from . import evidence, features
from .annotation_set import AnnotationSet, AnnotationSource, load
from .arrays import I32, I64, Memo, contains, cores, csr_pointers, nothing, per_query, pieces, side_by_side
from .config import ExportConfig
from .donors import donors, information_accretion, offered, term_frequency, usable_pairs
from .embeddings.store import VectorStore
from .features import Block, CutArrays, QueryBlock
from .features.interpro import Support, support
from .ground_truth import GroundTruth, ground_truth
from .knn.exact import ExactSearch, Neighbours, squared_lengths
from .lineages import RELATIONS
from .ontology import ASPECT_NAMES, Ontology, go_ids
from .schema import CATEGORIES, NAMES
from .side_tables import SideTables
from .votes import distance_std, tally

if TYPE_CHECKING:
    from .alignment_cache import AlignmentCache

QUERIES_PER_BLOCK = 2_000
NEIGHBOURS_PER_BLOCK = 1_000_000
"""Neighbours of all aspects that one block may hold, about 50 bytes each: a large k makes for fewer queries a block."""
ROOM_PER_TALLY = 500_000
"""Candidates, counted with their repeats, that one tally may hold: it bounds memory whatever k and the expansion are."""


@dataclass(frozen=True)
class Cut:
    """A snapshot pair. `kind` is `train` or `eval`."""

    kind: str
    old: AnnotationSource
    new: AnnotationSource

    @property
    def pair(self) -> str:
        return f"v{self.old.version}-v{self.new.version}"

    @property
    def label(self) -> str:
        return f"train-{self.old.version}" if self.kind == "train" else f"eval-{self.new.version}"


@dataclass(frozen=True)
class CutInputs:
    """What every cut of an export shares. `proteins`: the FASTA's table, ascending by accession."""

    config: ExportConfig
    onto: Ontology
    store: VectorStore
    proteins: pa.Table
    side: SideTables = field(default_factory=SideTables)
    threads: int = 0
    alignments: "AlignmentCache | None" = None
    checkpoint: Callable[[], None] = nothing

    @cached_property
    def sequences(self) -> tuple[I32, pa.Array]:
        """int32[proteins + 1], the number of each protein's sequence, -1 at the end; the distinct sequences."""
        encoded = pc.dictionary_encode(self.proteins["sequence"].combine_chunks())
        return np.append(encoded.indices.to_numpy(), -1).astype(np.int32), encoded.dictionary

    @cached_property
    def squared_lengths(self) -> npt.NDArray[np.float64]:
        """float64[n]: the squared length of every vector of the store."""
        return squared_lengths(self.store.matrix, self.threads or cores())


@dataclass(frozen=True)
class Prepared:
    """A cut whose members, donors and queries are known. Protein codes index `accessions`, ascending by bytes.

    queries int32[n]: members' proteins with a vector, ascending; query_members (first, last) of each in `truth`
    """

    cut: Cut
    arrays: CutArrays
    truth: GroundTruth
    accessions: pa.Array
    search: ExactSearch
    queries: I32
    labels: I64
    dropped_old: dict[str, int]
    dropped_new: dict[str, int]
    groups_old: dict[str, int]
    groups_new: dict[str, int]

    @cached_property
    def member_ptr(self) -> I64:
        """int64[U+1]: the members of each protein."""
        return csr_pointers(self.truth.protein, len(self.accessions))

    @cached_property
    def queried(self) -> npt.NDArray[np.bool_]:
        """bool[m]: the member's protein has a vector."""
        return self.arrays.vector_row[self.truth.protein] >= 0


@dataclass(frozen=True)
class _Universe:
    """The proteins of a cut; the old set with codes of theirs and the codes of its accessions, their rows of the vector
    store, and the members."""

    accessions: pa.Array
    old: AnnotationSet
    old_code: I32
    vector_row: I32
    truth: GroundTruth

    def queries(self) -> I32:
        asked = np.unique(self.truth.protein)
        return asked[self.vector_row[asked] >= 0]


def _universe(inputs: CutInputs, old: AnnotationSet, new: AnnotationSet) -> _Universe:
    config, onto, store = inputs.config, inputs.onto, inputs.store
    accessions = pc.unique(pa.chunked_array([old.accessions, new.accessions, store.ids.cast(pa.string())]))
    accessions = accessions.take(pc.sort_indices(accessions))
    old_code, new_code = (_codes(s.accessions, accessions) for s in (old, new))
    occurs_old = np.zeros(len(accessions), dtype=bool)
    occurs_old[old_code] = True
    coded_old, coded_new = (replace(s, protein=c[s.protein]) for s, c in ((old, old_code), (new, new_code)))
    vector_row = np.full(len(accessions), -1, dtype=np.int32)
    vector_row[_codes(store.ids, accessions)] = np.arange(len(store), dtype=np.int32)
    truth = ground_truth(
        coded_old,
        coded_new,
        onto,
        experimental=config.experimental,
        occurs_old=occurs_old,
        direct=config.label_mode == "direct",
        exclude_binding_only=config.exclude_binding_only,
    )
    return _Universe(accessions, coded_old, old_code, vector_row, truth)


def count_queries(inputs: CutInputs, old: AnnotationSet, new: AnnotationSet) -> int:
    """How many queries the cut of two sets has: what `prepare` would find, without the rest of its work."""
    return len(_universe(inputs, old, new).queries())


def prepare(
    cut: Cut, inputs: CutInputs, old: AnnotationSet | None = None, new: AnnotationSet | None = None
) -> Prepared:
    """Read and resolve the two sets (unless given), and find members, donors and queries."""
    config, onto, store = inputs.config, inputs.onto, inputs.store
    old = old or load(cut.old, onto)
    new = new or load(cut.new, onto)
    universe = _universe(inputs, old, new)
    accessions, coded_old = universe.accessions, universe.old
    vector_row, truth = universe.vector_row, universe.truth
    giving = donors(coded_old, onto, config.donor_codes, vector_row >= 0)
    length, sequence, taxon = _sequences(inputs, accessions)
    from_old = np.full(len(accessions), -1, dtype=np.int32)
    from_old[universe.old_code] = old.taxon
    others = frozenset(evidence.CODES) - config.experimental
    curated, electronic = others - evidence.ELECTRONIC, others & evidence.ELECTRONIC
    nothing = np.zeros(0, dtype=np.int64)
    supplied = inputs.side.information_accretion
    arrays = CutArrays(
        config,
        onto,
        giving,
        term_frequency(giving, onto, config.expand_votes_to_ancestors),
        information_accretion(truth.known, truth.known_closed, onto) if supplied is None else supplied,
        accessions,
        length,
        sequence,
        inputs.sequences[1],
        np.where(taxon >= 0, taxon, from_old),
        store,
        vector_row,
        truth.known,
        usable_pairs(coded_old, onto, curated) if config.compute_self_prior else nothing,
        usable_pairs(coded_old, onto, electronic) if config.compute_self_prior else nothing,
        inputs.side,
        {
            "protein_accession": accessions,
            "ref_protein_accession": accessions,
            "go_term_id": pa.array(go_ids(onto.ids)),
            "aspect": pa.array(ASPECT_NAMES),
            "category": pa.array(CATEGORIES),
            "qualifier": pa.array(old.qualifiers),
            "evidence_code": pa.array(evidence.CODES),
            "taxonomic_relation": pa.array(RELATIONS),
            "snapshot_pair": pa.array([cut.pair]),
        },
        inputs.threads,
        inputs.alignments,
        inputs.checkpoint,
    )
    who = np.flatnonzero(giving.aspects).astype(np.int32)  # ascending, and so are their rows of the store
    group = None
    if config.exclude_identical_sequences:
        group = np.full(len(store), -1, dtype=np.int32)
        group[vector_row[vector_row >= 0]] = sequence[vector_row >= 0]
    search = ExactSearch(
        store.matrix,
        vector_row[who],
        giving.aspects[who],
        k=config.k,
        metric=config.metric,
        threshold=config.distance_threshold,
        group=group,
        squares=inputs.squared_lengths,
        threads=inputs.threads,
        checkpoint=inputs.checkpoint,
    )
    return Prepared(
        cut,
        arrays,
        truth,
        accessions,
        search,
        universe.queries(),
        np.sort(truth.novel),
        old.dropped,
        new.dropped,
        old.groups,
        new.groups,
    )


def _codes(words: pa.Array, accessions: pa.Array) -> I32:
    return pc.index_in(words.cast(pa.string()), value_set=accessions).to_numpy().astype(np.int32)


def _sequences(inputs: CutInputs, accessions: pa.Array) -> tuple[I32, I32, I32]:
    """(length, number of the sequence, taxon) of every protein of the universe; -1 for none."""
    proteins = inputs.proteins
    where = pc.index_in(accessions, value_set=proteins["accession"].combine_chunks().cast(pa.string()))
    row = pc.fill_null(where, -1).to_numpy().astype(np.int32)
    columns = proteins["length"].to_numpy(), pc.fill_null(proteins["taxon"], -1).to_numpy()
    length, taxon = (np.append(c, -1).astype(np.int32)[row] for c in columns)  # row -1 is the appended one
    return length, inputs.sequences[0][row], taxon


@dataclass(frozen=True)
class Rows:
    """Coded rows of one tally: `table` has int32 codes in its dictionary columns (see `CutArrays.words`).

    All are of one category (an index of CATEGORIES). member int64[n], index in the cut's members; label bool[n]; key
    int64[n] (protein, term); share: how much of the block has been gone through when they are there, 0 to 1
    """

    table: pa.RecordBatch
    category: int
    member: I64
    label: npt.NDArray[np.bool_]
    key: I64
    share: float


def neighbours(p: Prepared, queries: I32) -> Neighbours:
    """The neighbours of some queries of the cut."""
    return p.search.search(p.arrays.vector_row[queries])


def rows(p: Prepared, queries: I32, near: Neighbours) -> Iterator[Rows]:
    """The labelled rows of `queries` (ascending), category by category, each in published order.

    Tallies run side by side on `threads` threads.
    """
    arrays, truth, onto, config = p.arrays, p.truth, p.arrays.onto, p.arrays.config
    row_protein = np.full(len(arrays.store), -1, dtype=np.int32)
    have = arrays.vector_row >= 0
    row_protein[arrays.vector_row[have]] = np.flatnonzero(have)
    found = near.row >= 0
    proteins = np.unique(row_protein[near.row[found]])
    local = np.zeros(near.row.shape, dtype=np.int64)
    local[found] = np.searchsorted(proteins, row_protein[near.row[found]])
    offer = offered(arrays.donors, onto, proteins, config.expand_votes_to_ancestors, arrays.threads or cores())

    n_terms = len(onto.ids)
    closed = per_query(truth.known_closed, queries, n_terms)
    known = per_query(truth.known, queries, n_terms)
    of = QueryBlock(arrays, queries, near, proteins, local, offer, known, distance_std(near), Memo())
    extra = np.zeros(len(queries) + 1, dtype=np.int64), np.zeros(0, dtype=np.int32)
    if arrays.side.interpro is not None:
        found_by: Support = support(arrays, queries)
        of.memo["interpro"] = found_by
        if config.interpro_candidates:
            extra = found_by.ptr, found_by.term

    first, last = p.member_ptr[queries], p.member_ptr[queries + 1]
    member = np.arange((last - first).sum()) + np.repeat(first - np.cumsum(last - first) + (last - first), last - first)
    by_category = np.argsort(truth.category[member], kind="stable")
    member = member[by_category]
    member_query = np.repeat(np.arange(len(queries), dtype=np.int64), last - first)[by_category]
    category = truth.category[member]
    sizes = np.diff(offer[0])
    room = np.where(found, sizes[local] if len(sizes) else 0, 0).sum(axis=2)[member_query, truth.aspect[member]]
    room += np.diff(extra[0])[member_query]

    def piece(a: int, b: int) -> Rows | None:
        c = tally(
            member_query, truth.aspect[member], a, b, near, local, offer, onto.aspect, closed, extra, config.keep_known
        )
        if not len(c):
            return None
        query = member_query[c.member]
        donor = np.where(c.donor >= 0, np.append(proteins, -1)[c.donor], -1).astype(np.int32)
        block = Block(of, c, query, donor)
        whose = member[c.member]
        key = queries[query].astype(np.int64) * n_terms + c.term
        label = contains(p.labels, key)
        columns = features.compute(block) | {
            "protein_accession": pa.array(queries[query]),
            "go_term_id": pa.array(c.term),
            "category": pa.array(np.full(len(c), category[a], dtype=np.int32)),
            "label": pa.array(label.astype(np.int8)),
            "ref_protein_accession": block.of_donor(donor),
            "snapshot_pair": pa.array(np.zeros(len(c), dtype=np.int32)),
        }
        return Rows(_in_order(columns), int(category[a]), whose, label, key, b / len(member))

    spans = [
        (first + a, first + b)
        for first, last in itertools.pairwise(np.searchsorted(category, np.arange(len(CATEGORIES) + 1)).tolist())
        for a, b in pieces(np.cumsum(room[first:last]), ROOM_PER_TALLY)
    ]
    # alignments have threads of their own
    threads = 1 if config.compute_alignments else arrays.threads or cores()
    for r in side_by_side(piece, spans, threads):
        arrays.checkpoint()
        if r is not None:
            yield r


def _in_order(columns: dict[str, pa.Array]) -> pa.RecordBatch:
    """The columns that have a value, in published order; the writer adds the null ones."""
    return pa.record_batch({name: columns[name] for name in NAMES if name in columns})
