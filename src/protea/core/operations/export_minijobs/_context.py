"""What a minijob is, and what a process needs to run the minijobs of one export.

Made by the engine (`protea.jobs`); read by the minijobs' functions.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....errors import StorageError
from ... import fs
from ...alignment_cache import AlignmentCache
from ...arrays import nothing
from ...blocks import Blocks
from ...config import ExportConfig
from ...cut import QUERIES_PER_BLOCK, Cut, Prepared
from ...keys import ExportInputs, fingerprint
from ...runner import CutRunner, Report, never, silent
from ...staging import Stage, Staging
from ..export_research_dataset import Registry, open_staging

if TYPE_CHECKING:
    from ...bucket import Bucket

OPERATIONS = {"knn": "export_knn_batch", "features": "export_features_batch", "write": "export_write"}
QUEUES = {
    "knn": "protea.training.knn-batch",
    "features": "protea.training.features",
    "write": "protea.training.write",
}


@dataclass(frozen=True)
class MiniJob:
    """One part of an export, in plain values.

    stage   knn or features (of a block of a cut's queries), or write: of a cut, or without a cut of the whole dataset
    label   train-<old version> or eval-<new version>; `dataset`
    number  of the cut in the export's order, from 1; 0 for the dataset
    block   from 0; blocks: how many the cut has (0 when it is finished or has no query); the dataset: number of cuts
    first, last   the block's queries [first, last) of the cut's
    """

    stage: str
    cut: str | None
    label: str
    number: int
    block: int
    blocks: int
    first: int
    last: int

    @property
    def id(self) -> str:
        """Unique in an export: `v1-v2/knn/3`, `v1-v2/write`, `dataset/write`."""
        return f"{self.cut or self.label}/{self.stage}" + ("" if self.stage == "write" else f"/{self.block}")

    @property
    def operation(self) -> str:
        return OPERATIONS[self.stage]

    @property
    def queue(self) -> str:
        return QUEUES[self.stage]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Done:
    """How a minijob ended.

    rows      knn: queries; features, write: rows
    restored  its verified result was there, or is no longer needed: nothing was computed
    artefact  the digest of the stage's key; of the dataset its fingerprint
    path      of the dataset, when it is published
    """

    rows: int
    restored: bool
    artefact: str
    seconds: float
    path: str | None = None


@dataclass
class Context:
    """What a process needs to run minijobs of one export; it keeps the inputs and the last cut in memory.

    cancelled     asked several times a second; when it says True, CancelledError is raised
    commit_guard  called right before a stage or the dataset gets its place; raises when this process may not commit
    registry      the `Dataset` rows, for `validate` and the last write
    bucket        where stages and datasets go when the workers share no disk
    """

    config: ExportConfig
    inputs: ExportInputs
    resume_dir: Path
    datasets_dir: Path
    queries_per_block: int = QUERIES_PER_BLOCK
    threads: int = 0
    alignments: AlignmentCache | None = None
    report: Report = silent
    cancelled: Callable[[], bool] = never
    commit_guard: Callable[[], None] = nothing
    registry: Registry | None = None
    replace: bool = False
    bucket: "Bucket | None" = None

    @cached_property
    def runner(self) -> CutRunner:
        return CutRunner(
            self.config,
            self.inputs,
            lambda kind, **what: self.report(kind, **what),  # these may be exchanged from job to job
            self.threads,
            self.queries_per_block,
            self.alignments,
            lambda: self.cancelled(),
        )

    @cached_property
    def mark(self) -> str:
        return fingerprint(self.config, self.inputs)

    def staging(self) -> Staging:
        return open_staging(self.bucket, self.resume_dir, self.config.name, self.mark, lambda: self.commit_guard())

    def cut(self, job: MiniJob) -> Cut:
        return next(c for c in self.runner.cuts if c.pair == job.cut)

    @contextlib.contextmanager
    def sharing(self) -> Iterator[Staging | None]:
        """The staging directory, beside other minijobs; None when it is gone, since the dataset is published."""
        staging = self.staging()
        if not staging.acquire(shared=True, create=False):
            yield None
            return
        try:
            with fs.one_line_errors(staging.path):
                yield staging
        finally:
            staging.release()


def run_block(context: Context, job: MiniJob, save: Callable[[Blocks, Prepared], Stage], rows: str) -> Done:
    """One stage of a block: nothing if it or its cut is finished, else what `save` makes."""
    start = time.monotonic()
    runner, cut = context.runner, context.cut(job)
    where = {"stage": job.stage, "block": job.block, "blocks": job.blocks, **runner.where(cut)}

    def done(blocks: Blocks, n: int, *, restored: bool) -> Done:
        if restored:
            context.report("minijob.restored", **where)
        return Done(n, restored, blocks.artefact(job.stage, job.block), round(time.monotonic() - start, 3))

    blocks = runner.blocks(cut, context.staging())
    runner.checkpoint()
    with context.sharing() as staging:
        if staging is None:
            return done(blocks, 0, restored=True)
        blocks = runner.blocks(cut, staging)
        if stage := blocks.restore(job.stage, job.block):
            return done(blocks, stage.result[rows], restored=True)
        if runner.finished(cut, staging):
            return done(blocks, 0, restored=True)
        try:
            with fs.one_line_errors(staging.path):
                stage = save(blocks, runner.prepared(cut))
        except StorageError:
            if staging.present() and not runner.finished(cut, staging):
                raise
            return done(blocks, 0, restored=True)  # another process has finished the cut meanwhile, and tidied up
        return done(blocks, stage.result[rows], restored=False)
