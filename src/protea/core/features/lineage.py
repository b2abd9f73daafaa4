"""Family `lineage`: where the candidate stands towards what was known of the query (contract section 13)."""

import numba
import numpy as np
import pyarrow as pa

from .block import Block


@numba.njit(cache=True, nogil=True)
def _lineage(query, term, known_ptr, known, closure_ptr, closure, n_terms, below, above):
    """below[i]: known terms under the candidate; above[i]: known terms over it. Candidates come grouped by query."""
    is_known = np.full(n_terms, -1, dtype=np.int64)
    stamp = np.full(n_terms, -1, dtype=np.int64)
    under = np.zeros(n_terms, dtype=np.int32)
    current = -1
    for i in range(len(term)):
        q, t = query[i], term[i]
        if q != current:
            current = q
            for j in range(known_ptr[q], known_ptr[q + 1]):
                k = known[j]
                is_known[k] = q
                for c in range(closure_ptr[k], closure_ptr[k + 1]):
                    if closure[c] == k:
                        continue
                    if stamp[closure[c]] != q:
                        stamp[closure[c]] = q
                        under[closure[c]] = 0
                    under[closure[c]] += 1
        below[i] = under[t] if stamp[t] == q else 0
        n = 0
        for c in range(closure_ptr[t], closure_ptr[t + 1]):
            if closure[c] != t and is_known[closure[c]] == q:
                n += 1
        above[i] = n


def columns(block: Block) -> dict[str, pa.Array]:
    c, onto = block.candidates, block.cut.onto
    below, above = np.empty(len(c), dtype=np.int32), np.empty(len(c), dtype=np.int32)
    _lineage(block.query, c.term, *block.of.known, onto.closure_ptr, onto.closure, len(onto.ids), below, above)
    return {
        "anc2vec_query_known_count": pa.array(np.diff(block.of.known[0]).astype(np.int32)[block.query]),
        "lineage_is_ancestor_of_known": pa.array(below > 0),
        "lineage_is_descendant_of_known": pa.array(above > 0),
        "lineage_ancestor_of_count": pa.array(below),
        "lineage_descendant_of_count": pa.array(above),
    }
