"""The registry of feature families: who produces which columns, what switches them on and what they need.

Adding a family takes one module with a function from `Block` to columns, its columns in `core.schema`, and its line here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from ..config import ExportConfig
from . import (
    alignment,
    anc2vec_neighbor,
    anc2vec_query,
    annotation_meta,
    association,
    classifier,
    emb_pca,
    go_context,
    interpro,
    knn,
    length,
    lineage,
    self_prior,
    taxonomy_pair,
    taxonomy_voters,
)
from .block import Block, CutArrays, QueryBlock


@dataclass(frozen=True)
class Producer:
    """What computes the columns of `families`. `switch`: the setting that turns it on (none: always on); `needs`: the
    settings that name its inputs; `section` of the contract."""

    families: tuple[str, ...]
    columns: Callable[[Block], dict[str, pa.Array]]
    section: str
    switch: str | None = None
    needs: tuple[str, ...] = ()

    def on(self, config: ExportConfig) -> bool:
        return self.switch is None or getattr(config, self.switch) not in (None, False)

    @property
    def module(self) -> str:
        return self.columns.__module__


PRODUCERS: tuple[Producer, ...] = (
    Producer(("knn",), knn.columns, "5, 6, 16", None, ("embedding_config", "annotation_source")),
    Producer(("annotation_meta",), annotation_meta.columns, "1, 6", None, ("ontology", "annotation_source")),
    Producer(("go_context",), go_context.columns, "6, 18", None, ("ontology", "annotation_source")),
    Producer(("alignment_nw", "alignment_sw"), alignment.columns, "9", "compute_alignments", ("proteins",)),
    Producer(("length",), length.columns, "6", None, ("proteins",)),
    Producer(("taxonomy_pair",), taxonomy_pair.columns, "10", "compute_taxonomy", ("taxonomy", "proteins")),
    Producer(("taxonomy_voters",), taxonomy_voters.columns, "10", "compute_taxonomy", ("taxonomy", "proteins")),
    Producer(("anc2vec_neighbor",), anc2vec_neighbor.columns, "11", "term_vectors", ("term_vectors",)),
    Producer(("anc2vec_query",), anc2vec_query.columns, "11", "term_vectors", ("term_vectors",)),
    Producer(("lineage",), lineage.columns, "11, 13", None, ("ontology", "annotation_source")),
    Producer(("emb_pca",), emb_pca.columns, "12", "use_embedding_pca", ("embedding_config",)),
    Producer(("interpro",), interpro.columns, "16", "interpro", ("interpro",)),
    Producer(("classifier",), classifier.columns, "17", "external_scores", ("external_scores",)),
    Producer(("self_prior",), self_prior.columns, "14", "compute_self_prior", ("annotation_source",)),
    Producer(("association",), association.columns, "15", "compute_association", ("annotation_source",)),
)
"""In the order in which they run. The identity columns come from the cut itself."""


def switched_on(config: ExportConfig) -> tuple[str, ...]:
    """The families that `config` switches on, `identity` first."""
    return ("identity", *(family for p in PRODUCERS if p.on(config) for family in p.families))


def producer(family: str) -> Producer | None:
    """Who computes a family; None for `identity`."""
    return next((p for p in PRODUCERS if family in p.families), None)


def compute(block: Block) -> dict[str, pa.Array]:
    """The columns of every family that is on; dictionary columns as int32 codes (see `CutArrays.words`)."""
    out: dict[str, pa.Array] = {}
    for p in PRODUCERS:
        if p.on(block.cut.config):
            out |= p.columns(block)
    return out


__all__ = ["PRODUCERS", "Block", "CutArrays", "Producer", "QueryBlock", "compute", "producer", "switched_on"]
