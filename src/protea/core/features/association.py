"""Family `association`: how often donors with a known term of the query have the candidate too (contract section 15)."""

import numba
import numpy as np
import pyarrow as pa

from ..arrays import I32, I64
from ..donors import offered
from .block import Block, CutArrays, QueryBlock


@numba.njit(cache=True, nogil=True)
def _cooccurrence(wanted, member_ptr, members, ptr, term, n_terms, count_only, out_ptr, out_term, out_n):
    """For each wanted term k, the terms of the donors that have k, and in how many of them: n(k, t)."""
    counts = np.zeros(n_terms, dtype=np.int32)
    touched = np.empty(n_terms, dtype=np.int32)
    for i in range(len(wanted)):
        n = 0
        for m in range(member_ptr[wanted[i]], member_ptr[wanted[i] + 1]):
            d = members[m]
            for j in range(ptr[d], ptr[d + 1]):
                if counts[term[j]] == 0:
                    touched[n] = term[j]
                    n += 1
                counts[term[j]] += 1
        if count_only:
            out_ptr[i + 1] = n
        for j in range(n):
            if not count_only:
                out_term[out_ptr[i] + j] = touched[j]
                out_n[out_ptr[i] + j] = counts[touched[j]]
            counts[touched[j]] = 0


@numba.njit(cache=True, nogil=True)
def _associate(query, term, aspect, known_ptr, known, place, together_ptr, together_term, together_n, population,
               own, ptr, donor_term, closure_ptr, closure, total, cross, present):  # fmt: skip
    """Candidates come grouped by query. place[j] is the row of known[j] in the co-occurrence; own[q]: the query as donor."""
    n_terms = len(aspect)
    joint = np.zeros(n_terms, dtype=np.int32)
    mine = np.full(n_terms, -1, dtype=np.int64)
    implied = np.full(n_terms, -1, dtype=np.int64)
    first = 0
    step = np.int64(0)
    while first < len(term):
        q = query[first]
        last = first
        while last < len(term) and query[last] == q:
            last += 1
        if own[q] >= 0:
            for j in range(ptr[own[q]], ptr[own[q] + 1]):
                mine[donor_term[j]] = q
        for j in range(known_ptr[q], known_ptr[q + 1]):
            k = known[j]
            for c in range(closure_ptr[k], closure_ptr[k + 1]):
                implied[closure[c]] = step
            row = place[j]
            for c in range(together_ptr[row], together_ptr[row + 1]):
                joint[together_term[c]] = together_n[c]
            has = own[q] >= 0 and mine[k] == q  # q itself is left out of every count
            n_k = population[k] - (1 if has else 0)
            for i in range(first, last):
                t = term[i]
                if implied[t] == step:
                    continue
                present[i] = True
                if n_k > 0:
                    both = joint[t] - (1 if has and mine[t] == q else 0)
                    share = np.float32(both / n_k)
                    total[i] = max(total[i], share)
                    if aspect[k] != aspect[t]:
                        cross[i] = max(cross[i], share)
            for c in range(together_ptr[row], together_ptr[row + 1]):
                joint[together_term[c]] = 0
            step += 1
        first = last


class _Donors:
    """Every donor's propagated terms, forwards and backwards: computed once a cut."""

    def __init__(self, cut: CutArrays) -> None:
        n_terms = len(cut.onto.ids)
        self.who = np.flatnonzero(cut.donors.aspects).astype(np.int32)
        self.ptr, self.term, _ = offered(cut.donors, cut.onto, self.who, expand=True)
        owner = np.repeat(np.arange(len(self.who), dtype=np.int32), np.diff(self.ptr))
        order = np.argsort(self.term, kind="stable")
        self.members = owner[order]
        self.member_ptr = np.searchsorted(self.term[order], np.arange(n_terms + 1)).astype(np.int64)
        self.population = np.diff(self.member_ptr).astype(np.int32)


def _together(of: QueryBlock, d: _Donors) -> tuple[I64, I64, I32, I32]:
    """(place of each known term, ptr, term, n): the co-occurrence rows of the block's known terms."""
    n_terms = len(of.cut.onto.ids)
    wanted, place = np.unique(of.known[1], return_inverse=True)
    given = (wanted, d.member_ptr, d.members, d.ptr, d.term, n_terms)
    ptr = np.zeros(len(wanted) + 1, dtype=np.int64)
    nothing = np.zeros(0, dtype=np.int32)
    _cooccurrence(*given, True, ptr, nothing, nothing)
    ptr = np.cumsum(ptr)
    term, n = np.empty(ptr[-1], dtype=np.int32), np.empty(ptr[-1], dtype=np.int32)
    _cooccurrence(*given, False, ptr, term, n)
    return place.astype(np.int64), ptr, term, n


def columns(block: Block) -> dict[str, pa.Array]:
    cut, of, c = block.cut, block.of, block.candidates
    d: _Donors = cut.memo.get("association") or cut.memo.setdefault("association", _Donors(cut))
    if "association" not in of.memo:
        of.memo["association"] = _together(of, d)
    at = np.searchsorted(d.who, of.queries)
    at[at == len(d.who)] = 0
    own = np.where(d.who[at] == of.queries, at, -1) if len(d.who) else np.full(len(of.queries), -1)
    total, cross = np.zeros(len(c), dtype=np.float32), np.zeros(len(c), dtype=np.float32)
    present = np.zeros(len(c), dtype=np.bool_)
    place, ptr, term, n = of.memo["association"]
    _associate(
        block.query, c.term, cut.onto.aspect, *of.known, place, ptr, term, n, d.population, own.astype(np.int64), d.ptr,
        d.term, cut.onto.closure_ptr, cut.onto.closure, total, cross, present,
    )  # fmt: skip
    return {
        "association_total": pa.array(total),
        "association_cross": pa.array(cross),
        "association_present": pa.array(present),
    }
