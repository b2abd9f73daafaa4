"""The comparison that the two term-vector families share: a term against a set of terms (contract section 11)."""

import numba
import numpy as np
import pyarrow as pa

from ..arrays import I32, I64
from ..side_tables import TermVectors

NO_LENGTH = 1e-9
"""A mean of unit vectors shorter than this counts as zero: its direction would be rounding noise."""


LANES = 16
"""Sums that run side by side in registers: each one waits for itself at every step, so one alone would be slow."""


@numba.njit(cache=True, nogil=True)
def _dots(v, columns, out, at):
    """out[at + i] = v . columns[:, i] for LANES columns, each summed in order, in float64."""
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = s8 = s9 = s10 = s11 = s12 = s13 = s14 = s15 = 0.0
    for x in range(len(v)):
        u = v[x]
        s0 += u * columns[x, 0]
        s1 += u * columns[x, 1]
        s2 += u * columns[x, 2]
        s3 += u * columns[x, 3]
        s4 += u * columns[x, 4]
        s5 += u * columns[x, 5]
        s6 += u * columns[x, 6]
        s7 += u * columns[x, 7]
        s8 += u * columns[x, 8]
        s9 += u * columns[x, 9]
        s10 += u * columns[x, 10]
        s11 += u * columns[x, 11]
        s12 += u * columns[x, 12]
        s13 += u * columns[x, 13]
        s14 += u * columns[x, 14]
        s15 += u * columns[x, 15]
    out[at + 0] = s0
    out[at + 1] = s1
    out[at + 2] = s2
    out[at + 3] = s3
    out[at + 4] = s4
    out[at + 5] = s5
    out[at + 6] = s6
    out[at + 7] = s7
    out[at + 8] = s8
    out[at + 9] = s9
    out[at + 10] = s10
    out[at + 11] = s11
    out[at + 12] = s12
    out[at + 13] = s13
    out[at + 14] = s14
    out[at + 15] = s15


@numba.njit(cache=True, nogil=True)
def _compare(group, row, set_ptr, set_row, unit, cos, largest, any_other, has_mean):
    """Candidates come grouped. Sums run over the set in order, in float64; the candidate itself is left out."""
    d = unit.shape[1]
    total = np.zeros(d)
    rest = np.empty(d)
    room = 0
    for g in range(len(set_ptr) - 1):
        room = max(room, set_ptr[g + 1] - set_ptr[g])
    tiles = room // LANES + 1
    turned = np.zeros((tiles, d, LANES))  # the set's vectors as columns, then their sum
    dots = np.empty(tiles * LANES)
    length_of_all = 0.0
    current = -1
    for i in range(len(group)):
        g = group[i]
        a, b = set_ptr[g], set_ptr[g + 1]
        n = b - a
        if g != current:
            current = g
            total[:] = 0.0
            for j in range(n):
                for x in range(d):
                    total[x] += unit[set_row[a + j], x]
                    turned[j // LANES, x, j % LANES] = unit[set_row[a + j], x]
            length_of_all = 0.0
            for x in range(d):
                turned[n // LANES, x, n % LANES] = total[x]
                length_of_all += total[x] * total[x]
        if row[i] < 0:
            continue
        inside = -1
        for j in range(n):
            if set_row[a + j] == row[i]:
                inside = j
        others = n - (1 if inside >= 0 else 0)
        if others == 0:
            continue
        for tile in range(n // LANES + 1):
            _dots(unit[row[i]], turned[tile], dots, tile * LANES)
        best = -np.inf
        for j in range(n):
            if j != inside and dots[j] > best:
                best = dots[j]
        length, along = length_of_all, dots[n]
        if inside >= 0:
            length = along = 0.0
            for x in range(d):
                rest[x] = total[x] - unit[row[i], x]
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
