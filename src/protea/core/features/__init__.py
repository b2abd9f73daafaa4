"""One module a family: each turns a block of candidates into columns. The registry says which run.

Adding a family takes a module with a function from `Block` to columns and its line in `PRODUCERS`.
"""

from collections.abc import Callable

import pyarrow as pa

from ..config import ExportConfig
from . import annotation_meta, emb_pca, go_context, knn, length, lineage
from .block import Block, CutArrays

Producer = Callable[[Block], dict[str, pa.Array]]

PRODUCERS: dict[str, tuple[Producer, Callable[[ExportConfig], bool]]] = {
    "knn": (knn.columns, lambda _: True),
    "annotation_meta": (annotation_meta.columns, lambda _: True),
    "go_context": (go_context.columns, lambda _: True),
    "length": (length.columns, lambda _: True),
    "lineage": (lineage.columns, lambda _: True),
    "emb_pca": (emb_pca.columns, lambda config: config.use_embedding_pca),
}
"""Family -> (its columns, whether the settings switch it on). The identity columns come from the cut itself."""


def switched_on(config: ExportConfig) -> tuple[str, ...]:
    """The families that `config` switches on, `identity` first."""
    return ("identity", *(name for name, (_, on) in PRODUCERS.items() if on(config)))


def compute(block: Block) -> dict[str, pa.Array]:
    """The columns of every family that is on; dictionary columns as int32 codes (see `CutArrays.words`)."""
    out: dict[str, pa.Array] = {}
    for produce, on in PRODUCERS.values():
        if on(block.cut.config):
            out |= produce(block)
    return out


__all__ = ["PRODUCERS", "Block", "CutArrays", "compute", "switched_on"]
