"""Family `classifier`: what an external predictor says of the term (contract section 17)."""

import numpy as np
import pyarrow as pa

from ..arrays import I64
from .block import Block, QueryBlock


def _scores(of: QueryBlock) -> tuple[I64, np.ndarray]:
    """The block's scores: ascending keys query * T + term, and the largest score of each."""
    table = of.cut.side.external_scores
    assert table is not None
    ptr, rows = of.cut.rows_of("external_scores", table).of(of.queries)
    query = np.repeat(np.arange(len(of.queries)), np.diff(ptr))
    key = query * len(of.cut.onto.ids) + table.term[rows]
    score = table.values["score"][rows]
    order = np.lexsort((-score, key))
    key, score = key[order], score[order]
    first = np.ones(len(key), dtype=bool)
    first[1:] = key[1:] != key[:-1]
    return key[first], score[first].astype(np.float32)


def columns(block: Block) -> dict[str, pa.Array]:
    keys, scores = block.of.memo.once("classifier", lambda: _scores(block.of))
    wanted = block.query * len(block.cut.onto.ids) + block.candidates.term
    at = np.searchsorted(keys, wanted)
    at[at == len(keys)] = 0
    present = keys[at] == wanted if len(keys) else np.zeros(len(wanted), dtype=bool)
    values = scores[at] if len(keys) else np.zeros(len(wanted), dtype=np.float32)
    return {"classifier_score": pa.array(values, mask=~present), "classifier_present": pa.array(present)}
