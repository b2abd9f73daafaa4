"""Family `taxonomy_voters`: how the query's taxon is related to those of all voters for the term (contract section 10)."""

import numba
import numpy as np
import pyarrow as pa

from ..lineages import CLOSE, SAME, relate
from .block import Block


@numba.njit(cache=True, nogil=True)
def _voters(member, query, aspect, term, votes, local, count, ptr, offered, query_node, node, parent, depth, same, close,
            mean):  # fmt: skip
    """Per candidate the shares of its voters, and the mean common ancestors of those whose taxon is known (NaN for none).

    Candidates come grouped by member: each neighbour of one is looked at once, and then what it offers.
    """
    place = np.full(len(aspect), -1, dtype=np.int64)
    counted = np.zeros((4, len(term)), dtype=np.int32)
    n_same, n_close, n_known, total = counted[0], counted[1], counted[2], counted[3]
    first = 0
    while first < len(term):
        q, a = query[first], aspect[term[first]]
        last = first
        while last < len(term) and member[last] == member[first]:
            place[term[last]] = last
            last += 1
        for j in range(count[q, a]):
            r = local[q, a, j]
            common, _, relation = relate(query_node[q], node[r], parent, depth)
            if relation < 0:
                continue
            for o in range(ptr[r], ptr[r + 1]):
                i = place[offered[o]]
                if i >= first:
                    n_known[i] += 1
                    total[i] += common
                    n_same[i] += relation == SAME
                    n_close[i] += relation <= CLOSE
        first = last
    for i in range(len(term)):
        voters = max(1, votes[i])
        same[i] = np.float32(n_same[i] / voters)
        close[i] = np.float32(n_close[i] / voters)
        mean[i] = np.float32(total[i] / n_known[i]) if n_known[i] else np.float32(np.nan)


def columns(block: Block) -> dict[str, pa.Array]:
    tree, of, c = block.cut.side.taxonomy, block.of, block.candidates
    assert tree is not None
    node = block.cut.taxon_node
    query_node = node[of.queries]
    same, close, mean = (np.empty(len(c), dtype=np.float32) for _ in range(3))
    _voters(
        c.member, block.query, block.cut.onto.aspect, c.term, c.votes, of.local, of.near.count, of.offered[0], of.offered[1],
        query_node, node[of.proteins], tree.parent, tree.depth, same, close, mean,
    )  # fmt: skip
    unknown = query_node[block.query] < 0
    return {
        "tax_voters_same_frac": block.of_donor(same, unknown),
        "tax_voters_close_frac": block.of_donor(close, unknown),
        "tax_voters_mean_common_ancestors": block.of_donor(mean, unknown | np.isnan(mean)),
    }
