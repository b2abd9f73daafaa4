"""A child process, from the inside: does the minijobs that its worker sends it, and tells how they go.

Started by `supervise` as `python -m protea.jobs.child`. A request is a line of JSON on standard input; the answers are
lines on what was standard output: `event`, `progress`, `minijobs` (what the coordinator found), at last `done` or `error`.
When the input ends the worker is dead, and so is this process. Calls `protea.exporting` and the core's operations; the
catalogue only to find inputs, to ask whether its lease is still good before something is committed, and for the row of a
finished dataset, which goes in only with a good lease.
"""

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from sqlalchemy.orm import Session

from protea.catalog import Catalog, open_catalog
from protea.catalog import Dataset as DatasetRow
from protea.core.config import parse
from protea.errors import BusyError, CancelledError, DatabaseError, ProteaError, UserError
from protea.exporting import Rows, alignment_cache, bucket_of, resolve
from protea.jobs import rows
from protea.jobs.rows import Lease
from protea.settings import Settings

if TYPE_CHECKING:
    from protea.core.bucket import Bucket
    from protea.core.config import ExportConfig
    from protea.core.keys import ExportInputs
    from protea.core.operations.export_minijobs import Context

T = TypeVar("T")
PATIENCE = 120.0
"""Seconds that a commit waits for a database that is away."""
EVERY = 0.25
"""Seconds between two messages about progress."""


class FencedRows(Rows):
    """The `Dataset` rows; a row goes in only while the lease is good, in the same transaction."""

    def __init__(self, catalog: Catalog, lease: Lease) -> None:
        super().__init__(catalog)
        self.lease = lease

    def find(self, name: str) -> Mapping[str, Any] | None:
        return patiently(lambda: super(FencedRows, self).find(name))

    def add(self, row: DatasetRow) -> None:
        def guard(session: Session) -> None:
            rows.check(session, self.lease)

        patiently(lambda: self.catalog.add_dataset(row, replace=True, guard=guard))


