"""The canonical columns of a published dataset: the one place that names a column (contract section 7).

Order, types, families and null rules are the contract's. Used by the feature modules, the shard writer, the
manifest and the generated documentation.
"""

import hashlib
from typing import NamedTuple

import pyarrow as pa

DICT = pa.dictionary(pa.int32(), pa.string())
I8, I32, F32, BOOL = pa.int8(), pa.int32(), pa.float32(), pa.bool_()


class Column(NamedTuple):
    """One published column. `null_when` is the contract's rule; `unit` is empty for flags and identities."""

    name: str
    type: pa.DataType
    family: str
    description: str
    unit: str = ""
    null_when: str = "never"

    @property
    def range(self) -> str:
        """What values the column can have."""
        return RANGES.get(self.name) or RANGES[f"{self.type}"]


RANGES: dict[str, str] = {
    "bool": "true, false",
    "int32": ">= 0",
    "float": "any",
    "dictionary<values=string, indices=int32, ordered=0>": "text",
    "aspect": "mfo, bpo, cco",
    "category": "nk, lk, pk",
    "label": "0, 1",
    "distance": ">= 0; cosine: at most 2",
    "neighbor_min_distance": ">= 0; cosine: at most 2",
    "neighbor_mean_distance": ">= 0; cosine: at most 2",
    "neighbor_distance_std": ">= 0; cosine: at most 1",
    "vote_count": "0 to k; 0 only with interpro_candidates",
    "k_position": "1 to k",
    "neighbor_vote_fraction": "0 to 1",
    "qualifier": "enables, involved_in, located_in, contributes_to, colocalizes_with, acts_upstream_of*",
    "evidence_code": "the 25 codes",
    "information_accretion": ">= 0",
    "taxonomic_common_ancestors": ">= 1",
    "taxonomic_relation": "same, parent, child, ancestor, descendant, close, intermediate, distant, root-only",
    "tax_voters_mean_common_ancestors": ">= 1",
    "self_prior_score": "0, 0.5, 1",
    **dict.fromkeys(
        ("tax_voters_same_frac", "tax_voters_close_frac", "association_total", "association_cross", "identity_nw",
         "similarity_nw", "gaps_pct_nw", "identity_sw", "similarity_sw", "gaps_pct_sw"), "0 to 1"),
    "alignment_score_sw": ">= 0",
    **dict.fromkeys(
        ("anc2vec_neighbor_cos", "anc2vec_neighbor_maxcos", "anc2vec_query_known_cos", "anc2vec_query_known_maxcos"),
        "-1 to 1"),
}  # fmt: skip
"""Values by column, else by type."""

_NN = "no neighbour"
_ALN = "family off; a sequence is missing; no neighbour; above max_alignment_cells"
_ALN_EMPTY = f"{_ALN}; a local alignment without columns"
_TAX = "family off; a taxon is unknown; no neighbour"
_TAXV = "family off; no neighbour; the query's taxon is unknown"
_VEC = "family off; no vector; empty set"
_OFF = "family off"


def _alignment(suffix: str, what: str, null_when: str) -> tuple[Column, ...]:
    family = f"alignment_{suffix}"
    fraction = "fraction"
    return (
        Column(f"identity_{suffix}", F32, family, f"identical columns of the {what} alignment / its length", fraction,
               null_when),
        Column(f"similarity_{suffix}", F32, family, f"columns of the {what} alignment with a positive score / its length",
               fraction, null_when),
        Column(f"alignment_score_{suffix}", F32, family, f"score of the {what} alignment (BLOSUM62, gaps 10 and 1)",
               "score", _ALN),
        Column(f"gaps_pct_{suffix}", F32, family, f"gap columns of the {what} alignment / its length", fraction,
               null_when),
        Column(f"alignment_length_{suffix}", I32, family, f"columns of the {what} alignment", "columns", _ALN),
    )  # fmt: skip


INTERPRO_DATABASES = ("pfam", "panther", "superfamily", "smart", "cdd", "prosite")
"""The member databases that have a column; the bit of each in a stored row is its place here."""

