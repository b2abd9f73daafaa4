"""What happens to a queued job and its minijobs: submitted, claimed, done, failed, cancelled, retried.

Every change is one transaction that locks the job first, so that counts (which minijobs are ready, whether all are
done) see one another's changes; what a repeated delivery finds done stays done. A lease is a minijob and its fencing
token: whoever holds an older token may not change anything any more, and the job's log says so.
Called by the worker, its children and the command line; calls the catalogue and `queue`.
"""

import contextlib
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import and_, case, exists, func, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, aliased

from protea.catalog import Catalog, Job, Minijob
from protea.catalog.jobs import append, lock
from protea.errors import BusyError, ConflictError
from protea.jobs import queue

ATTEMPTS = 3
"""A minijob that failed so often fails its job."""
LOSSES = 30
"""A minijob whose worker or child was killed so often fails its job: being killed is nobody's fault, up to a point."""
LEFT = "2 seconds"
"""A write that is queued for so long is not done by the process that did the rest of its cut."""
OPEN = ("waiting", "queued", "running")


@dataclass(frozen=True)
class Lease:
    """The right to do a minijob, good as long as its token is the newest."""

    minijob: int
    job: uuid.UUID
    token: int
    stage: str
    cut: str
    block: int
    attempt: int
    spec: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return name(self.stage, self.cut, self.block)


def name(stage: str, cut: str, block: int) -> str:
    """How messages call a minijob: `coordinator`, `v1-v2/knn/3`, `v1-v2/write`, `dataset/write`."""
    if stage == "coordinator":
        return stage
    return f"{cut or 'dataset'}/{stage}" + (f"/{block}" if stage != "write" else "")


def submit(catalog: Catalog, config: dict[str, Any], options: dict[str, Any]) -> Job:
    """A new job, queued, and the delivery of its coordinator."""
    with catalog.session() as session:
        job = Job(id=uuid.uuid4(), operation=queue.JOB, state="queued", config=config, options=options, progress={},
                  attempt=0, fencing_token=0)  # fmt: skip
        session.add(job)
        session.flush()
        append(session, job.id, "job.submitted", {"name": config.get("name")})
        _coordinator(session, job.id)
        session.refresh(job)
        return job


def _coordinator(session: Session, job: uuid.UUID) -> None:
    row = _new(job, "coordinator", "", 0, {}, "queued")
    session.add(row)
    session.flush()
    queue.defer(session, row)


def _new(job: uuid.UUID, stage: str, cut: str, block: int, spec: dict[str, Any], state: str) -> Minijob:
    return Minijob(job_id=job, stage=stage, cut=cut, block=block, spec=spec, state=state, attempt=0, failures=0,
                   losses=0, fencing_token=0, progress={})  # fmt: skip


def claim(catalog: Catalog, minijob: int, owner: str, worker: int, child: str, *, delivery: int | None = None,
          stages: Iterable[str] = tuple(queue.QUEUES), before: Lease | None = None) -> Lease | None:  # fmt: skip
    """Start a minijob for a delivery; None when there is nothing to do (done, taken, cancelled: a repeated delivery).

    A delivery of a coordinator, or of one that was tried before, brings just that one. Any other stands for all of its job
    and of these `stages` that wait for their first try: best is a write that was left; then one of the cut that `before`,
    the last of this process, was about, for its inputs are in memory; then one of a cut that nobody has begun.
    """
    with catalog.session() as session:
        found = session.get(Minijob, minijob)
        if found is None:
            return None
        job = lock(session, found.job_id)
        row: Minijob | None = session.get_one(Minijob, minijob, with_for_update=True, populate_existing=True)
        assert row is not None
        if job.state not in ("queued", "running"):
            return None
        if row.stage == "coordinator":
            row = row if row.state == "queued" else None
        elif row.state != "queued" or row.attempt == 0 or row.delivery != (delivery or row.delivery):
            row = _best(session, job.id, stages, before.cut if before and before.job == job.id else None)
        if delivery is not None and (row is None or row.delivery != delivery):
            _pass_on(session, job.id, delivery, row)
        if row is None:
            return None
        now = session.scalar(select(func.now()))
        if job.state == "queued":
            job.state, job.started_at = "running", now
            job.attempt, job.fencing_token = job.attempt + 1, job.fencing_token + 1
            job.finished_at = job.error_code = job.error_message = None
        row.state, row.owner, row.worker_id, row.child = "running", owner, worker, child
        row.attempt, row.fencing_token, row.progress = row.attempt + 1, row.fencing_token + 1, {}
        row.started_at = row.heartbeat_at = job.heartbeat_at = now
        row.finished_at = None
        lease = Lease(row.id, job.id, row.fencing_token, row.stage, row.cut, row.block, row.attempt, row.spec,
                      job.config, job.options)  # fmt: skip
        append(session, job.id, "minijob.started", _what(lease, owner=owner, attempt=row.attempt))
        return lease


