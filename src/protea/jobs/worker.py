"""The worker process: takes deliveries of its queues, has each done by a child process, and keeps its leases alive.

One slot a child process; each slot is a worker of Procrastinate with one job at a time. A loop beside them sends the
heartbeat, notices within half a second that a minijob was cancelled or taken over, takes over those of dead workers, and
goes on when the database was away. Called by the command line; calls `rows`, `takeover`, `supervise` and Procrastinate.
"""

import asyncio
import contextlib
import datetime as dt
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from protea.catalog import Catalog, open_catalog
from protea.core.arrays import cores
from protea.errors import ConfigError, DatabaseError, ProteaError
from protea.exporting import LOGGED, tidy
from protea.jobs import queue, rows, takeover
from protea.jobs.rows import Lease
from protea.jobs.supervise import Child, Outcome
from protea.settings import Settings

TICK = 0.4
"""Seconds between two looks at the own leases: how fast a cancel is noticed."""
IDLE = 20.0
"""Seconds after which a child without work is ended: it holds memory."""
GRACE = 10.0
"""Seconds that running minijobs get to end by themselves when the worker is stopped."""
BUSY = 10.0
"""Seconds before a minijob that something stands in the way of is tried again."""
Say = Callable[[str], None]


def work(settings: Settings, queues: Iterable[str] = (), *, processes: int = 1, max_memory: int | None = None,
         until_idle: bool = False, grace: float = GRACE, say: Say = lambda text: None) -> None:  # fmt: skip
    """Work until SIGTERM or SIGINT (a second one: at once), or until nothing is left. All queues unless some are named."""
    names = list(queues) or list(queue.QUEUES.values())
    if unknown := [n for n in names if n not in queue.QUEUES.values()]:
        raise ConfigError(
            f"there is no queue {unknown[0]!r}", hint=f"the queues are {', '.join(queue.QUEUES.values())}"
        )
    logging.getLogger("procrastinate").setLevel(logging.CRITICAL)  # it logs what we handle
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    with open_catalog(settings) as catalog:
        catalog.prepare_queue()
        asyncio.run(_Worker(settings, catalog, names, processes, max_memory, grace, say).run(until_idle))


