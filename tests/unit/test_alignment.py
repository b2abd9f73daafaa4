"""Alignments against computations written here from the contract's definition, section 9, without a line of the product.

`attainable` is the cubic recurrence over explicit gap lengths that carries every statistics tuple of an optimal alignment;
`by_rule` is a plain three-matrix traceback that breaks ties as the kernel's docstring says.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protea.core import alignment, alignment_kernel
from protea.core.alignment import AlignmentStats, align
from protea.core.alignment_cache import AlignmentCache

# The NCBI file, which has other columns than ours only in being a full square.
NCBI = """
   A  R  N  D  C  Q  E  G  H  I  L  K  M  F  P  S  T  W  Y  V  B  Z  X
A  4 -1 -2 -2  0 -1 -1  0 -2 -1 -1 -1 -1 -2 -1  1  0 -3 -2  0 -2 -1  0
R -1  5  0 -2 -3  1  0 -2  0 -3 -2  2 -1 -3 -2 -1 -1 -3 -2 -3 -1  0 -1
N -2  0  6  1 -3  0  0  0  1 -3 -3  0 -2 -3 -2  1  0 -4 -2 -3  3  0 -1
D -2 -2  1  6 -3  0  2 -1 -1 -3 -4 -1 -3 -3 -1  0 -1 -4 -3 -3  4  1 -1
C  0 -3 -3 -3  9 -3 -4 -3 -3 -1 -1 -3 -1 -2 -3 -1 -1 -2 -2 -1 -3 -3 -2
Q -1  1  0  0 -3  5  2 -2  0 -3 -2  1  0 -3 -1  0 -1 -2 -1 -2  0  3 -1
E -1  0  0  2 -4  2  5 -2  0 -3 -3  1 -2 -3 -1  0 -1 -3 -2 -2  1  4 -1
G  0 -2  0 -1 -3 -2 -2  6 -2 -4 -4 -2 -3 -3 -2  0 -2 -2 -3 -3 -1 -2 -1
H -2  0  1 -1 -3  0  0 -2  8 -3 -3 -1 -2 -1 -2 -1 -2 -2  2 -3  0  0 -1
I -1 -3 -3 -3 -1 -3 -3 -4 -3  4  2 -3  1  0 -3 -2 -1 -3 -1  3 -3 -3 -1
L -1 -2 -3 -4 -1 -2 -3 -4 -3  2  4 -2  2  0 -3 -2 -1 -2 -1  1 -4 -3 -1
K -1  2  0 -1 -3  1  1 -2 -1 -3 -2  5 -1 -3 -1  0 -1 -3 -2 -2  0  1 -1
M -1 -1 -2 -3 -1  0 -2 -3 -2  1  2 -1  5  0 -2 -1 -1 -1 -1  1 -3 -1 -1
F -2 -3 -3 -3 -2 -3 -3 -3 -1  0  0 -3  0  6 -4 -2 -2  1  3 -1 -3 -3 -1
P -1 -2 -2 -1 -3 -1 -1 -2 -2 -3 -3 -1 -2 -4  7 -1 -1 -4 -3 -2 -2 -1 -2
S  1 -1  1  0 -1  0  0  0 -1 -2 -2  0 -1 -2 -1  4  1 -3 -2 -2  0  0  0
T  0 -1  0 -1 -1 -1 -1 -2 -2 -1 -1 -1 -1 -2 -1  1  5 -2 -2  0 -1 -1  0
W -3 -3 -4 -4 -2 -2 -3 -2 -2 -3 -2 -3 -1  1 -4 -3 -2 11  2 -3 -4 -3 -2
Y -2 -2 -2 -3 -2 -1 -2 -3  2 -1 -1 -2 -1  3 -3 -2 -2  2  7 -1 -3 -2 -1
V  0 -3 -3 -3 -1 -2 -2 -3 -3  3  1 -2  1 -1 -2 -2  0 -3 -1  4 -3 -2 -1
B -2 -1  3  4 -3  0  1 -1  0 -3 -4  0 -3 -3 -2  0 -1 -4 -3 -3  4  1 -1
Z -1  0  0  1 -3  3  4 -2  0 -3 -3  1 -1 -3 -1  0 -1 -3 -2 -2  1  4 -1
X  0 -1 -1 -1 -2 -1 -1 -1 -1 -1 -1 -1 -1 -1 -2  0  0 -2 -1 -1 -1 -1 -1
"""

_LINES = [line.split() for line in NCBI.strip().splitlines()]
BLOSUM62 = {(line[0], c): int(v) for line in _LINES[1:] for c, v in zip(_LINES[0], line[1:], strict=True)}
NEVER = -(10**9)
AMINO = "ARNDCQEGHILKMFPSTWYV"
EVERY_LETTER = AMINO + "BZXUOJ*"


def as_x(s: str) -> str:
    return "".join("X" if c in "UOJ*" else c for c in s)


def column(x: str, y: str) -> tuple[int, int, int, int, int]:
    """(score, columns, identical, similar, gaps) of a pair of residues."""
    s = BLOSUM62[x, y]
    return s, 1, int(x == y and x != "X"), int(s > 0), 0


def attainable(a: str, b: str, local: bool) -> tuple[int, set[tuple[int, int, int, int]]]:
    """The best score and the (length, identical, similar, gaps) of every alignment that has it."""
    a, b = as_x(a), as_x(b)
    best: dict[tuple[int, int], tuple[int, set]] = {}
    for i in range(len(a) + 1):
        for j in range(len(b) + 1):
            ways = [(0, {(0, 0, 0, 0)})] if local or i == j == 0 else []
            steps = [(i - 1, j - 1, column(a[i - 1], b[j - 1]))] if i and j else []
            steps += [(i - n, j, (-(10 + n - 1), n, 0, 0, n)) for n in range(1, i + 1)]
            steps += [(i, j - n, (-(10 + n - 1), n, 0, 0, n)) for n in range(1, j + 1)]
            for x, y, (s, *add) in steps:
                score, tuples = best[x, y]
                ways.append((score + s, {tuple(p + q for p, q in zip(t, add, strict=True)) for t in tuples}))
            top = max(s for s, _ in ways)
            best[i, j] = top, set().union(*(t for s, t in ways if s == top))
    if not local:
        return best[len(a), len(b)]
    top = max(s for s, _ in best.values())
    return top, set().union(*(t for s, t in best.values() if s == top)) if top else {(0, 0, 0, 0)}


def by_rule(a: str, b: str, local: bool) -> tuple[int, int, int, int, int]:
    """(length, identical, similar, gaps, score): ties as documented. a must be the first sequence of the pair."""
    a, b = as_x(a), as_x(b)
    m, n = len(a), len(b)
    h = np.zeros((m + 1, n + 1), np.int64)
    e = np.full((m + 1, n + 1), NEVER)  # ends with a gap in a
    f = np.full((m + 1, n + 1), NEVER)
    s = np.array([[BLOSUM62[x, y] for y in b] for x in a])
    if not local:
        h[0, 1:], h[1:, 0] = -9 - np.arange(1, n + 1), -9 - np.arange(1, m + 1)
    end = (0, 0)
    for i in range(1, m + 1):
        for j in range(1, n + 1):
            e[i, j] = max(h[i, j - 1] - 10, e[i, j - 1] - 1)
            f[i, j] = max(h[i - 1, j] - 10, f[i - 1, j] - 1)
            h[i, j] = max(h[i - 1, j - 1] + s[i - 1, j - 1], e[i, j], f[i, j], *([0] if local else []))
            if local and (-h[i, j], i + j, i) < (-h[end], sum(end), end[0]):
                end = i, j
    i, j = end if local else (m, n)
    total, columns = int(h[i, j]), []
    while (i or j) and not (local and h[i, j] <= 0):
        if i and j and h[i, j] == h[i - 1, j - 1] + s[i - 1, j - 1]:
            columns.append(column(a[i - 1], b[j - 1]))
            i, j = i - 1, j - 1
        elif i == 0 or (j and h[i, j] == e[i, j]):
            size = next(k for k in range(1, j + 1) if h[i, j] == h[i, j - k] - 9 - k)
            columns += [(0, 1, 0, 0, 1)] * size
            j -= size
        else:
            size = next(k for k in range(1, i + 1) if h[i, j] == h[i - k, j] - 9 - k)
            columns += [(0, 1, 0, 0, 1)] * size
            i -= size
    return (*(int(v) for v in np.sum(columns, axis=0)[1:]), total) if columns else (0, 0, 0, 0, total)


def table(stats: AlignmentStats) -> np.ndarray:
    """int32[n, 2, 5]: length, identical, similar, gaps, score of nw and sw."""
    return np.stack(
        [np.stack([k.length, k.identical, k.similar, k.gaps, k.score], axis=1) for k in (stats.nw, stats.sw)], axis=1
    )


def aligned(a: str, b: str, **how: object) -> np.ndarray:
    return table(align(np.array([[0, 1]], np.int32), [a, b], threads=1, **how))[0]  # type: ignore[arg-type]


def mutated(rng: np.random.Generator, s: str, changes: int) -> str:
    letters = list(s)
    for _ in range(changes):
        at = int(rng.integers(0, len(letters) + 1))
        what = rng.integers(0, 4)
        if what < 2 and at < len(letters):
            letters[at] = str(rng.choice(list(AMINO)))
        elif what == 2:
            letters[at:at] = rng.choice(list(AMINO), int(rng.integers(1, 8))).tolist()
        elif len(letters) > 10:
            del letters[at : at + int(rng.integers(1, 8))]
    return "".join(letters)


def random_protein(rng: np.random.Generator, length: int) -> str:
    return "".join(rng.choice(list(AMINO), length))


def check_attainable(a: str, b: str) -> None:
    got = aligned(a, b)
    for local in (False, True):
        score, tuples = attainable(a, b, local)
        *statistics, found = got[int(local)].tolist()
        assert found == score
        assert tuple(statistics) in tuples


def test_the_matrix_is_blosum62() -> None:
    ours = {
        (x, y): int(alignment_kernel.MATRIX[i, j])
        for i, x in enumerate(alignment_kernel.LETTERS)
        for j, y in enumerate(alignment_kernel.LETTERS)
    }
    assert ours == BLOSUM62


@settings(max_examples=150, deadline=None)
@given(st.text(EVERY_LETTER, min_size=1, max_size=11), st.text(EVERY_LETTER, min_size=1, max_size=11))
def test_short_pairs_have_the_statistics_of_an_optimal_alignment(a: str, b: str) -> None:
    check_attainable(a, b)


@settings(max_examples=100, deadline=None)
@given(st.text("AW", min_size=1, max_size=12), st.data())
def test_short_relatives_have_the_statistics_of_an_optimal_alignment(a: str, data: st.DataObject) -> None:
    """Few letters and long gaps: many optimal alignments, gaps in both, gaps at the ends."""
    cut = data.draw(st.integers(0, len(a)))
    b = a[:cut] + data.draw(st.text("AW", max_size=6)) + a[data.draw(st.integers(cut, len(a))) :]
    if b:
        check_attainable(a, b)


@pytest.mark.parametrize("seed", range(12))
def test_relatives_and_strangers_follow_the_documented_rule(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = random_protein(rng, int(rng.integers(20, 150)))
    b = mutated(rng, a, int(rng.integers(1, 60))) if seed % 3 else random_protein(rng, int(rng.integers(20, 150)))
    if len(a) == len(b):
        b += "W"
    a, b = sorted((a, b), key=len)
    got = aligned(a, b)
    assert tuple(got[0]) == by_rule(a, b, False)
    assert tuple(got[1]) == by_rule(a, b, True)


@pytest.mark.parametrize(
    ("a", "b", "nw", "sw"),
    [
        ("W", "W", (1, 1, 1, 0, 11), (1, 1, 1, 0, 11)),
        ("W", "A", (1, 0, 0, 0, -3), (0, 0, 0, 0, 0)),
        ("A", "S", (1, 0, 1, 0, 1), (1, 0, 1, 0, 1)),
        ("X", "X", (1, 0, 0, 0, -1), (0, 0, 0, 0, 0)),
        ("U", "X", (1, 0, 0, 0, -1), (0, 0, 0, 0, 0)),
        ("O", "O", (1, 0, 0, 0, -1), (0, 0, 0, 0, 0)),
        ("WJW", "W*W", (3, 2, 2, 0, 21), (3, 2, 2, 0, 21)),
        ("B", "D", (1, 0, 1, 0, 4), (1, 0, 1, 0, 4)),
        ("B", "B", (1, 1, 1, 0, 4), (1, 1, 1, 0, 4)),
        ("Z", "E", (1, 0, 1, 0, 4), (1, 0, 1, 0, 4)),
        ("W", "WAAAA", (5, 1, 1, 4, 11 - 13), (1, 1, 1, 0, 11)),
        ("WWWWWW", "WWWAAWWW", (8, 6, 6, 2, 55), (8, 6, 6, 2, 55)),
    ],
)
def test_what_can_be_counted_by_hand(a: str, b: str, nw: tuple, sw: tuple) -> None:
    for x, y in ((a, b), (b, a)):
        assert aligned(x, y).tolist() == [list(nw), list(sw)]


def test_identical_sequences() -> None:
    s = random_protein(np.random.default_rng(5), 700)
    score = sum(BLOSUM62[c, c] for c in s)
    assert aligned(s, s).tolist() == [[700, 700, 700, 0, score]] * 2


def test_either_order_gives_the_same() -> None:
    rng = np.random.default_rng(6)
    pool = [random_protein(rng, int(n)) for n in rng.integers(30, 90, 20)]
    pool += [mutated(rng, s, 15) for s in pool]
    pairs = rng.integers(0, len(pool), (200, 2))
    there, back = (table(align(p, pool, threads=2)) for p in (pairs, pairs[:, ::-1]))
    np.testing.assert_array_equal(there, back)


@pytest.mark.parametrize("length", [2514, 2515, 2516, 2517, 4000])
def test_the_border_between_16_and_32_bits(length: int) -> None:
    """13 length + 64 passes 32,767 after 2,515; the score of tryptophans is the largest there is."""
    fits = alignment_kernel.fits_16(np.array([length]), np.array([length]))
    assert bool(fits[0]) == (length <= 2515)
    assert aligned("W" * length, "W" * length).tolist() == [[length, length, length, 0, 11 * length]] * 2
    short = aligned("W" * (length - 7), "W" * length)
    assert short[0].tolist() == [length, length - 7, length - 7, 7, 11 * (length - 7) - 16]


def test_both_widths_of_integers_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    pool = [random_protein(rng, int(n)) for n in rng.integers(1, 300, 30)]
    pool += [mutated(rng, s, 20) for s in pool[:10]]
    pairs = rng.integers(0, len(pool), (150, 2))
    narrow = table(align(pairs, pool, threads=1))
    monkeypatch.setattr(alignment_kernel, "fits_16", lambda short, long: np.zeros(len(short), np.bool_))
    np.testing.assert_array_equal(table(align(pairs, pool, threads=1)), narrow)


def test_windows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace of a few diagonals: every pair is swept twice, and the way back crosses many windows."""
    rng = np.random.default_rng(8)
    pool = [random_protein(rng, int(n)) for n in rng.integers(1, 200, 20)]
    pool += [mutated(rng, s, 20) for s in pool if len(s) > 20]
    pairs = rng.integers(0, len(pool), (100, 2))
    whole = table(align(pairs, pool, threads=1))
    for size in (1, 3_000, 20_000):
        monkeypatch.setattr(alignment, "_TRACE_BYTES", size)
        np.testing.assert_array_equal(table(align(pairs, pool, threads=2)), whole)


