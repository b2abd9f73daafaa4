"""The whole job on a made-up proteome: load, embed, export, and a summary.

Called by `protea demo` (and so by `make demo`); calls `demo_world` for the files, then the same public functions as
everybody, and the command line's way of printing. Run again, it finds everything as it was and says so.
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from protea.catalog import open_catalog
from protea.cli.load import tell
from protea.cli.output import table, write
from protea.exporting import Dataset, export
from protea.ingest import embed, load_annotations, load_ontology, load_proteins
from protea.settings import Settings

NAME = "demo"
"""What its inputs and its dataset are called. Another name whenever `demo_world` writes other bytes: a name that is
loaded stays with its content, and the demo must run in a home that has seen an older one."""


def run(settings: Settings, report: Callable[..., None] | None = None, directory: Path | None = None) -> Dataset:
    """Write the proteome's files into `directory` (default `<storage>/demo`), make the dataset of them, show both.

    `report(kind, **what)` hears of the export's events, as in `protea.export`; a context manager (a progress display) is
    entered for the export alone. Errors: those of loading and exporting.
    """
    from protea.demo_world import RELEASES, write_world

    directory = directory or settings.storage / "demo"
    write(f"a made-up proteome in {directory}")
    files = write_world(directory)
    versions = list(RELEASES)
    events = []

    def hear(kind: str, **what: Any) -> None:
        events.append(kind)
        if report is not None:
            report(kind, **what)

    with open_catalog(settings):  # held, so that the embedded server starts once
        tell(load_ontology(settings, files.ontology, name=NAME), False)
        for version, path in files.annotations.items():
            tell(load_annotations(settings, path, source=NAME, version=version), False)
        tell(load_proteins(settings, files.proteins, name=NAME), False)
        tell(embed(settings, "kmer", proteins=NAME), False)
        sys.stdout.flush()  # the events are told on standard error
        with report if isinstance(report, AbstractContextManager) else nullcontext():
            dataset = export(
                settings=settings,
                report=hear,
                name=NAME,
                ontology=NAME,
                proteins=NAME,
                embedding_config=f"kmer-{NAME}",
                annotation_source=NAME,
                train_versions=versions[:-1],
                test_versions=versions[-1:],
                use_embedding_pca=True,
            )
    show(dataset, unchanged="export.unchanged" in events)
    return dataset


def show(dataset: Dataset, unchanged: bool = False) -> None:
    """Print rows and positives by cut, category and aspect, and where the files are."""
    write()
    aspects = ("mfo", "bpo", "cco")
    head = ["cut", "category", *(name for a in aspects for name in (f"{a} rows", "positive"))]
    counts: dict[str, Any] = dict(dataset.manifest["counts"])
    lines = [
        [pair if category == "nk" else "", category, *(by[a][key] for a in aspects for key in ("rows", "positives"))]
        for pair, categories in counts.items()
        for category, by in categories.items()
    ]
    table(head, lines)
    write()
    train, evaluation = (dataset.manifest[f"n_{split}_rows"] for split in ("train", "eval"))
    state = "unchanged" if unchanged else "published"
    write(f"dataset {dataset.name} {state}: {train:,} rows to train on, {evaluation:,} to evaluate on")
    for name in sorted((*dataset.manifest["files"], "manifest.json", "run.json")):
        write(f"  {dataset.at(name)}")
