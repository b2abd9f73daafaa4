"""The shards of one cut: its rows per category, its truth and known tables, and its counts.

Called by the export operation (and later by the minijobs); calls the cut and the writer.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .cut import NEIGHBOURS_PER_BLOCK, QUERIES_PER_BLOCK, Counter, Prepared, describe, neighbours, rows, truth_tables
from .parquet_export import FileInfo, _SplitWriter
from .schema import CATEGORIES, KNOWN, ROWS, TRUTH

Progress = Callable[[int, int, int], None]
"""Called with queries done, queries in all, rows so far."""


def write_shards(
    p: Prepared, directory: Path, progress: Progress | None = None, queries_per_block: int = QUERIES_PER_BLOCK
) -> tuple[dict[str, FileInfo], dict[str, Any]]:
    """Compute the rows of a cut and write `nk`, `lk`, `pk`, `truth` and `known` into `directory`.

    Returns the files by name, and the counts that the manifest needs. The block size changes no byte.
    """
    counter = Counter(p)
    words = p.arrays.words
    writers = {c: _SplitWriter(directory / f"{c}.parquet", ROWS, words) for c in CATEGORIES}
    writers |= {"truth": _SplitWriter(directory / "truth.parquet", TRUTH, words)}
    writers |= {"known": _SplitWriter(directory / "known.parquet", KNOWN, words)}
    try:
        step = max(1, min(queries_per_block, NEIGHBOURS_PER_BLOCK // (3 * p.search.k)))
        for start in range(0, len(p.queries), step):
            queries = p.queries[start : start + step]
            for r in rows(p, queries, neighbours(p, queries)):
                counter.add(r)
                writers[CATEGORIES[r.category]].write(r.table)
            if progress:
                progress(start + len(queries), len(p.queries), int(counter.rows.sum()))
        truth, known = truth_tables(p, counter.reached_keys())
        for i in range(len(CATEGORIES)):
            writers["truth"].write(truth.filter(pc.equal(truth["category"], pa.scalar(np.int32(i)))))
            writers["truth"].end_part()
        writers["known"].write(known)
        files = {which: w.close() for which, w in writers.items()}
    except BaseException:
        for w in writers.values():
            w.abandon()
        raise
    result = {"counts": counter.counts(), "dropped": counter.dropped(), **describe(p)}
    return files, result
