"""Candidates of the members and their votes (contract section 6): the union of the neighbours' terms, minus the known.

Called by the cut; a compiled tally over integer arrays. Strings appear only when rows are written.
"""

from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt

from .arrays import I32, I64
from .knn.exact import Neighbours

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Candidates:
    """One entry a (member, candidate term), ascending by (member, term).

    A term without a voter has votes 0 and donor -1; its rank, best, distance and mean mean nothing.

    member   int64: index of the member in the block; term int32
    votes    int32; rank int32 (from 1) of the donor among the neighbours; donor int64: index into `proteins` given to
             `tally`; best int32: the donor's best row
    distance float32 of the donor; mean float32 over the voters
    """

    member: I64
    term: I32
    votes: I32
    rank: I32
    donor: I64
    best: I32
    distance: F32
    mean: F32

    def __len__(self) -> int:
        return len(self.term)


@numba.njit(cache=True, nogil=True)
def _tally(member_query, member_aspect, first, last, local, distance, count, ptr, term, best, aspect, known_ptr, known,
           extra_ptr, extra, keep_known, o_member, o_term, o_votes, o_rank, o_donor, o_best, o_distance,
           o_mean):  # fmt: skip
    n_terms = len(aspect)
    seen = np.full(n_terms, -1, dtype=np.int64)
    barred = np.full(n_terms, -1, dtype=np.int64)
    slot = np.zeros(n_terms, dtype=np.int64)
    touched = np.empty(n_terms, dtype=np.int32)
    votes = np.empty(n_terms, dtype=np.int32)
    rank = np.empty(n_terms, dtype=np.int32)
    total = np.empty(n_terms, dtype=np.float64)
    chosen = np.empty(n_terms, dtype=np.int32)
    out = 0
    for m in range(first, last):
        q, a = member_query[m], member_aspect[m]
        if not keep_known:
            for j in range(known_ptr[q], known_ptr[q + 1]):
                barred[known[j]] = m
        n = 0
        for i in range(count[q, a]):
            r = local[q, a, i]
            d = np.float64(distance[q, a, i])
            for j in range(ptr[r], ptr[r + 1]):
                t = term[j]
                if aspect[t] != a or barred[t] == m:
                    continue
                if seen[t] != m:
                    seen[t] = m
                    slot[t] = n
                    touched[n] = t
                    votes[n] = 1
                    rank[n] = i + 1
                    total[n] = d
                    chosen[n] = best[j]
                    n += 1
                else:
                    votes[slot[t]] += 1
                    total[slot[t]] += d
        for j in range(extra_ptr[q], extra_ptr[q + 1]):
            t = extra[j]
            if aspect[t] == a and barred[t] != m and seen[t] != m:
                seen[t] = m
                slot[t] = n
                touched[n] = t
                votes[n] = 0
                n += 1
        for t in np.sort(touched[:n]):
            s = slot[t]
            o_member[out] = m
            o_term[out] = t
            o_votes[out] = votes[s]
            if votes[s] == 0:
                o_rank[out], o_donor[out], o_best[out], o_distance[out], o_mean[out] = 0, -1, -1, 0, 0
            else:
                i = rank[s] - 1
                o_rank[out] = rank[s]
                o_donor[out] = local[q, a, i]
                o_best[out] = chosen[s]
                o_distance[out] = distance[q, a, i]
                o_mean[out] = np.float32(total[s] / votes[s])
            out += 1
    return out


def tally(
    member_query: I64,
    member_aspect: npt.NDArray[np.int8],
    first: int,
    last: int,
    near: Neighbours,
    local: I64,
    offered: tuple[I64, I32, I32],
    aspect: npt.NDArray[np.int8],
    known: tuple[I64, I32],
    extra: tuple[I64, I32],
    keep_known: bool,
) -> Candidates:
    """Candidates of the members first..last.

    member_query int64[m]: the query (row of `near`) of each member; local int64[n, 3, k]: the neighbours as indices into
    `offered`, their terms A(r, ·) as (ptr, term, best); known: K(q, ·) of each query as (ptr, term); extra: terms that are
    candidates of a query even without a voter, likewise.
    """
    room = _room(member_query, member_aspect, first, last, local, near.count, offered[0], extra[0])
    o = Candidates(
        np.empty(room, dtype=np.int64),
        np.empty(room, dtype=np.int32),
        np.empty(room, dtype=np.int32),
        np.empty(room, dtype=np.int32),
        np.empty(room, dtype=np.int64),
        np.empty(room, dtype=np.int32),
        np.empty(room, dtype=np.float32),
        np.empty(room, dtype=np.float32),
    )
    n = _tally(
        member_query, member_aspect, first, last, local, near.distance, near.count, *offered, aspect, *known, *extra,
        keep_known,
        o.member, o.term, o.votes, o.rank, o.donor, o.best, o.distance, o.mean,
    )  # fmt: skip
    return Candidates(*(column[:n] for column in vars(o).values()))


@numba.njit(cache=True, nogil=True)
def _room(member_query, member_aspect, first, last, local, count, ptr, extra_ptr):
    """An upper bound on the candidates of the members first..last."""
    n = 0
    for m in range(first, last):
        q, a = member_query[m], member_aspect[m]
        n += extra_ptr[q + 1] - extra_ptr[q]
        for i in range(count[q, a]):
            n += ptr[local[q, a, i] + 1] - ptr[local[q, a, i]]
    return n


def distance_std(near: Neighbours) -> F32:
    """float32[n]: population standard deviation (two-pass, float64) of the distances of a query's neighbours of F, P and C.

    0 for fewer than two.
    """
    return _std(near.distance, near.count)


@numba.njit(cache=True, nogil=True)
def _std(distance, count):
    out = np.zeros(len(count), dtype=np.float32)
    for q in range(len(count)):
        n = 0
        total = 0.0
        for a in range(3):
            for i in range(count[q, a]):
                total += np.float64(distance[q, a, i])
                n += 1
        if n < 2:
            continue
        mean = total / n
        squares = 0.0
        for a in range(3):
            for i in range(count[q, a]):
                d = np.float64(distance[q, a, i]) - mean
                squares += d * d
        out[q] = np.float32(np.sqrt(squares / n))
    return out