class _Worker:
    def __init__(self, settings: Settings, catalog: Catalog, queues: list[str], processes: int, max_memory: int | None,
                 grace: float, say: Say) -> None:  # fmt: skip
        self.settings, self.catalog, self.queues, self.say = settings, catalog, queues, say
        self.stages = [stage for stage, name in queue.QUEUES.items() if name in queues]
        self.max_memory, self.grace = max_memory, grace
        self.threads = max(1, cores() // processes)
        """Of each child process, unless PROTEA_THREADS says how many."""
        self.slots = [_Slot(self, i) for i in range(processes)]
        self.owner = f"{socket.gethostname()}:{os.getpid()}"
        self.id = 0
        self.stopping = asyncio.Event()
        self.hurry = asyncio.Event()
        self._beaten = self._swept = 0.0
        self._up_since: float | None = -1e9
        """When the database was first reached after it had been away; None while it is."""
        self._complaint = ""

    async def run(self, until_idle: bool) -> None:
        from procrastinate import PsycopgConnector

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self.stop)
        self.id = await self.ask(takeover.register, self.queues, len(self.slots))
        self.say(f"worker {self.owner}: {len(self.slots)} processes on {', '.join(self.queues)}")
        await self.share()
        for slot in self.slots:
            with contextlib.suppress(OSError):  # what stands in the way is said when there is something to do
                await slot.start()
        size = 2 * len(self.slots) + 2
        connector = PsycopgConnector(
            conninfo=queue.conninfo(self.catalog.url), min_size=1, max_size=size,
            kwargs={"connect_timeout": 10, "application_name": "protea-worker"},
        )  # fmt: skip
        app = queue.app(connector)
        watch = asyncio.create_task(self._watch(until_idle))
        tidying = asyncio.create_task(self._tidy())
        async with app.open_async():
            tasks = [asyncio.create_task(slot.serve(app)) for slot in self.slots]
            await self.stopping.wait()
            for task in tasks:
                task.cancel()  # no new deliveries; what runs goes on
            await self._let_end(tasks)
            await asyncio.gather(*tasks, return_exceptions=True)
        watch.cancel()
        tidying.cancel()
        for slot in self.slots:
            if slot.child:
                await slot.child.end()
        await asyncio.to_thread(tidy, self.settings)
        with contextlib.suppress(DatabaseError):
            await asyncio.to_thread(takeover.leave, self.catalog, self.id)
        self.say(f"worker {self.owner}: stopped")

    def stop(self) -> None:
        """Asked to stop: gently, the second time at once."""
        if self.stopping.is_set():
            self.hurry.set()
        self.stopping.set()

    async def _let_end(self, tasks: list[asyncio.Task[None]]) -> None:
        """Give the running minijobs their time, then end their processes; they are queued again."""
        ended = asyncio.gather(*tasks, return_exceptions=True)
        deadline = time.monotonic() + self.grace
        while not ended.done() and not self.hurry.is_set() and time.monotonic() < deadline:
            await asyncio.wait([ended], timeout=0.1)
        for slot in self.slots:
            if slot.lease and slot.child:
                await slot.child.end(Outcome("stopped"))

    async def ask(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A change of rows, in a thread; waits for a database that is away."""
        while True:
            try:
                return await asyncio.to_thread(function, self.catalog, *args, **kwargs)
            except Exception as e:
                if not _away(e) or self.hurry.is_set():
                    raise
                await self._outage()

    async def _outage(self) -> None:
        self._up_since = None
        await asyncio.sleep(1)
        with contextlib.suppress(DatabaseError, OSError):
            await asyncio.to_thread(self.catalog.revive)

    async def share(self) -> None:
        """Divide the machine's cores between all processes of all its workers."""
        self.threads = max(1, cores() // max(1, await self.ask(takeover.processes_here)))

    def complain(self, e: BaseException) -> None:
        """Say what went wrong in the worker itself, once; it goes on."""
        text = str(e) if isinstance(e, ProteaError) else f"{type(e).__name__}: {e}"
        if text != self._complaint:
            self._complaint = text
            self.say(f"worker {self.owner}: {text}")

    # -- the loops beside the slots

    async def _tidy(self) -> None:
        """Remove what is left here of exports that workers of other machines have finished."""
        while True:
            await asyncio.sleep(self.settings.lease_seconds / 3)
            try:
                await asyncio.to_thread(tidy, self.settings)
            except Exception as e:
                self.complain(e)

    async def _watch(self, until_idle: bool) -> None:
        while True:
            try:
                await self._tick()
                idle = until_idle and not any(slot.lease for slot in self.slots)
                if idle and not await asyncio.to_thread(rows.pending, self.catalog, self.stages):
                    self.stopping.set()
            except Exception as e:
                self.complain(e)
                if _away(e):
                    await self._outage()
            await asyncio.sleep(TICK)

    async def _tick(self) -> None:
        now, lease = time.monotonic(), self.settings.lease_seconds
        mine = {slot.number: slot.lease for slot in self.slots if slot.lease}
        if now - self._beaten >= lease / 6:
            progress = {slot.number: slot.progress for slot in self.slots}
            doing = {str(s.number): s.doing() for s in self.slots if s.lease}
            known, held = await asyncio.to_thread(takeover.beat, self.catalog, self.id, mine, progress, doing)
            self._beaten = now
            if not known:  # taken for dead while it was paused
                self.id = await asyncio.to_thread(takeover.register, self.catalog, self.queues, len(self.slots))
            await self.share()
        else:
            held = await asyncio.to_thread(takeover.still_held, self.catalog, mine)
        up_since = self._up_since = now if self._up_since is None else self._up_since
        for slot in self.slots:
            if slot.number in mine and slot.number not in held and slot.lease is mine[slot.number]:
                await slot.dispossess()
            await slot.let_idle_go(now)
        # after an outage of the database every heartbeat is old: give the others the time to be back
        if now - self._swept >= lease / 6 and now - up_since >= lease:
            self._swept = now
            if n := await asyncio.to_thread(takeover.sweep, self.catalog, lease):
                self.say(f"worker {self.owner}: took over {n} minijobs")


class _Slot:
    """One child process at a time, and the lease of what it does."""

    def __init__(self, worker: _Worker, number: int) -> None:
        self.worker, self.number = worker, number
        self.child: Child | None = None
        self.lease: Lease | None = None
        self.before: Lease | None = None
        """What the child did last: it still has those inputs in memory."""
        self.progress: dict[str, Any] = {}
        self.since = dt.datetime.now(dt.UTC)
        self._free_since = time.monotonic()
        self._starting = False

    async def serve(self, app: Any) -> None:
        """Be given one delivery after another; start again when the database was away."""
        lease = self.worker.settings.lease_seconds
        while not self.worker.stopping.is_set():
            try:
                await app.run_worker_async(
                    queues=self.worker.queues,
                    name=f"{self.worker.owner}/{self.number}",
                    concurrency=1,
                    fetch_job_polling_interval=1.0,
                    abort_job_polling_interval=3600.0,
                    update_heartbeat_interval=max(lease / 3, 1.0),
                    stalled_worker_timeout=max(lease, 10.0),
                    install_signal_handlers=False,
                    delete_jobs="always",
                    additional_context={"slot": self},
                )
            except Exception as e:
                self.worker.complain(e)
            await asyncio.sleep(0.5)

    async def start(self) -> None:
        """A fresh child, which gets ready while nothing has been delivered yet."""
        worker = self.worker
        self.child, self.before = await Child.start(worker.settings, worker.threads, worker.max_memory), None
        self._free_since = time.monotonic()

    def doing(self) -> dict[str, Any]:
        lease = self.lease
        assert lease is not None
        return {"job": str(lease.job), "minijob": lease.name, "since": self.since.isoformat(timespec="seconds"),
                "memory": self.child.memory if self.child else 0, **self.progress}  # fmt: skip

    async def work(self, minijob: int, delivery: int) -> None:
        """A delivery: claim the minijob, have it done, commit what came of it."""
        worker = self.worker
        self._starting = True
        try:
            if self.child and self.child.threads > worker.threads and not worker.settings.threads:
                await self.child.end()  # another worker has come: a child's threads are those it started with
            if self.child is None or not self.child.alive:
                await self.start()
            child, self.progress = self.child, {}
            assert child is not None
            lease = await worker.ask(rows.claim, minijob, worker.owner, worker.id, child.name,
                                     delivery=delivery, stages=worker.stages, before=self.before)  # fmt: skip
            if lease is None:
                return
            self.before = lease
            self.lease, self.since = lease, dt.datetime.now(dt.UTC)
            request = asdict(lease) | {"job": str(lease.job)}
            outcome = Outcome("stopped") if worker.stopping.is_set() else await child.run(request, self._hear)
            await self._settle(lease, outcome)
        except Exception as e:
            worker.complain(e)
        finally:
            self.lease, self._starting, self._free_since = None, False, time.monotonic()

    async def _hear(self, message: dict[str, Any]) -> None:
        lease = self.lease
        assert lease is not None
        if "progress" in message:
            self.progress = message["progress"]
        elif "minijobs" in message:
            await self.worker.ask(rows.planned, lease, message["minijobs"])
        elif message["event"].startswith((*LOGGED, "block.")):
            await self.worker.ask(rows.event, lease, message["event"], message["what"])

    async def _settle(self, lease: Lease, outcome: Outcome) -> None:
        """Write down how it went."""
        ask, retry = self.worker.ask, self.worker.settings.retry_seconds
        if outcome.kind == "done":
            ok = await ask(rows.done, lease, **outcome.what)
            self.worker.say(f"{lease.name} of job {lease.job}: {'done' if ok else 'not committed: taken over'}")
            return
        if outcome.kind == "stopped":
            await ask(rows.put_back, lease, "its worker was stopped")
        elif outcome.kind == "lost" or outcome.code == "cancelled":
            await ask(rows.refuse, lease, "commit")
        elif outcome.code == "busy":
            await ask(rows.put_back, lease, outcome.message, BUSY)
        else:
            await ask(rows.failed, lease, outcome.code, outcome.message, retry=retry, permanent=outcome.permanent,
                      lost=outcome.lost)  # fmt: skip
            self.worker.say(f"{lease.name} of job {lease.job}: {outcome.message}")
            return
        self.worker.say(f"{lease.name} of job {lease.job}: stopped")

    async def dispossess(self) -> None:
        """The lease is not ours any more (cancelled, or taken over while this worker was paused): stop."""
        if self.child:
            await self.child.end(Outcome("lost"))

    async def let_idle_go(self, now: float) -> None:
        if self.child and not self._starting and now - self._free_since > IDLE:
            child, self.child = self.child, None
            await child.end()


def _away(e: BaseException) -> bool:
    """Whether an error says that the database cannot be reached now, or gave us up while we were paused."""
    import psycopg
    import psycopg_pool

    lost = (psycopg.OperationalError, psycopg.InterfaceError, psycopg_pool.PoolTimeout,
            psycopg.errors.IdleInTransactionSessionTimeout)  # fmt: skip
    while e is not None:
        if isinstance(e, lost):
            return True
        inner = e.__cause__ or getattr(e, "orig", None)
        if inner is None or inner is e:
            return False
        e = inner
    return False
