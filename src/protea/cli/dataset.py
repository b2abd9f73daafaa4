"""`protea dataset`: published datasets. Its tables also end `protea export run`."""

import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from protea.cli.output import cell, read_settings, say, size, table, tree, write, write_json

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)

Name = Annotated[str, typer.Argument(help="The dataset.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


class Split(StrEnum):
    """The files of a dataset."""

    train = "train"
    eval = "eval"
    truth = "truth"
    known = "known"


@app.callback()
def _group() -> None:
    """Look at published datasets, check them, remove them."""


@app.command("list")
def list_(json: Json = False) -> None:
    """List the datasets, the newest first."""
    from protea.catalog import open_catalog
    from protea.cli.listing import dataset_json, dataset_line

    with open_catalog(read_settings()) as catalog:
        rows = catalog.datasets()
    if json:
        write_json([dataset_json(row) for row in rows])
    else:
        table(("NAME", "CONTENT", "SIZE", "WHEN"), [(line[1], *line[3:]) for line in map(dataset_line, rows)])


@app.command()
def show(name: Name, json: Json = False) -> None:
    """Show a dataset: where it is, from what it was made, what it holds and what was left out."""
    found = _open(name)
    m = found.manifest
    if json:
        write_json({"path": str(found.path), **m})
        return
    inputs = m["inputs"]
    config = {key: value for key, value in m["config"].items() if value is not None}
    sets = [f"{v}{' (by date)' if s['derived_by_date'] else ''}" for v, s in inputs["annotation_sets"].items()]
    tree(
        {
            "dataset": found.name,
            "path": str(found.path),
            "fingerprint": m["fingerprint"],
            "ontology": inputs["ontology"]["name"],
            "proteins": inputs["proteins"]["name"],
            "embedding config": inputs["embedding_config"]["name"],
            "annotation sets": [f"{m['annotation_source']}:{v}" for v in sets],
            "rows": f"{m['n_train_rows']:,} train, {m['n_eval_rows']:,} eval",
            "settings": [f"{key} = {_setting(value)}" for key, value in config.items() if key not in inputs],
            "families": [f"{f}: {_family(status)}" for f, status in m["families"].items()],
        }
    )
    write()
    counts(m)
    left_out = [(pair, reason, n) for pair, dropped in m["dropped"]["cuts"].items() for reason, n in dropped.items()]
    sets_out = [(v, reason, n) for v, found in m["dropped"]["annotation_sets"].items() for reason, n in found.items()]
    write()
    table(("CUT OR SET", "LEFT OUT", "COUNT"), [line for line in (*left_out, *sets_out) if line[2]])
    write()
    files(found)
    for warning in m["warnings"]:
        say(f"warning: {warning}")
    if isinstance(found.path, Path) and (
        bad := [n for n, f in m["files"].items() if size_of(found.path / n) != f["size"]]
    ):
        say(f"warning: {', '.join(bad)} gone or damaged; `protea dataset verify {found.name}` says more")


@app.command()
def head(
    name: Name,
    split: Annotated[Split, typer.Option(help="Which file.")] = Split.train,
    n: Annotated[int, typer.Option("-n", min=1, max=1000, help="How many rows.")] = 5,
    json: Json = False,
) -> None:
    """Print the first rows: a line a column, or with --json a list of rows."""
    rows = getattr(_open(name), split).head(n)
    if json:
        write_json(rows.to_pylist())
        return
    columns = ((column, *map(_value, rows[column].to_pylist())) for column in rows.column_names)
    table(("COLUMN", *(f"ROW {i + 1}" for i in range(len(rows)))), columns)


@app.command()
def path(
    name: Name,
    split: Annotated[Split | None, typer.Option(help="The path of this file instead of the directory.")] = None,
) -> None:
    """Print where a dataset lies."""
    found = _open(name)
    print(found.path if split is None else found.file(split))


@app.command()
def verify(name: Name, json: Json = False) -> None:
    """Compare every file of a dataset with the recorded SHA-256. Exit status 1 when one is missing or damaged."""
    from protea.catalog import open_catalog
    from protea.upkeep import failed, verify_dataset

    settings = read_settings()
    with open_catalog(settings) as catalog:
        row = catalog.find_dataset(name)
    checks = verify_dataset(row, settings)
    if json:
        files = [c.to_json() for c in checks]
        write_json({"name": row.name, "path": row.path, "ok": not failed(checks), "files": files})
    else:
        for c in checks:
            write(f"{c.state:5} {c.check}: {c.what}{f' ({c.hint})' if c.hint else ''}")
    if failed(checks):
        raise typer.Exit(1)


@app.command()
def remove(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Remove a dataset: its files and its row. The inputs it was made from stay."""
    from protea.catalog import open_catalog
    from protea.errors import ConfigError
    from protea.upkeep import remove_dataset

    settings = read_settings()
    with open_catalog(settings) as catalog:
        path = catalog.find_dataset(name).path
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("nobody can be asked here", hint="pass --yes")
        typer.confirm(f"remove the dataset {name!r} in {path}?", abort=True, err=True)
    gone = remove_dataset(settings, name)
    if json:
        write_json({"name": name, "path": str(gone)})
    else:
        write(f"removed {name}: {gone}")


def size_of(path: Path) -> int | None:
    """Bytes of a file, None when there is none."""
    return path.stat().st_size if path.is_file() else None


def counts(manifest: Mapping[str, Any]) -> None:
    """The table of members, rows and positives per cut, category and aspect."""
    columns = ("members", "queried", "novel_terms", "reached", "rows", "positives")
    cells = [
        (pair, category, aspect, *(n[c] for c in columns))
        for pair, by_category in manifest["counts"].items()
        for category, by_aspect in by_category.items()
        for aspect, n in by_aspect.items()
    ]
    total = [sum(line[i] for line in cells) for i in range(3, 3 + len(columns))]
    head = ("CUT", "CATEGORY", "ASPECT", *(c.upper().replace("_", " ") for c in columns))
    table(head, [*cells, ("total", "", "", *total)])


def files(dataset: Any) -> None:
    """The paths of a dataset's files."""
    sizes = {name: f["size"] for name, f in dataset.manifest["files"].items()}
    others = (n for n in ("manifest.json", "run.json") if not isinstance(f := dataset.at(n), Path) or f.is_file())
    for name in (*sizes, *others):
        write(f"{dataset.at(name)}{f'  {size(sizes[name])}' if name in sizes else ''}")


def _open(name: str) -> Any:
    from protea.exporting import open_dataset

    return open_dataset(name, settings=read_settings())


def _setting(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _family(status: Mapping[str, Any]) -> str:
    if status["status"] != "produced":
        return f"{status['status']}, {status['reason']}"
    still = status.get("absent_columns")
    return "produced" + (f", but for {', '.join(f'{c} ({why})' for c, why in still.items())}" if still else "")


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else cell(value)
