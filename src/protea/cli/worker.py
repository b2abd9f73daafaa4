"""`protea worker`: work off queued jobs; `protea worker status`: who does."""

from typing import Annotated

import typer

from protea.cli.output import read_settings, say, size, table, when, write_json

app = typer.Typer(rich_markup_mode=None, add_completion=False)

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def memory(text: str) -> int:
    """Bytes of `8G`, `500M`. ConfigError."""
    from protea.errors import ConfigError

    plain = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = plain[-1:] if plain[-1:] in UNITS else ""
    try:
        found = float(plain.removesuffix(unit) if unit else plain) * UNITS[unit]
    except ValueError:
        found = 0
    if not 0 < found < 1 << 60:
        raise ConfigError(f"--max-memory {text}: not an amount of memory", hint="write it like 8G or 500M")
    return int(found)


@app.callback(invoke_without_command=True)
def worker(
    context: typer.Context,
    queues: Annotated[
        str | None, typer.Option("--queues", metavar="A,B,...", help="The queues to work; all of them by default.")
    ] = None,
    processes: Annotated[int, typer.Option("--processes", min=1, help="Minijobs at a time, each in a process.")] = 1,
    max_memory: Annotated[
        str | None, typer.Option("--max-memory", metavar="8G", help="A process that uses more is ended.")
    ] = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", "--once", help="Stop when nothing is left to do.")
    ] = False,
    grace: Annotated[
        float, typer.Option("--grace", min=0, help="Seconds that what runs gets to end when asked to stop.")
    ] = 10.0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing of what goes well.")] = False,
) -> None:
    """Work off queued jobs until stopped (SIGTERM, Ctrl-C; a second time: at once)."""
    if context.invoked_subcommand is not None:
        return
    from protea.jobs.worker import work

    names = [q.strip() for q in queues.split(",") if q.strip()] if queues else []
    limit = memory(max_memory) if max_memory else None
    tell = (lambda text: None) if quiet else say
    work(read_settings(), names, processes=processes, max_memory=limit, until_idle=until_idle, grace=grace, say=tell)


@app.command()
def status(json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False) -> None:
    """Say which workers are alive, where, doing what, since when."""
    from protea.catalog import open_catalog
    from protea.jobs.takeover import status as ask

    settings = read_settings()
    with open_catalog(settings) as catalog:
        found = ask(catalog, settings.lease_seconds)
    if json:
        write_json(found)
        return
    lines = []
    for w in found:
        first = (f"{w['host']}:{w['pid']}", w["state"], when(w["started_at"]), w["processes"], w["queues"])
        doing = [
            (f"{d['minijob']} of {str(d['job'])[:8]}", f"since {d['since'][11:19]} UTC", size(d["memory"]))
            for d in w["doing"].values()
        ] or [("", "", "")]
        lines += [(*(first if i == 0 else ("", "", "", "", "")), *what) for i, what in enumerate(doing)]
    table(("WORKER", "STATE", "STARTED", "PROCESSES", "QUEUES", "DOING", "SINCE", "MEMORY"), lines)
