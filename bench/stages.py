"""The stages: each times PROTEA next to its limit, or next to the usual way, and says what its target is.

A stage is a function of (size, directory, rounds) to rows of the table. Each runs in a process of its own, called by
`__main__` through `measure.child`; workloads are made once a run in `directory`.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from protea.core import shards
from protea.core.cut import Cut, CutInputs, Prepared, neighbours, prepare
from protea.core.operations.export_research_dataset import export_research_dataset, load_inputs
from protea.core.parquet_export import PARQUET, _stream_assemble
from protea.core.schema import CATEGORIES, ROW_GROUP, ROWS

from .measure import Timings, alternate, anonymous_mb, peak_mb, ratio, watched
from .workload import ALL_FAMILIES, SIZES, TABLES, Workload, accession_names, make, write_gaf, write_hdf5

Rows = list[dict[str, Any]]
Stage = Callable[[str, Path, int], Rows]
CODED = [f.name for f in ROWS if pa.types.is_dictionary(f.type)]


def row(
    stage: str, size: str, taken: Timings | None = None, against: str = "", other: str = "", *,
    value: float, unit: str, target: float | None = None, least: bool = False, ours: str = "ours", **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """A line of the table: the sides `ours` and `other` of `taken`; `value` is held against `target`."""
    met = None if target is None else bool(value >= target if least else value <= target)
    seconds = taken or Timings([])
    return {
        "stage": stage, "size": size, "ours": seconds.get(ours, []), "against": against, "other": seconds.get(other, []),
        "ours_cpu": seconds.cpu.get(ours, []), "other_cpu": seconds.cpu.get(other, []), "value": value, "unit": unit,
        "target": target, "least": least, "met": met, "peak_mb": round(peak_mb()), **more,
    }  # fmt: skip


def _workload(size: str, directory: Path) -> Workload:
    return make(SIZES[size], directory / size)


def _cut(w: Workload, *, every: bool = False, **settings: Any) -> tuple[Cut, CutInputs]:
    """The first cut and its inputs; `every`: with all families but the alignments."""
    tables = TABLES if every else ()
    config = w.config(**(ALL_FAMILIES if every else {}) | settings)
    inputs = w.inputs(tables)
    return Cut("train", inputs.sets[1], inputs.sets[2]), load_inputs(config, inputs)


# --- the search


def knn(size: str, directory: Path, rounds: int) -> Rows:
    """The exact neighbours in three aspects, against one bare float32 product, and against faiss once an aspect."""
    cut, inputs = _cut(_workload(size, directory))
    p = prepare(cut, inputs)
    k, donors = inputs.config.k, p.search.donors
    own = p.arrays.vector_row[p.queries]
    matrix = np.asarray(inputs.store.matrix, np.float32)
    unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    asked, given = unit[own], np.ascontiguousarray(unit[donors])
    out = np.zeros((len(asked), len(given)), np.float32)
    found: list[Any] = []

    def ours() -> None:
        search = type(p.search)(
            inputs.store.matrix, donors, p.search.aspects, k=k, metric="cosine", threads=inputs.threads
        )
        found[:] = [search.search(own)]

    sides: dict[str, Callable[[], object]] = {"ours": ours, "product": lambda: np.matmul(asked, given.T, out=out)}
    try:
        import faiss
    except ImportError:
        faiss = None
    if faiss is not None:
        index = []
        for a in range(3):
            index.append(faiss.IndexFlatIP(unit.shape[1]))
            index[a].add(given[(p.search.aspects >> a & 1) == 1])
        sides["faiss"] = lambda: [i.search(asked, k + 1) for i in index]
    taken = alternate(sides, rounds)
    _exact(inputs.store.matrix, own, donors, p.search.aspects, found[0])
    work = 2.0 * len(own) * len(donors) * unit.shape[1]
    gflops = {f"{name}_gflops": round(work / min(s) / 1e9, 1) for name, s in taken.items() if name != "faiss"}
    lines = [row("exact KNN, three aspects", size, taken, "one float32 product", "product",
                 value=ratio(taken, "ours", "product"), unit="x", target=1.3, **gflops)]  # fmt: skip
    if faiss is not None:
        lines.append(row("exact KNN, three aspects", size, taken, "faiss IndexFlatIP an aspect", "faiss",
                         value=ratio(taken, "ours", "faiss"), unit="x", target=0.45))  # fmt: skip
    return lines


def _exact(matrix: Any, own: Any, donors: Any, aspects: Any, found: Any) -> None:
    """The neighbours of 20 queries by float64 over all donors; an AssertionError where the search differs."""
    for q in np.linspace(0, len(own) - 1, 20).astype(int):
        x, r = matrix[own[q]].astype(np.float64), matrix[donors].astype(np.float64)
        d = 1 - (r @ x) / np.sqrt((r * r).sum(1) * (x @ x))
        for a in range(3):
            may = (aspects >> a & 1 == 1) & (donors != own[q])
            best = np.sort(d[may])[: found.row.shape[2]]
            assert np.allclose(found.distance[q, a], best, rtol=1e-5, atol=1e-7), "the search missed a neighbour"


def knn_memory(size: str, directory: Path, rounds: int) -> Rows:
    """What the search takes beside the memory-mapped matrix."""
    cut, inputs = _cut(_workload(size, directory))
    p = prepare(cut, inputs)
    neighbours(p, p.queries[:100])  # BLAS's own buffers, and the compiled code
    with watched() as memory:
        neighbours(p, p.queries)
    return [row("exact KNN, extra memory", size, value=round(memory.extra), unit="MB", target=100)]


# --- rows and files


@contextlib.contextmanager
def _found(p: Prepared) -> Iterator[None]:
    """`write_shards` gets its neighbours from a search made before, so that only the rows are timed."""
    near = neighbours(p, p.queries)
    place = {int(q): i for i, q in enumerate(p.queries)}

    def known(p: Prepared, queries: Any) -> Any:
        at = slice(place[int(queries[0])], place[int(queries[-1])] + 1)
        return type(near)(near.row[at], near.distance[at], near.count[at])

    original = shards.neighbours
    shards.neighbours = known
    try:
        yield
    finally:
        shards.neighbours = original


def _finished(directory: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(directory / f"{c}.parquet") for c in CATEGORIES])


def _write(table: pa.Table, path: Path) -> None:
    with pq.ParquetWriter(path, table.schema, use_dictionary=CODED, **PARQUET) as w:
        w.write_table(table, row_group_size=ROW_GROUP)


def _rows(size: str, directory: Path, rounds: int, every: bool) -> Rows:
    cut, inputs = _cut(_workload(size, directory), every=every, expand_votes_to_ancestors=True)
    p = prepare(cut, inputs)
    out = directory / f"rows-{size}"
    out.mkdir(exist_ok=True)
    with _found(p):
        shards.write_shards(p, out)
        table = _finished(out)
        taken = alternate(
            {"ours": lambda: shards.write_shards(p, out), "write": lambda: _write(table, out / "w.parquet")}, rounds
        )
    what = "all families but alignments" if every else "families without a table"
    n = table.num_rows
    rate = n / sorted(taken["ours"])[rounds // 2] / 1e6
    common = {"rows": n, "megabytes": round(sum((out / f"{c}.parquet").stat().st_size for c in CATEGORIES) / 1e6)}
    return [
        row(f"rows to shards, {what}", size, taken, value=rate, unit="M rows/s", target=1.0, least=True, **common),
        row(f"rows to shards, {what}", size, taken, "write_table of the rows", "write",
            value=ratio(taken, "ours", "write"), unit="x", target=2.0, **common),
    ]  # fmt: skip


def rows_all(size: str, directory: Path, rounds: int) -> Rows:
    """Candidates, every family but the alignments, labels and shards; expansion on; the neighbours are given."""
    return _rows(size, directory, rounds, every=True)


def rows_plain(size: str, directory: Path, rounds: int) -> Rows:
    """The same with the families that need no table."""
    return _rows(size, directory, rounds, every=False)


def assembly(size: str, directory: Path, rounds: int) -> Rows:
    """Joining shards, against reading and writing the same rows, row group by row group."""
    cut, inputs = _cut(_workload(size, directory), every=True, expand_votes_to_ancestors=True)
    out = directory / f"rows-{size}"
    out.mkdir(exist_ok=True)
    files, _ = shards.write_shards(prepare(cut, inputs), out)
    parts = [(out / f.name, f.digests) for f in (files[c] for c in CATEGORIES)]

    def copied() -> None:
        with pq.ParquetWriter(out / "copied.parquet", ROWS, use_dictionary=CODED, **PARQUET) as w:
            for path, _ in parts:
                with pq.ParquetFile(path) as f:
                    for g in range(f.num_row_groups):
                        w.write_table(f.read_row_group(g), row_group_size=ROW_GROUP)

    taken = alternate({"ours": lambda: _stream_assemble(out / "joined.parquet", ROWS, parts), "copy": copied}, rounds)
    n = sum(files[c].rows for c in CATEGORIES)
    return [row("assembly", size, taken, "reading and writing the rows", "copy",
                value=ratio(taken, "ours", "copy"), unit="x", target=1.2, rows=n)]  # fmt: skip


# --- reading


def hdf5(size: str, directory: Path, rounds: int) -> Rows:
    """Vectors from HDF5, one dataset a protein, against one h5py call a dataset."""
    import h5py

    from protea.core.embeddings.store import inspect_embeddings

    n = SIZES[size].donors
    path = directory / f"vectors-{n}.h5"
    if not path.exists():
        write_hdf5(path, n, 1024)

    def usual() -> np.ndarray:
        with h5py.File(path, "r") as f:
            return np.stack([f[name][()] for name in f])

    taken = alternate({"ours": lambda: inspect_embeddings(path), "usual": usual}, max(3, rounds // 2))
    return [row(f"HDF5, {n:,} datasets of 1024", size, taken, "one dataset a call", "usual",
                value=ratio(taken, "ours", "usual"), unit="x", target=0.25)]  # fmt: skip


GAF_ROWS = {"S": 300_000, "M": 10_000_000, "L": 10_000_000, "XL": 10_000_000}


def _gaf(size: str, directory: Path) -> tuple[Path, pa.Array]:
    path = directory / f"annotations-{GAF_ROWS[size]}.gaf.gz"
    accessions = accession_names(150_000)
    if not path.exists():
        write_gaf(path, GAF_ROWS[size], accessions)
    return path, accessions


def _load_gaf(path: Path, accessions: pa.Array) -> None:
    from protea.core.annotations import SCHEMA, read_gaf

    with pq.ParquetWriter(path.with_suffix(".parquet"), SCHEMA, compression="zstd") as w:
        read_gaf(path, proteins=accessions, sink=w.write_batch)


def gaf(size: str, directory: Path, rounds: int) -> Rows:
    """A gzipped GAF into its stored rows, restricted to the loaded proteins, against inflating it."""
    from isal import igzip

    path, accessions = _gaf(size, directory)
    buffer = bytearray(16 << 20)

    def inflate() -> None:
        with igzip.open(path, "rb") as f:
            while f.readinto(buffer):
                pass

    taken = alternate({"ours": lambda: _load_gaf(path, accessions), "inflate": inflate}, max(3, rounds // 2))
    return [row(f"GAF, {GAF_ROWS[size] / 1e6:g} M rows", size, taken, "inflating it (isal)", "inflate",
                value=ratio(taken, "ours", "inflate"), unit="x", target=2.0)]  # fmt: skip


def gaf_memory(size: str, directory: Path, rounds: int) -> Rows:
    """Peak memory of the process that loads the GAF."""
    _load_gaf(*_gaf(size, directory))
    return [row(f"GAF, {GAF_ROWS[size] / 1e6:g} M rows, memory", size, value=round(peak_mb()), unit="MB", target=600)]


def alignments(size: str, directory: Path, rounds: int) -> Rows:
    """`bench/alignments.py`: pairs/s against striped traceback parsed in Python, and a second run with the cache."""
    command = [sys.executable, str(Path(__file__).with_name("alignments.py")), "--rounds", str(max(3, rounds // 2))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    labels = {
        "here": "here", "usual": "usual way", "first": "here, filling the cache", "second": "second run, from the cache",
    }  # fmt: skip
    taken = Timings(labels)
    for name, label in labels.items():
        line = next(line for line in done.stdout.splitlines() if line.startswith(f"{label}  "))
        taken[name] = [float(x) for x in line.rpartition(":")[2].split(",")]
    return [
        row("alignments, NW and SW", "10,000 pairs", taken, "striped traceback, two processes", "usual", ours="here",
            value=ratio(taken, "usual", "here"), unit="x faster", target=3.3, least=True),
        row("alignments, a second export", "10,000 pairs", taken, "the first", "first", ours="second",
            value=ratio(taken, "first", "second"), unit="x faster", target=20, least=True),
    ]  # fmt: skip


# --- whole runs


def one_cut(size: str, directory: Path, rounds: int) -> Rows:
    """One cut from the stored inputs to its shards, against the bare product plus writing its rows."""
    w = _workload(size, directory)
    out = directory / f"cut-{size}"
    out.mkdir(exist_ok=True)
    cut, inputs = _cut(w)
    p = prepare(cut, inputs)
    files, _ = shards.write_shards(p, out)
    table = _finished(out)
    given = np.asarray(inputs.store.matrix, np.float32)[p.search.donors]
    asked = np.asarray(inputs.store.matrix, np.float32)[p.arrays.vector_row[p.queries]]
    product = np.zeros((len(asked), len(given)), np.float32)

    def whole() -> None:
        cut, inputs = _cut(w)
        shards.write_shards(prepare(cut, inputs), out)

    def floor() -> None:
        np.matmul(asked, given.T, out=product)
        _write(table, out / "w.parquet")

    taken = alternate({"ours": whole, "floor": floor}, rounds)
    n = sum(files[c].rows for c in CATEGORIES)
    return [row("one cut, end to end", size, taken, "one product + writing the rows", "floor",
                value=ratio(taken, "ours", "floor"), unit="x", target=2.0, rows=n)]  # fmt: skip


class _Registry(dict[str, Any]):
    """The catalogue of one run."""

    def find(self, name: str) -> Any:
        return self.get(name)

    def register(self, name: str, fingerprint: str, path: Path, manifest: Any) -> None:
        self[name] = {"fingerprint": fingerprint, "path": str(path), "manifest": manifest}


def whole_export(size: str, directory: Path, rounds: int) -> Rows:
    """An export with all its cuts, expansion on, alignments off: time and peak memory."""
    w = _workload(size, directory)
    config = w.config(expand_votes_to_ancestors=True)
    before = anonymous_mb()
    registry = _Registry()

    def run() -> None:
        where = {"resume_dir": directory / "resume", "datasets_dir": directory / "datasets"}
        registry.clear()
        for place in where.values():  # a directory that was kept may have it
            shutil.rmtree(place, ignore_errors=True)
        export_research_dataset(config, w.inputs(), registry, **where)

    with watched() as memory:
        taken = alternate({"ours": run}, 1, warm=False)
    manifest = registry["bench"]["manifest"]
    n = manifest["n_train_rows"] + manifest["n_eval_rows"]
    what = f"whole export, {size}, {w.size.cuts} cuts"
    return [
        row(what, size, taken, value=taken["ours"][0] / 60, unit="minutes", target=10, rows=n),
        row(f"{what}, memory", size, value=round(peak_mb()), unit="MB", target=3_000, rows=n,
            own_mb=round(memory.peak), start_mb=round(before)),
    ]  # fmt: skip


def largest(size: str, directory: Path, rounds: int) -> Rows:
    """One cut of the largest size, expansion on: peak memory beside the memory-mapped matrix."""
    w = _workload(size, directory)
    out = directory / f"cut-{size}"
    out.mkdir(exist_ok=True)

    def run() -> None:
        cut, inputs = _cut(w, expand_votes_to_ancestors=True)
        files, _ = shards.write_shards(prepare(cut, inputs), out)
        _stream_assemble(
            out / "train.parquet", ROWS, [(out / f.name, f.digests) for f in (files[c] for c in CATEGORIES)]
        )

    with watched() as memory:
        taken = alternate({"ours": run}, 1, warm=False)
    return [row(f"one cut of {size}, memory beside the matrix", size, taken, value=round(memory.peak), unit="MB",
                target=4_000)]  # fmt: skip


def startup(size: str, directory: Path, rounds: int) -> Rows:
    """`protea --help`, and `protea list` with the server up."""
    from protea.catalog import open_catalog
    from protea.settings import Settings

    home = directory / "home"
    command, env = str(Path(sys.executable).with_name("protea")), {**os.environ, "PROTEA_HOME": str(home)}

    def call(*words: str) -> None:
        subprocess.run([command, *words], env=env, check=True, stdout=subprocess.DEVNULL)

    with open_catalog(Settings(home=home)):  # the embedded server stays up while somebody uses it
        taken = alternate({"help": lambda: call("--help"), "list": lambda: call("list")}, max(5, rounds))
    middle = {name: sorted(s)[len(s) // 2] for name, s in taken.items()}
    return [
        row("protea --help", "-", taken, ours="help", value=middle["help"], unit="s", target=0.3),
        row("protea list", "-", taken, ours="list", value=middle["list"], unit="s", target=0.8),
    ]


def workers(size: str, directory: Path, rounds: int) -> Rows:
    """An export in minijobs, two workers against one; its size is its own."""
    from .workers import speed_up

    return speed_up(directory, min(rounds, 2))


STAGES: dict[str, tuple[Stage, str]] = {
    "knn": (knn, "M"),
    "knn-memory": (knn_memory, "M"),
    "rows": (rows_all, "L"),
    "rows-plain": (rows_plain, "L"),
    "assembly": (assembly, "L"),
    "alignments": (alignments, "-"),
    "hdf5": (hdf5, "M"),
    "gaf": (gaf, "M"),
    "gaf-memory": (gaf_memory, "M"),
    "cut": (one_cut, "M"),
    "export": (whole_export, "L"),
    "xl": (largest, "XL"),
    "startup": (startup, "-"),
    "workers": (workers, "-"),
}
"""Every stage and the size of its target."""
