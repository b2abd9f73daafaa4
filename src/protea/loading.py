"""The machinery of loading: a file is read into staging, named, and committed with its row, or nothing happens.

Called by `protea.ingest`, whose functions say what is read; calls the catalogue and the object store.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protea.catalog import INPUTS, AnnotationSet, Catalog, Input, open_catalog, storable
from protea.core.fs import advice
from protea.errors import ConfigError, ConflictError, InputError, StorageError
from protea.settings import Settings
from protea.storage import ObjectStore

Progress = Callable[[int], None]
_NAME = re.compile(r"[A-Za-z0-9_+:-][A-Za-z0-9._+:-]{0,99}")
_SUFFIX = re.compile(
    r"\.(gz|tgz|tar|zip|bgz|obo|gaf|gpa|fasta|fas|faa|fa|h5|hdf5|hdf|npz|npy|parquet|pq|txt|tsv|dat|vec)$",
    re.IGNORECASE,
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
class Found:
    """What a reader made of a file: its identity, its report, its own name for itself, columns of its kind."""

    identity: str
    stats: dict[str, Any]
    label: str | None = None
    columns: dict[str, Any] | None = None


def load_file(
    settings: Settings,
    kind: str,
    path: str | Path | None,
    name: str | None,
    read: Callable[[Path, Any], Found],
    *,
    proteins: str | None = None,
) -> LoadResult:
    """The load of everything but annotations: read into staging, name, commit.

    `read` is given the directory to write into and, with `proteins` (the name of a loaded set), the accessions of that
    set, to which it must restrict the input; the identity then covers both.
    """
    if name is not None:
        valid_name(name)
    with opened(settings, path) as (catalog, store), store.staging() as tmp:
        subset = catalog.find("proteins", proteins) if proteins is not None else None
        found = read(tmp, accessions(store, subset.object_digest) if subset else None)
        label = found.label if found.label and _NAME.fullmatch(found.label) else None
        identity = sha256_json({"file": found.identity, "proteins": subset.identity}) if subset else found.identity
        row = INPUTS[kind](
            name=name or label or stem(path),
            identity=identity,
            object_digest=identity,
            stats=found.stats | ({"restricted_to": proteins} if subset else {}),
            source_file=storable(Path(path).name) if path is not None else "",
            **(found.columns or {}),
        )
        return commit(catalog, store, tmp, [row])


def accessions(store: ObjectStore, digest: str) -> Any:
    """The accessions of a stored protein set, as an Arrow array."""
    import pyarrow.parquet as pq

    table = pq.read_table(store.path("proteins", digest) / "proteins.parquet", columns=["accession"])
    return table["accession"].combine_chunks()


@contextlib.contextmanager
def opened(settings: Settings, path: str | Path | None) -> Iterator[tuple[Catalog, ObjectStore]]:
    """The catalogue and the swept store of a load; errors of our own files and of the disk as StorageError."""
    if path is not None:
        from protea.core.textio import is_directory

        is_directory(path)  # whether it is there
    try:
        with open_catalog(settings) as catalog:
            store = ObjectStore.of(settings)
            store.sweep(catalog.place, catalog.uses_object)
            yield catalog, store
    except OSError as e:
        why = e.strerror or str(e).partition("\n")[0]
        place = Path(str(e.filename)) if e.filename else settings.storage
        if path is not None and place.is_relative_to(path):
            raise InputError(f"{place} cannot be read: {why}") from e
        raise StorageError(f"{place} cannot be written: {why}", hint=advice(e)) from e


def commit(catalog: Catalog, store: ObjectStore, tmp: Path, rows: list[Input]) -> LoadResult:
    """Give the staged object its address and insert those of `rows` that are not there. All rows share the object."""
    kind = rows[0].kind
    size = sum(p.stat().st_size for p in tmp.rglob("*"))
    with store.committed(tmp, kind, rows[0].object_digest, catalog.place):
        old = [same(catalog, row) for row in rows]
        new = [row for row, o in zip(rows, old, strict=True) if o is None]
        for row in new:
            row.stats = row.stats | {"bytes": size}
        if new:
            catalog.add(*new)
    return LoadResult(kind, tuple(o or row for o, row in zip(old, rows, strict=True)), tuple(o is None for o in old))


def same(catalog: Catalog, row: Input) -> Input | None:
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
            from_file = _file(row)
            what = "with other options" if _file(old) == from_file else f"from another file ({old.source_file})"
            raise ConflictError(
                f"{place} is loaded already, {what}; this one has the sha256 {from_file[:12]}...",
                hint="choose another --version or --source"
                if isinstance(row, AnnotationSet)
                else "choose another --name",
            )
    return None


def _file(row: Input) -> str:
    """The identity of the file that an input is from, whatever the options."""
    given = getattr(row, "file_identity", None) or row.stats.get("sha256")
    return given if isinstance(given, str) else row.identity


def valid_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no name: 1 to 100 letters, digits and . _ - + :, not starting with a dot", hint="give --name"
        )
    return name


def stem(path: str | Path | None) -> str:
    """The name of a file without the endings that say what it is."""
    name = Path(path or "").resolve().name
    while (shorter := _SUFFIX.sub("", name)) not in ("", name):
        name = shorter
    return valid_name(name)


def sha256_text(path: str | Path, progress: Progress | None) -> str:
    from protea.core.textio import open_text

    with open_text(path) as reader:
        while reader.read(4 << 20):
            if progress is not None:
                progress(reader.consumed)
        return reader.sha256


def sha256_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
