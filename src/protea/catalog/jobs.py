"""Jobs and their events in the catalogue: the states a job goes through, its lease, its log.

Called through `Catalog.jobs`; calls the models. Every change locks the job's row, so that concurrent callers
see one another's and the numbers of the events have no gap.
"""

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from protea.catalog.models import Job, JobEvent
from protea.errors import BusyError, ConflictError, NotFoundError

TRANSITIONS: dict[str, frozenset[str]] = {
    "queued": frozenset({"running", "cancelled"}),
    "running": frozenset({"succeeded", "failed", "cancelled", "queued"}),
    "failed": frozenset({"queued"}),
    "cancelled": frozenset({"queued"}),
    "succeeded": frozenset(),
}
"""Where a job may go from each state; back to `queued` when a worker is lost or someone retries."""


class Jobs:
    """The jobs of one catalogue."""

    def __init__(self, session: Callable[[], AbstractContextManager[Session]]) -> None:
        self._session = session

    def create(self, operation: str, config: dict[str, Any], options: dict[str, Any] | None = None) -> Job:
        """A new job, queued."""
        job = Job(
            id=uuid.uuid4(),
            operation=operation,
            state="queued",
            config=config,
            options=options or {},
            progress={},
            attempt=0,
            fencing_token=0,
        )
        with self._session() as session:
            session.add(job)
            session.flush()
            session.refresh(job)
        return job

    def get(self, job_id: uuid.UUID) -> Job:
        with self._session() as session:
            return _get(session, job_id)

    def recent(self, *, state: str | None = None, limit: int = 100) -> list[Job]:
        """The newest jobs first."""
        query = select(Job).order_by(Job.created_at.desc(), Job.id).limit(limit)
        if state is not None:
            query = query.where(Job.state == state)
        with self._session() as session:
            return list(session.scalars(query))

    def start(self, job_id: uuid.UUID, owner: str) -> Job:
        """Take a queued job: running, one attempt more, a new fencing token. ConflictError if it is not queued."""
        with self._session() as session:
            job = _move(session, job_id, "running")
            job.owner, job.attempt, job.fencing_token = owner, job.attempt + 1, job.fencing_token + 1
            job.started_at = job.heartbeat_at = session.scalar(select(func.now()))
            job.finished_at = job.error_code = job.error_message = None
            return job

    def finish(
        self,
        job_id: uuid.UUID,
        state: str,
        *,
        token: int | None = None,
        error_code: str | None = None,
        error_message: str | None = None,
    ) -> Job:
        """Move a job to succeeded, failed, cancelled, or back to queued. BusyError when `token` is stale."""
        with self._session() as session:
            job = _move(session, job_id, state, token)
            job.error_code, job.error_message, job.owner = error_code, error_message, None
            job.finished_at = None if state == "queued" else session.scalar(select(func.now()))
            return job

    def heartbeat(self, job_id: uuid.UUID, token: int, progress: dict[str, Any] | None = None) -> bool:
        """Say that the holder of `token` lives, and how far it is; False when the job is no longer its."""
        values: dict[str, Any] = {"heartbeat_at": func.now()} | ({} if progress is None else {"progress": progress})
        query = update(Job).where(Job.id == job_id, Job.fencing_token == token, Job.state == "running").values(values)
        with self._session() as session:
            return session.scalar(query.returning(Job.id)) is not None

    def append(self, job_id: uuid.UUID, kind: str, payload: dict[str, Any] | None = None) -> int:
        """Add an event to the job's log; gives its number, counted from 1 in each job."""
        with self._session() as session:
            lock(session, job_id)
            return append(session, job_id, kind, payload)

    def events(self, job_id: uuid.UUID, *, after: int = 0) -> list[JobEvent]:
        """The events numbered above `after`, in order."""
        query = select(JobEvent).where(JobEvent.job_id == job_id, JobEvent.seq > after).order_by(JobEvent.seq)
        with self._session() as session:
            return [*session.scalars(query)]


def append(session: Session, job_id: uuid.UUID, kind: str, payload: dict[str, Any] | None = None) -> int:
    """As `Jobs.append`, in a transaction of the caller that has locked the job."""
    last = session.scalar(select(func.max(JobEvent.seq)).where(JobEvent.job_id == job_id)) or 0
    session.add(JobEvent(job_id=job_id, seq=last + 1, kind=kind, payload=payload or {}))
    session.flush()
    return last + 1


def lock(session: Session, job_id: uuid.UUID) -> Job:
    """The job, locked until the end of the transaction. NotFoundError."""
    return _get(session, job_id, lock=True)


def _get(session: Session, job_id: uuid.UUID, *, lock: bool = False) -> Job:
    job = session.get(Job, job_id, with_for_update=lock or None)
    if job is None:
        raise NotFoundError(f"no job {job_id}", hint="`protea job list` shows them")
    return job


def _move(session: Session, job_id: uuid.UUID, state: str, token: int | None = None) -> Job:
    job = _get(session, job_id, lock=True)
    if token is not None and token != job.fencing_token:
        raise BusyError(f"job {job_id} was taken over by {job.owner or 'another worker'}")
    if state not in TRANSITIONS[job.state]:
        raise ConflictError(f"job {job_id} is {job.state}; it cannot become {state}")
    job.state = state
    return job
