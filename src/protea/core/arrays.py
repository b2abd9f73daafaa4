"""Small array tools shared by the core: CSR gathers, sorted-key lookups, block iteration.

Called all over the core; calls numpy only.
"""

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Memo(dict[str, Any]):
    """What is computed once, by whichever thread asks for it first."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()

    def once(self, key: str, make: Callable[[], T]) -> T:
        """The value of `key`, made when it is not there yet; another thread that asks meanwhile waits."""
        with self._lock:
            if key not in self:
                self[key] = make()
            return self[key]


def nothing() -> None:
    """A checkpoint or guard that lets everything pass."""


def csr_gather(ptr: I64, values: npt.NDArray, rows: npt.NDArray) -> tuple[I64, npt.NDArray]:
    """The concatenated slices `values[ptr[r]:ptr[r+1]]` of `rows`, and for each value the position in `rows`."""
    starts = ptr[rows]
    sizes = ptr[rows + 1] - starts
    owner = np.repeat(np.arange(len(rows), dtype=np.int64), sizes)
    offsets = np.cumsum(sizes) - sizes
    take = np.arange(len(owner), dtype=np.int64) - offsets[owner] + starts[owner]
    return owner, values[take]


def distinct(keys: I64) -> I64:
    """The distinct keys, ascending. (`np.unique` hashes integers, which takes several times as long.)"""
    keys = np.sort(keys)
    return keys[np.diff(keys, prepend=keys[:1] - 1) > 0]


def csr_pointers(sorted_rows: npt.NDArray, n: int) -> I64:
    """int64[n+1] pointers of an ascending row index."""
    return np.searchsorted(sorted_rows, np.arange(n + 1, dtype=sorted_rows.dtype)).astype(np.int64)


def contains(sorted_keys: npt.NDArray, keys: npt.NDArray) -> Bool:
    """For each of `keys`, whether it is in the ascending `sorted_keys`."""
    if not len(sorted_keys):
        return np.zeros(len(keys), dtype=bool)
    at = np.searchsorted(sorted_keys, keys)
    at[at == len(sorted_keys)] = 0
    return sorted_keys[at] == keys


def per_query(keys: I64, queries: I32, n_terms: int) -> tuple[I64, I32]:
    """The terms of each query (ascending) among ascending keys protein * n_terms + term, as (ptr int64[n+1], term)."""
    first = queries.astype(np.int64) * n_terms
    start, stop = np.searchsorted(keys, first), np.searchsorted(keys, first + n_terms)
    ptr = np.concatenate([[0], np.cumsum(stop - start)]).astype(np.int64)
    take = np.arange(ptr[-1]) + np.repeat(start - ptr[:-1], stop - start)
    return ptr, (keys[take] % n_terms).astype(np.int32)


def pieces(load: I64, limit: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of items, given their cumulative load, each within `limit` or of one item."""
    a = 0
    while a < len(load):
        base = load[a - 1] if a else 0
        b = max(a + 1, int(np.searchsorted(load, base + limit, side="right")))
        yield a, b
        a = b


def side_by_side(call: Callable[..., T], spans: Iterable[tuple[int, int]], threads: int) -> Iterator[T]:
    """call(*span) of each, in order: `threads` at a time and one waiting to be taken; one thread is the caller's."""
    if threads == 1:
        yield from itertools.starmap(call, spans)
        return
    with ThreadPoolExecutor(threads) as pool:
        running: deque[Future[T]] = deque()
        try:
            for span in spans:
                running.append(pool.submit(call, *span))
                if len(running) > threads:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def divided(call: Callable[[int, int], T], n: int, threads: int) -> list[T]:
    """call(first, last) of as many equal ranges of n items as there are threads, side by side."""
    step = max(1, -(-n // threads))
    return list(side_by_side(call, [(a, min(n, a + step)) for a in range(0, n, step)], threads))
