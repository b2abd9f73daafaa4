"""`protea list`: what is in the catalogue."""

from typing import Annotated, Any

import typer

from protea.cli import describe
from protea.cli.output import read_settings, size, table, when, write_json

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command("list")
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(metavar="[KIND]", help="ontology, annotations, ... (as in `protea load`), or datasets."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List what is loaded, and the datasets: names, versions, counts, sizes."""
    from protea.catalog import INPUTS, open_catalog
    from protea.errors import NotFoundError

    kinds = [*INPUTS, "datasets"]
    if kind is not None and kind not in kinds:
        import difflib

        near = difflib.get_close_matches(kind, kinds, 1, 0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"the kinds are {', '.join(kinds)}"
        raise NotFoundError(f"there is no kind {kind!r}", hint=hint)
    with open_catalog(read_settings()) as catalog:
        wanted = kinds if kind is None else [kind]
        found: dict[str, list[Any]] = {
            k: catalog.datasets() if k == "datasets" else catalog.inputs(k) for k in wanted
        }  # fmt: skip
    if json:
        as_json = {"datasets": dataset_json}
        write_json({k: [as_json.get(k, describe.as_json)(row) for row in rows] for k, rows in found.items()})
        return
    lines = []
    for k, rows in found.items():
        for row in rows:
            lines.append(dataset_line(row) if k == "datasets" else _input_line(row))
    table(("KIND", "NAME", "VERSION", "CONTENT", "SIZE", "WHEN"), lines, text=3)


def _input_line(row: Any) -> tuple[str, ...]:
    cut = " (by date)" if row.kind == "annotations" and row.derived_from_date else ""
    what = describe.content(row.kind, row.stats)
    return row.kind, row.name, describe.version(row) + cut, what, size(row.stats.get("bytes")), when(row.created_at)


def dataset_line(row: Any) -> tuple[str, ...]:
    """A dataset of the catalogue as a line of the list."""
    what = f"{row.n_train_rows:,} train and {row.n_eval_rows:,} eval rows"
    what += "; ITS FILES ARE GONE OR DAMAGED" if _there(row) is False else ""
    return "dataset", row.name, "", what, size(_bytes(row)), when(row.created_at)


def dataset_json(row: Any) -> dict[str, Any]:
    """A dataset of the catalogue as JSON values."""
    return {
        "name": row.name,
        "in_place": _there(row),
        "path": row.path,
        "fingerprint": row.fingerprint,
        "n_train_rows": row.n_train_rows,
        "n_eval_rows": row.n_eval_rows,
        "bytes": _bytes(row),
        "made_at": row.created_at.isoformat(timespec="seconds"),
    }


def _there(row: Any) -> bool | None:
    """Whether its files are there; None for those in a bucket, which a list does not wait for (`dataset verify` does)."""
    from protea.exporting import in_place

    return None if "://" in row.path else in_place(row, read_settings())


def _bytes(row: Any) -> int:
    return sum(f["size"] for f in row.manifest.get("files", {}).values())
