"""Pairwise alignment statistics: Needleman-Wunsch and Smith-Waterman, each distinct pair of sequences once.

Called by the alignment feature family; calls `core/alignment_kernel.py` (which computes) and `core/alignment_cache.py`
(which remembers). Contract section 9: BLOSUM62, a gap of n residues costs 10 + (n - 1), end gaps too in the global one.

Sequences are told apart by content, and a pair is aligned with the shorter sequence first (of equal lengths, the
smaller digest), so neither accessions nor the order of a pair matter. Threads take chunks of pairs from one queue and
compute without the GIL; a pair's values depend on nothing but the two sequences.
"""

import hashlib
import itertools
import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protea.core import alignment_kernel as kernel
from protea.core.alignment_cache import VALUES, AlignmentCache, pair_keys

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
Bool = npt.NDArray[np.bool_]

# Raise the number whenever the same two sequences can get other values.
SCORING = "BLOSUM62 open 10 extend 1 kernel 1"
_TRACE_BYTES = 32 << 20  # per thread: one byte a cell; larger pairs go through it in windows
_CHUNK_CELLS = 8_000_000  # some 5 ms of work
_KEEP_SECONDS = 30.0  # between inserts into the cache: what a kill can cost


def _codes() -> npt.NDArray[np.uint8]:
    table = np.full(256, kernel.X, np.uint8)
    for code, letter in enumerate(kernel.LETTERS):
        table[[ord(letter), ord(letter.lower())]] = code
    return table


_CODES = _codes()


@dataclass(frozen=True)
class Statistics:
    """One kind of alignment, a row a pair: columns, identical columns, columns of positive score, gap columns, score."""

    length: I32
    identical: I32
    similar: I32
    gaps: I32
    score: I32


@dataclass(frozen=True)
class AlignmentStats:
    """Statistics of the pairs asked for, in their order; zeros where `skipped` (more than `max_cells` cells).

    Counts are of distinct pairs of sequences: `distinct` = `from_cache` + `computed`.
    """

    nw: Statistics
    sw: Statistics
    skipped: Bool
    distinct: int
    from_cache: int
    computed: int


@dataclass(frozen=True)
class _Sequences:
    """Distinct sequences by ascending length, then digest."""

    codes: npt.NDArray[np.uint8]
    starts: I64
    lengths: I64
    digests: U64


