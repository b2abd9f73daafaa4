"""The compiled part of the pairwise alignments: one pair at a time, global and local together, in vectors.

Called by `core/alignment.py` only; calls `core/alignment_vectors.py`, numba and numpy.

Gotoh's recurrences are swept along anti-diagonals, where no cell depends on another one of the same diagonal, so a
whole diagonal is computed in vectors of integers whatever the two sequences are. Three things make it fast:

- Scores are kept as H' = H + i + j. Extending a gap then costs nothing, and the floor of a local alignment on
  diagonal d is d. H' lies between -18 and 11 min(m, n) + m + n, which tells 16 from 32 bits beforehand.
- Substitution scores of four diagonals at once are one 32-bit load per row from a byte profile of the second sequence.
- One byte a cell holds the way back of both alignments (low and high nibble: 2 bits whence H came, 2 bits gap extended).

The bytes are kept for one window of diagonals. A pair too large for one window is swept twice: forwards, saving the few
rows of state at each window, then window by window from the end. So memory is bounded, and the way back, hence
every statistic, is the same whatever the window.

Of several optimal alignments: from the end backwards, a pair of residues before a gap in the first sequence before a gap
in the second; a gap opens rather than extends; a local one ends on the first diagonal, then the first row, that has the
best score, and begins where the score first falls to 0.
"""

import numpy as np
import numpy.typing as npt
from numba import njit

from protea.core.alignment_vectors import LANES, OPEN, SHIFT, STATE_ROWS, VECTOR, gather, sweep

LETTERS = "ARNDCQEGHILKMFPSTWYVBZX"
X = len(LETTERS) - 1
PAD = len(LETTERS)  # a row of the profile for rows beyond the end of the first sequence
_BLOSUM62 = """
 4
-1  5
-2  0  6
-2 -2  1  6
 0 -3 -3 -3  9
-1  1  0  0 -3  5
-1  0  0  2 -4  2  5
 0 -2  0 -1 -3 -2 -2  6
-2  0  1 -1 -3  0  0 -2  8
-1 -3 -3 -3 -1 -3 -3 -4 -3  4
-1 -2 -3 -4 -1 -2 -3 -4 -3  2  4
-1  2  0 -1 -3  1  1 -2 -1 -3 -2  5
-1 -1 -2 -3 -1  0 -2 -3 -2  1  2 -1  5
-2 -3 -3 -3 -2 -3 -3 -3 -1  0  0 -3  0  6
-1 -2 -2 -1 -3 -1 -1 -2 -2 -3 -3 -1 -2 -4  7
 1 -1  1  0 -1  0  0  0 -1 -2 -2  0 -1 -2 -1  4
 0 -1  0 -1 -1 -1 -1 -2 -2 -1 -1 -1 -1 -2 -1  1  5
-3 -3 -4 -4 -2 -2 -3 -2 -2 -3 -2 -3 -1  1 -4 -3 -2 11
-2 -2 -2 -3 -2 -1 -2 -3  2 -1 -1 -2 -1  3 -3 -2 -2  2  7
 0 -3 -3 -3 -1 -2 -2 -3 -3  3  1 -2  1 -1 -2 -2  0 -3 -1  4
-2 -1  3  4 -3  0  1 -1  0 -3 -4  0 -3 -3 -2  0 -1 -4 -3 -3  4
-1  0  0  1 -3  3  4 -2  0 -3 -3  1 -1 -3 -1  0 -1 -3 -2 -2  1  4
 0 -1 -1 -1 -2 -1 -1 -1 -1 -1 -1 -1 -1 -1 -2  0  0 -2 -1 -1 -1 -1 -1
"""


def _matrix() -> npt.NDArray[np.int8]:
    full = np.zeros((len(LETTERS), len(LETTERS)), np.int8)
    for i, line in enumerate(_BLOSUM62.strip().splitlines()):
        full[i, : i + 1] = full[: i + 1, i] = [int(v) for v in line.split()]
    return full


MATRIX = _matrix()
BEST = int(MATRIX.max())

_BIAS = SHIFT + 2  # profile byte = score + _BIAS > 0; 0 is beyond an end
_FRONT = LANES + 8
_LEAST = 4  # diagonals of a window, which is one gather
_NEVER = -100  # below any H' of a global alignment


