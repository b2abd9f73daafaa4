"""`protea gc` and `protea doctor`: what can go, and what is wrong."""

from typing import Annotated

import typer

from protea.cli.output import read_settings, say, size, table, write, write_json

gc_app = typer.Typer(rich_markup_mode=None, add_completion=False)
doctor_app = typer.Typer(rich_markup_mode=None, add_completion=False)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@gc_app.command("gc")
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List it and remove nothing.")] = False,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Not written for so long: 14d, 36h, 0s.")
    ] = "14d",
    json: Json = False,
) -> None:
    """Remove what nothing refers to: abandoned staging directories, leftovers of killed commands, objects without an
    input, alignments nobody has asked for. What a running command holds, or a job is queued for, stays."""
    from protea.collecting import gc as collect
    from protea.collecting import seconds

    found, remarks = collect(read_settings(), older_than=seconds(older_than), dry_run=dry_run)
    total = sum(one.bytes for one in found)
    if json:
        listed = [one.to_json() for one in found]
        write_json({"dry_run": dry_run, "bytes": total, "removed": listed, "remarks": remarks})
        return
    if found:
        lines = [(one.kind, size(one.bytes), _age(one.age), one.path, one.why) for one in found]
        table(("KIND", "SIZE", "AGE", "PATH", "WHY"), lines, text=4)
    write(f"{size(total)} {'would be' if dry_run else 'were'} freed")
    for remark in remarks:
        say(remark)


@doctor_app.command("doctor")
def doctor(json: Json = False) -> None:
    """Check the home: database, every input's and dataset's files, versions, disk, threads. Exit status 1 when
    something is bad."""
    from protea.upkeep import doctor as examine
    from protea.upkeep import failed

    checks = []
    for c in examine(read_settings()):
        checks.append(c)
        if not json:
            write(f"{c.state:5} {c.check}: {c.what}{f' ({c.hint})' if c.hint else ''}")
    if json:
        write_json({"ok": not failed(checks), "checks": [c.to_json() for c in checks]})
    if failed(checks):
        raise typer.Exit(1)


def _age(seconds: float) -> str:
    return f"{seconds / 86400:.0f} d" if seconds >= 86400 else f"{seconds / 3600:.0f} h"
