"""`export_features_batch`: the labelled rows of a block of a cut's queries. Run by a worker; calls the cut's blocks."""

from ...blocks import Blocks
from ...cut import Prepared
from ...staging import Stage
from ._context import Context, Done, MiniJob, run_block


def export_features_batch(context: Context, job: MiniJob) -> Done:
    """Compute the rows of the block from its neighbours, and keep them in staging with what was counted of them."""

    def save(blocks: Blocks, p: Prepared) -> Stage:
        where = context.runner.where(p.cut)

        def progress(queries: int, rows: int) -> None:
            context.report("minijob.progress", stage=job.stage, block=job.block, done=queries,
                           queries=job.last - job.first, rows=rows, **where)  # fmt: skip

        return blocks.save_rows(p, job.block, progress)

    return run_block(context, job, save, "rows")
