"""Family `interpro`: what the signatures of the query say of the term (contract section 16).

`support` gives S(q, ·), propagated: the cut takes its terms as candidates when `interpro_candidates` is on.
"""

from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..arrays import I32, I64, Bool
from ..schema import INTERPRO_DATABASES
from .block import Block, CutArrays


@dataclass(frozen=True)
class Support:
    """Terms with S(q, t) not empty, per query: ptr int64[n+1]; term int32 ascending in each query, and what S says."""

    ptr: I64
    term: I32
    score: npt.NDArray[np.float32]
    signatures: I32
    databases: npt.NDArray[np.uint8]
    hit: Bool


@numba.njit(cache=True, nogil=True)
def _propagate(ptr, term, score, databases, signatures, closure_ptr, closure, is_root, count_only, out_ptr,
               o_term, o_score, o_signatures, o_databases, o_hit):  # fmt: skip
    n_terms = len(is_root)
    seen = np.full(n_terms, -1, dtype=np.int64)
    place = np.zeros(n_terms, dtype=np.int64)
    touched = np.empty(n_terms, dtype=np.int32)
    for q in range(len(ptr) - 1):
        n = 0
        for j in range(ptr[q], ptr[q + 1]):
            for c in range(closure_ptr[term[j]], closure_ptr[term[j] + 1]):
                t = closure[c]
                if not is_root[t] and seen[t] != q:
                    seen[t] = q
                    touched[n] = t
                    n += 1
        if count_only:
            out_ptr[q + 1] = n
            continue
        base = out_ptr[q]
        terms = np.sort(touched[:n])
        for i in range(n):
            place[terms[i]] = base + i
            o_term[base + i] = terms[i]
            o_score[base + i] = -np.inf
            o_signatures[base + i] = 0
            o_databases[base + i] = 0
            o_hit[base + i] = False
        for j in range(ptr[q], ptr[q + 1]):
            for c in range(closure_ptr[term[j]], closure_ptr[term[j] + 1]):
                t = closure[c]
                if is_root[t]:
                    continue
                i = place[t]
                o_score[i] = max(o_score[i], np.float32(score[j]))
                o_signatures[i] += signatures[j]
                o_databases[i] |= databases[j]
                if t == term[j]:
                    o_hit[i] = True


def support(cut: CutArrays, queries: I32) -> Support:
    """S(q, ·) of `queries` (ascending universe codes)."""
    table, onto = cut.side.interpro, cut.onto
    assert table is not None
    ptr, rows = cut.rows_of("interpro", table).of(queries)
    values = table.values
    given = (
        ptr, table.term[rows], values["score"][rows], values["databases"][rows].astype(np.uint8),
        values["signatures"][rows].astype(np.int32), onto.closure_ptr, onto.closure, onto.is_root,
    )  # fmt: skip
    out_ptr = np.zeros(len(queries) + 1, dtype=np.int64)
    nothing = _room(0)
    _propagate(*given, True, out_ptr, *nothing)
    out_ptr = np.cumsum(out_ptr)
    room = _room(int(out_ptr[-1]))
    _propagate(*given, False, out_ptr, *room)
    return Support(out_ptr, *room)


def _room(n: int) -> tuple[I32, npt.NDArray[np.float32], I32, npt.NDArray[np.uint8], Bool]:
    return (
        np.empty(n, dtype=np.int32), np.empty(n, dtype=np.float32), np.empty(n, dtype=np.int32),
        np.empty(n, dtype=np.uint8), np.empty(n, dtype=np.bool_),
    )  # fmt: skip


def columns(block: Block) -> dict[str, pa.Array]:
    s: Support = block.of.memo["interpro"]
    n_terms = len(block.cut.onto.ids)
    keys = np.repeat(np.arange(len(block.queries)), np.diff(s.ptr)) * n_terms + s.term
    wanted = block.query * n_terms + block.candidates.term
    at = np.searchsorted(keys, wanted)
    at[at == len(keys)] = 0
    present = keys[at] == wanted if len(keys) else np.zeros(len(wanted), dtype=bool)

    def where(values: npt.NDArray) -> npt.NDArray:
        return np.where(present, values[at], 0).astype(values.dtype) if len(keys) else np.zeros(len(at), values.dtype)

    databases = where(s.databases)
    return {
        "interpro_hit": pa.array(where(s.hit)),
        "interpro_score": pa.array(where(s.score), mask=~present),
        "interpro_n_signatures": pa.array(where(s.signatures)),
        **{f"interpro_db_{db}": pa.array((databases >> i & 1).astype(bool)) for i, db in enumerate(INTERPRO_DATABASES)},
        "interpro_present": pa.array(present),
    }
