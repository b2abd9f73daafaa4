"""The comparison that the two term-vector families share: a term against a set of terms (contract section 11)."""

import numba
import numpy as np
import pyarrow as pa

from ..arrays import I32, I64
from ..side_tables import TermVectors

NO_LENGTH = 1e-9
"""A mean of unit vectors shorter than this counts as zero: its direction would be rounding noise."""


@numba.njit(cache=True, nogil=True)
def _compare(group, row, set_ptr, set_row, unit, cos, largest, any_other, has_mean):
    """Candidates come grouped. Sums run over the set in order, in float64; the candidate itself is left out."""
    d = unit.shape[1]
    total = np.zeros(d)
    rest = np.empty(d)
    room = 0
    for g in range(len(set_ptr) - 1):
        room = max(room, set_ptr[g + 1] - set_ptr[g])
    turned = np.empty((d, room))  # the set's vectors, transposed: the inner loop runs over the set
    dots = np.empty(room)
    current = -1
    for i in range(len(group)):
        g = group[i]
        a, b = set_ptr[g], set_ptr[g + 1]
        if g != current:
            current = g
            total[:] = 0.0
            for j in range(a, b):
                for x in range(d):
                    total[x] += unit[set_row[j], x]
                    turned[x, j - a] = unit[set_row[j], x]
        if row[i] < 0:
            continue
        n = b - a
        inside = -1
        for j in range(a, b):
            if set_row[j] == row[i]:
                inside = j - a
        others = n - (1 if inside >= 0 else 0)
        if others == 0:
            continue
        dots[:n] = 0.0
        for x in range(d):
            u = unit[row[i], x]
            rest[x] = total[x] - u if inside >= 0 else total[x]
            for j in range(n):
                dots[j] += u * turned[x, j]
        best = -np.inf
        for j in range(n):
            if j != inside and dots[j] > best:
                best = dots[j]
        length = 0.0
        along = 0.0
        for x in range(d):
            length += rest[x] * rest[x]
            along += rest[x] * unit[row[i], x]
        length = np.sqrt(length)
        any_other[i] = True
        largest[i] = np.float32(best)
        if length > NO_LENGTH * others:
            has_mean[i] = True
            cos[i] = np.float32(along / length)


def compare(v: TermVectors, term: I32, group: I64, set_ptr: I64, set_row: I32) -> tuple[pa.Array, pa.Array]:
    """(cosine with the mean, largest cosine) of each candidate term and its group's set of vector rows, without itself.

    Null where the term has no vector or the set is empty; the first also where the mean is zero.
    """
    n = len(term)
    cos, largest = np.zeros(n, dtype=np.float32), np.zeros(n, dtype=np.float32)
    any_other, has_mean = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
    _compare(group, v.row[term], set_ptr, set_row, v.unit, cos, largest, any_other, has_mean)
    return pa.array(cos, mask=~has_mean), pa.array(largest, mask=~any_other)
