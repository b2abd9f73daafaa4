"""Peak memory of the assembly against the number of rows: `python bench/assembly_memory.py [ROWS ...] [--json]`.

Shards with the columns of a real export (always-filled families and PCA filled, the others null) are written once; each
size then is assembled from them in a process of its own, every shard listed as often as it takes. Prints rows, row
groups, file size, time, and the process's peak resident memory, of which the imports are the first part.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

SHARD_ROWS = 500_000
SHARDS = 3
FILLED = ("knn", "annotation_meta", "go_context", "length", "lineage", "emb_pca", "identity")


def make_shards(directory: Path, rows: int = SHARD_ROWS, shards: int = SHARDS) -> list[dict[str, object]]:
    """Shards of random rows; their paths and digests."""
    from protea.core.parquet_export import _SplitWriter
    from protea.core.schema import COLUMNS, DICT, ROWS

    words = {
        "protein_accession": pa.array([f"P{i:05d}" for i in range(60_000)]),
        "ref_protein_accession": pa.array([f"Q{i:05d}" for i in range(60_000)]),
        "go_term_id": pa.array([f"GO:{i:07d}" for i in range(40_000)]),
    }
    few = pa.array([f"word {i}" for i in range(9)])
    words |= {c.name: few for c in COLUMNS if c.type == DICT and c.name not in words}
    out: list[dict[str, object]] = []
    for number in range(shards):
        rng = np.random.default_rng(number)
        writer = _SplitWriter(directory / f"shard{number}.parquet", ROWS, words)
        for start in range(0, rows, 50_000):
            n = min(50_000, rows - start)
            batch = {}
            for c in COLUMNS:
                if c.family not in FILLED:
                    continue
                if c.type == DICT:
                    codes = rng.integers(0, len(words[c.name]), n).astype(np.int32)
                    batch[c.name] = np.sort(codes) if c.name == "protein_accession" else codes
                elif c.type == pa.float32():
                    batch[c.name] = rng.random(n).astype(np.float32)
                else:
                    batch[c.name] = pa.array(rng.integers(0, 2, n)).cast(c.type)
            writer.write(pa.table(batch))
        info = writer.close()
        out.append({"path": str(directory / info.name), "rows": info.rows, "digests": info.digests})
    return out


def assemble(shards: list[dict[str, object]], rows: int, target: Path) -> dict[str, float]:
    """Assemble at least `rows` rows in this process; what it took."""
    from protea.core.parquet_export import _stream_assemble
    from protea.core.schema import ROWS

    before = _peak()
    wanted = []
    n = 0
    while n < rows:
        shard = shards[len(wanted) % len(shards)]
        wanted.append((Path(str(shard["path"])), tuple(shard["digests"])))  # type: ignore[arg-type]
        n += int(str(shard["rows"]))
    start = time.perf_counter()
    info = _stream_assemble(target, ROWS, wanted)
    seconds = time.perf_counter() - start
    return {"rows": info.rows, "row_groups": len(info.digests), "file_mb": info.size / 1e6, "seconds": seconds,
            "start_mb": before, "peak_mb": _peak()}  # fmt: skip


def _peak() -> float:
    """Peak resident memory of this process in MB. Kilobytes on Linux, bytes on macOS."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3


def measure(sizes: list[int], directory: Path) -> list[dict[str, float]]:
    """One fresh process a size; a process of its own makes the shards, so that their making is not measured."""
    here = [sys.executable, __file__]
    shards = subprocess.run([*here, "--make", directory], check=True, capture_output=True, text=True).stdout
    (directory / "shards.json").write_text(shards)
    found = []
    for rows in sizes:
        target = directory / f"{rows}.parquet"
        run = subprocess.run([*here, "--assemble", target, str(rows)], check=True, capture_output=True, text=True)
        found.append(json.loads(run.stdout))
        target.unlink()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", nargs="*", type=int, default=[1_000_000, 10_000_000])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--make", type=Path, metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("--assemble", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.make:
        print(json.dumps(make_shards(args.make)))
    elif args.assemble:
        shards = json.loads((args.assemble.parent / "shards.json").read_text())
        print(json.dumps(assemble(shards, args.rows[0], args.assemble)))
    else:
        with tempfile.TemporaryDirectory() as directory:
            found = measure(args.rows, Path(directory))
        if args.json:
            print(json.dumps(found))
            return
        print(f"{'rows':>12} {'row groups':>10} {'file MB':>8} {'seconds':>8} {'start MB':>9} {'peak MB':>8}")
        for f in found:
            print(f"{f['rows']:12,.0f} {f['row_groups']:10.0f} {f['file_mb']:8.0f} {f['seconds']:8.1f} "
                  f"{f['start_mb']:9.0f} {f['peak_mb']:8.0f}")  # fmt: skip


if __name__ == "__main__":
    main()
