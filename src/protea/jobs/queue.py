"""Procrastinate: the names of the operations and queues, and deferring in the transaction that records a minijob.

Called by `rows` (to defer) and by the worker (to be given deliveries); calls Procrastinate.
"""

from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import URL, bindparam, func, select, text
from sqlalchemy.orm import Session

from protea.catalog import Minijob

if TYPE_CHECKING:
    import procrastinate

QUEUES = {
    "coordinator": "protea.training",
    "knn": "protea.training.knn-batch",
    "features": "protea.training.features",
    "write": "protea.training.write",
}
"""Stage -> its queue."""
OPERATIONS = {
    "coordinator": "export_coordinator",
    "knn": "export_knn_batch",
    "features": "export_features_batch",
    "write": "export_write",
}
"""Stage -> its operation. `export_research_dataset`, the operation of the whole job, is another name of the first."""
JOB = "export_research_dataset"
FIRST = 1_000_000
"""The priority of coordinators and writes: they are short, or end something."""


class Slot(Protocol):
    """Where a delivery is worked on."""

    async def work(self, minijob: int, delivery: int) -> None: ...


def app(connector: Any) -> "procrastinate.App":
    """Procrastinate with our tasks. A delivery goes to the `slot` of the worker's context."""
    import procrastinate

    made = procrastinate.App(connector=connector)

    async def deliver(context: Any, minijob: int) -> None:
        await context.additional_context["slot"].work(minijob, context.job.id)

    for stage, name in OPERATIONS.items():
        aliases = [JOB] if stage == "coordinator" else []
        made.task(name=name, queue=QUEUES[stage], pass_context=True, aliases=aliases)(deliver)
    return made


_sender: Any = None


def defer(session: Session, minijob: Minijob, seconds: float = 0) -> None:
    """Have the minijob delivered, `seconds` from now, if the transaction of the session commits."""
    global _sender
    import datetime as dt

    if _sender is None:
        from procrastinate import SyncPsycopgConnector

        _sender = app(SyncPsycopgConnector())
    now = session.scalar(select(func.now()))  # the database's clock, not ours
    options: dict[str, Any] = {
        "queue": QUEUES[minijob.stage],
        "priority": _priority(minijob),
        "connection": session.connection().connection.driver_connection,
    }
    if seconds and now is not None:
        options["schedule_at"] = now + dt.timedelta(seconds=seconds)
    minijob.delivery = _sender.configure_task(OPERATIONS[minijob.stage], **options).defer(minijob=minijob.id)
    minijob.heartbeat_at = now  # since when it is queued


def _priority(minijob: Minijob) -> int:
    """Cuts of different jobs take turns."""
    return -int(minijob.spec["number"]) if minijob.stage in ("knn", "features") else FIRST


def readdress(session: Session, minijob: Minijob) -> None:
    """Make the minijob's delivery, which was another one's, its own; nothing when it has been fetched already."""
    session.flush()
    query = text(
        "UPDATE procrastinate_jobs SET queue_name = :queue, task_name = :task, priority = :priority,"
        " args = jsonb_build_object('minijob', CAST(:minijob AS bigint)) WHERE id = :id AND status = 'todo'"
    )
    session.execute(query, {"queue": QUEUES[minijob.stage], "task": OPERATIONS[minijob.stage], "id": minijob.delivery,
                            "priority": _priority(minijob), "minijob": minijob.id})  # fmt: skip


def withdraw(session: Session, deliveries: list[int]) -> None:
    """Take back deliveries that were not fetched yet."""
    if deliveries:
        query = text("DELETE FROM procrastinate_jobs WHERE status = 'todo' AND id IN :ids")
        session.execute(query.bindparams(bindparam("ids", expanding=True)), {"ids": deliveries})


def conninfo(url: URL) -> str:
    """The URL of the catalogue for libpq."""
    return url.set(drivername="postgresql").render_as_string(hide_password=False)