COLUMNS: tuple[Column, ...] = (
    Column("protein_accession", DICT, "identity", "the query protein"),
    Column("go_term_id", DICT, "identity", "the candidate term"),
    Column("aspect", DICT, "annotation_meta", "mfo, bpo or cco: the aspect of the term"),
    Column("category", DICT, "identity", "nk, lk or pk: what was known of the query at the old release"),
    Column("label", I8, "identity", "1 when the candidate is new knowledge at the new release, else 0"),
    Column("ref_protein_accession", DICT, "identity", "the donor: the nearest voter for the term",
           "", "no neighbour (InterPro-only row)"),
    Column("distance", F32, "knn", "distance between query and donor", "distance", _NN),
    Column("vote_count", I32, "knn", "neighbours that carry the term (the voters)", "neighbours"),
    Column("k_position", I32, "knn", "rank of the donor among the neighbours, from 1", "rank", _NN),
    Column("neighbor_vote_fraction", F32, "knn", "vote_count / k", "fraction"),
    Column("neighbor_min_distance", F32, "knn", "smallest distance of a voter (equals distance)", "distance", _NN),
    Column("neighbor_mean_distance", F32, "knn", "mean distance of the voters", "distance", _NN),
    Column("neighbor_distance_std", F32, "knn",
           "population standard deviation of the distances of the query's neighbours in all three aspects",
           "distance", _NN),
    Column("qualifier", DICT, "annotation_meta", "normalised qualifier of the donor's best row for the term", "", _NN),
    Column("evidence_code", DICT, "annotation_meta", "evidence code of the donor's best row for the term", "", _NN),
    Column("go_term_frequency", I32, "go_context", "donors of the aspect that carry the term", "donors"),
    Column("ref_annotation_density", I32, "go_context", "distinct usable terms of the donor, all aspects", "terms", _NN),
    Column("information_accretion", F32, "go_context",
           "surprise of the term given its parents, among the experimental annotations of the old release", "bits",
           "term absent from a supplied IA file"),
    *_alignment("nw", "global (Needleman-Wunsch)", _ALN),
    *_alignment("sw", "local (Smith-Waterman)", _ALN_EMPTY),
    Column("length_query", I32, "length", "length of the query", "residues", "no sequence"),
    Column("length_ref", I32, "length", "length of the donor", "residues", "no sequence; no neighbour"),
    Column("taxonomic_distance", I32, "taxonomy_pair", "edges between the two taxa through their common ancestor",
           "edges", _TAX),
    Column("taxonomic_common_ancestors", I32, "taxonomy_pair", "nodes that the two lineages share", "nodes", _TAX),
    Column("taxonomic_relation", DICT, "taxonomy_pair", "how the query's taxon relates to the donor's", "", _TAX),
    Column("tax_voters_same_frac", F32, "taxonomy_voters", "voters of the query's own taxon / voters", "fraction", _TAXV),
    Column("tax_voters_close_frac", F32, "taxonomy_voters", "voters of a close taxon / voters", "fraction", _TAXV),
    Column("tax_voters_mean_common_ancestors", F32, "taxonomy_voters", "mean shared nodes over the voters", "nodes",
           f"{_TAXV}; no voter's taxon is known"),
    Column("anc2vec_neighbor_cos", F32, "anc2vec_neighbor", "cosine of the term and the mean of the neighbours' terms",
           "cosine", _VEC),
    Column("anc2vec_neighbor_maxcos", F32, "anc2vec_neighbor", "largest cosine of the term and a neighbour's term",
           "cosine", _VEC),
    Column("anc2vec_has_emb", BOOL, "anc2vec_neighbor", "the term has a vector", "", _OFF),
    Column("anc2vec_query_known_cos", F32, "anc2vec_query", "cosine of the term and the mean of the query's known terms",
           "cosine", _VEC),
    Column("anc2vec_query_known_maxcos", F32, "anc2vec_query", "largest cosine of the term and a known term of the query",
           "cosine", _VEC),
    Column("anc2vec_query_known_count", I32, "lineage", "experimental terms of the query at the old release", "terms"),
    *(Column(f"emb_pca_query_{i}", F32, "emb_pca", f"principal component {i} of the query's vector", "projection",
             "family off; fewer dimensions or vectors") for i in range(16)),
    Column("lineage_is_ancestor_of_known", BOOL, "lineage", "the term is an ancestor of a known term of the query"),
    Column("lineage_is_descendant_of_known", BOOL, "lineage", "the term is a descendant of a known term of the query"),
    Column("lineage_ancestor_of_count", I32, "lineage", "known terms of the query below the term", "terms"),
    Column("lineage_descendant_of_count", I32, "lineage", "known terms of the query above the term", "terms"),
    Column("interpro_hit", BOOL, "interpro", "an InterPro row of the query names the term itself", "", _OFF),
    Column("interpro_score", F32, "interpro", "largest score of the supporting InterPro rows", "score",
           "family off; interpro_present is false"),
    Column("interpro_n_signatures", I32, "interpro", "signatures of the supporting InterPro rows", "signatures", _OFF),
    *(Column(f"interpro_db_{db}", BOOL, "interpro", f"a supporting row has a signature of {db}", "", _OFF)
      for db in INTERPRO_DATABASES),
    Column("knn_present", BOOL, "knn", "the term has a voter"),
    Column("interpro_present", BOOL, "interpro", "an InterPro row of the query supports the term", "", _OFF),
    Column("classifier_score", F32, "classifier", "score of the external predictor", "score",
           "family off; no row in the file"),
    Column("classifier_present", BOOL, "classifier", "the external predictor scored the term", "", _OFF),
    Column("self_prior_score", F32, "self_prior", "what the query's own non-experimental rows say of the term", "score",
           _OFF),
    Column("association_total", F32, "association", "largest conditional frequency of the term given a known term",
           "fraction", _OFF),
    Column("association_cross", F32, "association", "the same over known terms of another aspect", "fraction", _OFF),
    Column("association_present", BOOL, "association", "the query has a known term that does not imply the candidate", "",
           _OFF),
    Column("snapshot_pair", DICT, "identity", "the cut: v{old}-v{new}"),
)  # fmt: skip

NAMES: tuple[str, ...] = tuple(c.name for c in COLUMNS)
FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(c.family for c in COLUMNS))
ROWS: pa.Schema = pa.schema([(c.name, c.type) for c in COLUMNS])
"""Schema of `train.parquet` and `eval.parquet`."""

TRUTH: pa.Schema = pa.schema(
    [(n, DICT) for n in ("snapshot_pair", "protein_accession", "aspect", "category", "go_term_id")]
    + [("reached", BOOL)]
)
KNOWN: pa.Schema = pa.schema([(n, DICT) for n in ("snapshot_pair", "protein_accession", "aspect", "go_term_id")])

CATEGORIES = ("nk", "lk", "pk")
ROW_GROUP = 200_000
"""Rows of a row group (contract section 7)."""


def schema_sha() -> str:
    """First 12 hex digits of SHA-256 over the sorted names of the columns that are not of family `identity`."""
    names = sorted(c.name for c in COLUMNS if c.family != "identity")
    return hashlib.sha256("|".join(names).encode()).hexdigest()[:12]


def schema_digest() -> str:
    """SHA-256 over names, types and order of all columns."""
    return hashlib.sha256("\n".join(f"{c.name}:{c.type}" for c in COLUMNS).encode()).hexdigest()
