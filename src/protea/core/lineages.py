"""Lineages of the NCBI taxonomy as arrays: depth, common ancestors and relation of two taxa (contract section 10).

Called by the taxonomy families; calls the stored tables of `core.taxonomy`.
"""

from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np
import numpy.typing as npt

from .arrays import I32
from .taxonomy import Taxonomy

RELATIONS = (
    "same", "parent", "child", "ancestor", "descendant", "close", "intermediate", "distant", "root-only",
)  # fmt: skip
SAME, CLOSE = 0, 5
"""Relations up to CLOSE count as close."""
MAX_MERGES = 64


@dataclass(frozen=True)
class Lineages:
    """The tree: taxon int32[n] ascending; parent int32[n], an index (the root's is its own); depth int32[n], 0 at the root.

    merged_old, merged_new int32: merged ids and what they lead to; deleted ids are simply not there.
    """

    taxon: I32
    parent: I32
    depth: I32
    merged_old: I32
    merged_new: I32

    @classmethod
    def load(cls, directory: Path) -> "Lineages":
        tables = Taxonomy.load(directory)
        taxon = tables.nodes["tax_id"].to_numpy().astype(np.int32)
        parent = np.searchsorted(taxon, tables.nodes["parent"].to_numpy()).astype(np.int32)
        return cls(
            taxon,
            parent,
            _depths(parent),
            tables.merged["old"].to_numpy().astype(np.int32),
            tables.merged["new"].to_numpy().astype(np.int32),
        )

    def nodes(self, taxa: npt.NDArray) -> I32:
        """int32 index of each taxon, merged ids followed; -1 for a deleted, unknown or missing (-1) one."""
        taxa = np.asarray(taxa, dtype=np.int32).copy()
        node = _find(self.taxon, taxa)
        for _ in range(MAX_MERGES):
            merged = np.where(node < 0, _find(self.merged_old, taxa), -1)
            moved = merged >= 0
            if not moved.any():
                break
            taxa[moved] = self.merged_new[merged[moved]]
            node = _find(self.taxon, taxa)
        return node


def _find(ascending: I32, wanted: I32) -> I32:
    """The place of each value in `ascending`, -1 where it is not."""
    if not len(ascending):
        return np.full(len(wanted), -1, dtype=np.int32)
    at = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    return np.where(ascending[at] == wanted, at, -1).astype(np.int32)


@numba.njit(cache=True, nogil=True)
def _depths(parent):
    depth = np.full(len(parent), -1, dtype=np.int32)
    path = np.empty(len(parent), dtype=np.int32)
    for i in range(len(parent)):
        n = 0
        x = i
        while depth[x] < 0 and parent[x] != x:
            path[n] = x
            n += 1
            x = parent[x]
        if depth[x] < 0:
            depth[x] = 0
        d = depth[x]
        while n:
            n -= 1
            d += 1
            depth[path[n]] = d
    return depth


@numba.njit(cache=True, nogil=True)
def relate(q, d, parent, depth):
    """(common ancestors, distance in edges, relation) of the query's node q and the donor's d; unknown: (0, 0, -1)."""
    if q < 0 or d < 0:
        return 0, 0, -1
    a, b = q, d
    while depth[a] > depth[b]:
        a = parent[a]
    while depth[b] > depth[a]:
        b = parent[b]
    while a != b:
        a, b = parent[a], parent[b]
    common = depth[a] + 1
    distance = depth[q] + depth[d] - 2 * depth[a]
    if q == d:
        relation = 0
    elif parent[d] == q:
        relation = 1
    elif parent[q] == d:
        relation = 2
    elif a == q:
        relation = 3
    elif a == d:
        relation = 4
    elif common > 15:
        relation = 5
    elif common >= 3:
        relation = 6
    elif common == 2:
        relation = 7
    else:
        relation = 8
    return common, distance, relation