def _best(session: Session, job: uuid.UUID, stages: Iterable[str], before: str | None) -> Minijob | None:
    """The queued minijob of the job and these stages, never tried, that a process which did the cut `before` had best do."""
    of_job = (Minijob.job_id == job, Minijob.stage != "coordinator")
    fresh = and_(Minijob.state == "queued", Minijob.attempt == 0, Minijob.stage.in_(list(stages)))
    running, to_begin = (func.count().filter(which) for which in (Minijob.state == "running", fresh))
    begun = func.count().filter(or_(Minijob.attempt > 0, Minijob.state == "done"))
    left = func.count().filter(
        fresh, Minijob.stage == "write", Minijob.heartbeat_at < func.now() - text(f"interval '{LEFT}'")
    )
    query = select(Minijob.cut, left, begun, running, to_begin).where(*of_job).group_by(Minijob.cut)
    found = [row for row in session.execute(query.order_by(func.min(Minijob.id))) if row[4]]
    if not found:
        return None

    def order(row: Any) -> tuple[bool, bool, bool, float]:  # at last the cut with most to do for each process
        cut, left, begun, running, to_begin = row
        return not left, cut != before, begun > 0, -to_begin / (running + 1) if begun else 0

    stage = case({"write": 0, "features": 1}, value=Minijob.stage, else_=2)  # what is begun is finished first
    best = select(Minijob).where(*of_job, fresh, Minijob.cut == min(found, key=order)[0])
    return session.scalar(best.order_by(stage, Minijob.block).limit(1).with_for_update())


def _pass_on(session: Session, job: uuid.UUID, delivery: int, row: Minijob | None) -> None:
    """What a delivery was for is left to the delivery of what is done instead; to a new one when nothing is."""
    mine = select(Minijob).where(Minijob.job_id == job, Minijob.delivery == delivery, Minijob.state == "queued")
    other = session.scalar(mine.with_for_update())
    if row is None:
        if other is not None:
            queue.defer(session, other)
        return
    if other is not None and row.delivery is not None:
        other.delivery = row.delivery
        queue.readdress(session, other)
    row.delivery = delivery


def _what(lease: Lease, **more: Any) -> dict[str, Any]:
    return {"minijob": lease.name, **more}


def _held(session: Session, lease: Lease, doing: str) -> tuple[Job, Minijob] | None:
    """The rows, locked, if the lease is still good; else an event says that `doing` was refused."""
    job = lock(session, lease.job)
    row = session.get(Minijob, lease.minijob, with_for_update=True)
    if row is not None and row.fencing_token == lease.token and row.state == "running" and job.state == "running":
        return job, row
    if row is not None and (row.state == "cancelled" or (row.state == "done" and row.fencing_token == lease.token)):
        return None  # the job was ended by someone; or our own commit, whose answer was lost with the connection
    if job.state != "cancelled":
        append(session, job.id, "commit.refused", _what(lease, doing=doing, token=lease.token,
               newest=row.fencing_token if row else None))  # fmt: skip
    return None


def refuse(catalog: Catalog, lease: Lease, doing: str) -> None:
    """Log that a holder of an old token was kept from `doing`; nothing when the lease is good or the job cancelled."""
    with catalog.session() as session:
        _held(session, lease, doing)


def check(session: Session, lease: Lease) -> None:
    """Lock the lease's rows in the caller's transaction. BusyError when it is not good any more."""
    job = lock(session, lease.job)
    row = session.get(Minijob, lease.minijob, with_for_update=True)
    if row is None or row.fencing_token != lease.token or row.state != "running" or job.state != "running":
        raise BusyError(f"{lease.name} of job {lease.job} was taken over, or the job was ended")


def event(catalog: Catalog, lease: Lease, kind: str, what: dict[str, Any]) -> None:
    """An event of the export, into the job's log."""
    with catalog.session() as session:
        if _held(session, lease, kind):
            append(session, lease.job, kind, what)


def planned(catalog: Catalog, lease: Lease, specs: Iterable[dict[str, Any]]) -> bool:
    """Record minijobs that the coordinator found (whole cuts), and queue those that wait for nothing."""
    with catalog.session() as session:
        if not _held(session, lease, "planning"):
            return False
        new = [
            {"job_id": lease.job, "stage": spec["stage"], "cut": spec["cut"] or "", "block": spec["block"], "spec": spec,
             "state": "waiting", "attempt": 0, "failures": 0, "losses": 0, "fencing_token": 0, "progress": {}}
            for spec in specs
        ]  # fmt: skip
        if new:
            session.execute(insert(Minijob).values(new).on_conflict_do_nothing())
        cuts = {row["cut"] for row in new}
        for cut in sorted(cuts):
            _release(session, lease.job, cut)
        return True


