"""The exact search against a plain float64 loop of contract section 5, on data made to break its error bound."""

import math
import sys
from typing import Any

import numpy as np
import pytest

from protea.core.knn import exact
from protea.core.knn.exact import ExactSearch
from protea.errors import InputError

Lists = list[list[list[tuple[int, float]]]]
"""Per query and aspect the neighbours, as (row of the store, float32 distance)."""


# ------------------------------------------------------------------------------------------------- the plain reference


def dot(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x·y over the first axis in float64, broadcast over the others: one product and one sum a step, in index order."""
    total = x[0] * y[0]
    for i in range(1, len(x)):
        total = total + x[i] * y[i]
    return total


def distances(x: np.ndarray, many: np.ndarray, metric: str) -> np.ndarray:
    """From x [d] to each row of `many` [n, d] (contract section 5), rounded once to float32."""
    columns = np.ascontiguousarray(many.T)
    with np.errstate(under="ignore"):
        if metric == "cosine":
            cosine = dot(x, columns) / np.sqrt(dot(x, x) * dot(columns, columns))
            return np.maximum(0.0, 1.0 - cosine).astype(np.float32)
        apart = x[:, None] - columns
        return dot(apart, apart).astype(np.float32)


def plain(
    matrix: np.ndarray,
    donors: Any,
    aspects: Any,
    rows: Any,
    *,
    k: int,
    metric: str = "cosine",
    threshold: float | None = None,
    group: Any = None,
) -> Lists:
    """The first k of all donors by (distance, row), aspect by aspect."""
    wide = matrix.astype(np.float64)
    out: Lists = []
    for q in rows:
        d = distances(wide[q], wide[donors], metric)
        per_query = []
        for a in range(3):
            found = []
            for i, r in enumerate(donors):
                same = group is not None and group[q] >= 0 and group[r] == group[q]
                if r == q or same or not (aspects[i] >> a) & 1:
                    continue
                if threshold is None or d[i] <= np.float32(threshold):
                    found.append((float(d[i]), int(r)))
            per_query.append([(r, x) for x, r in sorted(found)[:k]])
        out.append(per_query)
    return out


def searched(matrix: np.ndarray, donors: Any, aspects: Any, rows: Any, **how: Any) -> Lists:
    """What `ExactSearch` finds, after checking the parts of its answer that are no neighbours."""
    search = ExactSearch(matrix, np.asarray(donors, np.int32), np.asarray(aspects, np.uint8), **how)
    near = search.search(np.asarray(rows, np.int32))
    k = how["k"]
    assert near.row.shape == near.distance.shape == (len(rows), 3, k)
    assert near.row.dtype == near.count.dtype == np.int32
    assert near.distance.dtype == np.float32
    beyond = np.arange(k) >= near.count[:, :, None]
    assert (near.row[beyond] == -1).all()
    assert (near.row[~beyond] >= 0).all()
    return [
        [[(int(near.row[q, a, i]), float(near.distance[q, a, i])) for i in range(near.count[q, a])] for a in range(3)]
        for q in range(len(rows))
    ]


def agree(matrix: np.ndarray, donors: Any, aspects: Any, rows: Any, **how: Any) -> Lists:
    inner = {key: how.pop(key) for key in ("threads", "queries", "tile") if key in how}
    want = plain(matrix, donors, aspects, rows, **how)
    assert searched(matrix, donors, aspects, rows, **how, **inner) == want
    return want


def everyone(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All rows donors in all aspects, and a few of them queries."""
    return np.arange(n), np.full(n, 7, np.uint8), np.unique(np.linspace(0, n - 1, 9).astype(int))


def test_the_vectorised_reference_is_the_scalar_one() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(9, 37)).astype(np.float32).astype(np.float64)
    for metric in ("cosine", "l2"):
        fast = distances(matrix[0], matrix, metric)
        for r in range(9):
            x, y = [float(v) for v in matrix[0]], [float(v) for v in matrix[r]]
            xy = xx = yy = ll = 0.0
            for i in range(37):
                xy += x[i] * y[i]
                xx += x[i] * x[i]
                yy += y[i] * y[i]
                ll += (x[i] - y[i]) * (x[i] - y[i])
            slow = max(0.0, 1.0 - xy / math.sqrt(xx * yy)) if metric == "cosine" else ll
            assert fast[r] == np.float32(slow)


