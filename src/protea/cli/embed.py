"""`protea embed`: vectors computed from a loaded protein set, registered like loaded ones."""

from enum import StrEnum
from typing import Annotated

import typer

from protea.cli.load import tell
from protea.cli.output import read_settings
from protea.cli.progress import reading

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class Backend(StrEnum):
    """How vectors are computed."""

    kmer = "kmer"
    unirep = "unirep"


@app.command()
def embed(
    backend: Annotated[Backend, typer.Option(help="kmer: hashed 3-mers, a baseline; unirep: UniRep-64.")],
    proteins: Annotated[str | None, typer.Option(help="A loaded protein set; the default is the only one.")] = None,
    name: Annotated[str | None, typer.Option(help="Its name; the default is BACKEND-PROTEINS.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Compute embeddings from the sequences of a loaded protein set."""
    from protea.ingest import embed as compute

    with reading(f"embed {proteins or 'proteins'}") as progress:
        tell(compute(read_settings(), backend, proteins=proteins, name=name, progress=progress), json)