@njit(cache=True, nogil=True)
def _sweep_window(m, n, rows, profile, state, stride, lanes, scores, trace, place, begin, end, best):
    """Diagonals begin..end-1; cell (i, d - i) has its byte at trace[place[d] + i]. best = [score, diagonal, row]."""
    position = 0
    for d in range(begin, end):
        lo = max(1, d - n)
        hi = min(m, d - 1)
        turn = (d - begin) & 3
        if turn == 0:
            count = min(m, d + 2) + lanes - lo
            gather(scores, lo, rows, profile, d, (count + 7) >> 3)
        blocks = (hi - lo + lanes) // lanes
        top = np.int64(sweep(state, scores, trace, stride, lo, blocks, position, d, turn)) - d
        place[d] = position - lo
        position += blocks * lanes
        now = d & 1
        if d <= n:
            state[now * stride] = -2 * SHIFT
            state[3 * stride] = _NEVER
            state[(now + 4) * stride] = d - SHIFT
            state[7 * stride] = _NEVER
        if d <= m:
            state[now * stride + d] = -2 * SHIFT
            state[2 * stride + d] = _NEVER
            state[(now + 4) * stride + d] = d - SHIFT
            state[6 * stride + d] = _NEVER
        if top > best[0]:
            best[0] = top
            best[1] = d
            first = m
            for lane in range(STATE_ROWS * stride, STATE_ROWS * stride + lanes):
                if state[lane] == top + d:
                    first = min(first, lo + state[lane + lanes] + lane - STATE_ROWS * stride)
            best[2] = first


@njit(cache=True, nogil=True)
def _walk(a, b, matrix, trace, place, begin, walk, local, out):
    """Walk back to the start of the window. walk = [i, j, in a gap (0 no, 1 in a, 2 in b), ended]."""
    i, j, gap = walk[0], walk[1], walk[2]
    columns, identical, similar, gaps, score = out[0], out[1], out[2], out[3], out[4]
    shift = 4 if local else 0
    while i > 0 and j > 0 and i + j >= begin:
        byte = trace[place[i + j] + i] >> shift
        if gap == 0:
            gap = byte & 3
            if gap == 3:
                walk[3] = 1
                break
            if gap == 0:
                x, y = a[i - 1], b[j - 1]
                s = matrix[x, y]
                columns += 1
                score += s
                similar += s > 0
                identical += x == y and x != X
                i -= 1
                j -= 1
                continue
        columns += 1
        gaps += 1
        longer = byte & (4 if gap == 1 else 8)
        if gap == 1:
            j -= 1
        else:
            i -= 1
        if longer:
            score -= 1
        else:
            score -= OPEN
            gap = 0
    if (i == 0 or j == 0) and walk[3] == 0:
        walk[3] = 1
        if not local and i + j > 0:
            gaps += i + j
            columns += i + j
            score -= OPEN + i + j - 1
    walk[0], walk[1], walk[2] = i, j, gap
    out[0], out[1], out[2], out[3], out[4] = columns, identical, similar, gaps, score


@njit(cache=True, nogil=True)
def _start(state, stride):
    """Diagonals 0 and 1, which have border cells only. Zeros elsewhere: nothing there may look like a score."""
    state[: STATE_ROWS * stride] = 0
    state[0] = state[4 * stride] = -SHIFT
    state[stride] = state[stride + 1] = -2 * SHIFT
    state[5 * stride] = state[5 * stride + 1] = 1 - SHIFT
    state[2 * stride + 1] = state[6 * stride + 1] = _NEVER
    state[3 * stride] = state[7 * stride] = _NEVER


