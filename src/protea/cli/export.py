"""`protea export`: what `protea.planning` and `protea.exporting` do, with every setting of an export as an option."""

import inspect
import types
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from protea.cli.dataset import counts, files
from protea.cli.output import cell, read_settings, say, size, table, write, write_json
from protea.cli.progress import Exporting
from protea.core.config import ExportConfig

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)

HELP = {
    "name": "The dataset's name.",
    "embedding_config": "The loaded embeddings to search in.",
    "annotation_source": "The source of the annotation sets.",
    "train_versions": "Releases whose consecutive pairs are the train cuts.",
    "test_versions": "Releases that are each paired with the last train version.",
    "ontology": "A loaded ontology; the default is the only one.",
    "proteins": "A loaded protein set; the default is the only one.",
    "k": "Neighbours of a query in an aspect (5).",
    "metric": "cosine (the default) or l2.",
    "search_backend": "exact (the default).",
    "distance_threshold": "Neighbours are at most this far away.",
    "donor_evidence": "all (the default), experimental, non_electronic, or codes.",
    "experimental_codes": "experimental (the default), cafa, or codes.",
    "label_mode": "propagated (the default) or direct.",
    "keep_known": "Keep the candidates that are known already.",
    "exclude_binding_only": "No member for protein binding alone (the default).",
    "exclude_identical_sequences": "No donor with the query's own sequence.",
    "expand_votes_to_ancestors": "Donors vote for the ancestors of their terms too.",
    "use_embedding_pca": "Fill the columns emb_pca_query_*.",
    "compute_alignments": "Align the query with the donor of every candidate.",
    "compute_taxonomy": "Relate the query's taxon to the donors'; needs a taxonomy.",
    "compute_self_prior": "Score candidates by the query's own non-experimental rows.",
    "compute_association": "Score candidates by what donors with the query's known terms have.",
    "interpro_candidates": "Terms that InterPro supports are candidates too; needs interpro.",
    "taxonomy": "A loaded taxonomy.",
    "term_vectors": "Loaded term vectors; they switch on the anc2vec columns.",
    "interpro": "A loaded InterPro table; it switches on the interpro columns.",
    "external_scores": "Loaded scores of another predictor; they switch on the classifier columns.",
    "information_accretion": "A loaded IA file, instead of computing it.",
    "max_alignment_cells": "Pairs of more cells than this are not aligned.",
}
"""Setting -> its line in the help."""


