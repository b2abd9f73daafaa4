"""`protea job`: queue exports for the workers, look at them, end them, try them again."""

import uuid
from pathlib import Path
from typing import Annotated, Any

import typer

from protea.cli.export import given, with_settings
from protea.cli.output import read_settings, say, table, when, write, write_json

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="The job's id, or its beginning.")]


@app.callback()
def _group() -> None:
    """Queue exports for the workers, look at them, end them, try them again."""


@app.command()
@with_settings
def submit(
    file: Annotated[
        Path | None, typer.Argument(help="Settings, TOML; options win over it.", show_default=False)
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a dataset of that name.")] = False,
    json: Json = False,
    **values: Any,
) -> None:
    """Queue an export (`protea worker` does it) and print the job's id."""
    from protea.jobs.local import submit as queue

    job = queue(file, settings=read_settings(), replace=replace, **given(values))
    if json:
        write_json(as_json(job))
    else:
        write(str(job.id))


@app.command("list")
def list_(
    state: Annotated[str | None, typer.Option("--state", help="queued, running, succeeded, failed, cancelled.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The newest so many.")] = 50,
    json: Json = False,
) -> None:
    """List jobs, the newest first."""
    from protea.catalog import open_catalog

    with open_catalog(read_settings()) as catalog:
        jobs = catalog.jobs.recent(state=state, limit=limit)
    if json:
        write_json([as_json(job) for job in jobs])
        return
    lines = [
        (str(j.id), j.config.get("name", ""), j.state, when(j.created_at), j.error_message or _how_far(j.progress))
        for j in jobs
    ]
    table(("JOB", "DATASET", "STATE", "SUBMITTED", "WHAT"), lines, text=4)


@app.command()
def show(job_id: Id, json: Json = False) -> None:
    """Say how a job stands: state, error, and its cuts by stages."""
    from protea.catalog import open_catalog
    from protea.cli.board import board_table
    from protea.jobs import rows

    with open_catalog(read_settings()) as catalog:
        job = catalog.jobs.get(_id(catalog, job_id))
        lines = rows.board(catalog, job.id)
    if json:
        write_json({**as_json(job), "board": lines})
        return
    write(f"job        {job.id}")
    write(f"dataset    {job.config.get('name', '')}")
    write(f"state      {job.state}, attempt {job.attempt}")
    for label, moment in (("submitted", job.created_at), ("started", job.started_at), ("ended", job.finished_at)):
        if moment:
            write(f"{label:10} {when(moment)}")
    if job.error_message:
        write(f"error      {job.error_message}")
    if lines:
        write()
        board_table(lines)


@app.command()
def events(
    job_id: Id,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the job is over.")] = False,
    after: Annotated[int, typer.Option("--after", min=0, help="Only those with a higher number.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON document a line.")] = False,
) -> None:
    """Print a job's log."""
    import json as documents
    import time

    from protea.catalog import open_catalog
    from protea.jobs.local import LOOK, OVER

    with open_catalog(read_settings()) as catalog:
        found = _id(catalog, job_id)
        while True:
            over = catalog.jobs.get(found).state in OVER
            for e in catalog.jobs.events(found, after=after):
                after = e.seq
                if json:
                    document = {"seq": e.seq, "at": e.at.isoformat(), "kind": e.kind, **e.payload}
                    print(documents.dumps(document, default=str), flush=True)
                else:
                    what = ", ".join(f"{k} {v}" for k, v in e.payload.items() if v is not None)
                    write(f"{e.seq:5} {e.at.astimezone():%Y-%m-%d %H:%M:%S} {e.kind:18} {what}".rstrip())
            if over or not follow:
                return
            time.sleep(LOOK)


@app.command()
def cancel(job_id: Id, json: Json = False) -> None:
    """End a queued or running job; what it finished is kept."""
    _change("cancel", job_id, json)


@app.command()
def retry(job_id: Id, json: Json = False) -> None:
    """Queue a failed or cancelled job again; it goes on where it stopped."""
    _change("retry", job_id, json)


def _change(what: str, job_id: str, json: bool) -> None:
    from protea.catalog import open_catalog
    from protea.jobs import rows

    with open_catalog(read_settings()) as catalog:
        catalog.prepare_queue()
        job = getattr(rows, what)(catalog, _id(catalog, job_id))
    if json:
        write_json(as_json(job))
    else:
        say(f"job {job.id} is {job.state}")


def _id(catalog: Any, text: str) -> uuid.UUID:
    """The job whose id begins so. NotFoundError, ConfigError when there are several."""
    from protea.errors import ConfigError, NotFoundError

    try:
        return uuid.UUID(text)
    except ValueError:
        pass
    found = [j.id for j in catalog.jobs.recent(limit=100_000) if str(j.id).startswith(text.lower())]
    if not found:
        raise NotFoundError(f"no job {text}", hint="`protea job list` shows them")
    if len(found) > 1:
        raise ConfigError(f"{len(found)} jobs begin with {text}", hint="give more of the id")
    return found[0]


def _how_far(progress: dict[str, Any]) -> str:
    counts = progress.get("minijobs")
    if counts:
        return f"{counts.get('done', 0)} of {sum(counts.values())} minijobs"
    if "cut" in progress and "queries" in progress:
        return f"{progress['cut']}: {progress.get('done', 0):,} of {progress['queries']:,} queries"
    return ""


def as_json(job: Any) -> dict[str, Any]:
    """A job as JSON."""
    names = ("id", "operation", "state", "config", "options", "progress", "attempt", "owner", "error_code",
             "error_message", "created_at", "started_at", "finished_at")  # fmt: skip
    return {name: getattr(job, name) for name in names}
