"""`protea demo`: the whole job on a generated proteome (`protea.demo`)."""

from pathlib import Path
from typing import Annotated

import typer

from protea.cli.output import read_settings
from protea.cli.progress import Exporting

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def demo(
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to put the generated files; the default is in storage.")
    ] = None,
) -> None:
    """Run the whole job on a small generated proteome: load, embed, export, a summary."""
    from protea.demo import run

    run(read_settings(), Exporting(), keep)