def _plain(annotation: Any) -> tuple[type, bool, tuple[str, ...]]:
    """(bool, int, float or str, whether it takes a list, the words that are not one) of a setting's type."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _plain(args[0])
    if origin is list:
        return str, True, ()
    if origin is Literal:
        return str, False, args
    if origin in (Union, types.UnionType):
        parts = [_plain(a) for a in args if a is not type(None)]
        return parts[0][0], any(p[1] for p in parts), sum((p[2] for p in parts), ())
    return annotation, False, ()


SETTINGS = {name: _plain(field.annotation) for name, field in ExportConfig.model_fields.items()}


def _option(name: str) -> inspect.Parameter:
    """A setting as a parameter that typer makes an option of; None when it is not given."""
    kind, many, _ = SETTINGS[name]
    flag = f"--{name.replace('_', '-')}"
    more: dict[str, Any] = {"help": HELP.get(name)}
    if kind is bool:
        option = typer.Option(f"{flag}/--no-{flag[2:]}", show_default=False, **more)
    else:
        option = typer.Option(flag, metavar="A,B,..." if many else None, **more)
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]  # made here, for typer
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def with_settings(function: Callable[..., None]) -> Callable[..., None]:
    """`function`, whose `**values` typer sees as an option for every setting."""
    own = inspect.signature(function).parameters.values()
    named = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own if p.kind is not inspect.Parameter.VAR_KEYWORD]
    function.__signature__ = inspect.Signature([*named, *map(_option, SETTINGS)])  # type: ignore[attr-defined]
    return function


def given(values: dict[str, Any]) -> dict[str, Any]:
    """The settings that were given, lists apart at the commas."""
    out = {}
    for name, value in values.items():
        _, many, words = SETTINGS[name]
        if value is not None:
            out[name] = [v.strip() for v in value.split(",")] if many and value not in words else value
    return out


File = Annotated[Path | None, typer.Argument(help="Settings, TOML; options win over it.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.callback()
def _group() -> None:
    """Plan, run and explain exports. Settings are given in a TOML file, as options, or both."""


@app.command()
@with_settings
def plan(file: File = None, json: Json = False, **values: Any) -> None:
    """Say what an export would do: cuts, members, donors, expected rows, disk, memory. Nothing is written."""
    from protea.planning import plan as make

    with Exporting() as progress:
        found = make(file, settings=read_settings(), report=progress, **given(values)).to_json()
    if json:
        write_json(found)
        return
    lines = []
    for cut in found["cuts"]:
        by_category = [sum(cut["members"][c].values()) for c in ("nk", "lk", "pk")]
        donors = "/".join(cell(cut["donors"][a]) for a in ("mfo", "bpo", "cco"))
        where = (cut["pair"], cut["label"])
        lines.append((*where, *by_category, cut["queries"], donors, cut["expected_rows"], cut["status"]))
    table(("CUT", "LABEL", "NK", "LK", "PK", "QUERIES", "DONORS F/P/C", "ROWS (ABOUT)", "STATUS"), lines, text=8)
    write()
    write(f"export        {found['name']} ({found['fingerprint'][:12]})")
    write(f"rows (about)  {found['expected_rows']:,}")
    write(f"disk (about)  {size(found['disk_bytes'])}; free: {size(found['free_disk_bytes'])}")
    write(f"memory        about {size(found['memory_bytes'])}")
    for warning in found["warnings"]:
        say(f"warning: {warning}")


@app.command()
@with_settings
def run(
    file: File = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a dataset of that name.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait while the same export runs elsewhere.")] = False,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, show_default=False, help="Cut it into minijobs for so many workers."),
    ] = None,
    json: Json = False,
    **values: Any,
) -> None:
    """Make a dataset, or go on making it: what an interrupted run finished is kept."""
    from protea.exporting import export

    settings = read_settings()
    if workers is None:
        with Exporting() as progress:
            made = export(file, settings=settings, report=progress, replace=replace, wait=wait, **given(values))
    else:
        from protea.cli.board import Board
        from protea.jobs.local import export as distribute

        with Board() as board:
            made = distribute(file, settings=settings, workers=workers, report=board.tell, board=board.show,
                              replace=replace, **given(values))  # fmt: skip
    if json:
        wanted = ("fingerprint", "n_train_rows", "n_eval_rows", "counts", "files", "warnings")
        write_json({"name": made.name, "path": str(made.path), **{key: made.manifest.get(key) for key in wanted}})
        return
    counts(made.manifest)
    write()
    files(made)


@app.command()
@with_settings
def explain(
    target: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A TOML file, a dataset or an export begun.")],
    json: Json = False,
    **values: Any,
) -> None:
    """Say which cuts a run would reuse and, for each of the others, what changed."""
    from protea.planning import explain as find

    found = find(target, settings=read_settings(), overrides=given(values)).to_json()
    if json:
        write_json(found)
        return
    published = "published" if found["published"] else "not published"
    write(f"{found['name']} ({found['fingerprint'][:12]}) is {published}; staging: {found['directory']}")
    lines = []
    for cut in found["cuts"]:
        why = "; ".join([*([cut["reason"]] if cut["reason"] else []), *map(str, cut["changes"])])
        state = "reused" if cut["reused"] else "published" if found["published"] else "to compute"
        lines.append((cut["pair"], state, why if state == "to compute" else ""))
    table(("CUT", "STATUS", "WHY"), lines, text=2)
