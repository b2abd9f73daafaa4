"""Loading inputs: a file becomes an immutable object and a row of the catalogue, or nothing at all.

The readers of `core` check and convert, `protea.loading` names, identifies and commits. Called by the command line and
the Python API. Loading is

- idempotent: the same content under the same name is recognised (and its object mended if it was damaged); the same
  content under another name shares the object; another content under a taken name is a ConflictError;
- atomic: a load that is killed leaves a staging directory, which the next one removes (`protea.storage`).

Objects hold `terms.parquet`, `resolve.parquet` (ontology), `rows.parquet` (annotations), `proteins.parquet`,
the files of `core.embeddings.store`, `nodes.parquet`, `merged.parquet`, `deleted.parquet` (taxonomy), `ids.parquet`,
`matrix.npy` (term vectors) and `rows.parquet` (InterPro, scores, IA).
"""

import contextlib
import datetime as dt
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protea.catalog import AnnotationSet, Catalog, Input, open_catalog, storable
from protea.core.fs import create
from protea.errors import ConfigError, StorageError
from protea.loading import (
    Found,
    LoadResult,
    Progress,
    accessions,
    commit,
    load_file,
    opened,
    same,
    sha256_json,
    sha256_text,
    valid_name,
)
from protea.settings import Settings
from protea.storage import ObjectStore

if TYPE_CHECKING:
    from protea.core.annotations import GafReport
    from protea.core.delimited import TableReport
    from protea.core.embeddings.source import Source


def load_ontology(
    settings: Settings, path: str | Path, *, name: str | None = None, progress: Progress | None = None
) -> LoadResult:
    """Load a GO release (OBO). Its name is its `data-version` without `releases/`, else the file's stem."""

    def read(tmp: Path, _: Any) -> Found:
        from protea.core.ontology import read_obo

        ontology, report = read_obo(path, progress)
        ontology.save(tmp)
        label = report.version.removeprefix("releases/") if report.version else None
        return Found(report.sha256, report.to_json(), label and re.sub(r"[^A-Za-z0-9._+:-]", "-", label))

    return load_file(settings, "ontology", path, name, read)


def load_proteins(
    settings: Settings, path: str | Path, *, name: str | None = None, progress: Progress | None = None
) -> LoadResult:
    """Load protein sequences (FASTA). The name is the file's stem unless given."""

    def read(tmp: Path, _: Any) -> Found:
        import pyarrow.parquet as pq

        from protea.core.proteins import read_fasta

        table, report = read_fasta(path, progress)
        with create(tmp / "proteins.parquet") as f:
            pq.write_table(table, f, compression="zstd")
        return Found(report.sha256, report.to_json())

    return load_file(settings, "proteins", path, name, read)


def load_taxonomy(
    settings: Settings, path: str | Path, *, name: str | None = None, progress: Progress | None = None
) -> LoadResult:
    """Load an NCBI taxdump (a directory or a .tar.gz). The name is the directory's or file's stem unless given."""

    def read(tmp: Path, _: Any) -> Found:
        from protea.core.taxonomy import read_taxdump

        tables, report = read_taxdump(path, progress)
        tables.save(tmp)
        stats = report.to_json()
        return Found(sha256_json(stats["sha256"]), stats)

    return load_file(settings, "taxonomy", path, name, read)


