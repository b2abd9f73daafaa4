"""Family `anc2vec_neighbor`: the term's vector against those of the neighbours' direct terms (contract section 11)."""

import numba
import numpy as np
import pyarrow as pa

from .block import Block
from .term_vectors import compare


@numba.njit(cache=True, nogil=True)
def _sets(
    query, aspect_of_group, proteins, local, count, ptr, term, aspect, row, n_terms, count_only, out_ptr, out_row
):
    """Per (query, aspect) group the vector rows of the distinct terms of D(r, a) over the neighbours r."""
    seen = np.full(n_terms, -1, dtype=np.int64)
    for g in range(len(query)):
        q, a = query[g], aspect_of_group[g]
        n = 0
        for i in range(count[q, a]):
            p = proteins[local[q, a, i]]
            for j in range(ptr[p], ptr[p + 1]):
                t = term[j]
                if aspect[t] == a and row[t] >= 0 and seen[t] != g:
                    seen[t] = g
                    if not count_only:
                        out_row[out_ptr[g] + n] = row[t]
                    n += 1
        if count_only:
            out_ptr[g + 1] = n


def columns(block: Block) -> dict[str, pa.Array]:
    v, of, c, cut = block.cut.side.term_vectors, block.of, block.candidates, block.cut
    assert v is not None
    aspect = cut.onto.aspect
    members, group = np.unique(c.member, return_inverse=True)
    first = np.searchsorted(c.member, members)
    given = (
        block.query[first], aspect[c.term[first]], of.proteins, of.local, of.near.count, cut.donors.ptr, cut.donors.term,
        aspect, v.row, len(cut.onto.ids),
    )  # fmt: skip
    ptr = np.zeros(len(members) + 1, dtype=np.int64)
    _sets(*given, True, ptr, np.zeros(0, dtype=np.int32))
    ptr = np.cumsum(ptr)
    rows = np.empty(ptr[-1], dtype=np.int32)
    _sets(*given, False, ptr, rows)
    cos, largest = compare(v, c.term, group.astype(np.int64), ptr, rows)
    return {
        "anc2vec_neighbor_cos": cos,
        "anc2vec_neighbor_maxcos": largest,
        "anc2vec_has_emb": pa.array(v.row[c.term] >= 0),
    }
