"""`protea db`: the catalogue's database."""

import typer

from protea.cli.output import read_settings, write

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)


@app.callback()
def _group() -> None:
    """Look after the catalogue's database."""


@app.command()
def upgrade() -> None:
    """Bring the tables to this version of PROTEA (the embedded database does it by itself)."""
    from protea.catalog import upgrade as migrate

    write(f"the catalogue is at revision {migrate(read_settings())}")
