"""The blocks of a cut: the stages that minijobs finish, so that a cut is computed by many processes.

A block is some consecutive queries of a cut. Its `knn` stage holds their neighbours, its `features` stage their labelled
rows per category and what was counted of them. The bytes of a cut's shards depend neither on the size of the blocks nor
on which of them were there. Called by the shards, which use what is finished, and by the minijobs, which finish it.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from . import fs
from .arrays import I32
from .counts import Counter
from .cut import Prepared, neighbours, rows
from .knn.exact import Neighbours
from .parquet_export import FileInfo, _SplitWriter
from .schema import CATEGORIES, ROWS
from .staging import Stage, Staging, digest

KNN, FEATURES, PLAN = "knn", "features", "plan"
NEAR = ("row", "distance", "count")
COUNTED = ("members", "reached", "skipped")


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
        return {"stage": stage, "cut": self.key, **where}

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

    def tables(self, stage: Stage) -> Iterator[tuple[str, pa.Table]]:
        """The rows of a finished block, one row group at a time, with their category."""
        for category in CATEGORIES:
            with pq.ParquetFile(stage.directory / stage.files[category].name) as f:
                for i in range(f.num_row_groups):
                    yield category, f.read_row_group(i)

    def take(self, stage: Stage, directory: Path) -> dict[str, FileInfo]:
        """Give the cut the row files of its only block: they are what it would write."""
        files = {c: stage.files[c] for c in CATEGORIES}
        for info in files.values():
            try:
                os.link(stage.directory / info.name, directory / info.name)
            except OSError:  # a file system without links
                shutil.copyfile(stage.directory / info.name, directory / info.name)
                fs.fsync_file(directory / info.name)
        return files

    def counted(self, stage: Stage, counter: Counter) -> None:
        """Add what was counted of a finished block."""
        counter.merge(dict(zip(COUNTED, _load(stage, COUNTED), strict=True)), stage.result["alignments"])

    def save_rows(self, p: Prepared, block: int, progress: Callable[[int, int], None] | None = None) -> Stage:
        """Compute the labelled rows of a block and keep them; `progress` hears of the queries and rows so far."""
        near = self.neighbours(p, block)

        def write(directory: Path) -> tuple[dict[str, FileInfo], dict[str, Any]]:
            counter = Counter(p)
            writers = {c: _SplitWriter(directory / f"{c}.parquet", ROWS, p.arrays.words) for c in CATEGORIES}
            try:
                for r in rows(p, self.of(p, block), near):
                    counter.add(r)
                    writers[CATEGORIES[r.category]].write(r.table)
                    if progress:
                        progress(int(r.share * len(near.row)), int(counter.rows.sum()))
                files = {c: w.close() for c, w in writers.items()}
            except BaseException:
                for w in writers.values():
                    w.abandon()
                raise
            files |= _store(directory, counter.arrays())
            return files, {"rows": int(counter.rows.sum()), "alignments": counter.alignments()}

        return self._save(FEATURES, block, write)


def _store(directory: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, FileInfo]:
    """Arrays as files of their own."""
    out = {}
    for name, array in arrays.items():
        path = directory / f"{name}.npy"
        with fs.create(path) as f:
            np.save(f, np.ascontiguousarray(array), allow_pickle=False)
        fs.fsync_file(path)
        out[name] = FileInfo(path.name, len(array), path.stat().st_size, fs.sha256_file(path), ())
    return out


def _load(stage: Stage, names: tuple[str, ...]) -> list[Any]:
    return [np.load(stage.directory / stage.files[name].name, allow_pickle=False) for name in names]
