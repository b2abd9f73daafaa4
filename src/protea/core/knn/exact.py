"""The exact neighbours: a float32 matrix product proposes contenders, float64 arithmetic decides (contract section 5).

The product of unit vectors of dimension d, in any order of summation and with or without fused multiply-add, is off by
at most gamma(d) = d·u/(1 − d·u), u = 2^-24 (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1),
plus the rounding of the two normalised vectors. So a donor whose lower bound exceeds the k-th smallest upper bound
is no neighbour; all others are contenders, whose distances are computed again as the contract says. Thread counts,
block sizes and the BLAS therefore change which contenders are looked at, and never a result.

Each thread takes a block of queries through all donors on its own, tile by tile: a product on one BLAS thread, and the
scan of it while it is still in the cache. So nobody waits for anybody, and the threads asked for are those that run.
Called by the cut and the plan; calls BLAS through numpy, and compiled scans that release the GIL.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from ...errors import InputError
from ..arrays import I32, cores, divided, nothing

UNIT = 2.0**-24
ROUNDING = 2.0**-22
"""An l2 distance is at most 2(|q|^2 + |r|^2), and rounding it to float32 moves it by that much times UNIT."""
QUERIES, TILE = 1536, 512
"""Queries of a block and donors of a tile: 3 MB of products, which with the tile's vectors stay near the caches."""
STRIDE = 64
"""Products that the scan passes over together when all are too small."""


@dataclass(frozen=True)
class Neighbours:
    """The neighbours of n queries in the three aspects, nearest first.

    row      int32[n, 3, k]: row of the donor in the vector store, -1 beyond `count`
    distance float32[n, 3, k]
    count    int32[n, 3]
    """

    row: I32
    distance: npt.NDArray[np.float32]
    count: I32


HALF = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
"""Every float16 by its bits: compiled code widens through this table, since it has no float16 of its own."""


@numba.njit(cache=True, nogil=True)
def _widen(x, is_half, table, r, out):
    """Row r as float64. `x` is float32, or the bits of float16 as uint16."""
    for j in range(len(out)):
        out[j] = table[np.int64(x[r, j])] if is_half else np.float64(x[r, j])


@numba.njit(cache=True, nogil=True)
def _squares(first, last, x, is_half, table, out):
    """x·x of each row, in float64 and index order; four rows side by side, since each sum waits for itself."""
    v = np.empty((4, x.shape[1]), dtype=np.float64)
    a, b, c, d = v[0], v[1], v[2], v[3]
    for i in range(first, last, 4):
        for j in range(4):
            _widen(x, is_half, table, min(i + j, last - 1), v[j])
        s0 = s1 = s2 = s3 = 0.0
        for j in range(len(a)):
            s0 += a[j] * a[j]
            s1 += b[j] * b[j]
            s2 += c[j] * c[j]
            s3 += d[j] * d[j]
        for j, s in enumerate((s0, s1, s2, s3)):
            if i + j < last:
                out[i + j] = s


@numba.njit(cache=True, nogil=True)
def _scaled(x, is_half, table, rows, factor, out):
    """out[i] = x[rows[i]] * factor[i], rounded once to float32."""
    v = np.empty(x.shape[1], dtype=np.float64)
    for i in range(len(rows)):
        _widen(x, is_half, table, rows[i], v)
        for j in range(len(v)):
            out[i, j] = np.float32(v[j] * factor[i])


@numba.njit(cache=True, nogil=True)
def _any_from(product, first, last, bound):
    """Whether a product is at least `bound`; counted, since a loop without an exit is vectorised."""
    n = 0
    for j in range(first, last):
        n += product[j] >= bound
    return n > 0


