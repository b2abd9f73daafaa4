"""Where the tabs and newlines of 64 bytes are, as LLVM instructions for numba's compiled functions to call.

Called by `core.gafscan`; calls numba and llvmlite only. Looking at one byte after the other takes most of the time of
reading a GAF.
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

WIDTH = 64
_TAB, _LF = 9, 10


def _whole(typingctx, data, start):
    """uint64: bit i is set when data[start + i] is a tab or a newline; start + 64 must not pass the end."""
    signature = types.uint64(data, start)

    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        vector = ir.VectorType(ir.IntType(8), WIDTH)
        place = b.gep(context.make_array(sig.args[0])(context, b, args[0]).data, [args[1]])
        found = b.load(b.bitcast(place, vector.as_pointer()), align=1)
        tab, newline = (b.icmp_unsigned("==", found, ir.Constant(vector, [c] * WIDTH)) for c in (_TAB, _LF))
        return b.bitcast(b.or_(tab, newline), ir.IntType(WIDTH))

    return signature, generate


def _first(typingctx, bits):
    """int64: the number of the lowest bit that is set; there must be one."""
    signature = types.int64(types.uint64)

    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        word = ir.IntType(64)
        count = cgutils.get_or_insert_function(b.module, ir.FunctionType(word, [word, ir.IntType(1)]), "llvm.cttz.i64")
        return b.call(count, [args[0], ir.Constant(ir.IntType(1), 1)])

    return signature, generate


whole: Any = intrinsic(_whole)
first: Any = intrinsic(_first)


@njit(cache=True, nogil=True)
def window(data, start):
    """uint64: bit i is set when data[start + i] is there and is a tab or a newline, for i < 64."""
    if start + WIDTH <= len(data):
        return whole(data, start)
    bits, bit = types.uint64(0), types.uint64(1)
    for i in range(start, len(data)):
        if data[i] == _TAB or data[i] == _LF:
            bits |= bit
        bit <<= types.uint64(1)
    return bits
