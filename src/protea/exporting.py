"""Exports as a user sees them: names are looked up in the catalogue, the operation runs, a dataset comes back.

Called by the command line and by `import protea`; calls the catalogue, the object store and the core operation.
"""

import contextlib
import os
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .catalog import Catalog, Job, open_catalog
from .catalog.models import Dataset as DatasetRow
from .core.config import ExportConfig, load, parse
from .errors import NotFoundError, ProteaError, StorageError
from .settings import Settings
from .storage import ObjectStore

if TYPE_CHECKING:
    import pyarrow.dataset

    from .core.alignment_cache import AlignmentCache
    from .core.bucket import Bucket
    from .core.keys import ExportInputs
    from .core.remote import Remote

Report = Callable[..., None]
TABLES = {
    "taxonomy": "taxonomy",
    "term_vectors": "term-vectors",
    "interpro": "interpro",
    "external_scores": "scores",
    "information_accretion": "ia",
}
"""Setting -> the kind of input that it names."""
SPLITS = ("train", "eval", "truth", "known")
LOGGED = ("export.", "cut.restored", "cut.discarded", "cut.started", "cut.aligned", "cut.finished", "assembly.")
"""Events that go into the job's log (beginnings of their kinds); the others are progress."""


@dataclass(frozen=True)
class Dataset:
    """A published dataset: its directory, its manifest, and its files as `pyarrow.dataset`.

    In a bucket (PROTEA_STORAGE_URL) the directory and the files are URIs, and `remote` reads them.
    """

    name: str
    path: Path | str
    manifest: Mapping[str, Any] = field(repr=False)
    remote: "Remote | None" = field(default=None, repr=False)

    def file(self, which: str) -> Path | str:
        """The path of `train`, `eval`, `truth` or `known`."""
        if which not in SPLITS:
            raise NotFoundError(f"a dataset has no file {which!r}; it has {', '.join(SPLITS)}")
        return self.at(f"{which}.parquet")

    def at(self, name: str) -> Path | str:
        """The path of any file of the directory."""
        return self.path / name if isinstance(self.path, Path) else f"{self.path}/{name}"

    def _open(self, which: str) -> "pyarrow.dataset.Dataset":
        import pyarrow.dataset

        file = self.file(which)
        if isinstance(file, Path):
            if not file.is_file():
                raise _gone(self.name, file)
            return pyarrow.dataset.dataset(file, format="parquet")
        assert self.remote is not None
        return pyarrow.dataset.dataset(file.removeprefix("s3://"), format="parquet", filesystem=self.remote.filesystem)

    @property
    def train(self) -> "pyarrow.dataset.Dataset":
        return self._open("train")

    @property
    def eval(self) -> "pyarrow.dataset.Dataset":
        return self._open("eval")

    @property
    def truth(self) -> "pyarrow.dataset.Dataset":
        return self._open("truth")

    @property
    def known(self) -> "pyarrow.dataset.Dataset":
        return self._open("known")


