"""Loading inputs: a file becomes an immutable object and a row of the catalogue, or nothing at all.

The readers of `core` check and convert; this module names, identifies and commits. Called by the command line and the
Python API. Loading is

- idempotent: the same content under the same name is recognised (and its object mended if it was damaged); the same
  content under another name shares the object; another content under a taken name is a ConflictError;
- atomic: a load that is killed leaves a staging directory, which the next one removes (`protea.storage`).

Objects hold `terms.parquet`, `resolve.parquet` (ontology), `rows.parquet` (annotations), `proteins.parquet`,
the files of `core.embeddings.store`, and `nodes.parquet`, `merged.parquet`, `deleted.parquet` (taxonomy).
"""

import contextlib
import datetime as dt
import errno
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protea.catalog import INPUTS, AnnotationSet, Catalog, Input, open_catalog
from protea.errors import ConfigError, ConflictError, NotFoundError, StorageError
from protea.settings import Settings
from protea.storage import ObjectStore

if TYPE_CHECKING:
    from protea.core.annotations import GafReport
    from protea.core.embeddings.source import Source

Progress = Callable[[int], None]
_NAME = re.compile(r"[A-Za-z0-9_+:-][A-Za-z0-9._+:-]{0,99}")
_SUFFIX = re.compile(
    r"\.(gz|tgz|tar|zip|bgz|obo|gaf|gpa|fasta|fas|faa|fa|h5|hdf5|hdf|npz|npy|parquet|pq|txt|tsv)$", re.IGNORECASE
)


@dataclass(frozen=True)
class LoadResult:
    """What a load did. `rows`: the inputs, in the order asked for; `new`: which of them were not there before."""

    kind: str
    rows: tuple[Any, ...]
    new: tuple[bool, ...]

    @property
    def row(self) -> Any:
        return self.rows[0]

    @property
    def already_loaded(self) -> bool:
        return not any(self.new)


@dataclass(frozen=True)
class _Found:
    """What a reader made of a file: its identity, its report, its own name for itself, columns of its kind."""

    identity: str
    stats: dict[str, Any]
    label: str | None = None
    columns: dict[str, Any] | None = None


def load_ontology(
    settings: Settings, path: str | Path, *, name: str | None = None, progress: Progress | None = None
) -> LoadResult:
    """Load a GO release (OBO). Its name is its `data-version` without `releases/`, else the file's stem."""

    def read(tmp: Path) -> _Found:
        from protea.core.ontology import read_obo

        ontology, report = read_obo(path, progress)
        ontology.save(tmp)
        label = report.version.removeprefix("releases/") if report.version else None
        return _Found(report.sha256, report.to_json(), label and re.sub(r"[^A-Za-z0-9._+:-]", "-", label))

    return _load(settings, "ontology", path, name, read)


def load_proteins(
    settings: Settings, path: str | Path, *, name: str | None = None, progress: Progress | None = None
) -> LoadResult:
    """Load protein sequences (FASTA). The name is the file's stem unless given."""

    def read(tmp: Path) -> _Found:
        import pyarrow.parquet as pq

        from protea.core.proteins import read_fasta

        table, report = read_fasta(path, progress)
        pq.write_table(table, tmp / "proteins.parquet", compression="zstd")
        return _Found(report.sha256, report.to_json())

    return _load(settings, "proteins", path, name, read)


def load_taxonomy(
    settings: Settings, path: str | Path, *, name: str | None = None, progress: Progress | None = None
) -> LoadResult:
    """Load an NCBI taxdump (a directory or a .tar.gz). The name is the directory's or file's stem unless given."""

    def read(tmp: Path) -> _Found:
        from protea.core.taxonomy import read_taxdump

        tables, report = read_taxdump(path, progress)
        tables.save(tmp)
        stats = report.to_json()
        return _Found(_sha256_json(stats["sha256"]), stats)

    return _load(settings, "taxonomy", path, name, read)


def load_embeddings(
    settings: Settings,
    source: "str | Path | Source",
    *,
    name: str | None = None,
    ids: str | Path | None = None,
    pool: str | None = None,
    progress: Progress | None = None,
) -> LoadResult:
    """Load vectors (HDF5, NPZ, NPY with `ids`, Parquet, or a computed Source, which needs a name)."""

    def read(tmp: Path) -> _Found:
        from protea.core.embeddings.store import build_store

        report = build_store(source, tmp, ids=ids, pool=pool, progress=progress)
        assert report.identity is not None
        columns = {"dim": report.dim, "dtype": report.dtype, "vectors": report.vectors}
        return _Found(report.identity, report.to_json(), columns=columns)

    path = source if isinstance(source, str | Path) else None
    if path is None and name is None:
        raise ConfigError("computed embeddings need a name", hint="give --name")
    return _load(settings, "embeddings", path, name, read)


