"""Family `self_prior`: what the query's own non-experimental rows say of the term (contract section 14)."""

import numba
import numpy as np
import pyarrow as pa

from ..arrays import per_query
from .block import Block


@numba.njit(cache=True, nogil=True)
def _prior(query, term, curated_ptr, curated, electronic_ptr, electronic, closure_ptr, closure, n_terms):
    """1 in the closure of a curated term of the query, 0.5 in that of an electronic one, else 0; grouped by query."""
    out = np.zeros(len(term), dtype=np.float32)
    by_curator = np.full(n_terms, -1, dtype=np.int64)
    by_machine = np.full(n_terms, -1, dtype=np.int64)
    current = -1
    for i in range(len(term)):
        q = query[i]
        if q != current:
            current = q
            for j in range(curated_ptr[q], curated_ptr[q + 1]):
                for c in range(closure_ptr[curated[j]], closure_ptr[curated[j] + 1]):
                    by_curator[closure[c]] = q
            for j in range(electronic_ptr[q], electronic_ptr[q + 1]):
                for c in range(closure_ptr[electronic[j]], closure_ptr[electronic[j] + 1]):
                    by_machine[closure[c]] = q
        if by_curator[term[i]] == q:
            out[i] = 1.0
        elif by_machine[term[i]] == q:
            out[i] = 0.5
    return out


def columns(block: Block) -> dict[str, pa.Array]:
    cut, n = block.cut, len(block.cut.onto.ids)
    curated = per_query(cut.curated, block.queries, n)
    electronic = per_query(cut.electronic, block.queries, n)
    score = _prior(block.query, block.candidates.term, *curated, *electronic, cut.onto.closure_ptr, cut.onto.closure, n)
    return {"self_prior_score": pa.array(score)}
