"""How time grows: donors, queries, k, cuts and rows, each doubled four times; straight lines fitted through the times.

Called by `__main__` (the stage `growth`); calls the search, whole exports and the assembly.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from protea.core.cut import prepare
from protea.core.knn.exact import ExactSearch

from .assembly_memory import SHARD_ROWS, assemble, make_shards
from .stages import _cut, _Registry
from .workload import Size, make


def growth(directory: Path, rounds: int) -> dict[str, Any]:
    """{axis: {"x": [...], "seconds": [...], "slope": exponent, "r2": of the straight line}}."""
    out: dict[str, Any] = {}
    for name, points in (("donors", _donors), ("queries", _queries), ("k", _k), ("cuts", _cuts), ("rows", _rows)):
        x, calls = points(directory)
        for call in calls[:1]:
            call()  # compiled, and in the page cache
        seconds = [[_timed(call) for call in calls] for _ in range(max(2, min(rounds, 3)))]
        out[name] = _fit(x, np.median(np.array(seconds), axis=0).tolist())
    return out


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _fit(x: list[int], seconds: list[float]) -> dict[str, Any]:
    """The straight line a + b x by least squares of the relative error, its r2, and the exponent of the last doubling."""
    design = np.stack([np.ones(len(x)), np.array(x, float)], axis=1)
    y = np.array(seconds)
    a, b = np.linalg.lstsq(design / y[:, None], np.ones(len(y)), rcond=None)[0]
    left = ((y - design @ [a, b]) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    return {"x": x, "seconds": seconds, "a": float(a), "b": float(b), "r2": 1 - float(left),
            "last_doubling": float(np.log2(y[-1] / y[-2]))}  # fmt: skip


def _search(donors: int, queries: int, k: int, directory: Path) -> Callable[[], object]:
    w = make(Size(f"g{donors}", donors, 500, 256), directory / f"g{donors}", tables=False)
    cut, inputs = _cut(w, k=k)
    p = prepare(cut, inputs)
    own = np.resize(p.arrays.vector_row[p.queries], queries).astype(np.int32)

    def call() -> object:
        return ExactSearch(inputs.store.matrix, p.search.donors, p.search.aspects, k=k).search(own)

    return call


def _donors(directory: Path) -> tuple[list[int], list[Callable[[], object]]]:
    x = [10_000 << i for i in range(5)]
    return x, [_search(n, 2_000, 5, directory) for n in x]


def _queries(directory: Path) -> tuple[list[int], list[Callable[[], object]]]:
    x = [1_000 << i for i in range(5)]
    return x, [_search(20_000, n, 5, directory) for n in x]


def _k(directory: Path) -> tuple[list[int], list[Callable[[], object]]]:
    """A whole cut: its rows grow with k, though not in proportion."""
    x = [5 << i for i in range(5)]
    w = make(Size("g10000", 10_000, 500, 256), directory / "g10000", tables=False)

    def call(k: int) -> Callable[[], object]:
        from protea.core.shards import write_shards

        cut, inputs = _cut(w, k=k)
        p = prepare(cut, inputs)
        out = directory / f"k{k}"
        out.mkdir(exist_ok=True)
        return lambda: write_shards(p, out)

    return x, [call(k) for k in x]


def _cuts(directory: Path) -> tuple[list[int], list[Callable[[], object]]]:
    x = [2 << i for i in range(5)]

    def call(n: int) -> Callable[[], object]:
        import shutil

        from protea.core.operations.export_research_dataset import export_research_dataset

        w = make(Size(f"c{n}", 5_000, 300, 256, n), directory / f"c{n}", tables=False)

        def run() -> None:
            where = {"resume_dir": directory / "resume", "datasets_dir": directory / "grown"}
            shutil.rmtree(directory / "grown", ignore_errors=True)
            export_research_dataset(w.config(), w.inputs(), _Registry(), **where)

        return run

    return x, [call(n) for n in x]


def _rows(directory: Path) -> tuple[list[int], list[Callable[[], object]]]:
    """Rows assembled into one file."""
    x = [SHARD_ROWS << i for i in range(5)]
    out = directory / "growth-rows"
    out.mkdir(exist_ok=True)
    parts = make_shards(out)
    return x, [lambda n=n: assemble(parts, n, out / "joined.parquet") for n in x]  # type: ignore[misc]


def as_text(found: dict[str, Any]) -> str:
    lines = ["", "| doubled four times | seconds | a + b x | r2 of the line | exponent of the last doubling |",
             "| --- | --- | --- | --- | --- |"]  # fmt: skip
    for name, f in found.items():
        points = ", ".join(f"{x:,}: {s:.3g}" for x, s in zip(f["x"], f["seconds"], strict=True))
        lines.append(
            f"| {name} | {points} | {f['a']:.3g} + {f['b']:.3g} x | {f['r2']:.4f} | {f['last_doubling']:.2f} |"
        )
    return "\n".join(lines)


def draw(found: dict[str, Any], path: Path) -> None:
    """One panel an axis: measured points and the fitted line. Without matplotlib nothing is drawn."""
    try:
        import matplotlib as mpl
    except ImportError:
        print("matplotlib is not installed: no plot")
        return
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "protea"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(found), figsize=(3.2 * len(found), 3), layout="constrained")
    for axis, (name, f) in zip(axes, found.items(), strict=True):
        x = np.array(f["x"])
        axis.plot(x, f["seconds"], "o", label="measured")
        axis.plot(x, f["a"] + f["b"] * x, "-", label=f"r2 = {f['r2']:.4f}")
        axis.set(xlabel=name, ylim=(0, None), xlim=(0, None))
        axis.legend()
    axes[0].set_ylabel("seconds")
    figure.savefig(path)