def load_annotations(
    settings: Settings,
    path: str | Path,
    *,
    source: str,
    version: int | str | dt.date | None = None,
    cut_dates: Iterable[str | dt.date] = (),
    proteins: str | None = None,
    databases: Iterable[str] = ("UniProtKB",),
    max_rejected: float = 0.01,
    name: str | None = None,
    progress: Progress | None = None,
) -> LoadResult:
    """Load a GAF as the set (source, version) and, for each of `cut_dates`, as the set of its rows up to that day.

    All sets of a file share one object; a derived set's version is its date. At least a version or a cut date is needed.
    `proteins` names a loaded protein set: only rows of its accessions are stored. More than `max_rejected` (a share) of
    malformed rows is an InputError; so is a cut date before the first row.
    """
    wanted = _versions(version, cut_dates)
    if ":" in _valid_name(source):
        raise ConfigError(f"the source {source!r} has a colon", hint="leave it out")
    names = [_valid_name(name or f"{source}:{v}") for v, _ in wanted]
    if name is not None and len(wanted) > 1:
        raise ConfigError(f"one name, {name!r}, for {len(wanted)} sets", hint="leave out --name: SOURCE:VERSION it is")
    accepted = sorted(set(databases))
    with _loading(settings, path) as (catalog, store):
        subset = catalog.find("proteins", proteins) if proteins is not None else None
        options = {"databases": accepted, "proteins": subset.identity if subset else None}

        def rows(file_identity: str, stats: list[dict[str, Any]]) -> list[Input]:
            digest = _sha256_json({"file": file_identity, "cut_date": None, **options})
            return [
                AnnotationSet(
                    name=n,
                    identity=_sha256_json({"file": file_identity, "cut_date": cut and cut.isoformat(), **options}),
                    object_digest=digest,
                    stats=s,
                    source_file=Path(path).name,
                    source=source,
                    version=v,
                    derived_from_date=cut is not None,
                    cut_date=cut,
                    file_identity=file_identity,
                )
                for (v, cut), n, s in zip(wanted, names, stats, strict=True)
            ]

        if any(_taken(catalog, name, source, v) for name, (v, _) in zip(names, wanted, strict=True)):
            # reading just the bytes tells whether they are the loaded ones, in a fraction of the time
            asked = rows(_sha256_text(path, progress), [{}] * len(wanted))
            old = [_same(catalog, row) for row in asked]
            if all(old) and store.intact("annotations", asked[0].object_digest):
                return LoadResult("annotations", tuple(old), (False,) * len(old))
        with store.staging() as tmp:
            accessions = store.path("proteins", subset.object_digest) / "proteins.parquet" if subset else None
            from protea import date_cuts

            report = _stage_gaf(path, tmp, accepted, accessions, max_rejected, progress)
            whole = report.to_json() | {"databases": accepted, "restricted_to": proteins}
            stats = date_cuts.reports(path, whole, tmp / "rows.parquet", [cut for _, cut in wanted])
            return _commit(catalog, store, tmp, rows(report.sha256, stats))


def _load(
    settings: Settings, kind: str, path: str | Path | None, name: str | None, read: Callable[[Path], _Found]
) -> LoadResult:
    """The load of everything but annotations: read into staging, name, commit."""
    if name is not None:
        _valid_name(name)
    with _loading(settings, path) as (catalog, store), store.staging() as tmp:
        found = read(tmp)
        label = found.label if found.label and _NAME.fullmatch(found.label) else None
        row = INPUTS[kind](
            name=name or label or _stem(path),
            identity=found.identity,
            object_digest=found.identity,
            stats=found.stats,
            source_file=Path(path).name if path is not None else "",
            **(found.columns or {}),
        )
        return _commit(catalog, store, tmp, [row])


@contextlib.contextmanager
def _loading(settings: Settings, path: str | Path | None) -> Iterator[tuple[Catalog, ObjectStore]]:
    """The catalogue and the swept store of a load; errors of our own files and of the disk as StorageError."""
    if path is not None and not Path(path).exists():
        raise NotFoundError(f"{path}: there is no such file")
    try:
        with open_catalog(settings) as catalog:
            store = ObjectStore(settings.storage)
            store.sweep(catalog.place, catalog.uses_object)
            yield catalog, store
    except OSError as e:
        why = e.strerror or str(e).partition("\n")[0]
        hint = "free some disk space" if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else None
        raise StorageError(f"{settings.storage} cannot be written: {why}", hint=hint) from e