@numba.njit(cache=True, nogil=True)
def _scan(first, last, product, dq, dr, l2, eps, tiny, rows, aspects, own, group, own_group, k,
          worst, heap, heap_n, cand, cand_low, cand_n, overflow):  # fmt: skip
    """Offer one tile of approximate products to the contenders of queries first..last, per aspect.

    worst[q, a] is the k-th smallest upper bound so far; a contender's lower bound may not exceed it.
    """
    nearest, farthest = dr.min(), dr.max()
    for q in range(first, last):
        limit = max(worst[q, 0], worst[q, 1], worst[q, 2])
        for start in range(0, len(rows), STRIDE):
            stop = min(start + STRIDE, len(rows))
            # the least product that any donor of the tile would need, and a little less for the rounding of this very bound
            if l2:
                slack = eps * np.sqrt(dq[q] * farthest) + ROUNDING * (dq[q] + farthest) + tiny
                least = 0.5 * (dq[q] + nearest - slack - limit)
            else:
                least = 1.0 - eps - limit
            least -= 1e-6 * abs(least) + 1e-12 * (1.0 + limit)
            if not _any_from(product[q], start, stop, np.float32(least)):
                continue
            for j in range(start, stop):
                if l2:
                    approx = dq[q] + dr[j] - 2.0 * np.float64(product[q, j])
                    slack = eps * np.sqrt(dq[q] * dr[j]) + ROUNDING * (dq[q] + dr[j]) + tiny
                else:
                    approx = 1.0 - np.float64(product[q, j])
                    slack = eps
                if approx - slack > limit:
                    continue
                if rows[j] == own[q] or (own_group[q] >= 0 and group[j] == own_group[q]):
                    continue
                for a in range(3):
                    if (aspects[j] >> a) & 1 and approx - slack <= worst[q, a]:
                        _offer(q, a, rows[j], approx - slack, approx + slack, k,
                               worst, heap, heap_n, cand, cand_low, cand_n, overflow)  # fmt: skip
                limit = max(worst[q, 0], worst[q, 1], worst[q, 2])


@numba.njit(cache=True, nogil=True)
def _offer(q, a, row, low, high, k, worst, heap, heap_n, cand, cand_low, cand_n, overflow):
    """Take a contender in. When the room for contenders is full, those that have been overtaken are dropped; if that
    frees nothing, the query is marked and computed without the sieve."""
    n = heap_n[q, a]
    if n < k or high < heap[q, a, n - 1]:
        at = n if n < k else k - 1  # insertion into the k smallest upper bounds
        while at > 0 and heap[q, a, at - 1] > high:
            heap[q, a, at] = heap[q, a, at - 1]
            at -= 1
        heap[q, a, at] = high
        if n < k:
            heap_n[q, a] = n + 1
        if heap_n[q, a] == k:
            worst[q, a] = heap[q, a, k - 1]
    if overflow[q, a]:
        return
    room = cand.shape[2]
    if cand_n[q, a] == room:
        m = 0
        for c in range(room):
            if cand_low[q, a, c] <= worst[q, a]:
                cand[q, a, m] = cand[q, a, c]
                cand_low[q, a, m] = cand_low[q, a, c]
                m += 1
        cand_n[q, a] = m
        if m == room:
            overflow[q, a] = True
            return
    cand[q, a, cand_n[q, a]] = row
    cand_low[q, a, cand_n[q, a]] = low
    cand_n[q, a] += 1


@numba.njit(cache=True, nogil=True)
def _distance(q, r, qq, rr, l2):
    """The contract's distance: float64, summed in index order, rounded once to float32."""
    s = 0.0
    if l2:
        for i in range(len(q)):
            d = q[i] - r[i]
            s += d * d
        return np.float32(s)
    for i in range(len(q)):
        s += q[i] * r[i]
    return np.float32(max(0.0, 1.0 - s / np.sqrt(qq * rr)))