# ------------------------------------------------------------------------------------------------ ordinary behaviour


@pytest.mark.parametrize("metric", ["cosine", "l2"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("d", [1, 2, 3, 17, 64, 2048])
def test_random_vectors(metric: str, dtype: type, d: int) -> None:
    rng = np.random.default_rng(d)
    n = 400 if d <= 64 else 90
    matrix = rng.normal(size=(n, d)).astype(dtype)
    donors = np.flatnonzero(rng.random(n) < 0.8)
    aspects = rng.integers(1, 8, len(donors))
    rows = rng.choice(n, 12, replace=False)  # donors and others, in no order
    agree(matrix, donors, aspects, rows, k=5, metric=metric)


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_settings(metric: str) -> None:
    """k, thresholds that meet a distance exactly, groups, each on whole vectors full of ties."""
    rng = np.random.default_rng(5)
    matrix = rng.integers(-2, 3, size=(150, 3)).astype(np.float16)
    matrix[~matrix.any(axis=1)] = 1
    donors = np.flatnonzero(rng.random(150) < 0.7)
    aspects = rng.integers(1, 8, len(donors))
    rows = np.arange(0, 150, 7)
    group = rng.integers(-1, 12, 150)
    for k in (1, 2, 7, 40, 149, 1000):
        for threshold in (None, 0.0, 0.29289321881345254, 1.0, 2.0, 5.0):
            for g in (None, group):
                agree(matrix, donors, aspects, rows, k=k, metric=metric, threshold=threshold, group=g)


def test_a_query_is_never_its_own_donor_but_its_double_is() -> None:
    matrix = np.array([[1, 0], [1, 0], [2, 0], [0, 1]], np.float32)
    found = agree(matrix, [0, 1, 2, 3], [1, 1, 1, 1], [0, 1, 2, 3], k=3)
    assert found[0][0] == [(1, 0.0), (2, 0.0), (3, 1.0)]
    assert found[3][0] == [(0, 1.0), (1, 1.0), (2, 1.0)]  # ties go by row, that is by accession


def test_k_means_k_donors_that_may_be_used() -> None:
    """Excluded sequences do not cost a neighbour; an unknown sequence (-1) is nobody's double."""
    matrix = np.ones((8, 4), np.float32)
    group = np.array([3, 3, 3, 5, 5, -1, -1, 6])
    found = agree(matrix, np.arange(8), [1] * 8, np.arange(8), k=4, group=group)
    assert [r for r, _ in found[0][0]] == [3, 4, 5, 6]
    assert [r for r, _ in found[5][0]] == [0, 1, 2, 3]
    assert found[0][1] == []


def test_aspect_bits() -> None:
    matrix = np.arange(1, 9, dtype=np.float32)[:, None] * np.ones((1, 2), np.float32)
    all8 = np.arange(8)
    found = agree(matrix, all8, all8, all8, k=8)  # donor i is in the aspects of its bits, donor 0 in none
    assert [[r for r, _ in found[0][a]] for a in range(3)] == [[1, 3, 5, 7], [2, 3, 6, 7], [4, 5, 6, 7]]


def test_threshold_is_rounded_to_float32() -> None:
    """1 − 1/√2 in float64 lies below its float32 rounding: unrounded it would lose the donor at 45 degrees."""
    limit = 1.0 - 1.0 / math.sqrt(2.0)
    assert float(np.float32(limit)) > limit
    matrix = np.array([[1, 0], [1, 1]], np.float32)
    found = agree(matrix, [0, 1], [1, 1], [0], k=1, threshold=limit)
    assert found[0][0] == [(1, float(np.float32(limit)))]


def test_nothing_to_search() -> None:
    matrix = np.ones((3, 2), np.float32)
    assert searched(matrix, [], [], [0, 1], k=2) == [[[], [], []]] * 2
    assert searched(matrix, [0, 1], [7, 7], [], k=2) == []


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_blocks_and_threads_change_nothing(metric: str) -> None:
    rng = np.random.default_rng(11)
    matrix = np.repeat(rng.normal(size=(60, 24)), 4, axis=0).astype(np.float32)
    matrix += (rng.random(matrix.shape) < 0.02) * np.float32(1e-6)
    donors = np.flatnonzero(rng.random(240) < 0.9)
    aspects = rng.integers(1, 8, len(donors))
    rows = np.arange(0, 240, 5)
    want = plain(matrix, donors, aspects, rows, k=6, metric=metric)
    for threads, queries, tile in ((1, 1024, 4096), (2, 1, 1), (3, 7, 5), (5, 48, 100), (16, 1000, 17), (1, 2, 10**6)):
        how = {"threads": threads, "queries": queries, "tile": tile}
        assert searched(matrix, donors, aspects, rows, k=6, metric=metric, **how) == want


def test_a_memory_map_is_searched_in_place(tmp_path: Any) -> None:
    matrix = np.random.default_rng(2).normal(size=(50, 8)).astype(np.float16)
    np.save(tmp_path / "m.npy", matrix)
    mapped = np.load(tmp_path / "m.npy", mmap_mode="r")
    donors, aspects, rows = everyone(50)
    assert searched(mapped, donors, aspects, rows, k=3) == plain(matrix, donors, aspects, rows, k=3)


# --------------------------------------------------------------------------------------- attacks on the error bound


def next_up(x: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Each value moved by so many units in the last place."""
    bits = np.dtype(f"i{x.dtype.itemsize}")
    return (x.view(bits) + steps.astype(bits)).view(x.dtype)


def ulp_neighbours(rng: np.random.Generator, n: int, d: int, dtype: type) -> np.ndarray:
    """n vectors that differ from one another by one unit in the last place of a few entries."""
    centre = np.abs(rng.normal(size=d)).astype(dtype) + dtype(0.1)
    return next_up(np.tile(centre, (n, 1)), rng.integers(-1, 2, (n, d)) * (rng.random((n, d)) < 0.3))


def opposite(rng: np.random.Generator, n: int, d: int, dtype: type) -> np.ndarray:
    half = ulp_neighbours(rng, n, d, dtype)
    half[::2] *= dtype(-1)
    return half


def nearly_orthogonal(rng: np.random.Generator, n: int, d: int, dtype: type) -> np.ndarray:
    """Large terms that cancel: the products are as wrong as they get, the distances all near 1."""
    out = np.ones((n, d))
    out[:, 1::2] = -1
    out[::2] = 1
    return (out + rng.normal(size=(n, d)) * 1e-3).astype(dtype)


def two_clusters(rng: np.random.Generator, n: int, d: int, dtype: type) -> np.ndarray:
    """A cluster within rounding of the k-th distance: whoever is wrongly left out is missed."""
    centre = rng.normal(size=d)
    return (centre + rng.normal(size=(n, d)) * np.where(rng.random((n, 1)) < 0.5, 3e-4, 1e-3)).astype(dtype)


def mixed_scales(rng: np.random.Generator, n: int, d: int, dtype: type) -> np.ndarray:
    """The same few directions at lengths of several orders of magnitude."""
    few = rng.normal(size=(5, d))
    wide = 2 if dtype is np.float16 else 6
    out = few[rng.integers(0, 5, n)] * 10.0 ** rng.integers(-wide, wide + 1, (n, 1))
    out[:, 0] += rng.normal(size=n) * 1e-5
    return out.astype(dtype)


ATTACKS = (ulp_neighbours, opposite, nearly_orthogonal, two_clusters, mixed_scales)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("metric", ["cosine", "l2"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(("n", "d"), [(300, 1), (300, 2), (300, 33), (80, 2048)])
def test_near_ties(attack: Any, metric: str, dtype: type, n: int, d: int) -> None:
    rng = np.random.default_rng(n + d)
    matrix = attack(rng, n, d, dtype)
    donors, aspects, rows = everyone(n)
    agree(matrix, donors, aspects, rows, k=4, metric=metric)


def spy(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, np.ndarray]]:
    """What the sieve handed to the exact stage, block by block."""
    seen: list[dict[str, np.ndarray]] = []
    names = ("worst", "cand", "cand_low", "cand_n", "overflow")
    decide = exact._decide

    def wrapped(first: int, last: int, *args: Any) -> None:
        if first == 0:
            seen.append(dict(zip(names, (a.copy() for a in args[12:17]), strict=True)))
        decide(first, last, *args)

    monkeypatch.setattr(exact, "_decide", wrapped)
    return seen


@pytest.mark.parametrize("metric", ["cosine", "l2"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_more_near_ties_than_room(metric: str, dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of contenders within the error bound: the sieve gives up, and all donors are measured."""
    rng = np.random.default_rng(3)
    matrix = ulp_neighbours(rng, 700, 40, dtype) if dtype is np.float32 else np.ones((700, 40), np.float16)
    donors, aspects, rows = everyone(700)
    aspects = np.where(donors % 9 == 0, 7, 5)  # aspect P has few donors and needs no fallback
    seen = spy(monkeypatch)
    agree(matrix, donors, aspects, rows, k=3, metric=metric, threads=1)
    overflow = seen[0]["overflow"]
    assert 700 > 4 * 3 + 64
    assert overflow[:, [0, 2]].all()
    agree(matrix, donors, aspects, rows, k=3, metric=metric, group=donors % 2)
    agree(matrix, donors, aspects, rows, k=3, metric=metric, threshold=1e-7)


def test_room_that_fills_again_and_again_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Donors that come nearer and nearer: every one is a contender when it comes, almost none at the end."""
    n = 5000
    angle = np.linspace(1.5, 0.001, n)
    matrix = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    matrix[0] = (1, 0)
    seen = spy(monkeypatch)
    agree(matrix, np.arange(n), np.full(n, 7), [0], k=2, tile=64, threads=1)
    assert not seen[0]["overflow"].any()


@pytest.mark.parametrize("metric", ["cosine", "l2"])
@pytest.mark.parametrize("d", [3, 64, 1024])
def test_the_sieve_is_sound_and_tight(metric: str, d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every lower bound lies below its distance, the k-th upper bound above the k-th distance, and few contend."""
    rng = np.random.default_rng(d)
    matrix = rng.normal(size=(1500, d)).astype(np.float32)
    donors, aspects, rows = everyone(1500)
    seen = spy(monkeypatch)
    want = agree(matrix, donors, aspects, rows, k=5, metric=metric, threads=1)
    search = ExactSearch(matrix, donors.astype(np.int32), aspects, k=5, metric=metric)
    scale = float(search.factor[0]) ** 2 if metric == "l2" else 1.0
    (block,) = seen
    assert not block["overflow"].any()
    for i, q in enumerate(rows):
        d32 = distances(matrix[q].astype(np.float64), matrix.astype(np.float64), metric)
        n = block["cand_n"][i, 0]
        contenders, low = block["cand"][i, 0, :n], block["cand_low"][i, 0, :n]
        assert (low <= d32[contenders] * scale).all()
        assert block["worst"][i, 0] >= want[i][0][-1][1] * scale
        assert (low <= block["worst"][i, 0]).sum() < 5 + 10  # the exact stage sees hardly more than it needs


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_any_product_within_the_proven_error_will_do(attack: Any, metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A BLAS as bad as the analysis allows, moving every product by up to gamma(d)·|q|·|r|, changes nothing."""
    d = 60
    rng = np.random.default_rng(1)
    matrix = attack(rng, 300, d, np.float32)
    donors, aspects, rows = everyone(300)
    want = plain(matrix, donors, aspects, rows, k=4, metric=metric)
    scan = exact._scan
    gamma = d * 2.0**-24 / (1 - d * 2.0**-24)

    def worse(first: int, last: int, product: np.ndarray, dq: np.ndarray, dr: np.ndarray, l2: bool, *rest: Any) -> None:
        size = np.sqrt(np.outer(dq, dr)) if l2 else 1.0
        noise = np.random.default_rng(first).choice([-1.0, 1.0], product.shape) * gamma * 0.97 * size
        scan(first, last, (product + noise).astype(np.float32), dq, dr, l2, *rest)

    monkeypatch.setattr(exact, "_scan", worse)
    for tile in (64, 4096):
        assert searched(matrix, donors, aspects, rows, k=4, metric=metric, tile=tile) == want


def test_without_the_bound_neighbours_are_missed() -> None:
    """Negative control: the near-tie data does need the bound."""
    rng = np.random.default_rng(8)
    matrix = two_clusters(rng, 600, 256, np.float32)
    donors, aspects, rows = everyone(600)
    search = ExactSearch(matrix, donors.astype(np.int32), aspects, k=4)
    want = plain(matrix, donors, aspects, rows, k=4)

    def found() -> Lists:
        near = search.search(rows.astype(np.int32))
        return [
            [list(zip(near.row[i, a].tolist(), near.distance[i, a].tolist(), strict=True)) for a in range(3)]
            for i in range(len(rows))
        ]

    assert found() == want
    search.eps = 0.0
    assert found() != want


# --------------------------------------------------------------------------------------------------- extreme numbers


@pytest.mark.parametrize("size", [1e30, 1e18, 1e10, 1e-10, 1e-18, 1e-22, 1e-30, 1e-38, 3e-42, 1.5e-45])
@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_huge_and_tiny_vectors(size: float, metric: str) -> None:
    """Down to subnormal entries; l2 distances below the smallest float32 tie, and the accession decides."""
    rng = np.random.default_rng(4)
    matrix = (rng.normal(size=(260, 12)) * size).astype(np.float32)
    matrix[~matrix.any(axis=1)] = np.float32(size)
    donors, aspects, rows = everyone(260)
    if metric == "l2" and size > 1e18:
        with pytest.raises(InputError, match="float32"):
            searched(matrix, donors, aspects, rows, k=5, metric=metric)
        return
    agree(matrix, donors, aspects, rows, k=5, metric=metric)


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_all_sizes_at_once(metric: str) -> None:
    rng = np.random.default_rng(6)
    top = 30 if metric == "cosine" else 17
    matrix = (rng.normal(size=(400, 6)) * 10.0 ** rng.integers(-44, top, (400, 1))).astype(np.float32)
    matrix[~matrix.any(axis=1)] = np.float32(1e-45)
    donors, aspects, rows = everyone(400)
    agree(matrix, donors, aspects, rows, k=5, metric=metric)


@pytest.mark.parametrize("metric", ["cosine", "l2"])
@pytest.mark.parametrize("d", [1, 2, 2048])
def test_float16_extremes(metric: str, d: int) -> None:
    """65504, the smallest subnormal and everything in between, in one matrix."""
    rng = np.random.default_rng(9)
    values = np.array([65504, -65504, 6e-8, -6e-8, 6.1e-5, 1, -1, 0.333, 65472], np.float16)
    matrix = rng.choice(values, size=(120, d))
    donors, aspects, rows = everyone(120)
    agree(matrix, donors, aspects, rows, k=6, metric=metric)
    tiny = rng.choice(np.array([6e-8, 1.2e-7], np.float16), size=(120, d))
    agree(tiny, donors, aspects, rows, k=6, metric=metric)


def test_l2_ties_that_float32_makes() -> None:
    """Different distances in float64, one in float32: the accession decides, though another donor is nearer."""
    far = 4096.0
    steps = np.arange(12)[::-1]
    matrix = np.zeros((13, 2), np.float32)
    matrix[0] = (1, 0)
    matrix[1:, 0] = far
    matrix[1:, 1] = steps * 1e-3  # the later the row, the nearer
    donors = np.arange(1, 13)
    wide = matrix.astype(np.float64)
    in64 = ((wide[0] - wide[donors]) ** 2).sum(axis=1)
    assert len(set(in64)) == 12
    assert len(set(in64.astype(np.float32))) == 1
    found = agree(matrix, donors, np.full(12, 7), [0], k=3, metric="l2")
    assert [r for r, _ in found[0][0]] == [1, 2, 3]
    for seed in range(20):  # the same with a random cloud far away
        rng = np.random.default_rng(seed)
        cloud = rng.normal(size=(300, 5)) * 10.0 ** -rng.integers(0, 5) + rng.normal(size=5) * 1000
        cloud[0] = 0.1
        agree(cloud.astype(np.float32), np.arange(1, 300), np.full(299, 7), [0, 1], k=5, metric="l2")


def test_cosine_ties_at_zero_and_two() -> None:
    """Multiples are at distance 0 up to the last bit, the opposite at 2; nothing falls below 0."""
    rng = np.random.default_rng(10)
    base = rng.normal(size=16).astype(np.float32)
    scales = np.float32(rng.choice([1, 2, 3, 7, 1e-3, -1, -5], size=200))
    matrix = (scales[:, None] * base).astype(np.float32)
    donors, aspects, rows = everyone(200)
    found = agree(matrix, donors, aspects, rows, k=150)
    values = [x for lists in found for x in [d for _, d in lists[0]]]
    assert min(values) == 0.0
    assert max(values) == 2.0


@pytest.mark.parametrize("start", range(0, 60, 15))
def test_random_attacks(start: int) -> None:
    """Everything drawn at once: attack, shape, type, metric, k, threshold, groups, blocks."""
    for seed in range(start, start + 15):
        rng = np.random.default_rng(seed)
        dtype = (np.float16, np.float32)[rng.integers(2)]
        n, d = int(rng.integers(5, 400)), int(rng.integers(1, 80))
        matrix = ATTACKS[rng.integers(len(ATTACKS))](rng, n, d, dtype)
        if dtype is np.float32:
            matrix = matrix * np.float32(10.0 ** rng.integers(-15, 10))
        matrix[~matrix.any(axis=1)] = dtype(1)
        donors = np.flatnonzero(rng.random(n) < 0.9)
        wide = matrix.astype(np.float64)
        metric = ("cosine", "l2")[rng.integers(2)]
        some = distances(wide[0], wide, metric)
        agree(
            matrix,
            donors,
            rng.integers(0, 8, len(donors)),
            rng.choice(n, min(n, 6), replace=False),
            k=int(rng.integers(1, 20)),
            metric=metric,
            threshold=float(rng.choice(some)) if rng.random() < 0.4 else None,
            group=rng.integers(-1, n // 2 + 1, n) if rng.random() < 0.4 else None,
            threads=int(rng.integers(1, 5)),
            queries=int(rng.integers(1, 8)),
            tile=int(rng.integers(1, 200)),
        )


def test_float32_is_float32() -> None:
    """The reference and the search rest on IEEE arithmetic."""
    assert np.finfo(np.float32).eps == 2.0**-23
    assert sys.float_info.mant_dig == 53
