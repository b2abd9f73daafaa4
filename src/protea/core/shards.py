"""The shards of one cut: its rows per category, its truth and known tables, and its counts.

Called by the cut runner; calls the cut, its blocks and the writer.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .blocks import FEATURES, Blocks
from .counts import Counter, describe, truth_tables
from .cut import NEIGHBOURS_PER_BLOCK, QUERIES_PER_BLOCK, Prepared, neighbours, rows
from .parquet_export import FileInfo, _SplitWriter
from .schema import CATEGORIES, KNOWN, ROWS, TRUTH

Progress = Callable[[int, int, int], None]
"""Called with queries done, queries in all, rows so far."""


def write_shards(
    p: Prepared,
    directory: Path,
    progress: Progress | None = None,
    queries_per_block: int = QUERIES_PER_BLOCK,
    blocks: Blocks | None = None,
) -> tuple[dict[str, FileInfo], dict[str, Any]]:
    """Write the rows of a cut as `nk`, `lk`, `pk`, and its `truth` and `known`, into `directory`.

    Blocks that are finished are read, the others computed; `blocks` has a size of its own. Returns the files by name, and
    the counts that the manifest needs. The block size changes no byte.
    """
    counter = Counter(p)
    schemas = dict.fromkeys(CATEGORIES, ROWS) | {"truth": TRUTH, "known": KNOWN}
    writers = {
        which: _SplitWriter(directory / f"{which}.parquet", schema, p.arrays.words, p.arrays.threads)
        for which, schema in schemas.items()
    }
    try:
        step = blocks.size if blocks else max(1, min(queries_per_block, NEIGHBOURS_PER_BLOCK // (3 * p.search.k)))
        for block, start in enumerate(range(0, len(p.queries), step)):
            queries = p.queries[start : start + step]
            if blocks and (stage := blocks.restore(FEATURES, block)):
                blocks.counted(stage, counter)
                for category, batch in blocks.batches(stage):
                    p.arrays.checkpoint()
                    writers[category].write(batch)
            else:
                near = blocks.neighbours(p, block) if blocks else neighbours(p, queries)
                for r in rows(p, queries, near):
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
    return files, {"counts": counter.counts(), "dropped": counter.dropped(), **describe(p)}