@numba.njit(cache=True, nogil=True)
def _decide(first, last, x, is_half, table, squares, l2, donors, aspects, own, group, own_group, k, threshold,
            worst, cand, cand_low, cand_n, overflow, out_row, out_distance, out_count):  # fmt: skip
    """Exact distances of the contenders (of all donors where the sieve overflowed), the first k by (distance, row).

    Rows ascend by accession bytes, so the row number is the tie-break.
    """
    best = np.empty(k, dtype=np.float32)
    who = np.empty(k, dtype=np.int32)
    query = np.empty(x.shape[1], dtype=np.float64)
    donor = np.empty(x.shape[1], dtype=np.float64)
    for q in range(first, last):
        _widen(x, is_half, table, own[q], query)
        for a in range(3):
            n = 0
            total = len(donors) if overflow[q, a] else cand_n[q, a]
            for c in range(total):
                if overflow[q, a]:
                    r = donors[c]
                    if not (aspects[c] >> a) & 1 or r == own[q]:
                        continue
                    if own_group[q] >= 0 and group[c] == own_group[q]:
                        continue
                else:
                    if cand_low[q, a, c] > worst[q, a]:
                        continue
                    r = cand[q, a, c]
                _widen(x, is_half, table, r, donor)
                d = _distance(query, donor, squares[own[q]], squares[r], l2)
                if d > threshold:
                    continue
                if n == k and (d > best[k - 1] or (d == best[k - 1] and r > who[k - 1])):
                    continue
                at = min(n, k - 1)
                while at > 0 and (best[at - 1] > d or (best[at - 1] == d and who[at - 1] > r)):
                    best[at] = best[at - 1]
                    who[at] = who[at - 1]
                    at -= 1
                best[at] = d
                who[at] = r
                if n < k:
                    n += 1
            out_count[q, a] = n
            for i in range(n):
                out_row[q, a, i] = who[i]
                out_distance[q, a, i] = best[i]


def squared_lengths(matrix: npt.NDArray, threads: int) -> npt.NDArray[np.float64]:
    """float64[n]: the squared length of each row of a float16 or float32 matrix."""
    half, out = matrix.dtype == np.float16, np.zeros(len(matrix), dtype=np.float64)
    x = matrix.view(np.uint16) if half else matrix
    divided(lambda a, b: _squares(a, b, x, half, HALF, out), len(matrix), threads)
    return out


