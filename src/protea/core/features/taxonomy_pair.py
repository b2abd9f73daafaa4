"""Family `taxonomy_pair`: how the query's taxon and the donor's are related (contract section 10)."""

import numba
import numpy as np
import pyarrow as pa

from ..lineages import relate
from .block import Block


@numba.njit(cache=True, nogil=True)
def _pairs(query, donor, parent, depth, common, distance, relation):
    for i in range(len(query)):
        common[i], distance[i], relation[i] = relate(query[i], donor[i], parent, depth)


def columns(block: Block) -> dict[str, pa.Array]:
    tree = block.cut.side.taxonomy
    assert tree is not None
    node = block.cut.taxon_node
    query = node[block.queries[block.query]]
    donor = np.where(block.voted, node[block.donor], -1)
    common, distance, relation = (np.empty(len(query), dtype=np.int32) for _ in range(3))
    _pairs(query, donor, tree.parent, tree.depth, common, distance, relation)
    unknown = relation < 0
    return {
        "taxonomic_distance": pa.array(distance, mask=unknown),
        "taxonomic_common_ancestors": pa.array(common, mask=unknown),
        "taxonomic_relation": pa.array(relation, mask=unknown),
    }