@njit(cache=True, nogil=True)
def _bordered(items):
    """`items` from where item 1, the first row, is at a 64-byte border: whole cache lines are some 8 % faster."""
    to_border = -items.ctypes.data % 64 // items.itemsize
    return items[to_border + 64 // items.itemsize - 1 :]


@njit(cache=True, nogil=True)
def _profile(b, matrix, profile, width):
    for row in range(PAD + 1):
        line = profile[row * width : (row + 1) * width]
        line[:] = 0
        if row < PAD:
            for j in range(len(b)):
                line[_FRONT + 1 + j] = matrix[row, b[j]] + _BIAS


@njit(cache=True, nogil=True)
def _align_pair(a, b, profile, width, matrix, state, trace, stop, out):
    """Both alignments of a (the shorter) and b into out[10]; False when stopped. `state` gives the type of scores."""
    m, n = len(a), len(b)
    lanes = VECTOR // state.itemsize
    stride = (m + 3 * lanes + 2) // lanes * lanes
    state = _bordered(state)
    rows = np.full(m + 2 * lanes + 16, PAD * width, np.int32)
    for i in range(1, m + 1):
        rows[i] = a[i - 1] * width
    rows += _FRONT - np.arange(len(rows), dtype=np.int32)
    scores = _bordered(np.empty(len(rows) + 32, np.uint32))
    place = np.empty(m + n + 1, np.int64)
    length = max(_LEAST, len(trace) // (m + lanes))
    windows = max(1, (m + n - 2 + length) // length)
    # State rows first..last-1 are all that the window that begins there reads.
    begins = 2 + length * np.arange(windows)
    firsts = np.maximum(1, begins - n) - 1
    lasts = np.minimum(m, begins - 1) + 2
    ends = STATE_ROWS * np.cumsum(lasts - firsts)
    saved = np.empty(ends[-1] if windows > 1 else 0, state.dtype)
    out[:] = 0
    best = np.zeros(3, np.int64)
    unused = np.zeros(3, np.int64)
    walks = np.zeros((2, 4), np.int64)
    _start(state, stride)
    for step in range(2 * windows - 1):
        if stop[0]:
            return False
        w = step if step < windows else 2 * windows - 2 - step
        begin, end = begins[w], min(m + n + 1, begins[w] + length)
        if windows > 1:
            size = lasts[w] - firsts[w]
            for r in range(STATE_ROWS):
                kept = saved[ends[w] - (r + 1) * size : ends[w] - r * size]
                live = state[r * stride + firsts[w] : r * stride + lasts[w]]
                if step < windows:
                    kept[:] = live
                else:
                    live[:] = kept
        found = best if step < windows else unused
        _sweep_window(m, n, rows, profile, state, stride, lanes, scores, trace, place, begin, end, found)
        if step == windows - 1:
            walks[0, 0], walks[0, 1] = m, n
            walks[1, 0], walks[1, 1] = best[2], best[1] - best[2]
        if step >= windows - 1:
            for local in range(2):
                if walks[local, 3] == 0:
                    _walk(a, b, matrix, trace, place, begin, walks[local], local == 1, out[5 * local : 5 * local + 5])
    return True


@njit(cache=True, nogil=True)
def align_batch(codes, starts, lengths, first, second, matrix, state, trace, stop, out):
    """Align sequence first[x] (the shorter) with second[x] for every x; out int64[n, 10]; the number of pairs done.

    A sequence is codes[start : start + length], letters as indices into LETTERS. Each row of `out` is columns,
    identical, similar, gaps and score of the global, then of the local alignment. `state` is int16 where `fits_16`
    says so for all the pairs, else int32, of `state_size` items for the longest first; `stop[0]` ends it early.
    """
    width = 0
    for x in range(len(second)):
        width = max(width, lengths[second[x]])
    width += _FRONT + 8
    profile = np.empty((PAD + 1) * width, np.uint8)
    last = -1
    for x in range(len(second)):
        i, j = first[x], second[x]
        b = codes[starts[j] : starts[j] + lengths[j]]
        if j != last:
            _profile(b, matrix, profile, width)
            last = j
        a = codes[starts[i] : starts[i] + lengths[i]]
        if not _align_pair(a, b, profile, width, matrix, state, trace, stop, out[x]):
            return x
    return len(second)


def state_size(longest: int) -> int:
    """Items of `state` for first sequences of up to `longest` residues."""
    return (STATE_ROWS + 1) * (longest + 4 * LANES) + 2 * LANES


def least_trace(longest: int) -> int:
    """Bytes that `trace` must have: one window of the fewest diagonals."""
    return _LEAST * (longest + LANES)


def fits_16(shorter: npt.NDArray[np.int64], longer: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether no H' of such a pair can leave 16 bits: the largest is that of identical sequences of tryptophan."""
    return BEST * shorter + shorter + longer + 64 <= np.iinfo(np.int16).max