class Rows:
    """The `Dataset` rows of a catalogue, as the operation needs them."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    def find(self, name: str) -> Mapping[str, Any] | None:
        try:
            row = self.catalog.find_dataset(name)
        except NotFoundError:
            return None
        return {"fingerprint": row.fingerprint, "path": row.path, "manifest": row.manifest}

    def register(self, name: str, fingerprint: str, path: Path | str, manifest: Mapping[str, Any]) -> None:
        row = DatasetRow(
            name=name,
            fingerprint=fingerprint,
            path=str(path),
            manifest=dict(manifest),
            n_train_rows=manifest["n_train_rows"],
            n_eval_rows=manifest["n_eval_rows"],
        )
        self.add(row)

    def add(self, row: DatasetRow) -> None:
        self.catalog.add_dataset(row, replace=True)


def resolve(
    config: ExportConfig, catalog: Catalog, settings: Settings, *, fetch: bool = True
) -> "tuple[ExportConfig, ExportInputs]":
    """Fill in the names that were left out, and find every input; an error names what is missing.

    Inputs that are in the bucket only are fetched, unless others are to use them (not `fetch`).
    """
    from .core.annotation_set import AnnotationSource
    from .core.keys import ExportInputs, InputRef

    store = ObjectStore.of(settings)
    intact = store.intact if fetch or store.remote is None else store.there
    whole: set[str] = set()

    def there(kind: str, row: Any) -> Path:
        """Where an input's files are, each compared with the digest that loading recorded."""
        if row.object_digest not in whole and not intact(kind, row.object_digest):
            raise StorageError(f"the files of {row.name!r} are gone or damaged", hint="load it again")
        whole.add(row.object_digest)
        return store.objects / kind / row.object_digest

    def ref(kind: str, name: str | None) -> InputRef:
        row = catalog.find(kind, name)
        return InputRef(row.name, row.identity, there(kind, row), row.stats)

    embeddings = ref("embeddings", config.embedding_config)
    sets, derived = {}, set()
    for v in config.versions:
        row = catalog.annotation_set(config.annotation_source, str(v))
        sets[v] = AnnotationSource(v, there("annotations", row), row.identity, row.cut_date, row.stats)
        if row.derived_from_date:
            derived.add(v)
    ontology, proteins = ref("ontology", config.ontology), ref("proteins", config.proteins)
    idle = {} if config.compute_alignments else {"max_alignment_cells": None}
    idle |= {} if config.compute_taxonomy else {"taxonomy": None}
    # what is switched off cannot change a byte, and must not change a key
    config = config.model_copy(
        update={**idle, "ontology": ontology.name, "proteins": proteins.name, "embedding_config": embeddings.name}
    )
    tables = {setting: ref(kind, name) for setting, kind in TABLES.items() if (name := getattr(config, setting))}
    return config, ExportInputs(ontology, proteins, embeddings, sets, frozenset(derived), tables)


def configure(config: Path | str | ExportConfig | None, values: Mapping[str, Any]) -> ExportConfig:
    """A configuration from a TOML file, from keyword values, or from both (values win)."""
    if isinstance(config, ExportConfig):
        return parse({**config.model_dump(exclude_unset=True), **values}) if values else config
    return load(Path(config), values) if config is not None else parse(values)


def export(
    config: Path | str | ExportConfig | None = None,
    *,
    settings: Settings | None = None,
    report: Report | None = None,
    replace: bool = False,
    wait: bool = False,
    **values: Any,
) -> Dataset:
    """Make a dataset, or go on making it: `export("worm.toml")`, `export(name="worm", embedding_config=..., ...)`.

    The settings are those of the TOML file. A run that was interrupted goes on with the first unfinished cut; a dataset
    that exists already, from the same settings and inputs, is given back as it is. `report(kind, **what)` hears of
    every event. Errors: ConfigError, NotFoundError, ConflictError, BusyError (unless `wait`), StorageError.
    """
    settings = settings or Settings()
    wanted = configure(config, values)
    with open_catalog(settings) as catalog:
        resolved, inputs = resolve(wanted, catalog, settings)
        from .core.operations.export_research_dataset import export_research_dataset, read_manifest

        cache = alignment_cache(settings) if resolved.compute_alignments else None
        tidy(settings)
        with _job(catalog, resolved, report) as tell:
            path = export_research_dataset(
                resolved,
                inputs,
                Rows(catalog),
                resume_dir=settings.resume_dir,
                datasets_dir=settings.datasets_dir,
                report=tell,
                replace=replace,
                wait=wait,
                threads=settings.threads,
                alignments=cache,
                bucket=bucket_of(settings, catalog),
            )
            for problem in cache.problems if cache else ():
                tell("export.warning", text=problem)
    return Dataset(resolved.name, path, read_manifest(path, settings.remote) or {}, settings.remote)


def bucket_of(settings: Settings, catalog: Catalog) -> "Bucket | None":
    """The object store that PROTEA_STORAGE_URL names, with the rights that this catalogue gives."""
    if settings.remote is None:
        return None
    from .catalog.rights import AdvisoryRight
    from .core.bucket import Bucket

    return Bucket(settings.remote, lambda what: AdvisoryRight(catalog.url, what))


def tidy(settings: Settings) -> None:
    """Remove what is left here of exports that others have finished, if there is an object store; it need not be up."""
    if settings.remote is not None and settings.resume_dir.is_dir():
        from .core import bucket
        from .core.remote import Remote

        with contextlib.suppress(StorageError):
            bucket.tidy(settings.resume_dir, Remote(settings.storage_url or "", patience=0))