def align(
    pairs: npt.NDArray[np.integer],
    sequences: Sequence[str] | pa.Array | pa.ChunkedArray,
    *,
    threads: int,
    max_cells: int | None = None,
    cache: AlignmentCache | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> AlignmentStats:
    """Align pairs int[n, 2] of indices into `sequences`.

    `progress(done, of)` counts distinct pairs and is called from this thread a few times a second; an exception raised
    there, or Ctrl-C, ends the computation, and what was computed is in the cache. Memory: about 32 MB a thread, more only
    for pairs of giants (titin with itself: 80 MB). Raises ValueError when a pair names a null sequence.
    """
    pairs = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    used, place = np.unique(pairs, return_inverse=True)
    pool, rank = _distinct(sequences, used)
    ranks = rank[place.reshape(-1, 2)]
    first, second = ranks.min(axis=1), ranks.max(axis=1)
    skipped = np.zeros(len(pairs), np.bool_)
    if max_cells is not None:
        skipped = pool.lengths[first] * pool.lengths[second] > max_cells
    todo, which = np.unique((second * len(pool.lengths) + first)[~skipped], return_inverse=True)
    first, second = todo % max(1, len(pool.lengths)), todo // max(1, len(pool.lengths))

    values = np.zeros((len(todo), VALUES), np.int32)
    found = np.zeros(len(todo), np.bool_)
    keys = None
    if cache is not None:
        keys = pair_keys(pool.digests[first], pool.digests[second], SCORING)
        found, values = cache.lookup(keys)
    # Longest first, so that no thread ends on a giant; pairs of one second sequence together share its profile.
    rest = np.flatnonzero(~found)[::-1]
    _Computation(pool, first, second, rest, values, keys, cache, progress).run(threads)

    everywhere = np.zeros((VALUES, len(pairs)), np.int32)
    everywhere[:, ~skipped] = values.T[:, which]
    return AlignmentStats(
        nw=Statistics(*everywhere[:5]),
        sw=Statistics(*everywhere[5:]),
        skipped=skipped,
        distinct=len(todo),
        from_cache=int(found.sum()),
        computed=len(rest),
    )


def _distinct(sequences: Sequence[str] | pa.Array | pa.ChunkedArray, used: I64) -> tuple[_Sequences, I64]:
    """The distinct ones of the sequences `used`, and for each of `used` its place among them."""
    if isinstance(sequences, pa.ChunkedArray | pa.Array):
        strings = sequences.take(pa.array(used)).cast(pa.large_string())
    else:
        strings = pa.array([sequences[i] for i in used], pa.large_string())
    if isinstance(strings, pa.ChunkedArray):
        strings = strings.combine_chunks()
    if strings.null_count:
        raise ValueError(f"sequence {used[np.flatnonzero(strings.is_null())[0]]} of a pair to align is null")
    _, offsets, data = strings.buffers()
    ends = np.frombuffer(offsets, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    codes = _CODES[np.frombuffer(data, np.uint8)] if data is not None else np.empty(0, np.uint8)
    view = codes.data
    blake2b = hashlib.blake2b
    digests = [blake2b(view[x:y], digest_size=16).digest() for x, y in itertools.pairwise(ends.tolist())]
    words = np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 2)
    lengths = np.diff(ends)
    order = np.lexsort((words[:, 1], words[:, 0], lengths))
    new = np.ones(len(order), np.bool_)
    new[1:] = (words[order[1:]] != words[order[:-1]]).any(axis=1)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.cumsum(new) - 1
    kept = order[new]
    return _Sequences(codes, ends[kept], lengths[kept], words[kept]), rank


class _Computation:
    """The pairs `rest` of one call: worker threads fill rows of `values`, the calling thread reports and keeps them."""

    def __init__(
        self,
        pool: _Sequences,
        first: I64,
        second: I64,
        rest: I64,
        values: I32,
        keys: U64 | None,
        cache: AlignmentCache | None,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.pool, self.first, self.second, self.rest = pool, first, second, rest
        self.values, self.keys, self.cache, self.progress = values, keys, cache, progress
        self.stop = np.zeros(1, np.uint8)
        self.finished: queue.SimpleQueue[I64] = queue.SimpleQueue()
        self.chunks: queue.SimpleQueue[tuple[type[np.signedinteger], I64]] = queue.SimpleQueue()
        short, long = pool.lengths[first[rest]], pool.lengths[second[rest]]
        narrow = kernel.fits_16(short, long)
        for kind, mine in ((np.int32, ~narrow), (np.int16, narrow)):
            number = np.cumsum((short[mine] + kernel.LANES) * long[mine]) // _CHUNK_CELLS
            cuts = np.flatnonzero(np.diff(number)) + 1
            for chunk in np.split(rest[mine], cuts):
                if len(chunk):
                    self.chunks.put((kind, chunk))

    def run(self, threads: int) -> None:
        if not len(self.rest):
            return
        threads = max(1, min(threads, self.chunks.qsize()))
        unkept: list[I64] = []
        done, kept_at = 0, time.monotonic()

        def collect() -> None:
            nonlocal done
            while not self.finished.empty():
                unkept.append(self.finished.get())
                done += len(unkept[-1])

        def keep() -> None:
            nonlocal kept_at
            if self.cache is not None and self.keys is not None and unkept:
                rows = np.concatenate(unkept)
                self.cache.insert(self.keys[rows], self.values[rows])
            unkept.clear()
            kept_at = time.monotonic()

        with ThreadPoolExecutor(threads, thread_name_prefix="align") as executor:
            try:
                working = {executor.submit(self._work) for _ in range(threads)}
                while working:
                    ended, working = wait(working, timeout=0.2)
                    for future in ended:
                        future.result()
                    collect()
                    if self.progress is not None:
                        self.progress(done, len(self.rest))
                    if time.monotonic() - kept_at > _KEEP_SECONDS:
                        keep()
            finally:
                self.stop[0] = 1
                collect()
                keep()

    def _work(self) -> None:
        pool = self.pool
        trace = np.empty(max(_TRACE_BYTES, kernel.least_trace(int(pool.lengths[self.first].max()))), np.uint8)
        while not self.stop[0]:
            try:
                kind, chunk = self.chunks.get_nowait()
            except queue.Empty:
                return
            first, second = self.first[chunk], self.second[chunk]
            state = np.empty(kernel.state_size(int(pool.lengths[first].max())), kind)
            out = np.zeros((len(chunk), VALUES), np.int32)
            done = kernel.align_batch(
                pool.codes, pool.starts, pool.lengths, first, second, kernel.MATRIX, state, trace, self.stop, out
            )
            self.values[chunk[:done]] = out[:done]
            self.finished.put(chunk[:done])
