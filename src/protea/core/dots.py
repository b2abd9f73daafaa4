"""Inner products in float64 with the same bits on every CPU, as LLVM instructions for numba's compiled functions to call.

Called by the term-vector features; calls numba and llvmlite only.

A sum taken strictly in order waits for itself at every step, and BLAS sums in an order that depends on the CPU. Here the
order is fixed: 32 partial sums side by side, element x going to sum x mod 32, which are then added in halves.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 8  # of one LLVM vector, which it lowers to what the CPU has
SUMS = 4 * LANES
LINE = 64
"""Bytes of a cache line."""


def padded(matrix: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The matrix with zero columns up to a multiple of 32, as `dot` needs it; zeros change no sum.

    Rows begin where cache lines do: a vector that lies across two takes half as long again.
    """
    shape = len(matrix), matrix.shape[1] + -matrix.shape[1] % SUMS
    room = np.zeros(shape[0] * shape[1] + LINE // 8)
    start = -room.ctypes.data % LINE // 8
    out = room[start : start + shape[0] * shape[1]].reshape(shape)
    out[:, : matrix.shape[1]] = matrix
    return out


def _dot(typingctx, left, i, right, j):
    """left[i] . right[j] of two C-ordered float64 matrices whose rows have the same length, a multiple of 32; i, j int64."""
    signature = types.float64(left, i, right, j)

    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        double, word = ir.DoubleType(), ir.IntType(32)
        vector = ir.VectorType(double, LANES)
        a, c = (context.make_array(sig.args[n])(context, b, args[n]) for n in (0, 2))
        width = b.extract_value(a.shape, 1)
        size = width.type
        start = [b.gep(m.data, [b.mul(args[n], width)]) for m, n in ((a, 1), (c, 3))]
        sums = [cgutils.alloca_once_value(b, ir.Constant(vector, [0.0] * LANES)) for _ in range(SUMS // LANES)]
        with cgutils.for_range(b, b.udiv(width, ir.Constant(size, SUMS)), intp=size) as loop:
            at = b.mul(loop.index, ir.Constant(size, SUMS))
            for n, total in enumerate(sums):
                here = b.add(at, ir.Constant(size, n * LANES))
                x, y = (b.load(b.bitcast(b.gep(p, [here]), vector.as_pointer()), align=8) for p in start)
                b.store(b.fadd(b.load(total), b.fmul(x, y)), total)
        s = [b.load(total) for total in sums]
        out = b.fadd(b.fadd(s[0], s[2]), b.fadd(s[1], s[3]))
        lanes = LANES
        while lanes > 1:
            lanes //= 2
            kind = ir.VectorType(word, lanes)
            low, high = (
                b.shuffle_vector(out, out, ir.Constant(kind, list(range(first, first + lanes)))) for first in (0, lanes)
            )
            out = b.fadd(low, high)
        return b.extract_element(out, ir.Constant(word, 0))

    return signature, generate


dot: Any = intrinsic(_dot)