def alignment_cache(settings: Settings) -> "AlignmentCache":
    """The cache that all exports of this home share."""
    from .core.alignment_cache import AlignmentCache

    return AlignmentCache(settings.storage / "alignments", settings.alignment_cache_bytes)


@contextlib.contextmanager
def _job(catalog: Catalog, config: ExportConfig, report: Report | None) -> Iterator[Report]:
    """A row and a log for the run, whatever becomes of it."""
    jobs = catalog.jobs
    _bury(catalog)
    job = jobs.create("export_research_dataset", config.model_dump(mode="json"))
    job = jobs.start(job.id, f"{socket.gethostname()}:{os.getpid()}")

    def tell(kind: str, **what: Any) -> None:
        if kind.startswith(LOGGED):
            jobs.append(job.id, kind, what)
        elif kind == "cut.progress":
            jobs.heartbeat(job.id, job.fencing_token, what)
        if report is not None:
            report(kind, **what)

    try:
        yield tell
    except BaseException as e:
        state = "cancelled" if isinstance(e, KeyboardInterrupt) else "failed"
        code = e.code if isinstance(e, ProteaError) else type(e).__name__
        with contextlib.suppress(ProteaError):
            _finish(catalog, job.id, state, code, str(e))
        raise
    _finish(catalog, job.id, "succeeded")


def lost(job: Job) -> bool:
    """Whether a job is said to run in a process of this host that is gone."""
    import psutil

    host, _, pid = (job.owner or "").rpartition(":")
    return host == socket.gethostname() and pid.isdigit() and not psutil.pid_exists(int(pid))


def _bury(catalog: Catalog) -> None:
    """Jobs of this host whose process is gone were killed: say so, or they would run for ever."""
    for job in catalog.jobs.recent(state="running"):
        if lost(job):
            catalog.jobs.append(job.id, "worker.lost", {"owner": job.owner})
            _finish(catalog, job.id, "failed", "lost", f"its process {job.owner} was killed")


def _finish(catalog: Catalog, job: uuid.UUID, state: str, code: str | None = None, message: str | None = None) -> None:
    catalog.jobs.finish(job, state, error_code=code, error_message=message)


def _gone(name: str, path: Path | str) -> StorageError:
    return StorageError(
        f"the files of dataset {name!r} are gone from {path}",
        hint=f"run its export again, or `protea dataset remove {name}`",
    )


def located(row: DatasetRow, settings: Settings) -> "tuple[Path | str, Remote | None]":
    """Where a dataset's files are: a directory, or a URI and what reads it."""
    if "://" not in row.path:
        return Path(row.path), None
    from .core.remote import Remote

    remote = settings.remote
    if remote is None or not row.path.startswith(f"{remote.uri}/"):
        remote = Remote(row.path.removesuffix(f"/datasets/{row.name}/{row.fingerprint[:12]}"))
    return row.path, remote


def in_place(row: DatasetRow, settings: Settings) -> bool:
    """Whether a dataset's files are there, by their names and sizes (`dataset verify` reads them)."""
    from .core.operations.export_research_dataset import read_manifest

    path, remote = located(row, settings)
    found = read_manifest(path, remote)
    if found is None or found["fingerprint"] != row.fingerprint:
        return False
    wanted = {name: f["size"] for name, f in found["files"].items()}
    if isinstance(path, Path):
        return all((path / n).is_file() and (path / n).stat().st_size == size for n, size in wanted.items())
    assert remote is not None
    return wanted.items() <= remote.sizes(remote.name(path)).items()


def open_dataset(name: str, *, settings: Settings | None = None) -> Dataset:
    """A published dataset by name. NotFoundError says which there are; StorageError if its files are gone."""
    settings = settings or Settings()
    with open_catalog(settings) as catalog:
        row = catalog.find_dataset(name)
    from .core.operations.export_research_dataset import read_manifest

    path, remote = located(row, settings)
    found = read_manifest(path, remote)
    if found is None or "fingerprint" not in found:
        raise _gone(name, path)
    if found["fingerprint"] != row.fingerprint:
        raise StorageError(f"dataset {name!r} was being replaced when a run was cut short", hint="run its export again")
    return Dataset(name, path, found, remote)  # the file keeps the manifest's order, the row's JSONB does not
