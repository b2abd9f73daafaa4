"""`protea load KIND FILE`: what `protea.ingest` does, with progress and a line about what was loaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from protea.cli import describe
from protea.cli.output import read_settings, write, write_json
from protea.cli.progress import file_size, reading

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)

Name = Annotated[str | None, typer.Option(help="Its name; the default is the release's label, else the file's stem.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
MaxRejected = Annotated[float, typer.Option(help="The share of malformed rows that is accepted.")]
AllowLarge = Annotated[bool, typer.Option("--allow-large", help="Let it unpack to any size.")]
Only = Annotated[str | None, typer.Option(help="Keep only rows of this loaded protein set.")]


@app.callback()
def _group() -> None:
    """Load an input: the same bytes again are recognised, another file under a taken name is refused."""


def load(file: Path, json: bool, allow_large: bool, how: Callable[[Callable[[int], None]], Any]) -> None:
    """Run a load with progress, and say what it did."""
    from protea.core.limits import large_allowed

    with large_allowed(allow_large), reading(f"load {file.name}", file_size(file)) as progress:
        result = how(progress)
    tell(result, json)


def tell(result: Any, json: bool) -> None:
    """Say what a load did."""
    if json:
        inputs = [
            {"new": new, **describe.as_json(row)} for row, new in zip(result.rows, result.new, strict=True)
        ]  # fmt: skip
        write_json({"kind": result.kind, "already_loaded": result.already_loaded, "inputs": inputs})
        return
    for row, new in zip(result.rows, result.new, strict=True):
        done = "loaded" if new else "already loaded:"
        write(f"{done} {describe.TITLES[result.kind]} {row.name}: {describe.content(result.kind, row.stats)}")
        for line in describe.remarks(result.kind, row.stats) if new else []:
            write(f"  {line}")


@app.command()
def ontology(
    file: Annotated[Path, typer.Argument(help="A GO release, OBO format.")],
    name: Name = None,
    allow_large: AllowLarge = False,
    json: Json = False,
) -> None:
    """Load a GO release (OBO, plain or gzipped)."""
    from protea.ingest import load_ontology

    load(file, json, allow_large, lambda progress: load_ontology(read_settings(), file, name=name, progress=progress))


@app.command()
def annotations(
    file: Annotated[Path, typer.Argument(help="A GAF, version 2.0 to 2.2.")],
    source: Annotated[str, typer.Option(help="Where it is from, such as goa.")],
    version: Annotated[str | None, typer.Option(help="Its release: an integer or a date like 2014-09-30.")] = None,
    cut_dates: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Make a set of the rows up to each of these dates.")
    ] = None,
    proteins: Only = None,
    databases: Annotated[str, typer.Option(metavar="A,B,...", help="The databases (column 1) to keep.")] = "UniProtKB",
    max_rejected: MaxRejected = 0.01,
    name: Annotated[str | None, typer.Option(help="Its name; the default is SOURCE:VERSION.")] = None,
    allow_large: AllowLarge = False,
    json: Json = False,
) -> None:
    """Load an annotation release (GAF, plain or gzipped)."""
    from protea.ingest import load_annotations

    load(
        file,
        json,
        allow_large,
        lambda progress: load_annotations(
            read_settings(),
            file,
            source=source,
            version=version,
            cut_dates=words(cut_dates),
            proteins=proteins,
            databases=words(databases),
            max_rejected=max_rejected,
            name=name,
            progress=progress,
        ),
    )


@app.command()
def proteins(
    file: Annotated[Path, typer.Argument(help="Sequences, FASTA.")],
    name: Name = None,
    allow_large: AllowLarge = False,
    json: Json = False,
) -> None:
    """Load protein sequences (FASTA, plain or gzipped)."""
    from protea.ingest import load_proteins

    load(file, json, allow_large, lambda progress: load_proteins(read_settings(), file, name=name, progress=progress))


@app.command()
def embeddings(
    file: Annotated[Path, typer.Argument(help="Vectors: HDF5, NPZ, NPY (with --ids) or Parquet.")],
    name: Name = None,
    ids: Annotated[Path | None, typer.Option(help="For NPY: a text file of accessions, one a line.")] = None,
    pool: Annotated[str | None, typer.Option(metavar="mean", help="Average per-residue matrices (HDF5).")] = None,
    allow_large: AllowLarge = False,
    json: Json = False,
) -> None:
    """Load embeddings, one vector a protein."""
    from protea.ingest import load_embeddings

    load(
        file,
        json,
        allow_large,
        lambda progress: load_embeddings(read_settings(), file, name=name, ids=ids, pool=pool, progress=progress),
    )


@app.command()
def taxonomy(
    file: Annotated[Path, typer.Argument(help="A directory with nodes.dmp and others, or a .tar.gz of it.")],
    name: Name = None,
    allow_large: AllowLarge = False,
    json: Json = False,
) -> None:
    """Load an NCBI taxdump."""
    from protea.ingest import load_taxonomy

    load(file, json, allow_large, lambda progress: load_taxonomy(read_settings(), file, name=name, progress=progress))


@app.command("term-vectors")
def term_vectors(
    file: Annotated[Path, typer.Argument(help="Vectors of GO ids: NPZ or word2vec text.")],
    name: Name = None,
    max_rejected: MaxRejected = 0.01,
    allow_large: AllowLarge = False,
    json: Json = False,
) -> None:
    """Load vectors of GO terms, such as Anc2Vec's."""
    from protea.ingest import load_term_vectors

    load(
        file,
        json,
        allow_large,
        lambda progress: load_term_vectors(
            read_settings(), file, name=name, max_rejected=max_rejected, progress=progress
        ),
    )


@app.command()
def interpro(
    file: Annotated[Path, typer.Argument(help="A table, InterProScan's TSV, or protein2ipr (with --interpro2go).")],
    name: Name = None,
    interpro2go: Annotated[Path | None, typer.Option(help="InterPro's mapping to GO, for protein2ipr.")] = None,
    proteins: Only = None,
    max_rejected: MaxRejected = 0.01,
    allow_large: AllowLarge = False,
    json: Json = False,
) -> None:
    """Load the GO terms of proteins' InterPro matches."""
    from protea.ingest import load_interpro

    load(
        file,
        json,
        allow_large,
        lambda progress: load_interpro(
            read_settings(),
            file,
            name=name,
            interpro2go=interpro2go,
            proteins=proteins,
            max_rejected=max_rejected,
            progress=progress,
        ),
    )


@app.command()
def scores(
    file: Annotated[Path, typer.Argument(help="Accession, GO id, score: Parquet, text, or CAFA's format.")],
    name: Name = None,
    proteins: Only = None,
    max_rejected: MaxRejected = 0.01,
    allow_large: AllowLarge = False,
    json: Json = False,
) -> None:
    """Load another predictor's scores."""
    from protea.ingest import load_scores

    load(
        file,
        json,
        allow_large,
        lambda progress: load_scores(
            read_settings(), file, name=name, proteins=proteins, max_rejected=max_rejected, progress=progress
        ),
    )


@app.command()
def ia(
    file: Annotated[Path, typer.Argument(help="GO id and information accretion, text.")],
    name: Name = None,
    max_rejected: MaxRejected = 0.01,
    allow_large: AllowLarge = False,
    json: Json = False,
) -> None:
    """Load the information accretion of GO terms."""
    from protea.ingest import load_ia

    load(
        file,
        json,
        allow_large,
        lambda progress: load_ia(read_settings(), file, name=name, max_rejected=max_rejected, progress=progress),
    )


def words(text: str | None) -> list[str]:
    """The parts of `a,b,c`."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]
