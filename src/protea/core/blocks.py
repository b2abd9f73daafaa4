"""The blocks of a cut: the stages that minijobs finish, so that a cut is computed by many processes.

A block is some consecutive queries of a cut. Its `knn` stage holds their neighbours, its `features` stage their labelled
rows, in coded Arrow batches of one category each, and what was counted of them. The bytes of a cut's shards depend
neither on the size of the blocks nor on which of them were there. Called by the shards, which use what is finished, and by
the minijobs, which finish it.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.ipc as ipc

from . import fs
from .arrays import I32
from .counts import Counter
from .cut import Prepared, neighbours, rows
from .knn.exact import Neighbours
from .parquet_export import FileInfo
from .schema import CATEGORIES
from .staging import Stage, Staging, digest

KNN, FEATURES, PLAN = "knn", "features", "plan"
ROWS = "rows"
NEAR = ("row", "distance", "count")
COUNTED = ("members", "reached", "skipped")
FORMAT = "Arrow"
"""Of the rows of a block, which are read once, by the write of its cut: as small as Parquet, and sooner written and read."""

_WRITE = ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1), use_threads=False)
_READ = ipc.IpcReadOptions(use_threads=False)


@dataclass(frozen=True)
class Blocks:
    """The blocks of one cut in a staging directory.

    key: the key document of the cut; size: queries of a block; discarded(stage, block, reason) hears of unusable stages
    """

    staging: Staging
    pair: str
    key: Mapping[str, Any]
    size: int
    discarded: Callable[[str, int, str], None]

    def _name(self, stage: str, block: int) -> str:
        return f"{self.pair}/{stage}" if stage == PLAN else f"{self.pair}/{stage}-{self.size}-{block}"

    def _key(self, stage: str, block: int) -> dict[str, Any]:
        where = {} if stage == PLAN else {"block": block, "queries_per_block": self.size}
        return {"stage": stage, "cut": self.key, **where, **({"format": FORMAT} if stage == FEATURES else {})}

    def artefact(self, stage: str, block: int) -> str:
        """What identifies a stage: the digest of its key."""
        return digest(self._key(stage, block))

    def restore(self, stage: str, block: int = 0) -> Stage | None:
        """The finished stage, or None."""
        found, why = self.staging.restore(self._name(stage, block), self._key(stage, block))
        if why:
            self.discarded(stage, block, why)
        return found

    def _save(
        self, stage: str, block: int, write: Callable[[Path], tuple[dict[str, FileInfo], dict[str, Any]]]
    ) -> Stage:
        name = self._name(stage, block)
        directory, attempt = self.staging.begin(name)
        files, result = write(directory)
        return self.staging.finish(name, self._key(stage, block), files, result, attempt, version("protea"))

    # ------------------------------------------------------------------------------------------- how many queries there are

    def queries(self) -> int | None:
        """The cut's number of queries, if it has been found before."""
        stage = self.restore(PLAN)
        return None if stage is None else int(stage.result["queries"])

    def save_queries(self, n: int) -> None:
        self._save(PLAN, 0, lambda directory: ({}, {"queries": n}))

    def of(self, p: Prepared, block: int) -> I32:
        """The queries of a block."""
        return p.queries[block * self.size : (block + 1) * self.size]

    # ------------------------------------------------------------------------------------------------------- the neighbours

    def neighbours(self, p: Prepared, block: int) -> Neighbours:
        """The neighbours of a block: those that are there, or found now."""
        stage = self.restore(KNN, block)
        if stage is None:
            return neighbours(p, self.of(p, block))
        row, distance, count = _load(stage, NEAR)
        return Neighbours(row, distance, count)

    def save_neighbours(self, p: Prepared, block: int) -> Stage:
        """Find the neighbours of a block and keep them."""
        near = neighbours(p, self.of(p, block))
        arrays = {name: getattr(near, name) for name in NEAR}
        return self._save(KNN, block, lambda directory: (_store(directory, arrays), {"queries": len(near.row)}))

    # ------------------------------------------------------------------------------------------------------------- the rows

    def batches(self, stage: Stage) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The coded rows of a finished block, batch after batch as they were made, with their category."""
        with pa.OSFile(str(stage.directory / stage.files[ROWS].name)) as f, ipc.open_file(f, options=_READ) as rows:
            for i in range(rows.num_record_batches):
                batch = rows.get_batch(i)
                yield CATEGORIES[batch["category"][0].as_py()], batch

    def counted(self, stage: Stage, counter: Counter) -> None:
        """Add what was counted of a finished block."""
        counter.merge(dict(zip(COUNTED, _load(stage, COUNTED), strict=True)), stage.result["alignments"])

    def save_rows(self, p: Prepared, block: int, progress: Callable[[int, int], None] | None = None) -> Stage:
        """Compute the labelled rows of a block and keep them; `progress` hears of the queries and rows so far."""
        near = self.neighbours(p, block)

        def write(directory: Path) -> tuple[dict[str, FileInfo], dict[str, Any]]:
            counter, path = Counter(p), directory / f"{ROWS}.arrow"

            def made() -> Iterator[pa.RecordBatch]:
                for r in rows(p, self.of(p, block), near):
                    counter.add(r)
                    yield r.table
                    if progress:
                        progress(int(r.share * len(near.row)), int(counter.rows.sum()))

            _write_batches(path, made())
            n = int(counter.rows.sum())
            files = {ROWS: _written(path, n)} | _store(directory, counter.arrays())
            return files, {"rows": n, "alignments": counter.alignments()}

        return self._save(FEATURES, block, write)


def _write_batches(path: Path, batches: Iterator[pa.RecordBatch]) -> None:
    """Batches of one schema as an Arrow file; it has no batch when there are none."""
    first = next(batches, None)
    with (
        fs.create(path) as f,
        ipc.new_file(f, first.schema if first is not None else pa.schema([]), options=_WRITE) as out,
    ):
        for batch in itertools.chain([] if first is None else [first], batches):
            out.write_batch(batch)


def _written(path: Path, n: int) -> FileInfo:
    fs.fsync_file(path)
    return FileInfo(path.name, n, path.stat().st_size, fs.sha256_file(path), ())


def _store(directory: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, FileInfo]:
    """Arrays as files of their own."""
    out = {}
    for name, array in arrays.items():
        path = directory / f"{name}.npy"
        with fs.create(path) as f:
            np.save(f, np.ascontiguousarray(array), allow_pickle=False)
        out[name] = _written(path, len(array))
    return out


def _load(stage: Stage, names: tuple[str, ...]) -> list[Any]:
    return [np.load(stage.directory / stage.files[name].name, allow_pickle=False) for name in names]