def patiently(ask: Callable[[], T]) -> T:
    """What `ask` gives, asked again while the database is away."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return ask()
        except DatabaseError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


class Child:
    """Serves requests one after another; keeps the inputs of the last job."""

    def __init__(self, settings: Settings, say: Callable[[dict[str, Any]], None]) -> None:
        self.settings, self.say = settings, say
        self.catalog: Catalog | None = None
        self.stopped = threading.Event()
        self.lease: Lease | None = None
        self._context: tuple[tuple[uuid.UUID, str], Context] | None = None
        self._shown = 0.0

    def serve(self, request: dict[str, Any]) -> None:
        """Do a minijob and say how it went."""
        lease = Lease(**{**request, "job": uuid.UUID(request["job"])})
        self.lease, self._shown = lease, 0.0
        try:
            if self.catalog is None:
                self.catalog = patiently(lambda: open_catalog(self.settings))
            done = self._coordinate(lease) if lease.stage == "coordinator" else self._run(lease)
            self.say({"done": done})
        except CancelledError as e:
            self.say({"error": {"code": "cancelled", "message": str(e)}})
        except ProteaError as e:
            again = isinstance(e, BusyError) or not isinstance(e, UserError)
            self.say({"error": {"code": e.code, "message": str(e), "permanent": not again}})
        except MemoryError:
            self.say({"error": {"code": "memory", "message": "there is not enough memory for this"}})
        except Exception as e:
            traceback.print_exc()
            place = traceback.extract_tb(e.__traceback__)[-1]
            where = f" ({Path(place.filename).name}, line {place.lineno})"
            self.say({"error": {"code": type(e).__name__, "message": f"{type(e).__name__}: {e}{where}"}})
        finally:
            self.lease = None

    def tell(self, kind: str, **what: Any) -> None:
        """The export's `report`: to the worker, progress now and then."""
        if kind == "export.started" and self.lease and self.lease.stage == "write":
            return  # the coordinator has said so
        if not kind.endswith(".progress"):
            self.say({"event": kind, "what": what})
        elif (now := time.monotonic()) - self._shown >= EVERY:
            self._shown = now
            self.say({"progress": what})

    def _guard(self) -> None:
        """Before something is committed: BusyError when this lease is not good any more."""
        lease, catalog = self.lease, self.catalog
        assert lease is not None
        assert catalog is not None

        def ask() -> None:
            with catalog.session() as session:
                rows.check(session, lease)

        patiently(ask)

    def _coordinate(self, lease: Lease) -> dict[str, Any]:
        """Cut the export into minijobs, or, unless that is wanted, run it here from beginning to end."""
        if not lease.options.get("minijobs", self.settings.export_minijobs):
            return self._serial(lease)
        from protea.core.operations.export_minijobs import partition, validate

        context = self._the_context(lease)
        published = validate(context)
        if published is not None:
            return {"last": True, "artefact": str(published), "restored": True}
        self.tell("export.started", name=context.config.name, **self._where(context))
        batch: list[dict[str, Any]] = []
        for job in partition(context):
            batch.append(job.to_json())
            if job.stage == "write":  # the last of its cut
                self.say({"minijobs": batch})
                batch = []
        return {"rows": None}

    def _where(self, context: "Context") -> dict[str, str]:
        return {"fingerprint": context.mark, "staging": str(context.staging().path)}

    def _serial(self, lease: Lease) -> dict[str, Any]:
        from protea.core.operations.export_research_dataset import export_research_dataset, read_manifest

        assert self.catalog is not None
        config, inputs, bucket = self._inputs(lease)
        cache = alignment_cache(self.settings) if config.compute_alignments else None
        path = export_research_dataset(
            config,
            inputs,
            FencedRows(self.catalog, lease),
            resume_dir=self.settings.resume_dir,
            datasets_dir=self.settings.datasets_dir,
            report=self.tell,
            replace=bool(lease.options.get("replace")),
            wait=True,
            threads=self.settings.threads,
            queries_per_block=self.settings.export_queries_per_block,
            alignments=cache,
            cancelled=self.stopped.is_set,
            commit_guard=self._guard,
            # a process of another machine may be paused and keep its lock; what it may commit is the lease's affair
            shared=self.settings.remote is not None,
            bucket=bucket,
        )
        for problem in cache.problems if cache else ():
            self.tell("export.warning", text=problem)
        manifest = read_manifest(path, self.settings.remote) or {}
        made = sum(manifest.get(f"n_{split}_rows", 0) for split in ("train", "eval"))
        return {"last": True, "artefact": str(path), "rows": made}

    def _inputs(self, lease: Lease) -> "tuple[ExportConfig, ExportInputs, Bucket | None]":
        """What the catalogue says of the lease's job."""
        catalog, settings = self.catalog, self.settings
        assert catalog is not None
        return patiently(lambda: (*resolve(settings_of(lease.config), catalog, settings), bucket_of(settings, catalog)))

    def _run(self, lease: Lease) -> dict[str, Any]:
        from protea.core.operations.export_minijobs import MiniJob, run

        job = MiniJob(**lease.spec)
        done = run(self._the_context(lease), job)
        return {"rows": done.rows, "restored": done.restored, "artefact": done.artefact, "seconds": done.seconds}

    def _the_context(self, lease: Lease) -> "Context":
        """The context of the lease's job: the last one if it is the same job, else a new one."""
        from protea.core.operations.export_minijobs import Context

        assert self.catalog is not None
        key = (lease.job, json.dumps([lease.config, lease.options], sort_keys=True))
        if self._context is None or self._context[0] != key:
            self._context = None  # free the old one first
            config, inputs, bucket = self._inputs(lease)
            context = Context(
                config,
                inputs,
                resume_dir=self.settings.resume_dir,
                datasets_dir=self.settings.datasets_dir,
                queries_per_block=lease.options.get("queries_per_block", self.settings.export_queries_per_block),
                threads=self.settings.threads,
                alignments=alignment_cache(self.settings) if config.compute_alignments else None,
                report=self.tell,
                cancelled=self.stopped.is_set,
                commit_guard=self._guard,
                replace=bool(lease.options.get("replace")),
                bucket=bucket,
            )
            self._context = (key, context)
        context = self._context[1]
        context.registry = FencedRows(self.catalog, lease)
        return context


def settings_of(config: Mapping[str, Any]) -> Any:
    """The export's settings from a job's row."""
    return parse({k: v for k, v in config.items() if v is not None})


def _requests(wake: "queue.SimpleQueue[dict[str, Any] | None]") -> None:
    """Read standard input; its end is ours, whatever the main thread is doing."""
    for line in sys.stdin.buffer:
        wake.put(json.loads(line))
    os._exit(0)


def _channel() -> Callable[[dict[str, Any]], None]:
    """What was standard output; prints of libraries go to standard error instead."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    lock = threading.Lock()

    def say(message: dict[str, Any]) -> None:
        data = json.dumps(message, default=str).encode() + b"\n"
        with lock, contextlib.suppress(BrokenPipeError):
            out.write(data)

    return say


def main() -> None:
    """Serve until the input ends, or TERM."""
    child = Child(Settings(), _channel())
    wake: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def stop(number: int, frame: Any) -> None:
        child.stopped.set()
        if child.lease is None:
            os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_requests, args=(wake,), daemon=True).start()
    _get_ready()
    for request in _each(wake):
        child.serve(request)
        if child.stopped.is_set():
            break
    os._exit(0)  # not the embedded server's business: the worker holds it too


def _get_ready() -> None:
    """What takes a second or two and every minijob needs, while nothing has been asked for yet."""
    import pyarrow.dataset  # noqa: F401 - the Parquet reader's

    import protea.core.operations.export_minijobs  # noqa: F401
    from protea.core.knn.exact import squared_lengths

    squared_lengths(np.zeros((1, 1), dtype=np.float16), 1)  # the first compiled function brings in what all share


def _each(wake: "queue.SimpleQueue[dict[str, Any] | None]") -> Iterator[dict[str, Any]]:
    while (request := wake.get()) is not None:
        yield request


if __name__ == "__main__":
    main()