def done(catalog: Catalog, lease: Lease, **what: Any) -> bool:
    """Commit a minijob: `rows`, `artefact`, `restored`, `seconds`; queue what waited for it; end the job with its last.

    False, and an event, when the lease is not good any more. `last` says that this was the whole job.
    """
    last = what.pop("last", False)
    with catalog.session() as session:
        held = _held(session, lease, "commit")
        if held is None:
            return False
        job, row = held
        row.state, row.finished_at, row.heartbeat_at = "done", *_now(session, 2)
        row.rows, row.artefact = what.get("rows"), what.get("artefact")
        append(session, job.id, "minijob.done", _what(lease, **what))
        session.flush()
        if last or (lease.stage == "write" and not lease.cut):
            job.state, job.finished_at, job.error_code, job.error_message = "succeeded", *_now(session, 1), None, None
            _close(session, job.id)
        else:
            _release(session, job.id, lease.cut)
        _progress(session, job)
        return True


def _now(session: Session, times: int) -> list[Any]:
    return [session.scalar(select(func.now()))] * times


def _release(session: Session, job: uuid.UUID, cut: str) -> None:
    """Queue the waiting minijobs of a cut, and the dataset's write, for which everything is done."""
    before = aliased(Minijob)
    waiting = select(Minijob).where(Minijob.job_id == job, Minijob.state == "waiting").order_by(Minijob.id)
    same = and_(before.job_id == Minijob.job_id, before.state != "done")
    ready = [
        waiting.where(Minijob.cut == cut, Minijob.stage == "knn"),
        waiting.where(
            Minijob.cut == cut,
            Minijob.stage == "features",
            ~exists().where(same, before.cut == cut, before.stage == "knn", before.block == Minijob.block),
        ),
        waiting.where(
            Minijob.cut == cut,
            Minijob.cut != "",
            Minijob.stage == "write",
            ~exists().where(same, before.cut == cut, before.stage == "features"),
        ),
        waiting.where(Minijob.cut == "", Minijob.stage == "write", ~exists().where(same, before.id != Minijob.id)),
    ]
    for query in ready:
        for row in session.scalars(query):
            row.state = "queued"
            queue.defer(session, row)
    session.flush()


def _progress(session: Session, job: Job) -> None:
    """The job's progress: minijobs by state."""
    counts = session.execute(
        select(Minijob.state, func.count()).where(Minijob.job_id == job.id).group_by(Minijob.state)
    )
    job.progress = {**job.progress, "minijobs": dict(sorted((state, n) for state, n in counts))}


def failed(catalog: Catalog, lease: Lease, code: str, message: str, *, retry: float, permanent: bool = False,
           lost: bool = False, **what: Any) -> bool:  # fmt: skip
    """A minijob did not make it: again, `retry` seconds from now and five times that later, or the job fails.

    `lost`: it was killed, which is counted apart and tried again at once. `permanent`: trying again is of no use.
    """
    message = "; ".join(line.strip() for line in message.splitlines() if line.strip()) or code
    with catalog.session() as session:
        held = _held(session, lease, "failure")
        if held is None:
            return False
        job, row = held
        append(session, job.id, "minijob.failed", _what(lease, code=code, error=message, attempt=row.attempt, **what))
        again(session, job, row, code, message, retry=retry, permanent=permanent, lost=lost)
        return True


def again(session: Session, job: Job, row: Minijob, code: str, message: str, *, retry: float, permanent: bool = False,
          lost: bool = False) -> None:  # fmt: skip
    """Queue a minijob that failed or was lost once more; fail the job when that was too often. The rows are locked."""
    if lost:
        row.losses += 1
    else:
        row.failures += 1
        if row.error is None:
            row.error, row.error_code = message, code
    row.fencing_token, row.child = row.fencing_token + 1, None
    which = name(row.stage, row.cut, row.block)
    if not permanent and row.failures < ATTEMPTS and row.losses < LOSSES:
        seconds = 0.0 if lost else retry * 5 ** (row.failures - 1)
        row.state = "queued"
        queue.defer(session, row, seconds)
        append(session, job.id, "minijob.retried", {"minijob": which, "attempt": row.attempt + 1, "after": seconds})
        return
    row.state, row.finished_at = "failed", *_now(session, 1)
    first, code = row.error or message, row.error_code or code
    tries = "" if permanent else f", in {row.attempt} attempts"
    job.state, job.finished_at, job.error_code = "failed", *_now(session, 1), code
    job.error_message = f"{which}{tries}: {first} (put that right, then `protea job retry {job.id}` goes on from there)"
    session.flush()
    _close(session, job.id)
    _progress(session, job)
    append(session, job.id, "job.failed", {"minijob": which, "code": code, "error": first})