class ExactSearch:
    """The donors of a cut, ready to be searched.

    matrix   float16 or float32 [n, d]: the vector store, a memory map; it is widened tile by tile, never copied
    donors   int32[m], ascending: rows of the donors; aspects uint8[m]: bit a is set for a donor in aspect a
    group    int32[n] or None: rows of equal value have the same sequence and are not each other's donors; -1: unknown
    squares  float64[n] or None: `squared_lengths` of the matrix, where it is at hand
    threads  that search side by side, a block of queries each; changes no result, nor do the block sizes
    checkpoint  called several times a second while they do, by the thread that asked; it raises when they are to stop
    """

    def __init__(
        self,
        matrix: npt.NDArray,
        donors: I32,
        aspects: npt.NDArray[np.uint8],
        *,
        k: int,
        metric: str = "cosine",
        threshold: float | None = None,
        group: I32 | None = None,
        squares: npt.NDArray[np.float64] | None = None,
        threads: int = 0,
        queries: int = QUERIES,
        tile: int = TILE,
        checkpoint: Callable[[], None] = nothing,
    ) -> None:
        self.half = matrix.dtype == np.float16
        self.x = matrix.view(np.uint16) if self.half else matrix
        self.k, self.l2 = k, metric == "l2"
        self.donors, self.aspects = donors.astype(np.int32), aspects
        self.threshold = np.float32(np.inf if threshold is None else threshold)
        unknown = np.full(len(matrix), -1, dtype=np.int32)
        self.group = unknown if group is None else group
        self.threads = threads or cores()
        self.room = 4 * k + 64
        self.block, self.tile = max(1, min(queries, 4_000_000 // self.room)), tile
        self.checkpoint = checkpoint
        self.pool = ThreadPoolExecutor(self.threads)
        self.squares = squared_lengths(matrix, self.threads) if squares is None else squares
        d = matrix.shape[1]
        gamma = (d + 4) * UNIT / (1 - (d + 4) * UNIT)
        # the product's error, the two normalisations, and the float32 rounding of the distance itself (at most 2);
        # for l2 twice the product's, and the scaled vectors' own rounding
        self.eps = 2 * gamma + 16 * UNIT if self.l2 else gamma + 8 * UNIT
        # l2 is expanded into |q|^2 + |r|^2 - 2 q.r on vectors scaled by a power of two into [-1, 1]
        largest = float(np.sqrt(self.squares.max())) if len(matrix) else 0.0
        scale = 2.0 ** -int(np.ceil(np.log2(largest))) if self.l2 and largest > 0 else 1.0
        if self.l2 and 4.0 * largest * largest >= float(np.finfo(np.float32).max):
            raise InputError(
                f"vectors of length {largest:.3g} are too long for l2 distances, which are float32",
                hint="use the cosine metric, or scale the embeddings down",
            )
        # what float32 loses below its normal range: of a distance (half the smallest subnormal, scaled like the
        # distances), and of the scaled entries themselves
        self.tiny = 2.0**-149 * scale * scale + 1e-30
        self.scaled_squares = self.squares * (scale * scale)
        with np.errstate(divide="ignore"):
            self.factor = np.full(len(matrix), scale) if self.l2 else 1.0 / np.sqrt(self.squares)

    def _prepare(self, rows: I32) -> npt.NDArray[np.float32]:
        """Unit vectors (cosine) or scaled ones (l2), float32 [len(rows), d]."""
        out = np.empty((len(rows), self.x.shape[1]), dtype=np.float32)
        _scaled(self.x, self.half, HALF, rows, self.factor[rows], out)
        return out

    def search(self, rows: I32) -> Neighbours:
        """The neighbours of the vectors at `rows` of the store."""
        k = self.k
        out = Neighbours(
            np.full((len(rows), 3, k), -1, dtype=np.int32),
            np.zeros((len(rows), 3, k), dtype=np.float32),
            np.zeros((len(rows), 3), dtype=np.int32),
        )
        # as many blocks as threads, or a multiple of it, all of one size
        blocks = self.threads * max(1, -(-len(rows) // (self.block * self.threads)))
        step = max(1, -(-len(rows) // blocks))

        stop = threading.Event()

        def search(start: int) -> None:
            part = slice(start, start + step)
            self._search(rows[part], out.row[part], out.distance[part], out.count[part], stop)

        with _one_blas_thread():
            working = {self.pool.submit(search, start) for start in range(0, len(rows), step)}
            try:
                while working:
                    self.checkpoint()
                    ended, working = wait(working, timeout=0.2)
                    for search_of in ended:
                        search_of.result()
            finally:
                stop.set()
                wait(working)
        return out

    def _search(self, own: I32, row: I32, distance: npt.NDArray, count: I32, stop: threading.Event) -> None:
        n, k = len(own), self.k
        prepared = self._prepare(own)
        group = self.group[self.donors]
        own_group, own_squares = self.group[own], self.scaled_squares[own]
        worst = np.full((n, 3), np.inf)
        heap = np.empty((n, 3, k))
        heap_n = np.zeros((n, 3), dtype=np.int32)
        cand = np.empty((n, 3, self.room), dtype=np.int32)
        cand_low = np.empty((n, 3, self.room))
        cand_n = np.zeros((n, 3), dtype=np.int32)
        overflow = np.zeros((n, 3), dtype=np.bool_)
        room = np.empty((n, min(self.tile, len(self.donors))), dtype=np.float32)
        for t in range(0, len(self.donors), self.tile):
            tile = slice(t, t + self.tile)
            rows = self.donors[tile]
            if stop.is_set():
                return
            product = np.matmul(prepared, self._prepare(rows).T, out=room[:, : len(rows)])
            _scan(
                0, n, product, own_squares, self.scaled_squares[rows], self.l2, self.eps, self.tiny, rows,
                self.aspects[tile], own, group[tile], own_group, k, worst, heap, heap_n, cand, cand_low, cand_n, overflow,
            )  # fmt: skip
        _decide(
            0, n, self.x, self.half, HALF, self.squares, self.l2, self.donors, self.aspects, own, group, own_group, k,
            self.threshold, worst, cand, cand_low, cand_n, overflow, row, distance, count,
        )  # fmt: skip


class _Searches:
    """How many searches run in this process, and the BLAS limit that they share: the last one lifts it."""

    lock = threading.Lock()
    running = 0
    limit: Any = None


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    with _Searches.lock:
        if _Searches.running == 0:
            _Searches.limit = threadpool_limits(1, user_api="blas")
        _Searches.running += 1
    try:
        yield
    finally:
        with _Searches.lock:
            _Searches.running -= 1
            if _Searches.running == 0:
                _Searches.limit.restore_original_limits()