def load_embeddings(
    settings: Settings,
    source: "str | Path | Source",
    *,
    name: str | None = None,
    ids: str | Path | None = None,
    pool: str | None = None,
    recipe: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> LoadResult:
    """Load vectors (HDF5, NPZ, NPY with `ids`, Parquet, or a computed Source, which needs a name).

    `recipe` says how they were made, for the catalogue; without it, that is the file and how it was read.
    """

    def read(tmp: Path, _: Any) -> Found:
        from protea.core.embeddings.store import build_store

        report = build_store(source, tmp, ids=ids, pool=pool, progress=progress)
        assert report.identity is not None
        columns = {"dim": report.dim, "dtype": report.dtype, "vectors": report.vectors}
        made = dict(recipe) if recipe is not None else {"backend": "file", "file": Path(str(path)).name, "pool": pool}
        return Found(report.identity, report.to_json() | {"recipe": made}, columns=columns)

    path = source if isinstance(source, str | Path) else None
    if path is None and name is None:
        raise ConfigError("computed embeddings need a name", hint="give --name")
    return load_file(settings, "embeddings", path, name, read)


def embed(
    settings: Settings,
    backend: str,
    *,
    proteins: str | None = None,
    name: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> LoadResult:
    """Compute vectors from the sequences of a loaded protein set, and register them like loaded ones.

    `backend`: `kmer` or `unirep` (see `core.embeddings`). The name is BACKEND-PROTEINS unless given. `progress(done, of)`
    counts bytes of vectors.
    """
    import pyarrow.parquet as pq

    from protea.core.embeddings import Source, kmer, unirep

    backends: dict[str, tuple[Callable[..., Source], Callable[[], dict[str, Any]]]] = {
        "kmer": (kmer.kmer_source, kmer.recipe),
        "unirep": (unirep.unirep_source, unirep.recipe),
    }
    if backend not in backends:
        raise ConfigError(f"there is no backend {backend!r}", hint=f"there are {' and '.join(backends)}")
    with open_catalog(settings) as catalog:
        row = catalog.find("proteins", proteins)
        path = ObjectStore.of(settings).path("proteins", row.object_digest) / "proteins.parquet"
        if not path.is_file():
            raise StorageError(f"the sequences of {row.name!r} are gone from {path}", hint="load them again")
        compute, recipe = backends[backend]
        source = compute(pq.read_table(path, columns=["accession", "sequence"]))
        total = len(source.ids) * source.dim * source.dtype.itemsize
        return load_embeddings(
            settings,
            source,
            name=name or f"{backend}-{row.name}",
            recipe=recipe() | {"proteins": row.identity},
            progress=(lambda done: progress(done, total)) if progress else None,
        )


def load_term_vectors(
    settings: Settings,
    path: str | Path,
    *,
    name: str | None = None,
    max_rejected: float = 0.01,
    progress: Progress | None = None,
) -> LoadResult:
    """Load one vector a GO term (NPZ, word2vec text); see `core.term_vectors`. `max_rejected` as in all tables: more
    than that share of malformed rows is an InputError."""
    from protea.core.term_vectors import read_term_vectors

    read = _checked(lambda tmp, _: read_term_vectors(path, tmp, progress), max_rejected)
    return load_file(settings, "term-vectors", path, name, read)


def load_interpro(
    settings: Settings,
    path: str | Path,
    *,
    name: str | None = None,
    interpro2go: str | Path | None = None,
    proteins: str | None = None,
    max_rejected: float = 0.01,
    progress: Progress | None = None,
) -> LoadResult:
    """Load the GO terms of proteins' InterPro matches, one of three formats; see `core.interpro`. `interpro2go` goes with
    protein2ipr. `proteins` names a loaded protein set: only rows of its accessions are stored."""
    from protea.core.interpro import read_interpro

    read = _checked(
        lambda tmp, only: read_interpro(path, tmp, progress, interpro2go=interpro2go, proteins=only), max_rejected
    )
    return load_file(settings, "interpro", path, name, read, proteins=proteins)


def load_scores(
    settings: Settings,
    path: str | Path,
    *,
    name: str | None = None,
    proteins: str | None = None,
    max_rejected: float = 0.01,
    progress: Progress | None = None,
) -> LoadResult:
    """Load another predictor's scores (Parquet, text, CAFA); see `core.scores`. `proteins` as in `load_interpro`."""
    from protea.core.scores import read_scores

    read = _checked(lambda tmp, only: read_scores(path, tmp, progress, proteins=only), max_rejected)
    return load_file(settings, "scores", path, name, read, proteins=proteins)


def load_ia(
    settings: Settings,
    path: str | Path,
    *,
    name: str | None = None,
    max_rejected: float = 0.01,
    progress: Progress | None = None,
) -> LoadResult:
    """Load the information accretion of GO terms; see `core.accretion`."""
    from protea.core.accretion import read_ia

    return load_file(settings, "ia", path, name, _checked(lambda tmp, _: read_ia(path, tmp, progress), max_rejected))


def _checked(read: Callable[[Path, Any], "TableReport"], max_rejected: float) -> Callable[[Path, Any], Found]:
    """The reader of a table as `load_file` wants it, with the check of its malformed rows."""

    def checked(tmp: Path, only: Any) -> Found:
        from protea.core.delimited import check_rejected

        report = read(tmp, only)
        check_rejected(report, max_rejected)
        return Found(report.sha256, report.to_json())

    return checked


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
    if ":" in valid_name(source):
        raise ConfigError(f"the source {source!r} has a colon", hint="leave it out")
    names = [valid_name(name or f"{source}:{v}") for v, _ in wanted]
    if name is not None and len(wanted) > 1:
        raise ConfigError(f"one name, {name!r}, for {len(wanted)} sets", hint="leave out --name: SOURCE:VERSION it is")
    accepted = sorted(set(databases))
    with opened(settings, path) as (catalog, store):
        subset = catalog.find("proteins", proteins) if proteins is not None else None
        options = {"databases": accepted, "proteins": subset.identity if subset else None}

        def rows(file_identity: str, stats: list[dict[str, Any]]) -> list[Input]:
            digest = sha256_json({"file": file_identity, "cut_date": None, **options})
            return [
                AnnotationSet(
                    name=n,
                    identity=sha256_json({"file": file_identity, "cut_date": cut and cut.isoformat(), **options}),
                    object_digest=digest,
                    stats=s,
                    source_file=storable(Path(path).name),
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
            asked = rows(sha256_text(path, progress), [{}] * len(wanted))
            old = [same(catalog, row) for row in asked]
            address = ("annotations", asked[0].object_digest)
            if all(old) and store.intact(*address) and store.there(*address):
                return LoadResult("annotations", tuple(old), (False,) * len(old))
        with store.staging() as tmp:
            only = accessions(store, subset.object_digest) if subset else None
            from protea import date_cuts

            report = _stage_gaf(path, tmp, accepted, only, max_rejected, progress)
            whole = report.to_json() | {"databases": accepted, "restricted_to": proteins}
            stats = date_cuts.reports(path, whole, tmp / "rows.parquet", [cut for _, cut in wanted])
            return commit(catalog, store, tmp, rows(report.sha256, stats))


def _taken(catalog: Catalog, name: str, source: str, version: str) -> bool:
    rows = catalog.inputs("annotations")
    return any(r.name == name or (r.source, r.version) == (source, version) for r in rows)


def _stage_gaf(
    path: str | Path,
    tmp: Path,
    databases: list[str],
    only: Any,
    max_rejected: float,
    progress: Progress | None,
) -> "GafReport":
    """Stream a GAF into `rows.parquet`, a batch in memory at a time."""
    from protea.core.annotations import SCHEMA, check_rejected, read_gaf
    from protea.core.delimited import rows_writer

    with rows_writer(tmp, SCHEMA) as write:
        report = read_gaf(path, databases=databases, proteins=only, sink=write, progress=progress)
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
