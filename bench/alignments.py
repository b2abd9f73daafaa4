"""Pairs/s of the alignments (NW and SW with statistics) against the usual way, and of a second run with the cache.

    python bench/alignments.py [--fasta FILE] [--queries 150] [--donors 10] [--rounds 3] [--processes 2]

The usual way: parasail's striped 16-bit traceback, its three strings parsed in Python, over a pool of processes. Both do
the same pairs in turn, round by round, so that whatever else the machine does hits both; the ratio is of medians.
Without a FASTA file sequences are random, of lengths like those of Swiss-Prot (log-normal, mean 360), and half of the donors
are relatives of their query. parasail comes with the `test` extra.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import parasail
import pyarrow as pa

from protea.core import proteins
from protea.core.alignment import align
from protea.core.alignment_cache import AlignmentCache

AMINO = np.frombuffer(b"ALGVESIKRDTPNQFYMHCW", np.uint8)
RANKS = {letter: i for i, letter in enumerate("ARNDCQEGHILKMFPSTWYVBZX*")}
MATRIX = parasail.blosum62.matrix.tolist()


def statistics_of(result: object) -> tuple[int, int, int, int, int]:
    trace = result.traceback  # type: ignore[attr-defined]
    identical = similar = gaps = 0
    for x, y in zip(trace.query, trace.ref, strict=True):
        if x == "-" or y == "-":
            gaps += 1
        else:
            identical += x == y and x != "X"
            similar += MATRIX[RANKS[x]][RANKS[y]] > 0
    return len(trace.query), identical, similar, gaps, result.score  # type: ignore[attr-defined]


def usual(pair: tuple[str, str]) -> list[tuple[int, int, int, int, int]]:
    a, b = pair
    matrix = parasail.blosum62
    return [
        statistics_of(parasail.nw_trace_striped_16(a, b, 10, 1, matrix)),
        statistics_of(parasail.sw_trace_striped_16(a, b, 10, 1, matrix)),
    ]


def work(args: argparse.Namespace) -> tuple[list[str], np.ndarray]:
    rng = np.random.default_rng(1)
    if args.fasta:
        pool = proteins.read_fasta(args.fasta)[0]["sequence"].to_pylist()
        # The usual way needs hundreds of megabytes for giants.
        pool = ["".join(c if c in RANKS and c != "*" else "X" for c in s) for s in pool if len(s) <= 3000]
        pairs = np.stack([rng.integers(0, len(pool), args.queries).repeat(args.donors),
                          rng.integers(0, len(pool), args.queries * args.donors)], axis=1)  # fmt: skip
        return pool, pairs
    pool, chosen = [], []
    for length in np.clip(rng.lognormal(5.65, 0.7, args.queries).astype(int), 30, 3000):
        query = AMINO[rng.integers(0, 20, length)]
        start = len(pool)
        pool.append(query.tobytes().decode())
        for donor in range(args.donors):
            other = int(np.clip(rng.lognormal(5.65, 0.7), 30, 3000))
            letters = AMINO[rng.integers(0, 20, other)]
            if donor % 2:
                letters = np.where(rng.random(length) < 0.6, AMINO[rng.integers(0, 20, length)], query)
                cut = rng.integers(0, length, 2)
                letters = np.delete(letters, slice(cut.min(), min(cut.max(), cut.min() + 25)))
            pool.append(letters.tobytes().decode())
            chosen.append((start, start + donor + 1))
    return pool, np.array(chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fasta", type=Path)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--donors", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    pool, pairs = work(args)
    strings = [(pool[i], pool[j]) for i, j in pairs.tolist()]
    stored = pa.array(pool)  # as exports have them
    lengths = np.array([len(s) for s in pool])
    cells = int(lengths[pairs].prod(axis=1).sum())
    print(f"{len(pairs):,} pairs, {cells / len(pairs):,.0f} cells a pair, {args.processes} processes or threads")

    context = multiprocessing.get_context("spawn")
    taken: dict[str, list[float]] = {"usual": [], "here": [], "first": [], "second": []}

    def timed(name: str, call):  # type: ignore[no-untyped-def]
        started = time.perf_counter()
        result = call()
        taken[name].append(time.perf_counter() - started)
        return result

    with context.Pool(args.processes) as processes, tempfile.TemporaryDirectory() as folder:
        processes.map(usual, strings[:8])  # imports done, kernels compiled
        align(pairs[:8], pool, threads=args.processes)
        align(np.array([[0, 1]]), ["W" * 3000] * 2, threads=1)
        for number in range(args.rounds):
            expected = timed("usual", lambda: processes.map(usual, strings, chunksize=16))
            stats = timed("here", lambda: align(pairs, stored, threads=args.processes))
            cache = Path(folder, str(number))
            timed("first", lambda at=cache: align(pairs, stored, threads=args.processes, cache=AlignmentCache(at)))
            again = timed(
                "second", lambda at=cache: align(pairs, stored, threads=args.processes, cache=AlignmentCache(at))
            )
            scores = np.array([[nw[4], sw[4]] for nw, sw in expected])
            if not (scores == np.stack([stats.nw.score, stats.sw.score], axis=1)).all() or again.computed:
                raise SystemExit("the two ways disagree on a score, or the second run computed something")
    for name, label in (("usual", "usual way"), ("here", "here"), ("first", "here, filling the cache"),
                        ("second", "second run, from the cache")):  # fmt: skip
        print(f"{label:28} {len(pairs) / statistics.median(taken[name]):12,.0f} pairs/s", taken_text(taken[name]))
    median = {name: statistics.median(values) for name, values in taken.items()}
    print(f"ratio to the usual way       {median['usual'] / median['here']:12.1f} x (target 3.3)")
    print(f"second run to the first      {median['first'] / median['second']:12.1f} x (target 20)")


def taken_text(values: list[float]) -> str:
    return "s a round: " + ", ".join(f"{v:.4g}" for v in values)


if __name__ == "__main__":
    main()
