"""Family `taxonomy_voters`: how the query's taxon is related to those of all voters for the term (contract section 10)."""

import numba
import numpy as np
import pyarrow as pa

from ..lineages import CLOSE, SAME, relate
from .block import Block


@numba.njit(cache=True, nogil=True)
def _voters(query, aspect, term, votes, local, count, ptr, offered, query_node, node, parent, depth, same, close, mean):
    """Per candidate the shares of its voters, and the mean common ancestors of those whose taxon is known (NaN for none)."""
    for i in range(len(query)):
        q, a = query[i], aspect[i]
        n_same = n_close = n_known = total = 0
        for j in range(count[q, a]):
            r = local[q, a, j]
            at = ptr[r] + np.searchsorted(offered[ptr[r] : ptr[r + 1]], term[i])
            if at == ptr[r + 1] or offered[at] != term[i]:
                continue
            common, _, relation = relate(query_node[q], node[r], parent, depth)
            if relation < 0:
                continue
            n_known += 1
            total += common
            n_same += relation == SAME
            n_close += relation <= CLOSE
        voters = max(1, votes[i])
        same[i] = np.float32(n_same / voters)
        close[i] = np.float32(n_close / voters)
        mean[i] = np.float32(total / n_known) if n_known else np.float32(np.nan)


def columns(block: Block) -> dict[str, pa.Array]:
    tree, of, c = block.cut.side.taxonomy, block.of, block.candidates
    assert tree is not None
    node = block.cut.taxon_node
    query_node = node[of.queries]
    same, close, mean = (np.empty(len(c), dtype=np.float32) for _ in range(3))
    _voters(
        block.query, block.cut.onto.aspect[c.term], c.term, c.votes, of.local, of.near.count, of.offered[0], of.offered[1],
        query_node, node[of.proteins], tree.parent, tree.depth, same, close, mean,
    )  # fmt: skip
    unknown = query_node[block.query] < 0
    return {
        "tax_voters_same_frac": block.of_donor(same, unknown),
        "tax_voters_close_frac": block.of_donor(close, unknown),
        "tax_voters_mean_common_ancestors": block.of_donor(mean, unknown | np.isnan(mean)),
    }
