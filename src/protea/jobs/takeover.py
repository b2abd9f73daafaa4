"""Heartbeats, and what becomes of the minijobs of a worker that is not heard of any more.

Called by the worker every few seconds; calls `rows`. Times are the database's. A worker that was only paused finds its
tokens outdated when it goes on.
"""

import contextlib
import os
import signal
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import and_, delete, false, func, or_, select, text, true, tuple_, update

from protea.catalog import Catalog, Job, Minijob, Worker
from protea.catalog.jobs import append, lock
from protea.jobs import queue, rows
from protea.jobs.rows import Lease


def register(catalog: Catalog, queues: Iterable[str], processes: int) -> int:
    """A row for this process; its id."""
    with catalog.session() as session:
        row = Worker(host=socket.gethostname(), machine=machine(), pid=os.getpid(), born=psutil.Process().create_time(),
                     queues=",".join(queues), processes=processes, doing={})  # fmt: skip
        session.add(row)
        session.flush()
        return row.id


def leave(catalog: Catalog, worker: int) -> None:
    with catalog.session() as session:
        session.execute(delete(Worker).where(Worker.id == worker))


def processes_here(catalog: Catalog) -> int:
    """How many processes the workers of this machine have, as far as they are not known to be dead."""
    with catalog.session() as session:
        workers = list(session.scalars(select(Worker).where(Worker.machine == machine())))
    return sum(w.processes for w in workers if not _gone(w))


def beat(catalog: Catalog, worker: int, leases: Mapping[int, Lease], progress: Mapping[int, dict[str, Any]],
         doing: dict[str, Any]) -> tuple[bool, set[int]]:  # fmt: skip
    """Say that this worker lives; whether its row is still there, and which of its minijobs are still its own."""
    with catalog.session() as session:
        alive = update(Worker).where(Worker.id == worker).values(heartbeat_at=func.now(), doing=doing)
        known = session.scalar(alive.returning(Worker.id)) is not None
        held = set()
        for key, lease in sorted(leases.items()):
            mine = update(Minijob).where(
                Minijob.id == lease.minijob, Minijob.fencing_token == lease.token, Minijob.state == "running"
            )
            values: dict[str, Any] = {"heartbeat_at": func.now()} | (
                {"progress": progress[key]} if progress.get(key) else {}
            )
            if session.scalar(mine.values(values).returning(Minijob.id)) is not None:
                held.add(key)
    whole = {leases[k].job: progress[k] for k in held if leases[k].stage == "coordinator" and progress.get(k)}
    if whole:  # not in the same transaction: everybody else locks a job before its minijobs
        with catalog.session() as session:
            for job in sorted(whole):
                session.execute(update(Job).where(Job.id == job, Job.state == "running").values(progress=whole[job]))
    return known, held


def still_held(catalog: Catalog, leases: Mapping[int, Lease]) -> set[int]:
    """As `beat`, only asking."""
    wanted = {(lease.minijob, lease.token): key for key, lease in leases.items()}
    if not wanted:
        return set()
    query = select(Minijob.id, Minijob.fencing_token).where(
        tuple_(Minijob.id, Minijob.fencing_token).in_(list(wanted)), Minijob.state == "running"
    )
    with catalog.session() as session:
        return {wanted[i, token] for i, token in session.execute(query)}


def status(catalog: Catalog, seconds: float) -> list[dict[str, Any]]:
    """The workers, oldest first; `state` is alive, or lost when nothing was heard of one for so many seconds."""
    with catalog.session() as session:
        now = session.scalar(select(func.now()))
        workers = list(session.scalars(select(Worker).order_by(Worker.id)))
    assert now is not None
    names = ("id", "host", "pid", "queues", "processes", "doing", "started_at", "heartbeat_at")
    return [
        {name: getattr(w, name) for name in names}
        | {"state": "lost" if _gone(w) or (now - w.heartbeat_at).total_seconds() > seconds else "alive"}
        for w in workers
    ]


def sweep(catalog: Catalog, seconds: float) -> int:
    """Queue again the minijobs of workers that died, and those whose delivery was lost; how many.

    Nobody is late before the server itself has been up for so long: while it was away nobody could be heard of.
    """
    late = func.now() - text(f"interval '{float(seconds)} seconds'")
    with catalog.session() as session:
        workers = list(session.scalars(select(Worker)))
        up = true() if session.scalar(select(func.pg_postmaster_start_time() < late)) else false()
        quiet = set(session.scalars(select(Worker.id).where(up, Worker.heartbeat_at < late)))
        dead = {w.id for w in workers if w.id in quiet or _gone(w)}
        here = {w.id for w in workers if w.machine == machine()}
        stale = select(Minijob.id, Minijob.job_id, Minijob.fencing_token).where(
            Minijob.state == "running", or_(and_(up, Minijob.heartbeat_at < late), Minijob.worker_id.in_(dead))
        )
        found = list(session.execute(stale))
        lost = select(Minijob.id, Minijob.job_id, Minijob.fencing_token).where(
            up,
            Minijob.state == "queued",
            Minijob.heartbeat_at < late,
            text("NOT EXISTS (SELECT FROM procrastinate_jobs p WHERE p.id = minijob.delivery AND p.status = 'todo')"),
        )
        undelivered = list(session.execute(lost))
    for minijob, job, token in found:
        _take(catalog, minijob, job, token, here, running=True)
    for minijob, job, token in undelivered:
        _take(catalog, minijob, job, token, here, running=False)
    if dead:
        with catalog.session() as session:
            session.execute(delete(Worker).where(Worker.id.in_(dead)))
            session.execute(text("DELETE FROM procrastinate_jobs WHERE status = 'doing' AND worker_id IS NULL"))
    return len(found) + len(undelivered)


def _take(catalog: Catalog, minijob: int, job_id: Any, token: int, here: set[int], running: bool) -> None:
    with catalog.session() as session:
        job = lock(session, job_id)
        row = session.get(Minijob, minijob, with_for_update=True)
        if row is None or row.fencing_token != token or row.state != ("running" if running else "queued"):
            return  # another worker was faster, or its own is back
        if job.state not in ("queued", "running"):
            row.state = "cancelled"
            return
        if not running:
            queue.defer(session, row)
            return
        owner, child, local = row.owner, row.child, row.worker_id in here
        which = rows.name(row.stage, row.cut, row.block)
        append(session, job_id, "worker.lost", {"owner": owner, "minijob": which, "attempt": row.attempt})
        rows.again(session, job, row, "lost", f"its worker {owner} was lost", retry=0, lost=True)
    if local and child:
        _kill(child)


def machine() -> str:
    """What two processes must share for one to see the other by its pid."""
    with contextlib.suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}:{os.stat('/proc/self/ns/pid').st_ino}"
    return socket.gethostname()


def _kill(child: str) -> None:
    """End the process that still works for a worker of this machine that is gone or stopped."""
    pid, _, born = child.partition(":")
    with contextlib.suppress(psutil.Error, ValueError, ProcessLookupError, PermissionError):
        if f"{psutil.Process(int(pid)).create_time():.2f}" == born:
            os.kill(int(pid), signal.SIGKILL)


def _gone(worker: Worker) -> bool:
    """Whether a worker of this machine is certainly dead."""
    if worker.machine != machine():
        return False
    try:
        process = psutil.Process(worker.pid)
        return abs(process.create_time() - worker.born) > 1 or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False