def test_threads_chunks_and_neighbours_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(9)
    pool = [random_protein(rng, int(n)) for n in rng.integers(5, 300, 40)]
    pool += [mutated(rng, s, 10) for s in pool[:20]]
    pairs = rng.integers(0, len(pool), (300, 2))
    whole = table(align(pairs, pool, threads=1))
    monkeypatch.setattr(alignment, "_CHUNK_CELLS", 100_000)
    for threads in (2, 5):
        np.testing.assert_array_equal(table(align(pairs, pool, threads=threads)), whole)
    for at in rng.integers(0, 300, 10):
        np.testing.assert_array_equal(table(align(pairs[at : at + 1], pool, threads=1))[0], whole[at])


def test_a_giant_against_a_short_and_a_long_protein() -> None:
    rng = np.random.default_rng(10)
    giant = random_protein(rng, 20_000)
    piece = giant[9_000:9_060]
    nw, sw = aligned(piece, giant).tolist()
    score = sum(BLOSUM62[c, c] for c in piece)
    assert sw == [60, 60, 60, 0, score]
    assert nw[0] == 20_000
    assert nw[3] == 19_940
    assert nw[4] >= score - 2 * 9 - 19_940
    relative = giant[:7_000] + giant[7_100:]
    score = sum(BLOSUM62[c, c] for c in relative) - 109
    assert aligned(relative, giant).tolist() == [[20_000, 19_900, 19_900, 100, score]] * 2


