"""`export_coordinator`: checks an export before anything is computed, and cuts it into minijobs.

Run by the engine in the job's own process; calls the cut runner, and the dataset's place to see whether its name is free.
"""

from collections.abc import Iterator
from pathlib import Path

from ....errors import ConflictError, DiskError, StorageError
from ... import fs, room
from ..export_research_dataset import Registry, open_place
from ._context import Context, MiniJob


def registry(context: Context) -> Registry:
    if context.registry is None:
        raise ValueError("validate and the last write need the registry of datasets")
    return context.registry


def validate(context: Context) -> Path | str | None:
    """Make sure that the export can begin: its name is free, its inputs can be read, there is room for its files.

    The dataset's directory when this very dataset is published already. Errors: ConflictError, DiskError, StorageError,
    BusyError while a serial run of this export is going on.
    """
    config, inputs = context.config, context.inputs
    for version, source in inputs.sets.items():
        if not source.path.is_dir():
            raise StorageError(
                f"the files of annotation set {version} are gone from {source.path}", hint="load it again"
            )
    context.runner.shared  # noqa: B018 - opens and checks the others
    final = context.datasets_dir / config.name
    place = open_place(
        context.bucket, config.name, context.mark, final, registry(context), context.report, context.replace
    )
    staging = context.staging()
    staging.acquire(shared=True)
    try:
        with fs.one_line_errors(staging.path):
            staging.sweep()
            if place.settled():
                staging.remove()
                return place.where
            room.check(context.runner, staging, context.datasets_dir)
    except (ConflictError, DiskError):
        if staging.present() and staging.untouched():
            staging.remove()
        raise
    finally:
        staging.release()
    return None


def partition(context: Context) -> Iterator[MiniJob]:
    """The minijobs of an export, cut after cut as they are found, the dataset's write last.

    A cut's number of queries, which says how many blocks it has, is counted here and kept in staging. All knn of a cut come
    first, then its features, which need the knn of their block, then its write, which needs them all; the dataset's
    write needs the writes of all cuts. A finished cut has its write only.
    """
    runner, size = context.runner, context.runner.block_size
    staging = context.staging()
    staging.acquire(shared=True)
    try:
        for number, cut in enumerate(runner.cuts, 1):
            runner.checkpoint()
            with fs.one_line_errors(staging.path):
                queries = 0 if runner.restore(cut, staging) else runner.queries(cut, staging)
            blocks = -(-queries // size)
            for stage in ("knn", "features"):
                for block in range(blocks):
                    first, last = block * size, min(queries, (block + 1) * size)
                    yield MiniJob(stage, cut.pair, cut.label, number, block, blocks, first, last)
            yield MiniJob("write", cut.pair, cut.label, number, 0, blocks, 0, queries)
    finally:
        staging.release()
    yield MiniJob("write", None, "dataset", 0, 0, len(runner.cuts), 0, 0)
