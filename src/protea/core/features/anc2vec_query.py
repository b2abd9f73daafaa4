"""Family `anc2vec_query`: the term's vector against those of what was known of the query (contract section 11)."""

import numpy as np
import pyarrow as pa

from .block import Block
from .term_vectors import compare


def columns(block: Block) -> dict[str, pa.Array]:
    v, of = block.cut.side.term_vectors, block.of
    assert v is not None
    rows = v.row[of.known[1]]
    query = np.repeat(np.arange(len(of.queries)), np.diff(of.known[0]))[rows >= 0]
    ptr = np.searchsorted(query, np.arange(len(of.queries) + 1)).astype(np.int64)
    cos, largest = compare(v, block.candidates.term, block.query, ptr, rows[rows >= 0])
    return {"anc2vec_query_known_cos": cos, "anc2vec_query_known_maxcos": largest}