def test_pairs_above_max_cells_are_skipped() -> None:
    stats = align(np.array([[0, 1], [1, 2], [2, 0]]), ["W" * 10, "W" * 20, "W" * 30], threads=1, max_cells=300)
    assert stats.skipped.tolist() == [False, True, False]
    assert stats.nw.identical.tolist() == [10, 0, 10]
    assert stats.distinct == stats.computed == 2


def test_each_distinct_pair_of_sequences_is_computed_once() -> None:
    pool = ["MKVA", "MKVAW", "MKVA", "mkva", "MKVAW", "MKUA", "MKXA"]
    pairs = np.array([[0, 1], [1, 0], [2, 4], [3, 1], [4, 3], [5, 1], [6, 4]], np.int32)
    stats = align(pairs, pa.chunked_array([pool[:3], pool[3:]]), threads=2)
    assert (stats.distinct, stats.computed, stats.from_cache) == (2, 2, 0)
    assert stats.nw.identical.tolist() == [4] * 5 + [3] * 2
    sliced = pa.array(["W", *pool], pa.large_string()).slice(1)
    np.testing.assert_array_equal(table(align(pairs, sliced, threads=1)), table(stats))


def test_no_pairs_and_null_sequences() -> None:
    assert len(align(np.empty((0, 2), np.int32), ["W"], threads=2).nw.length) == 0
    pool = pa.array(["W", None, "W"], pa.large_string())
    assert align(np.array([[0, 2]]), pool, threads=1).nw.score.tolist() == [11]
    with pytest.raises(ValueError, match=r"sequence 1 .* null"):
        align(np.array([[0, 1]]), pool, threads=1)


