"""Families `alignment_nw` and `alignment_sw`: the query's sequence against the donor's (contract section 9)."""

from collections import Counter

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..alignment import align
from ..arrays import cores
from .block import Block


def columns(block: Block) -> dict[str, pa.Array]:
    cut = block.cut
    query = cut.sequence[block.queries[block.query]]
    donor = np.where(block.voted, cut.sequence[block.donor], -1)
    have = (query >= 0) & (donor >= 0)
    both = np.stack([query, donor], axis=1)[have]
    pairs, where = np.unique(both, axis=0, return_inverse=True)
    threads = cut.threads or cores()
    stats = align(
        pairs.astype(np.int32), cut.sequences, threads=threads, max_cells=cut.config.max_alignment_cells,
        cache=cut.alignments, progress=lambda done, of: cut.checkpoint(),
    )  # fmt: skip
    skipped = np.sort(pairs[stats.skipped], axis=1)  # (A, B) and (B, A) are one pair
    cut.memo.setdefault("alignment_skipped", set()).update(map(tuple, skipped.tolist()))
    done = cut.memo.setdefault("alignments", Counter())
    done.update(asked=stats.distinct, from_cache=stats.from_cache, computed=stats.computed)
    which = np.zeros(len(query), dtype=np.int64)
    which[have] = where.reshape(-1)

    def column(values: npt.NDArray, missing: npt.NDArray[np.bool_]) -> pa.Array:
        if not len(pairs):
            return pa.nulls(len(query), pa.from_numpy_dtype(values.dtype))
        return pa.array(values[which], mask=~have | missing[which])

    out: dict[str, pa.Array] = {}
    for suffix, s in (("nw", stats.nw), ("sw", stats.sw)):
        empty = stats.skipped | (s.length == 0)
        length = np.maximum(s.length, 1).astype(np.float64)
        out |= {
            f"identity_{suffix}": column((s.identical / length).astype(np.float32), empty),
            f"similarity_{suffix}": column((s.similar / length).astype(np.float32), empty),
            f"alignment_score_{suffix}": column(s.score.astype(np.float32), stats.skipped),
            f"gaps_pct_{suffix}": column((s.gaps / length).astype(np.float32), empty),
            f"alignment_length_{suffix}": column(s.length.astype(np.int32), stats.skipped),
        }
    return out
