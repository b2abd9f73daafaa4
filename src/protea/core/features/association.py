"""Family `association`: how often donors with a known term of the query have the candidate too (contract section 15)."""

import numba
import numpy as np
import pyarrow as pa

from ..arrays import I32, I64, cores, csr_gather, divided, pieces, side_by_side
from .block import Block, CutArrays, QueryBlock


@numba.njit(cache=True, nogil=True)
def _cooccurrence(wanted, first, member_ptr, members, ptr, term, n_terms, out_ptr, out_term, out_n):
    """For each wanted term k from `first` on, the terms of the donors that have k, and in how many of them: n(k, t).

    Returns how many of the wanted fitted into the room given.
    """
    counts = np.zeros(n_terms, dtype=np.int32)
    touched = np.empty(n_terms, dtype=np.int32)
    for i in range(first, len(wanted)):
        n = 0
        for m in range(member_ptr[wanted[i]], member_ptr[wanted[i] + 1]):
            d = members[m]
            for j in range(ptr[d], ptr[d + 1]):
                if counts[term[j]] == 0:
                    touched[n] = term[j]
                    n += 1
                counts[term[j]] += 1
        base = out_ptr[i]
        if base + n > len(out_term):
            return i
        for j in range(n):
            out_term[base + j] = touched[j]
            out_n[base + j] = counts[touched[j]]
            counts[touched[j]] = 0
        out_ptr[i + 1] = base + n
    return len(wanted)


@numba.njit(cache=True, nogil=True)
def _propagated(who, ptr, term, closure_ptr, closure, is_root, fill, out_ptr, out_term):
    """The distinct terms of each donor's closures, in any order; only their number unless `fill`."""
    seen = np.full(len(is_root), -1, dtype=np.int64)
    for i in range(len(who)):
        n = 0
        for j in range(ptr[who[i]], ptr[who[i] + 1]):
            for c in range(closure_ptr[term[j]], closure_ptr[term[j] + 1]):
                t = closure[c]
                if seen[t] != i and not is_root[t]:
                    seen[t] = i
                    if fill:
                        out_term[out_ptr[i] + n] = t
                    n += 1
        if not fill:
            out_ptr[i + 1] = n


@numba.njit(cache=True, nogil=True)
def _turned(ptr, term, n_terms):
    """The donors of each term, ascending, as (ptr, members): a counting sort."""
    out_ptr = np.zeros(n_terms + 1, dtype=np.int64)
    for t in term:
        out_ptr[t + 1] += 1
    for t in range(n_terms):
        out_ptr[t + 1] += out_ptr[t]
    at = out_ptr.copy()
    members = np.empty(len(term), dtype=np.int32)
    for i in range(len(ptr) - 1):
        for j in range(ptr[i], ptr[i + 1]):
            members[at[term[j]]] = i
            at[term[j]] += 1
    return out_ptr, members


@numba.njit(cache=True, nogil=True)
def _owned(queries, first, last, term, known_ptr, known, own, ptr, donor_term, n_terms, row_has, known_has):
    """Which candidates, and which known terms, of each query it has itself as a donor (`own`: which one, -1 for none)."""
    mine = np.full(n_terms, -1, dtype=np.int64)
    for i in range(len(queries)):
        q = queries[i]
        if own[q] < 0:
            continue
        for j in range(ptr[own[q]], ptr[own[q] + 1]):
            mine[donor_term[j]] = q
        for j in range(first[i], last[i]):
            row_has[j] = mine[term[j]] == q
        for j in range(known_ptr[q], known_ptr[q + 1]):
            known_has[j] = mine[known[j]] == q


@numba.njit(cache=True, nogil=True)
def _associate(asked, asker, first, last, term, aspect, known, place, row_has, known_has, together_ptr, together_term,
               together_n, population, closure_ptr, closure, total, cross, present):  # fmt: skip
    """asked: indices into `known`, whose terms' co-occurrences are the rows `place`; asker: whose they are, as an index of
    `first` and `last`, its candidates. Equal places come together: a term is spread out once for all who know it."""
    joint = np.zeros(len(aspect), dtype=np.int32)
    implied = np.full(len(aspect), -1, dtype=np.int64)
    row = np.int64(-1)
    for i in range(len(asked)):
        k = known[asked[i]]
        if place[asked[i]] != row:
            if row >= 0:
                for c in range(together_ptr[row], together_ptr[row + 1]):
                    joint[together_term[c]] = 0
            row = place[asked[i]]
            for c in range(together_ptr[row], together_ptr[row + 1]):
                joint[together_term[c]] = together_n[c]
            for c in range(closure_ptr[k], closure_ptr[k + 1]):
                implied[closure[c]] = row
        has = known_has[asked[i]]  # the query is left out of every count
        n_k = population[k] - (1 if has else 0)
        for r in range(first[asker[i]], last[asker[i]]):
            t = term[r]
            if implied[t] == row:
                continue
            present[r] = True
            if n_k > 0:
                both = joint[t] - (1 if has and row_has[r] else 0)
                share = np.float32(both / n_k)
                total[r] = max(total[r], share)
                if aspect[k] != aspect[t]:
                    cross[r] = max(cross[r], share)