def test_a_second_run_comes_from_the_cache_and_is_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    pool = [random_protein(rng, int(n)) for n in rng.integers(5, 200, 40)]
    pairs = rng.integers(0, len(pool), (300, 2))
    first = align(pairs, pool, threads=2, cache=AlignmentCache(tmp_path / "c"))
    # Other accessions, other order, a few new pairs.
    more = np.concatenate([len(pool) - 1 - pairs[::-1, ::-1], rng.integers(0, len(pool), (5, 2))])
    second = align(more, pool[::-1], threads=2, cache=AlignmentCache(tmp_path / "c"))
    np.testing.assert_array_equal(table(second)[:300], table(first)[::-1])
    assert first.from_cache == 0
    assert second.from_cache >= first.distinct
    assert second.computed <= 5
    np.testing.assert_array_equal(table(second), table(align(more, pool[::-1], threads=1)))


def test_progress_counts_and_may_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "_CHUNK_CELLS", 1_000)
    rng = np.random.default_rng(12)
    pool = [random_protein(rng, 400) for _ in range(60)]
    pairs = np.array([(i, j) for i in range(60) for j in range(i)])
    seen: list[tuple[int, int]] = []
    align(pairs[:300], pool, threads=2, progress=lambda done, of: seen.append((done, of)))
    assert seen[-1] == (300, 300)
    assert seen == sorted(seen)

    def interrupt(done: int, of: int) -> None:
        raise KeyboardInterrupt

    cache = AlignmentCache(tmp_path / "c")
    with pytest.raises(KeyboardInterrupt):
        align(np.repeat(pairs, 1, axis=0), pool, threads=2, cache=cache, progress=interrupt)
    assert not [t for t in threading.enumerate() if t.name.startswith("align")]
    again = align(pairs, pool, threads=2, cache=cache)
    np.testing.assert_array_equal(table(again), table(align(pairs, pool, threads=2)))


def test_the_plainest_cpu_gives_the_same_values() -> None:
    """The same code generated without this CPU's vector extensions."""
    rng = np.random.default_rng(13)
    pool = [random_protein(rng, int(n)) for n in rng.integers(1, 120, 20)]
    pool += [mutated(rng, s, 10) for s in pool if len(s) > 20]
    script = (
        "import sys, numpy as np; from protea.core.alignment import align; pool = sys.argv[1].split(); n = len(pool)\n"
        "s = align(np.array([(i, j) for i in range(n) for j in range(i)]), pool, threads=1)\n"
        "print([v.tolist() for k in (s.nw, s.sw) for v in (k.length, k.identical, k.similar, k.gaps, k.score)])"
    )
    plain = {**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    there = subprocess.run(
        [sys.executable, "-c", script, " ".join(pool)], env=plain, capture_output=True, text=True, check=True
    )
    here = align(np.array([(i, j) for i in range(len(pool)) for j in range(i)]), pool, threads=1)
    assert there.stdout.strip() == str(table(here).transpose(1, 2, 0).reshape(10, -1).tolist())
