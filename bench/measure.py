"""Timing and memory of the benchmarks: alternating runs, medians, peaks, child processes.

Whatever else the machine does hits all sides of a comparison, since they take turns, round by round, in one process.
Each stage runs in a process of its own, so that its peak memory is its own. Called by the stages and by `__main__`.
"""

import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Timings(dict[str, list[float]]):
    """Seconds of each side, round by round; `cpu` likewise the processor seconds of this process, its threads and its
    children together.

    On a busy machine the latter say what was asked of it; the former also what it was given.
    """

    def __init__(self, sides: Iterable[str]) -> None:
        super().__init__((name, []) for name in sides)
        self.cpu: dict[str, list[float]] = {name: [] for name in sides}


def alternate(sides: Mapping[str, Callable[[], object]], rounds: int = 5, warm: bool = True) -> Timings:
    """Seconds of each side, `rounds` times in turn; one round before that is not counted (compiling, page cache)."""
    taken = Timings(sides)
    for number in range(-1 if warm else 0, rounds):
        names = list(sides)
        for name in names if number % 2 else reversed(names):  # who comes first changes, too
            gc.collect()
            start, cpu = time.perf_counter(), sum(os.times()[:4])
            sides[name]()
            if number >= 0:
                taken[name].append(time.perf_counter() - start)
                taken.cpu[name].append(sum(os.times()[:4]) - cpu)
    return taken


def median(values: list[float]) -> float:
    return statistics.median(values)


def spread(values: list[float]) -> str:
    """Median and the range, in seconds."""
    if len(values) == 1:
        return f"{values[0]:.3g}"
    return f"{median(values):.3g} ({min(values):.3g}-{max(values):.3g})"


def ratio(taken: Timings, ours: str, other: str) -> float:
    """The median over the rounds of ours / other: both of a round met the same load."""
    return median([a / b for a, b in zip(taken[ours], taken[other], strict=True)])


def peak_mb() -> float:
    """Peak resident memory of this process, mapped files included. Kilobytes on Linux, bytes on macOS."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3


def anonymous_mb() -> float:
    """Resident memory of this process that is its own: neither a mapped file nor shared. 0 where /proc does not say."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1e3
    except OSError:
        pass
    return 0.0


class Memory:
    """`before` and `peak` of this process's own memory in MB, sampled every 2 ms; `extra` is what came on top."""

    def __init__(self) -> None:
        self.before = self.peak = anonymous_mb()

    @property
    def extra(self) -> float:
        return self.peak - self.before


@contextmanager
def watched() -> Iterator[Memory]:
    """Sample memory while the block runs. Freed memory that the allocator keeps is given back before."""
    import pyarrow as pa

    gc.collect()
    pa.default_memory_pool().release_unused()
    memory, done = Memory(), threading.Event()

    def sample() -> None:
        while not done.wait(0.002):
            memory.peak = max(memory.peak, anonymous_mb())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield memory
    finally:
        done.set()
        thread.join()


def child(stage: str, size: str, directory: Path, rounds: int) -> dict[str, Any]:
    """Run one stage in a process of its own and return what it prints; its errors go to ours."""
    command = [sys.executable, "-m", "bench", "--stage", stage, "--size", size, "--dir", str(directory)]
    run = subprocess.run([*command, "--rounds", str(rounds)], stdout=subprocess.PIPE, text=True, check=False)
    if run.returncode:
        return {"stage": stage, "failed": f"the stage's process ended with {run.returncode}"}
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def machine() -> dict[str, Any]:
    """What the figures depend on: processor, cores, memory, load, versions."""
    import platform
    from importlib.metadata import version

    model = platform.processor()
    flags = ""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
            if line.startswith("flags"):
                flags = " ".join(f for f in ("avx2", "avx512f", "sha_ni") if f" {f} " in f"{line} ")
    except OSError:
        pass
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    return {
        "processor": f"{model} {flags}".strip(),
        "cores": os.cpu_count(),
        "memory_gb": round(pages / 1e9, 1),
        "load": os.getloadavg(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "numba", "pyarrow")},
    }
