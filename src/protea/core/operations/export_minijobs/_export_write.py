"""`export_write`: the shards of a cut from its blocks, and the dataset from the cuts.

Run by a worker: once a cut, and a last time for the dataset, which is the serial path itself: it restores the cuts, joins
them with `_stream_assemble`, publishes, and inserts the `Dataset` row.
"""

import time

from ....errors import StorageError
from ...runner import rows_of
from ..export_research_dataset import export_research_dataset, read_manifest
from ._context import Context, Done, MiniJob
from .export_coordinator import registry


def export_write(context: Context, job: MiniJob) -> Done:
    """Finish a cut, or the dataset when the job names no cut."""
    return _cut(context, job) if job.cut else _dataset(context)


def _cut(context: Context, job: MiniJob) -> Done:
    start = time.monotonic()
    runner, cut = context.runner, context.cut(job)
    artefact, rows, restored = runner.artefact(cut), 0, True
    with context.sharing() as staging:
        if staging is not None:
            try:
                stage = runner.finish(cut, staging)
                rows, restored = rows_of(stage), "restored" in runner.timing[cut.pair]
            except StorageError:
                if staging.present() and not runner.finished(cut, staging):
                    raise  # else another process has finished the cut meanwhile, and tidied up
    return Done(rows, restored, artefact, round(time.monotonic() - start, 3))


def _dataset(context: Context) -> Done:
    start = time.monotonic()
    heard: set[str] = set()

    def report(kind: str, **what: object) -> None:
        heard.add(kind)
        context.report(kind, **what)

    context.runner.forget()
    path = export_research_dataset(
        context.config,
        context.inputs,
        registry(context),
        resume_dir=context.resume_dir,
        datasets_dir=context.datasets_dir,
        report=report,
        replace=context.replace,
        threads=context.threads,
        queries_per_block=context.queries_per_block,
        alignments=context.alignments,
        cancelled=context.cancelled,
        commit_guard=context.commit_guard,
        shared=True,
        bucket=context.bucket,
    )
    found = read_manifest(path, context.bucket.remote if context.bucket else None) or {}
    rows = found.get("n_train_rows", 0) + found.get("n_eval_rows", 0)
    restored = "export.started" not in heard
    return Done(rows, restored, context.mark, round(time.monotonic() - start, 3), str(path))