def put_back(catalog: Catalog, lease: Lease, reason: str, seconds: float = 0) -> bool:
    """Queue a minijob again without counting the attempt: its worker stops, or something is busy."""
    with catalog.session() as session:
        held = _held(session, lease, "giving it back")
        if held is None:
            return False
        _, row = held
        row.state, row.attempt, row.fencing_token, row.child = "queued", row.attempt - 1, row.fencing_token + 1, None
        queue.defer(session, row, seconds)
        append(session, lease.job, "minijob.returned", _what(lease, reason=reason))
        return True


def _close(session: Session, job: uuid.UUID) -> None:
    """Cancel what is left of an ended job; running minijobs lose their lease, so that their workers stop them."""
    session.flush()
    rows = list(
        session.scalars(select(Minijob).where(Minijob.job_id == job, Minijob.state.in_(OPEN)).with_for_update())
    )
    for row in rows:
        row.state, row.fencing_token = "cancelled", row.fencing_token + 1
        row.finished_at = func.now()
    queue.withdraw(session, [row.delivery for row in rows if row.delivery is not None])
    session.flush()


def cancel(catalog: Catalog, job_id: uuid.UUID) -> Job:
    """End a queued or running job. ConflictError when it is over, or runs in place."""
    with catalog.session() as session:
        job = lock(session, job_id)
        if job.state not in ("queued", "running"):
            raise ConflictError(f"job {job_id} is {job.state}; there is nothing to cancel")
        if not session.scalar(select(exists().where(Minijob.job_id == job_id))):
            raise ConflictError(
                f"job {job_id} is an export that {job.owner or 'a command'} runs in place", hint="stop it there, Ctrl-C"
            )
        job.state, job.finished_at = "cancelled", *_now(session, 1)
        _close(session, job_id)
        _progress(session, job)
        append(session, job_id, "job.cancelled")
        return job


def retry(catalog: Catalog, job_id: uuid.UUID) -> Job:
    """Queue a failed or cancelled job again; what its minijobs finished is kept. ConflictError for any other."""
    with catalog.session() as session:
        job = lock(session, job_id)
        if job.state not in ("failed", "cancelled"):
            raise ConflictError(f"job {job_id} is {job.state}; only a failed or cancelled one can be retried")
        job.state = "queued"
        job.finished_at = job.started_at = job.error_code = job.error_message = None
        fresh: dict[str, Any] = {"failures": 0, "losses": 0, "error": None, "error_code": None, "finished_at": None}
        mine = update(Minijob).where(Minijob.job_id == job_id)
        session.execute(mine.where(Minijob.state != "done").values(state="waiting", **fresh))
        first = session.scalar(select(Minijob).where(Minijob.job_id == job_id, Minijob.stage == "coordinator"))
        append(session, job_id, "job.retried")
        if first is None:
            _coordinator(session, job_id)
        else:  # it runs again even if it was done: the options of the worker may be others now
            first.state = "queued"
            queue.defer(session, first)
        return job


def pending(catalog: Catalog, stages: Iterable[str]) -> bool:
    """Whether a job that is not over has minijobs of these stages to come."""
    query = select(exists().where(Minijob.state.in_(OPEN), Minijob.stage.in_(list(stages)), Minijob.job_id == Job.id,
                                  Job.state.in_(("queued", "running"))))  # fmt: skip
    with catalog.session() as session:
        return bool(session.scalar(query))


def board(catalog: Catalog, job_id: uuid.UUID) -> list[dict[str, Any]]:
    """A line a cut, in order: its label and, for each stage, minijobs by state; the coordinator and the dataset too."""
    with catalog.session() as session:
        rows = list(session.scalars(select(Minijob).where(Minijob.job_id == job_id).order_by(Minijob.id)))
    lines: dict[str, dict[str, Any]] = {}
    for row in rows:
        key = row.cut or ("dataset" if row.stage == "write" else row.stage)
        line = lines.setdefault(key, {"cut": key, "label": row.spec.get("label", ""), "stages": {}, "rows": None,
                                      "workers": []})  # fmt: skip
        counts = line["stages"].setdefault(row.stage, {})
        counts[row.state] = counts.get(row.state, 0) + 1
        if row.stage == "write":
            line["rows"] = row.rows
        if row.state == "running" and row.owner:
            with contextlib.suppress(ValueError):
                line["workers"].remove(row.owner)
            line["workers"].append(row.owner)
    return list(lines.values())
