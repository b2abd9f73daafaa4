"""The comparison that the two term-vector families share: a term against a set of terms (contract section 11)."""

import numba
import numpy as np
import pyarrow as pa

from ..arrays import I32, I64
from ..dots import dot
from ..side_tables import TermVectors

NO_LENGTH = 1e-9
"""A mean of unit vectors shorter than this counts as zero: its direction would be rounding noise."""


@numba.njit(cache=True, nogil=True)
def _compare(group, row, set_ptr, set_row, unit, cos, largest, any_other, has_mean):
    """Candidates come grouped. The candidate itself is left out of its set."""
    d = unit.shape[1]
    total, rest = np.zeros((1, d)), np.zeros((1, d))
    length_of_all = 0.0
    current = -1
    for i in range(len(group)):
        g, u = group[i], np.int64(row[i])
        a, b = set_ptr[g], set_ptr[g + 1]
        if g != current:
            current = g
            total[:] = 0.0
            for j in range(a, b):
                for x in range(d):
                    total[0, x] += unit[set_row[j], x]
            length_of_all = dot(total, 0, total, 0)
        if u < 0:
            continue
        others = 0
        best = -np.inf
        for j in range(a, b):
            if set_row[j] != u:
                others += 1
                best = max(best, dot(unit, u, unit, np.int64(set_row[j])))
        if others == 0:
            continue
        if others == b - a:
            length, along = length_of_all, dot(unit, u, total, 0)
        else:
            for x in range(d):
                rest[0, x] = total[0, x] - unit[u, x]
            length, along = dot(rest, 0, rest, 0), dot(unit, u, rest, 0)
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
