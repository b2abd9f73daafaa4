"""The byte scanner of the GAF reader: one pass over a block of whole lines, compiled, no object per row.

Called by `core.annotations`, and for its primitives by `core.delimited`; calls nothing. It decides for each line
whether it is a row, whether that row is well-formed, and whose it is (contract section 1, "GAF rows"), and hands the
columns back as arrays.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from protea.core.evidence import CODES
from protea.core.windows import WIDTH, first, window

REASONS = ("columns", "database", "accession", "go_id", "unknown_evidence", "date")
"""Why a row is malformed, in the order in which they are looked for."""
OTHER_DATABASE, NOT_IN_PROTEINS = 6, 7
N_COUNTS = 10
ROWS, SHAPED = 8, 9
"""Places in the counts after the reasons: all data rows; those with the outline of a GAF row."""
MAX_PROBLEMS = 100

_TAB, _LF, _CR, _BLANK, _PIPE, _BANG, _COLON = 9, 10, 13, 32, 124, 33, 58
_MIN_ROW = 36  # bytes of the shortest well-formed row, its newline aside: no block holds more rows than size / 36
_NOT = np.frombuffer(b"not", np.uint8)
_TAXON = np.frombuffer(b"taxon:", np.uint8)
_GO_PREFIX = np.frombuffer(b"go:", np.uint8)
_QUALIFIERS = tuple(np.frombuffer(q, np.uint8) for q in (b"acts_upstream_of", b"colocalizes_with", b"contributes_to"))
_MONTH_DAYS = np.array([31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_EVIDENCE = np.full(1 << 15, -1, np.int8)
for _code, _name in enumerate((*CODES, "ND")):
    _a, _b, _c = _name.encode().ljust(3, b"\0")
    _EVIDENCE[(_a & 31) << 10 | (_b & 31) << 5 | (_c & 31)] = _code


class Scan(NamedTuple):
    """What a block holds. Arrays of one entry per stored row (R), distinct run of one accession (A), well-formed row
    that is not stored (D), malformed row or comment line, of each the first 100 (P, C). Places are byte offsets in
    the block; lines are numbered from 0 within it."""

    go: NDArray[np.int32]  # [R] number of the GO id
    evidence: NDArray[np.int8]  # [R] index in CODES, or ND
    negated: NDArray[np.bool_]  # [R]
    isoform: NDArray[np.bool_]  # [R] column 17 holds something
    date: NDArray[np.int32]  # [R] days since 1970-01-01
    taxon: NDArray[np.int32]  # [R] 0 where there is none
    run: NDArray[np.int32]  # [R] index into `accession`
    qualifier: NDArray[np.int64]  # [R, 2] from, to of the one to keep; empty for the default
    accession: NDArray[np.int64]  # [A, 2] from, to
    dropped_date: NDArray[np.int32]  # [D]
    dropped_why: NDArray[np.int8]  # [D] OTHER_DATABASE or NOT_IN_PROTEINS
    problems: NDArray[np.int64]  # [P, 4] line, reason, from, to
    comments: NDArray[np.int64]  # [C, 2] from, to
    counts: NDArray[np.int64]  # [10] by reason, then ROWS, SHAPED
    lines: int


@njit(cache=True, nogil=True)
def trim(data, a, b):
    """The span without the blanks around it."""
    while a < b and data[a] == _BLANK:
        a += 1
    while b > a and data[b - 1] == _BLANK:
        b -= 1
    return a, b


@njit(cache=True, nogil=True)
def _lower(c):
    return c | 32 if 65 <= c <= 90 else c


@njit(cache=True, nogil=True)
def _starts(data, a, b, word):
    """Whether the span starts with `word` (given in lower case), whatever its case."""
    if b - a < len(word):
        return False
    for i in range(len(word)):  # noqa: SIM110  # numba has no generators here
        if _lower(data[a + i]) != word[i]:
            return False
    return True


@njit(cache=True, nogil=True)
def same(x, a, b, y, c, d):
    if b - a != d - c:
        return False
    for i in range(b - a):  # noqa: SIM110
        if x[a + i] != y[c + i]:
            return False
    return True


@njit(cache=True, nogil=True)
def decimal(data, a, b):
    """The decimal number of the span, or -1 when it is none or above 2,147,483,647."""
    if a == b:
        return -1
    value = np.int64(0)
    for i in range(a, b):
        digit = np.int64(data[i]) - 48
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
        if value > 2147483647:
            return -1
    return value


@njit(cache=True, nogil=True)
def go_number(data, a, b):
    if b - a != 10 or data[a] != 71 or data[a + 1] != 79 or data[a + 2] != _COLON:
        return -1
    return decimal(data, a + 3, b)


@njit(cache=True, nogil=True)
def _evidence(data, a, b):
    if b - a != 2 and b - a != 3:
        return -1
    key = 0
    for i in range(a, b):
        if data[i] < 65 or data[i] > 90:
            return -1
        key = key << 5 | (data[i] & 31)
    return _EVIDENCE[key if b - a == 3 else key << 5]


@njit(cache=True, nogil=True)
def _day(data, a, b):
    """Days from 1970-01-01 to the YYYYMMDD of the span, or -1,000,000 when that is no day of the calendar."""
    value = decimal(data, a, b) if b - a == 8 else -1
    year, month, day = value // 10000, value // 100 % 100, value % 100
    if value < 0 or year < 1 or month < 1 or month > 12 or day < 1 or day > _MONTH_DAYS[month - 1]:
        return -1000000
    if month == 2 and day == 29 and (year % 4 != 0 or (year % 100 == 0 and year % 400 != 0)):
        return -1000000
    # Days before the month in a year that starts in March, so that the leap day comes last.
    y, m = (year, month - 3) if month > 2 else (year - 1, month + 9)
    return 365 * y + y // 4 - y // 100 + y // 400 + (153 * m + 2) // 5 + day - 719469


@njit(cache=True, nogil=True)
def _taxon(data, a, b):
    """The first taxon of the span, or 0."""
    for i in range(a, b):
        if data[i] == _PIPE:
            b = i
            break
    a, b = trim(data, a, b)
    if _starts(data, a, b, _TAXON):
        a, b = trim(data, a + 6, b)
    return max(decimal(data, a, b), 0)


@njit(cache=True, nogil=True)
def _less(data, a, b, c, d):
    """Whether the first span, in lower case, comes before the second by bytes."""
    for i in range(min(b - a, d - c)):
        x, y = _lower(data[a + i]), _lower(data[c + i])
        if x != y:
            return x < y
    return b - a < d - c


@njit(cache=True, nogil=True)
def _qualifier(data, a, b):
    """Whether NOT is among the tokens; the span of the non-default one to keep (empty when there is none)."""
    negated, keep_a, keep_b = False, a, a
    while a <= b:
        end = a
        while end < b and data[end] != _PIPE:
            end += 1
        x, y = trim(data, a, end)
        if y - x == 3 and _starts(data, x, y, _NOT):
            negated = True
        elif (
            _starts(data, x, y, _QUALIFIERS[0])
            or (y - x == 16 and _starts(data, x, y, _QUALIFIERS[1]))
            or (y - x == 14 and _starts(data, x, y, _QUALIFIERS[2]))
        ) and (keep_a == keep_b or _less(data, x, y, keep_a, keep_b)):
            keep_a, keep_b = x, y
        a = end + 1
    return negated, keep_a, keep_b


@njit(cache=True, nogil=True)
def _hash(data, a, b):
    h = np.uint64(14695981039346656037)
    for i in range(a, b):
        h = (h ^ np.uint64(data[i])) * np.uint64(1099511628211)
    return h ^ (h >> np.uint64(29))


@njit(cache=True, nogil=True)
def build_table(offsets, data):
    """A hash table of strings: int32[2^x] slots, each the index of a string or -1, at most half of them taken."""
    size = 16
    while size < 2 * len(offsets):
        size *= 2
    slots = np.full(size, -1, np.int32)
    for i in range(len(offsets) - 1):
        at = np.int64(_hash(data, offsets[i], offsets[i + 1]) & np.uint64(size - 1))
        while slots[at] >= 0:
            at = (at + 1) & (size - 1)
        slots[at] = i
    return slots


@njit(cache=True, nogil=True)
def in_table(slots, offsets, words, data, a, b):
    at = np.int64(_hash(data, a, b) & np.uint64(len(slots) - 1))
    while slots[at] >= 0:
        if same(data, a, b, words, offsets[slots[at]], offsets[slots[at] + 1]):
            return True
        at = (at + 1) & (len(slots) - 1)
    return False


@njit(cache=True, nogil=True)
def gather(data, spans):
    """The bytes of the spans one after the other, and their int32 offsets."""
    offsets = np.zeros(len(spans) + 1, np.int32)
    for i in range(len(spans)):
        offsets[i + 1] = offsets[i] + spans[i, 1] - spans[i, 0]
    out = np.empty(offsets[-1], np.uint8)
    for i in range(len(spans)):
        for j in range(spans[i, 1] - spans[i, 0]):
            out[offsets[i] + j] = data[spans[i, 0] + j]
    return out, offsets


@njit(cache=True, nogil=True)
def scan(data, databases, database_ends, restrict, slots, offsets, words):
    """Scan a block: uint8[n] of whole lines. `databases`, `database_ends`: the accepted ones, one after the other;
    `restrict`: keep only the accessions of the table `slots`, `offsets`, `words` (see `build_table`)."""
    room = len(data) // _MIN_ROW + 1
    go, evidence, negated = np.empty(room, np.int32), np.empty(room, np.int8), np.empty(room, np.bool_)
    isoform, date, taxon = np.empty(room, np.bool_), np.empty(room, np.int32), np.empty(room, np.int32)
    run, qualifier, accession = np.empty(room, np.int32), np.empty((room, 2), np.int64), np.empty((room, 2), np.int64)
    dropped_date, dropped_why = np.empty(room, np.int32), np.empty(room, np.int8)
    problems, comments = np.empty((MAX_PROBLEMS, 4), np.int64), np.empty((MAX_PROBLEMS, 2), np.int64)
    counts, f = np.zeros(N_COUNTS, np.int64), np.zeros(20, np.int64)  # f[i]: where field i (from 0) starts
    lines = n_rows = n_runs = n_dropped = n_problems = n_comments = pos = 0
    last_a = last_b = 0  # the accession of the last row of an accepted database
    last_in, last_run = not restrict, -1
    base, ahead = (
        np.int64(0),
        window(data, 0),
    )  # the tabs and newlines of the 64 bytes from `base` on that are not yet passed
    while pos < len(data):
        start, n_fields = pos, 1
        while True:
            while ahead == 0 and base < len(data):
                base += WIDTH
                ahead = window(data, base)
            if ahead == 0:
                pos = len(data)
                break
            pos = base + first(ahead)
            ahead &= ahead - np.uint64(1)
            if data[pos] == _LF:
                break
            f[min(n_fields, 19)] = pos + 1
            n_fields += 1
        stop, line = pos, lines
        pos += 1
        lines += 1
        if stop > start and data[stop - 1] == _CR:
            stop -= 1
        if stop > start and data[start] == _BANG:
            if n_comments < MAX_PROBLEMS:
                comments[n_comments, 0], comments[n_comments, 1] = start, stop
                n_comments += 1
            continue
        a, b = trim(data, start, stop)
        if a == b:
            continue
        counts[ROWS] += 1

        f[0] = start
        reason, day = -1, 0
        if n_fields > 17:
            # f[17] is the first field too many; anything but blanks and tabs from there on makes the row another one.
            for i in range(f[17], stop):
                if data[i] != _BLANK and data[i] != _TAB:
                    reason = 0
        elif n_fields < 17:
            f[n_fields] = stop + 1  # so that field i is f[i] to f[i + 1] - 1
            if n_fields < 15:
                reason = 0
        else:
            f[17] = stop + 1
        if reason < 0:
            if _starts(data, f[4], f[5] - 1, _GO_PREFIX):
                counts[SHAPED] += 1
            db_a, db_b = trim(data, f[0], f[1] - 1)
            a, b = trim(data, f[1], f[2] - 1)
            number, code = go_number(data, f[4], f[5] - 1), _evidence(data, f[6], f[7] - 1)
            day = _day(data, f[13], f[14] - 1)
            if db_a == db_b:
                reason = 1
            elif a == b:
                reason = 2
            elif number < 0:
                reason = 3
            elif code < 0:
                reason = 4
            elif day == -1000000:
                reason = 5
            if reason > 0 and n_fields > 17:
                reason = 0
        if reason >= 0:
            counts[reason] += 1
            if n_problems < MAX_PROBLEMS:
                problems[n_problems, 0], problems[n_problems, 1] = line, reason
                problems[n_problems, 2], problems[n_problems, 3] = start, stop
                n_problems += 1
            continue

        ours, d = False, 0
        for end in database_ends:
            ours = ours or same(data, db_a, db_b, databases, d, end)
            d = end
        if ours and not same(data, a, b, data, last_a, last_b):
            last_a, last_b, last_run = a, b, -1
            last_in = not restrict or in_table(slots, offsets, words, data, a, b)
        if not (ours and last_in):
            why = NOT_IN_PROTEINS if ours else OTHER_DATABASE
            counts[why] += 1
            dropped_date[n_dropped], dropped_why[n_dropped] = day, why
            n_dropped += 1
            continue
        if last_run < 0:
            last_run = n_runs
            accession[n_runs, 0], accession[n_runs, 1] = a, b
            n_runs += 1
        go[n_rows], evidence[n_rows], date[n_rows], run[n_rows] = number, code, day, last_run
        negated[n_rows], qualifier[n_rows, 0], qualifier[n_rows, 1] = _qualifier(data, f[3], f[4] - 1)
        taxon[n_rows] = _taxon(data, f[12], f[13] - 1)
        isoform[n_rows] = False
        if n_fields >= 17:
            a, b = trim(data, f[16], f[17] - 1)
            isoform[n_rows] = a < b
        n_rows += 1
    return Scan(
        go[:n_rows],
        evidence[:n_rows],
        negated[:n_rows],
        isoform[:n_rows],
        date[:n_rows],
        taxon[:n_rows],
        run[:n_rows],
        qualifier[:n_rows],
        accession[:n_runs],
        dropped_date[:n_dropped],
        dropped_why[:n_dropped],
        problems[:n_problems],
        comments[:n_comments],
        counts,
        lines,
    )