def _commit(catalog: Catalog, store: ObjectStore, tmp: Path, rows: list[Input]) -> LoadResult:
    """Give the staged object its address and insert those of `rows` that are not there. All rows share the object."""
    kind = rows[0].kind
    size = sum(p.stat().st_size for p in tmp.rglob("*"))
    with store.committed(tmp, kind, rows[0].object_digest, catalog.place):
        old = [_same(catalog, row) for row in rows]
        new = [row for row, o in zip(rows, old, strict=True) if o is None]
        for row in new:
            row.stats = row.stats | {"bytes": size}
        if new:
            catalog.add(*new)
    return LoadResult(kind, tuple(o or row for o, row in zip(old, rows, strict=True)), tuple(o is None for o in old))


def _taken(catalog: Catalog, name: str, source: str, version: str) -> bool:
    rows = catalog.inputs("annotations")
    return any(r.name == name or (r.source, r.version) == (source, version) for r in rows)


def _same(catalog: Catalog, row: Input) -> Input | None:
    """The loaded input that `row` would repeat, None when its name is free. ConflictError when it is another one."""
    for old in catalog.inputs(row.kind):
        place = f"the {row.title} {old.name!r}"
        if isinstance(row, AnnotationSet) and (old.name == row.name) != (
            (old.source, old.version) == (row.source, row.version)
        ):
            raise ConflictError(f"{place} is {old.source} {old.version}", hint="choose another name, or other versions")
        if old.name == row.name:
            if old.identity == row.identity:
                return old
            from_file = getattr(row, "file_identity", row.identity)
            same_file = getattr(old, "file_identity", old.identity) == from_file
            what = "with other options" if same_file else f"from another file ({old.source_file})"
            raise ConflictError(
                f"{place} is loaded already, {what}; this one has the sha256 {from_file[:12]}...",
                hint="choose another --version or --source"
                if isinstance(row, AnnotationSet)
                else "choose another --name",
            )
    return None


def _stage_gaf(
    path: str | Path,
    tmp: Path,
    databases: list[str],
    accessions: Path | None,
    max_rejected: float,
    progress: Progress | None,
) -> "GafReport":
    """Stream a GAF into `rows.parquet`, a batch in memory at a time."""
    import pyarrow.parquet as pq

    from protea.core.annotations import SCHEMA, check_rejected, read_gaf

    only = pq.read_table(accessions, columns=["accession"])["accession"].combine_chunks() if accessions else None
    with pq.ParquetWriter(tmp / "rows.parquet", SCHEMA, compression="zstd") as writer:
        report = read_gaf(path, databases=databases, proteins=only, sink=writer.write_batch, progress=progress)
    check_rejected(report, max_rejected)
    return report


def _versions(
    version: int | str | dt.date | None, cut_dates: Iterable[str | dt.date]
) -> list[tuple[str, dt.date | None]]:
    """(version, cut date) of each set asked for: the whole file first, then the cut dates ascending."""
    days = []
    for given in cut_dates:
        day = _version(given)
        if day.isdigit():
            raise ConfigError(f"the cut date {given!r} is no date", hint="write it like 2014-09-30")
        days.append(dt.date.fromisoformat(day))
    wanted: list[tuple[str, dt.date | None]] = [] if version is None else [(_version(version), None)]
    wanted += [(day.isoformat(), day) for day in sorted(days)]
    if not wanted:
        raise ConfigError("annotations need a version or cut dates", hint="give --version, like 2014-09-30 or 57")
    for (a, _), (b, _) in itertools.pairwise(sorted(wanted, key=lambda w: w[0])):
        if a == b:
            raise ConfigError(f"the version {a} is asked for twice", hint="a derived set has its date as its version")
    return wanted


def _version(given: object) -> str:
    """A version as text: an integer, or an ISO date. ConfigError for anything else."""
    text = given.isoformat() if isinstance(given, dt.date) else str(given).strip()
    if re.fullmatch(r"[0-9]{1,18}", text):
        return str(int(text))
    if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        with contextlib.suppress(ValueError):
            return dt.date.fromisoformat(text).isoformat()
    raise ConfigError(f"the version {text!r} is neither an integer nor a date", hint="write it like 57 or 2014-09-30")


def _valid_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no name: 1 to 100 letters, digits and . _ - + :, not starting with a dot", hint="give --name"
        )
    return name


def _stem(path: str | Path | None) -> str:
    """The name of a file without the endings that say what it is."""
    stem = Path(path or "").resolve().name
    while (shorter := _SUFFIX.sub("", stem)) not in ("", stem):
        stem = shorter
    return _valid_name(stem)


def _sha256_text(path: str | Path, progress: Progress | None) -> str:
    from protea.core.textio import open_text

    with open_text(path) as reader:
        while reader.read(4 << 20):
            if progress is not None:
                progress(reader.consumed)
        return reader.sha256


def _sha256_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
