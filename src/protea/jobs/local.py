"""Submitting exports, and working one off with workers of this machine (`protea export run --workers N`).

Called by the command line and by `import protea`; calls `protea.exporting`, `rows`, and the program `protea worker`.
"""

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from protea.catalog import Catalog, Job, open_catalog
from protea.core.arrays import cores
from protea.core.config import ExportConfig
from protea.errors import ConflictError, ProteaError, UserError
from protea.exporting import Dataset, Report, Rows, configure, open_dataset, resolve
from protea.jobs import rows
from protea.settings import Settings

LOOK = 0.3
"""Seconds between two looks at a job."""
OVER = ("succeeded", "failed", "cancelled")
Board = Callable[[Job, list[dict[str, Any]]], None]


class JobFailed(ProteaError):
    """A job ended without its dataset; the message is the first error and what to do."""

    code = "job"


class JobRefused(UserError):
    """As JobFailed, for what the user can put right."""

    code = "job"


def submit(config: Path | str | ExportConfig | None = None, *, settings: Settings | None = None, replace: bool = False,
           minijobs: bool | None = None, **values: Any) -> Job:  # fmt: skip
    """Queue an export for the workers of this catalogue; everything that can be checked now is checked.

    `minijobs`: whether it is cut into minijobs; None leaves that to the worker that coordinates it
    (PROTEA_EXPORT_MINIJOBS). Errors as of `protea.export`.
    """
    from protea.core.keys import fingerprint

    settings = settings or Settings()
    wanted = configure(config, values)
    with open_catalog(settings) as catalog:
        catalog.prepare_queue()
        resolved, inputs = resolve(wanted, catalog, settings, fetch=False)
        row = Rows(catalog).find(resolved.name)
        if row is not None and row["fingerprint"] != fingerprint(resolved, inputs) and not replace:
            raise ConflictError(
                f"a dataset named {resolved.name!r} exists with other settings or inputs",
                hint="choose another name, or pass --replace",
            )
        options: dict[str, Any] = {"replace": replace} if replace else {}
        if minijobs is not None:
            options["minijobs"] = minijobs
        return rows.submit(catalog, resolved.model_dump(mode="json"), options)


def export(config: Path | str | ExportConfig | None = None, *, settings: Settings | None = None, workers: int,
           report: Report | None = None, board: Board = lambda job, lines: None, replace: bool = False,
           **values: Any) -> Dataset:  # fmt: skip
    """Submit an export, start `workers` worker processes for it, wait for the dataset, stop them.

    `report` hears the events of the job's log, `board` gets the job and its minijobs a few times a second. An interrupt
    cancels the job; what was finished is kept. JobFailed when the job fails.
    """
    settings = settings or Settings()
    with open_catalog(settings) as catalog:
        job = submit(config, settings=settings, replace=replace, minijobs=True, **values)
        started: list[subprocess.Popen[bytes]] = []
        try:
            started += [start_worker(settings, workers) for _ in range(workers)]
            job = follow(catalog, job.id, report, board, lambda: _check(started))
        except BaseException:
            with contextlib.suppress(ProteaError):
                rows.cancel(catalog, job.id)
            raise
        finally:
            stop_workers(started)
    raise_failed(job)
    return open_dataset(job.config["name"], settings=settings)


def start_worker(settings: Settings, of: int, *options: str) -> subprocess.Popen[bytes]:
    """One of `of` worker processes that share this machine; it ends when there is nothing left to do."""
    threads = settings.threads or max(1, cores() // of)  # from the first on, before all have said that they are there
    environment = os.environ | settings.environment() | {"PROTEA_THREADS": str(threads)}
    command = [sys.executable, "-m", "protea", "worker", "--until-idle", "--grace", "1", "--quiet", *options]
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            start_new_session=True)  # fmt: skip


def stop_workers(started: list[subprocess.Popen[bytes]]) -> None:
    for worker in started:
        worker.terminate()
    for worker in started:
        try:
            worker.wait(15)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def _check(started: list[subprocess.Popen[bytes]]) -> None:
    if started and all(worker.poll() is not None for worker in started):
        raise JobFailed(f"all {len(started)} workers ended with the job undone", hint="run it again to go on")


def follow(catalog: Catalog, job_id: uuid.UUID, report: Report | None = None, board: Board | None = None,
           check: Callable[[], None] = lambda: None) -> Job:  # fmt: skip
    """Wait until a job is over, telling its events as they come."""
    seen = 0
    while True:
        job = catalog.jobs.get(job_id)  # before the events: none of an ended job is missed
        for event in catalog.jobs.events(job_id, after=seen):
            seen = event.seq
            if report is not None:
                report(event.kind, **event.payload)
        if board is not None:
            board(job, rows.board(catalog, job_id))
        if job.state in OVER:
            return job
        check()
        time.sleep(LOOK)


def raise_failed(job: Job) -> None:
    """JobFailed, JobRefused, with the job's error, unless it succeeded."""
    if job.state == "failed":
        kinds = {e.code for e in UserError.__subclasses__()}
        raise (JobRefused if job.error_code in kinds else JobFailed)(job.error_message or "the job failed")
    if job.state == "cancelled":
        raise JobFailed(f"job {job.id} was cancelled", hint=f"`protea job retry {job.id}` goes on from there")
