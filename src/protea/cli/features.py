"""`protea features`: what every column is, who produces it, and when it is null."""

from typing import Annotated

import typer

from protea.cli.output import table, write_json

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command("features")
def features(
    family: Annotated[str | None, typer.Argument(metavar="[FAMILY]", help="Only the columns of this family.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Say what every column of a dataset is: family, type, unit, values, null rule, and the setting that fills it."""
    from protea.core.describe import describe
    from protea.core.schema import FAMILIES
    from protea.errors import NotFoundError

    if family is not None and family not in FAMILIES:
        raise NotFoundError(f"there is no family {family!r}", hint=f"the families are {', '.join(FAMILIES)}")
    columns = [c for c in describe() if family in (None, c["family"])]
    if json:
        write_json(columns)
        return
    head = ("COLUMN", "TYPE", "FAMILY", "SWITCH", "UNIT", "VALUES", "NULL WHEN", "WHAT IT IS")
    keys = ("name", "type", "family", "switch", "unit", "range", "null_when", "description")
    table(head, [[c[k] or "" for k in keys] for c in columns], text=7)
