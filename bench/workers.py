"""How much faster an export is with two worker processes than with one: the whole way, from the queue to the dataset.

The workload is given a home of its own, with a catalogue, and `protea export run --workers` does the rest: starting the
processes, dividing the export, publishing. Called by `__main__` through the stages.
"""

import shutil
from pathlib import Path
from typing import Any

from protea.catalog import open_catalog
from protea.catalog.models import AnnotationSet, Dataset
from protea.jobs.local import export
from protea.loading import Found, commit, load_file, opened
from protea.settings import Settings

from .measure import alternate, ratio
from .workload import Size, Workload, make

SIZE = Size("W", 60_000, 6_000, 1024, cuts=4)


def load(w: Workload, settings: Settings) -> None:
    """The workload as inputs of a home, unless they are there."""

    def copy(source: Path, tmp: Path) -> None:
        shutil.copytree(source, tmp, dirs_exist_ok=True)

    def read(kind: str, columns: dict[str, Any]) -> Any:
        def found(tmp: Path, _: Any) -> Found:
            copy(w.directory / kind, tmp)
            return Found(f"{kind}-{w.size.name}", {}, columns=columns)

        return found

    columns = {"dim": w.size.dim, "dtype": w.size.dtype, "vectors": w.size.donors}
    load_file(settings, "ontology", None, "ontology", read("ontology", {}))
    load_file(settings, "proteins", None, "proteins", read("proteins", {}))
    load_file(settings, "embeddings", None, "vectors", read("vectors", columns))
    for v in w.versions:
        with opened(settings, None) as (catalog, store), store.staging() as tmp:
            copy(w.directory / f"set{v}", tmp)
            name = f"set{v}-{w.size.name}"
            row = AnnotationSet(name=name, identity=name, object_digest=name, stats={}, source_file="", source="goa",
                                version=str(v), file_identity=name, derived_from_date=False)  # fmt: skip
            commit(catalog, store, tmp, [row])


def speed_up(directory: Path, rounds: int) -> list[dict[str, Any]]:
    """Two workers against one, each of one thread."""
    from .stages import row

    w = make(SIZE, directory / SIZE.name, tables=False)
    home = Settings(home=directory / "home-workers")
    config = w.config(expand_votes_to_ancestors=True)

    def run(workers: int) -> None:
        shutil.rmtree(home.resume_dir, ignore_errors=True)
        made = export(config, settings=home.model_copy(update={"threads": 1}), workers=workers)
        shutil.rmtree(made.path)
        with open_catalog(home) as catalog, catalog.session() as session:
            session.query(Dataset).delete()

    with open_catalog(home):  # the embedded server stays up
        load(w, home)
        taken = alternate({"two": lambda: run(2), "one": lambda: run(1)}, rounds, warm=False)
    what = f"export of {SIZE.cuts} equal cuts, two workers"
    return [
        row(what, SIZE.name, taken, "one worker", "one", ours="two", value=1 / ratio(taken, "two", "one"), unit="x",
            target=1.7, least=True),
    ]  # fmt: skip
