"""`protea inspect KIND FILE`: what the readers of `core` say of a file. No catalogue, nothing written."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from protea.cli.load import AllowLarge, words
from protea.cli.output import tree, write_json
from protea.cli.progress import file_size, reading
from protea.errors import ConfigError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class Kind(StrEnum):
    """What a file is meant to be."""

    annotations = "annotations"
    ontology = "ontology"
    proteins = "proteins"
    embeddings = "embeddings"
    taxonomy = "taxonomy"
    term_vectors = "term-vectors"
    interpro = "interpro"
    scores = "scores"
    ia = "ia"


class _Command(TyperCommand):
    """Lets several ids follow one `--resolve` or `--closure`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        out: list[str] = []
        option = None
        for arg in args:
            if arg in ("--resolve", "--closure"):
                option = arg
            elif option and out[-1] != option and re.fullmatch(r"GO:\d+", arg):
                out.append(option)
            elif arg.startswith("-"):
                option = None
            out.append(arg)
        return super().parse_args(ctx, out)


@app.command(cls=_Command)
def inspect(
    kind: Annotated[Kind, typer.Argument(help="What the file is meant to be.")],
    file: Annotated[Path, typer.Argument(help="The file, plain or gzipped (a taxonomy may be a directory).")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    detail: Annotated[bool, typer.Option("--detail", help="Also what is known of each accession.")] = False,
    resolve: Annotated[
        list[str] | None, typer.Option(metavar="ID...", help="ontology: what these ids resolve to.")
    ] = None,
    closure: Annotated[list[str] | None, typer.Option(metavar="ID...", help="ontology: ids and all ancestors.")] = None,
    databases: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="annotations: the databases to keep (UniProtKB).")
    ] = None,
    ids: Annotated[Path | None, typer.Option(help="embeddings, NPY: a text file of accessions.")] = None,
    pool: Annotated[str | None, typer.Option(metavar="mean", help="embeddings: average per-residue matrices.")] = None,
    interpro2go: Annotated[Path | None, typer.Option(help="interpro, protein2ipr: InterPro's mapping to GO.")] = None,
    allow_large: AllowLarge = False,
) -> None:
    """Say what a file holds and what is wrong with it, loading nothing."""
    from protea.core.limits import large_allowed

    belongs = {"resolve": Kind.ontology, "closure": Kind.ontology, "databases": Kind.annotations}
    belongs |= {"ids": Kind.embeddings, "pool": Kind.embeddings, "interpro2go": Kind.interpro}
    given = {"resolve": resolve, "closure": closure, "databases": databases, "ids": ids, "pool": pool}
    given |= {"interpro2go": interpro2go}
    for option, value in given.items():
        if value and belongs[option] != kind:
            raise ConfigError(f"--{option} goes with {belongs[option]}, not with {kind}")
    with large_allowed(allow_large), reading(f"inspect {file.name}", file_size(file)) as progress:
        report = _READ[kind](file, progress, detail, given)
    if json:
        write_json(report)
    else:
        tree({key: value for key, value in report.items() if key != "problem_lines"})


def _ids(values: list[str] | None) -> list[str]:
    return [word for value in values or [] for word in words(value)]


def _annotations(file: Path, progress: Any, detail: bool, given: dict[str, Any]) -> dict[str, Any]:
    from protea.core.annotations import read_gaf

    databases = words(given["databases"]) or ["UniProtKB"]
    return read_gaf(file, databases=databases, progress=progress, detail=detail).to_json()


def _ontology(file: Path, progress: Any, detail: bool, given: dict[str, Any]) -> dict[str, Any]:
    from protea.core.ontology import read_obo

    ontology, report = read_obo(file, progress)
    out = report.to_json()
    if given["resolve"]:
        out["resolve"] = ontology.explain(_ids(given["resolve"]))
    if given["closure"]:
        out["closure"] = ontology.closures(_ids(given["closure"]))
    return out


def _proteins(file: Path, progress: Any, detail: bool, given: dict[str, Any]) -> dict[str, Any]:
    from protea.core.proteins import read_fasta

    table, report = read_fasta(file, progress)
    return report.to_json(table if detail else None)


def _embeddings(file: Path, progress: Any, detail: bool, given: dict[str, Any]) -> dict[str, Any]:
    from protea.core.embeddings import inspect_embeddings

    report = inspect_embeddings(file, ids=given["ids"], pool=given["pool"], progress=progress)
    return report.to_json(detail=detail)


def _taxonomy(file: Path, progress: Any, detail: bool, given: dict[str, Any]) -> dict[str, Any]:
    from protea.core.taxonomy import read_taxdump

    return read_taxdump(file, progress)[1].to_json()


def _term_vectors(file: Path, progress: Any, detail: bool, given: dict[str, Any]) -> dict[str, Any]:
    from protea.core.term_vectors import read_term_vectors

    return read_term_vectors(file, None, progress).to_json()


def _interpro(file: Path, progress: Any, detail: bool, given: dict[str, Any]) -> dict[str, Any]:
    from protea.core.interpro import read_interpro

    return read_interpro(file, None, progress, interpro2go=given["interpro2go"]).to_json()


def _scores(file: Path, progress: Any, detail: bool, given: dict[str, Any]) -> dict[str, Any]:
    from protea.core.scores import read_scores

    return read_scores(file, None, progress).to_json()


def _ia(file: Path, progress: Any, detail: bool, given: dict[str, Any]) -> dict[str, Any]:
    from protea.core.accretion import read_ia

    return read_ia(file, None, progress).to_json()


_READ = {
    Kind.annotations: _annotations,
    Kind.ontology: _ontology,
    Kind.proteins: _proteins,
    Kind.embeddings: _embeddings,
    Kind.taxonomy: _taxonomy,
    Kind.term_vectors: _term_vectors,
    Kind.interpro: _interpro,
    Kind.scores: _scores,
    Kind.ia: _ia,
}