class _Donors:
    """Every donor's propagated terms, forwards and backwards: computed once a cut."""

    def __init__(self, cut: CutArrays) -> None:
        onto = cut.onto
        threads = cut.threads or cores()
        self.who = who = np.flatnonzero(cut.donors.aspects).astype(np.int32)
        given = (cut.donors.ptr, cut.donors.term, onto.closure_ptr, onto.closure, onto.is_root)
        ptr = np.zeros(len(self.who) + 1, dtype=np.int64)
        none = np.zeros(0, dtype=np.int32)
        divided(lambda a, b: _propagated(who[a:b], *given, False, ptr[a : b + 1], none), len(who), threads)
        self.ptr = ptr = np.cumsum(ptr)
        self.term = term = np.empty(ptr[-1], dtype=np.int32)
        divided(lambda a, b: _propagated(who[a:b], *given, True, ptr[a : b + 1], term), len(who), threads)
        self.member_ptr, self.members = _turned(self.ptr, self.term, len(onto.ids))
        self.population = np.diff(self.member_ptr).astype(np.int32)
        self.kept: dict[int, tuple[I32, I32]] = {}
        self.kept_entries = 0


KEPT_FROM, KEPT_ENTRIES = 200, 32_000_000
"""Co-occurrences of terms with that many donors are kept for the next block of queries, up to so many (8 bytes each)."""


def _together(of: QueryBlock, d: _Donors) -> tuple[I64, I64, I32, I32]:
    """(place of each known term, ptr, term, n): the co-occurrence rows of the block's known terms."""
    wanted, place = np.unique(of.known[1], return_inverse=True)
    new = np.array([k for k in wanted.tolist() if k not in d.kept], dtype=np.int32)
    n_terms, threads = len(of.cut.onto.ids), of.cut.threads or cores()
    load = np.cumsum(d.population[new], dtype=np.int64)
    spans = pieces(load, int(load[-1]) // (4 * threads) + 1) if len(new) else ()
    parts = side_by_side(lambda a, b: _cooccurrences(new[a:b], d, n_terms), spans, threads)
    found = {k: row for part in parts for k, row in part.items()}
    rows = [d.kept.get(k) or found[k] for k in wanted.tolist()]
    for k, row in found.items():
        if d.population[k] >= KEPT_FROM and d.kept_entries + len(row[0]) <= KEPT_ENTRIES:
            d.kept[k] = row
            d.kept_entries += len(row[0])
    ptr = np.concatenate([[0], np.cumsum([len(t) for t, _ in rows])]).astype(np.int64)
    nothing = [np.zeros(0, dtype=np.int32)]
    term, n = (np.concatenate([row[i] for row in rows] or nothing) for i in range(2))
    return place.astype(np.int64), ptr, term, n


def _cooccurrences(wanted: I32, d: _Donors, n_terms: int) -> dict[int, tuple[I32, I32]]:
    out: dict[int, tuple[I32, I32]] = {}
    done = 0
    while done < len(wanted):
        ptr = np.zeros(len(wanted) + 1, dtype=np.int64)
        room = max(n_terms, 4_000_000)
        term, n = np.empty(room, dtype=np.int32), np.empty(room, dtype=np.int32)
        upto = _cooccurrence(wanted, done, d.member_ptr, d.members, d.ptr, d.term, n_terms, ptr, term, n)
        for i in range(done, upto):
            part = slice(ptr[i], ptr[i + 1])
            out[int(wanted[i])] = term[part].copy(), n[part].copy()
        done = upto
    return out


def columns(block: Block) -> dict[str, pa.Array]:
    cut, of, c = block.cut, block.of, block.candidates
    d = cut.memo.once("association", lambda: _Donors(cut))
    at = np.searchsorted(d.who, of.queries)
    at[at == len(d.who)] = 0
    own = np.where(d.who[at] == of.queries, at, -1) if len(d.who) else np.full(len(of.queries), -1)
    place, ptr, term, n = of.memo.once("association", lambda: _together(of, d))
    known_ptr, known = of.known
    starts = np.flatnonzero(np.diff(block.query, prepend=-1))  # candidates come grouped by query
    queries, first, last = block.query[starts], starts, np.append(starts[1:], len(c))
    row_has, known_has = np.zeros(len(c), dtype=np.bool_), np.zeros(len(known), dtype=np.bool_)
    _owned(queries, first, last, c.term, known_ptr, known, own, d.ptr, d.term, len(cut.onto.ids), row_has, known_has)
    asker, asked = csr_gather(known_ptr, np.arange(len(known)), queries)
    together = np.argsort(place[asked], kind="stable")
    total, cross = np.zeros(len(c), dtype=np.float32), np.zeros(len(c), dtype=np.float32)
    present = np.zeros(len(c), dtype=np.bool_)
    _associate(
        asked[together], asker[together], first, last, c.term, cut.onto.aspect, known, place, row_has, known_has, ptr, term,
        n, d.population, cut.onto.closure_ptr, cut.onto.closure, total, cross, present,
    )  # fmt: skip
    return {
        "association_total": pa.array(total),
        "association_cross": pa.array(cross),
        "association_present": pa.array(present),
    }
