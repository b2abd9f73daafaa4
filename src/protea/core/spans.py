"""Columns out of the bytes of a block: strings, numbers and GO ids at given places, with Arrow, no object per value.

Called by `annotations`, `delimited` and the readers of tables; calls `gafscan` to gather bytes.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from protea.core import gafscan

_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$|^(?i)[+-]?(nan|inf|infinity)$"


def go_numbers(ids: pa.Array) -> NDArray[np.int32]:
    """The numbers of GO ids (strings or bytes), -1 for what is none."""
    good = pc.fill_null(pc.match_substring_regex(ids, "^GO:[0-9]{7}$"), False)
    digits = pc.if_else(good, pc.replace_substring_regex(ids.cast(pa.binary()), "^GO:", ""), b"-1")
    return digits.cast(pa.string()).cast(pa.int32()).to_numpy()


def used(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """The same values, with a dictionary that holds no other ones."""
    codes, indices = np.unique(column.indices.to_numpy(), return_inverse=True)
    return pa.DictionaryArray.from_arrays(pa.array(indices.astype(np.int32)), column.dictionary.take(pa.array(codes)))


def bytes_of(strings: pa.Array | pa.ChunkedArray) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The int64 offsets and the bytes of an array of strings, nulls left out."""
    if isinstance(strings, pa.ChunkedArray):
        strings = strings.combine_chunks()
    strings = strings.cast(pa.large_string()).drop_null()
    _, offsets, data = strings.buffers()
    start, stop = strings.offset, strings.offset + len(strings) + 1
    # Copies, so that numba sees one type (Arrow's buffers may or may not be read-only) and compiles once.
    found = np.array(np.frombuffer(offsets, np.int64)[start:stop]) if len(strings) else np.zeros(1, np.int64)
    return found, np.array(np.frombuffer(data or b"", np.uint8))


def strings(data: NDArray[np.uint8], spans: NDArray[np.int64]) -> pa.DictionaryArray:
    """The spans of the block as dictionary-encoded strings. What is not UTF-8 becomes `\\xNN`, so it stays distinct."""
    encoded = _binary(data, spans).dictionary_encode()
    try:
        words = encoded.dictionary.cast(pa.string())
    except pa.ArrowInvalid:
        words = pa.array([w.decode("utf-8", "backslashreplace") for w in encoded.dictionary.to_pylist()], pa.string())
    return pa.DictionaryArray.from_arrays(encoded.indices, words)


def floats(data: NDArray[np.uint8], spans: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The spans as correctly rounded numbers, and whether they are some; 0 where they are not."""
    words = _binary(data, spans)
    try:
        return words.cast(pa.string()).cast(pa.float64()).to_numpy(zero_copy_only=False), np.ones(len(spans), np.bool_)
    except pa.ArrowInvalid:
        good = pc.match_substring_regex(words, _NUMBER).to_numpy(zero_copy_only=False)
    some = words.filter(pa.array(good)).cast(pa.string()).cast(pa.float64())
    values = np.zeros(len(spans))
    values[good] = some.to_numpy(zero_copy_only=False)
    return values, good


def _binary(data: NDArray[np.uint8], spans: NDArray[np.int64]) -> pa.Array:
    taken, offsets = gafscan.gather(data, spans)
    return pa.Array.from_buffers(pa.binary(), len(spans), [None, pa.py_buffer(offsets), pa.py_buffer(taken)])


class Distinct:
    """How many distinct strings were added; holds each about twice at most."""

    def __init__(self) -> None:
        self._known = pa.array([], pa.large_string())
        self._new: list[pa.Array] = []
        self._n_new = 0

    def add(self, words: pa.Array) -> None:
        self._new.append(words.cast(pa.large_string()))
        self._n_new += len(words)
        if self._n_new > max(len(self._known), 100_000):
            self._merge()

    def _merge(self) -> None:
        self._known, self._new, self._n_new = pc.unique(pa.chunked_array([self._known, *self._new])), [], 0

    def __len__(self) -> int:
        self._merge()
        return len(self._known)
