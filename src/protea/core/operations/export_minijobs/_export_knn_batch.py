"""`export_knn_batch`: the neighbours of a block of a cut's queries. Run by a worker; calls the cut's blocks."""

from ._context import Context, Done, MiniJob, run_block


def export_knn_batch(context: Context, job: MiniJob) -> Done:
    """Find the neighbours of the block and keep them in staging."""
    return run_block(context, job, lambda blocks, p: blocks.save_neighbours(p, job.block), "queries")
