"""`protea embed`: vectors computed from a loaded protein set, registered like loaded ones."""

from enum import StrEnum
from typing import Annotated, Any

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
    from protea.catalog import open_catalog
    from protea.ingest import load_embeddings

    settings = read_settings()
    with open_catalog(settings) as catalog:
        found = catalog.find("proteins", proteins)
        source = _source(backend, _sequences(settings, found))
        total = len(source.ids) * source.dim * source.dtype.itemsize
        with reading(f"embed {found.name}", total) as progress:
            result = load_embeddings(settings, source, name=name or f"{backend}-{found.name}", progress=progress)
    tell(result, json)


def _sequences(settings: Any, row: Any) -> Any:
    import pyarrow.parquet as pq

    from protea.errors import StorageError
    from protea.storage import ObjectStore

    path = ObjectStore(settings.storage).path("proteins", row.object_digest) / "proteins.parquet"
    if not path.is_file():
        raise StorageError(f"the sequences of {row.name!r} are gone from {path}", hint="load them again")
    return pq.read_table(path, columns=["accession", "sequence"])


def _source(backend: Backend, table: Any) -> Any:
    if backend is Backend.kmer:
        from protea.core.embeddings.kmer import kmer_source

        return kmer_source(table)
    from protea.core.embeddings.unirep import unirep_source

    return unirep_source(table)
