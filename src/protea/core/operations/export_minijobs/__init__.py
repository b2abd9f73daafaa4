"""One export in minijobs: what may run in many processes at once, and in the end gives the bytes of the serial path.

Pure functions without queue or database: `protea.jobs` decides who runs which minijob when, the core does the work. Every
function is a no-op when its verified result is there, and does by itself what it finds missing or damaged of an earlier
stage. So the order of the minijobs, repeated ones, lost ones, and a serial run in between change the time it takes only.
"""

from ._context import Context, Done, MiniJob
from ._export_features_batch import export_features_batch
from ._export_knn_batch import export_knn_batch
from ._export_write import export_write
from .export_coordinator import partition, validate

__all__ = [
    "Context",
    "Done",
    "MiniJob",
    "export_features_batch",
    "export_knn_batch",
    "export_write",
    "partition",
    "run",
    "validate",
]


def run(context: Context, job: MiniJob) -> Done:
    """Run a minijob, whichever it is. Errors: BusyError while a serial run of this export goes on, StorageError,
    CancelledError, and what the context's `commit_guard` and `registry` raise."""
    stages = {"knn": export_knn_batch, "features": export_features_batch, "write": export_write}
    return stages[job.stage](context, job)
