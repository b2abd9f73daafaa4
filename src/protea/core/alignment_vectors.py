"""The vector code of the pairwise alignments, as LLVM instructions for numba's compiled functions to call.

Called by `core/alignment_kernel.py` only, whose docstring says what is computed; calls numba and llvmlite only.

numba cannot be told that the rows of one array do not overlap, so LLVM would not vectorise these loops by itself. They are
written on LLVM's own vectors, which it lowers to what the CPU has (AVX-512, AVX2, SSE, NEON): integers only and
one order of comparisons, so values never depend on the CPU.
"""

from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

OPEN = 10  # the first residue of a gap; a further one costs 1
VECTOR = 64 if llvm.get_host_cpu_features().get("avx512bw") else 32  # bytes; changes the speed only
LANES = 32  # the most there can be: what every buffer has room for, whichever width the cached code was compiled for
SHIFT = OPEN - 1  # H' is stored less this: a gap opens from what is stored as it is
STATE_ROWS = 8  # per alignment: H of the two last diagonals, E (gap in the first sequence), F (gap in the second)


def _gather(typingctx, scores, at, rows, profile, diagonal, eights):
    """scores[at + x] = the 4 profile bytes from profile[rows[at + x] + diagonal], for x < 8 eights."""
    signature = types.void(scores, at, rows, profile, diagonal, eights)

    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        def data(j: int) -> Any:
            return context.make_array(sig.args[j])(context, b, args[j]).data

        size, word = args[1].type, ir.IntType(32)
        out, row = b.gep(data(0), [args[1]]), b.gep(data(2), [args[1]])
        base = b.gep(data(3), [args[4]])
        with cgutils.for_range(b, args[5], intp=size) as loop:
            first = b.mul(loop.index, ir.Constant(size, 8))
            for u in range(8):
                i = b.add(first, ir.Constant(size, u))
                source = b.gep(base, [b.sext(b.load(b.gep(row, [i])), size)])
                b.store(b.load(b.bitcast(source, word.as_pointer()), align=1), b.gep(out, [i]))
        return context.get_dummy_value()

    return signature, generate


def _sweep(typingctx, state, scores, trace, stride, lo, blocks, position, diagonal, turn):
    """One diagonal of both alignments, rows lo..: returns the largest local H'; its first row is left in `state`.

    `state` [9, stride] flat, of int16 or int32: rows 0, 1 H' of the global alignment by parity of the diagonal, 2 E',
    3 F'; 4-7 the same of the local one; row 8 gets the maxima by lane, then their rows less lo. E' and F' are updated in
    place, so blocks go downwards: F' and H' are read one row above.
    """
    element = state.dtype
    bits = element.bitwidth
    lanes = VECTOR * 8 // bits
    signature = element(state, scores, trace, stride, lo, blocks, position, diagonal, turn)

    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        _, _, _, stride_, lo_, blocks_, position_, diagonal_, turn_ = args
        size, item, word = stride_.type, ir.IntType(bits), ir.IntType(32)
        vector, wide = ir.VectorType(item, lanes), ir.VectorType(word, lanes)
        undefined = {t: ir.Constant(t, ir.Undefined) for t in (vector, wide)}

        def number(v: int) -> Any:
            return ir.Constant(size, v)

        def every(v: int, kind: Any = vector) -> Any:
            return ir.Constant(kind, [v] * lanes)

        def splat(scalar: Any, kind: Any) -> Any:
            one = b.insert_element(undefined[kind], scalar, ir.Constant(word, 0))
            return b.shuffle_vector(one, undefined[kind], every(0, wide))

        def load(pointer: Any, kind: Any = vector) -> Any:
            return b.load(b.bitcast(pointer, kind.as_pointer()), align=kind.element.width // 8)

        def store(value: Any, pointer: Any) -> None:
            b.store(value, b.bitcast(pointer, value.type.as_pointer()), align=value.type.element.width // 8)

        def at(pointer: Any, index: Any) -> Any:
            return b.gep(pointer, [index])

        def larger(x: Any, y: Any) -> tuple[Any, Any]:
            """(x > y, the larger)"""
            more = b.icmp_signed(">", x, y)
            return more, b.select(more, x, y)

        base, score_data, trace_data = (context.make_array(sig.args[j])(context, b, args[j]).data for j in range(3))
        even = b.and_(diagonal_, number(1))
        odd = b.xor(even, number(1))

        def row(index: Any) -> Any:
            return at(base, b.add(b.mul(index, stride_), lo_))

        groups = [
            (row(b.add(even, number(r))), row(b.add(odd, number(r))), row(number(r + 2)), row(number(r + 3)))
            for r in (0, 4)
        ]
        result = at(base, b.mul(number(STATE_ROWS), stride_))
        score_row = at(score_data, lo_)
        shift = splat(b.trunc(b.mul(turn_, number(8)), word), wide)
        floor = splat(b.trunc(diagonal_, item), vector)
        best = cgutils.alloca_once(b, vector)
        where = cgutils.alloca_once(b, vector)
        b.store(every(0), best)
        b.store(every(0), where)

        def cell(group: Any, i: Any, above: Any, score: Any, local: bool) -> Any:
            older, newer, e_row, f_row = group
            bit = 16 if local else 1
            e_long, e = larger(load(at(e_row, i)), load(at(newer, i)))
            f_long, f = larger(load(at(f_row, above)), load(at(newer, above)))
            store(e, at(e_row, i))
            store(f, at(f_row, i))
            f_wins, gap = larger(f, e)
            gap_wins, h = larger(gap, b.add(load(at(older, above)), score))
            code = b.select(gap_wins, b.select(f_wins, every(2 * bit), every(bit)), every(0))
            if local:
                positive, h = larger(h, floor)
                code = b.select(positive, code, every(3 * bit))
                old = b.load(best)
                no_less = b.icmp_signed(">=", h, old)  # blocks go downwards: the smallest row stays
                b.store(b.select(no_less, h, old), best)
                b.store(b.select(no_less, splat(b.trunc(i, item), vector), b.load(where)), where)
            store(b.sub(h, every(SHIFT)), at(older, i))
            flags = b.or_(b.select(e_long, every(4 * bit), every(0)), b.select(f_long, every(8 * bit), every(0)))
            return b.or_(code, flags)

        with cgutils.for_range(b, blocks_, intp=size) as loop:
            block = b.sub(b.sub(blocks_, number(1)), loop.index)
            i = b.mul(block, number(lanes))
            above = b.sub(i, number(1))
            words = b.lshr(load(at(score_row, i), wide), shift)
            score = b.and_(words if bits == 32 else b.trunc(words, vector), every(255))
            code = b.or_(cell(groups[0], i, above, score, False), cell(groups[1], i, above, score, True))
            small = b.trunc(code, ir.VectorType(ir.IntType(8), lanes))
            store(small, at(trace_data, b.add(position_, i)))
        store(b.load(best), result)
        store(b.load(where), at(result, number(lanes)))
        kind = ir.FunctionType(item, [vector])
        reduce = cgutils.get_or_insert_function(b.module, kind, f"llvm.vector.reduce.smax.v{lanes}i{bits}")
        return b.call(reduce, [b.load(best)])

    return signature, generate


gather: Any = intrinsic(_gather)
sweep: Any = intrinsic(_sweep)
