"""`export_research_dataset`, the serial path: cuts, assembly, publication; resumable at any instant.

Called by `protea.exporting` (and by a worker for a queued job). The catalogue is reached only through `Registry`.
The order of publication is what makes a kill harmless: assemble under a temporary name, verify, move into
`datasets/<name>/`, register the row, and only then remove the staging directory.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import pyarrow.parquet as pq

from ...errors import ConflictError, StorageError
from .. import annotation_set, fs, manifest
from ..annotation_set import AnnotationSet
from ..config import ExportConfig
from ..cut import QUERIES_PER_BLOCK, Cut, CutInputs, prepare
from ..embeddings.store import VectorStore
from ..keys import ExportInputs, cut_key, cuts, fingerprint
from ..ontology import Ontology
from ..parquet_export import FileInfo, _stream_assemble
from ..schema import CATEGORIES, KNOWN, ROWS, TRUTH
from ..shards import write_shards
from ..staging import Stage, Staging

Report = Callable[..., None]
"""Called as report(kind, **what) for every event: `cut.restored`, `cut.progress`, `export.published`, ..."""


class Registry(Protocol):
    """The `Dataset` rows, as the operation needs them."""

    def find(self, name: str) -> Mapping[str, Any] | None:
        """`fingerprint` and `path` of a published dataset."""

    def register(self, name: str, fingerprint: str, path: Path, manifest: Mapping[str, Any]) -> None:
        """Insert the row, or replace the one of that name."""


def silent(kind: str, **what: Any) -> None:
    """A report that nobody reads."""


def load_inputs(config: ExportConfig, inputs: ExportInputs, threads: int = 0) -> CutInputs:
    """Open what every cut shares."""
    proteins = pq.read_table(inputs.proteins.path / "proteins.parquet", columns=["accession", "length", "sequence"])
    onto = Ontology.load(inputs.ontology.path)
    return CutInputs(config, onto, VectorStore.open(inputs.embeddings.path), proteins, threads)


def export_research_dataset(
    config: ExportConfig,
    inputs: ExportInputs,
    registry: Registry,
    *,
    resume_dir: Path,
    datasets_dir: Path,
    report: Report = silent,
    replace: bool = False,
    wait: bool = False,
    threads: int = 0,
    queries_per_block: int = QUERIES_PER_BLOCK,
) -> Path:
    """Make the dataset, or go on making it, and return its directory.

    `config` is resolved (every name is filled in). Errors: ConflictError for a taken name, BusyError while another run of
    the same export is going on (unless `wait`), StorageError for a disk that fails.
    """
    mark = fingerprint(config, inputs)
    staging = Staging(resume_dir, config.name, mark)
    staging.acquire(wait=wait, waiting=lambda why: report("export.waiting", reason=why))
    try:
        final = datasets_dir / config.name
        if _already_there(config.name, mark, final, registry, report, replace):
            staging.remove()
            return final
        timing: dict[str, Any] = {}
        run = {"started": _now(), "host": socket.gethostname(), "cpus": os.cpu_count(), "cuts": timing}
        report("export.started", name=config.name, fingerprint=mark, staging=str(staging.path))
        stages = _make_cuts(config, inputs, staging, report, timing, threads, queries_per_block)
        _publish(config, inputs, stages, final, mark, registry, report, replace, run)
        staging.remove()
        return final
    finally:
        staging.release()


def _already_there(name: str, mark: str, final: Path, registry: Registry, report: Report, replace: bool) -> bool:
    """Whether this very dataset is published already; finishes a publication that was cut short; refuses a taken name."""
    old = final.with_name(f".{name}.old")
    if old.exists():
        # a replacement was cut short: with the new one in place the old one goes, else it comes back
        if final.exists():
            fs.remove_tree(old)
        else:
            os.rename(old, final)
            fs.fsync_dir(final.parent)
    row = registry.find(name)
    if final.exists():
        found = read_manifest(final)
        if found and found.get("fingerprint") == mark and whole(final, found):
            if row is None or row["fingerprint"] != mark:
                registry.register(name, mark, final, found)
                report("export.published", name=name, path=str(final), finished=True)
            else:
                report("export.unchanged", name=name, path=str(final))
            return True
        if row is None and found and found.get("fingerprint") == mark:
            fs.remove_tree(final)  # our own, damaged before it was registered
        elif not replace and not (row and row["fingerprint"] == mark):
            raise _taken(name)
    elif row is not None and row["fingerprint"] != mark and not replace:
        raise _taken(name)
    return False


def _taken(name: str) -> ConflictError:
    return ConflictError(f"a dataset named {name!r} exists with other settings or inputs",
                         hint="choose another name, or pass --replace")  # fmt: skip


def _make_cuts(
    config: ExportConfig,
    inputs: ExportInputs,
    staging: Staging,
    report: Report,
    timing: dict[str, Any],
    threads: int,
    queries_per_block: int,
) -> dict[str, Stage]:
    """Restore the finished cuts and compute the others, in order."""
    todo = cuts(config, inputs)
    stages: dict[str, Stage] = {}
    shared: CutInputs | None = None
    sets: dict[Any, AnnotationSet] = {}
    for number, cut in enumerate(todo, 1):
        key = cut_key(config, inputs, cut)
        where = {"cut": cut.pair, "label": cut.label, "number": number, "of": len(todo)}
        stage, why = staging.restore(cut.pair, key)
        if stage is None:
            if why:
                report("cut.discarded", reason=why, **where)
            start = time.monotonic()
            report("cut.started", **where)
            if shared is None:
                shared = load_inputs(config, inputs, threads)
            sets = {s.version: sets.get(s.version) or annotation_set.load(s, shared.onto) for s in (cut.old, cut.new)}
            stage = _make_cut(cut, shared, sets, staging, key, report, where, queries_per_block)
            seconds = round(time.monotonic() - start, 3)
            timing[cut.pair] = {"seconds": seconds}
            report("cut.finished", rows=_rows(stage), seconds=seconds, **where)
        else:
            timing[cut.pair] = {"restored": True}
            report("cut.restored", rows=_rows(stage), **where)
        stages[cut.pair] = stage
    return stages


def _make_cut(
    cut: Cut, shared: CutInputs, sets: Mapping[Any, AnnotationSet], staging: Staging, key: Mapping[str, Any],
    report: Report, where: Mapping[str, Any], queries_per_block: int,
) -> Stage:  # fmt: skip
    directory, attempt = staging.begin(cut.pair)
    with _disk(directory):
        prepared = prepare(cut, shared, sets[cut.old.version], sets[cut.new.version])
        report("cut.prepared", members=len(prepared.truth.protein), queries=len(prepared.queries),
               donors=len(prepared.search.donors), **where)  # fmt: skip
        files, result = write_shards(
            prepared,
            directory,
            lambda done, of, rows: report("cut.progress", done=done, queries=of, rows=rows, **where),
            queries_per_block,
        )
        return staging.finish(cut.pair, key, files, result, attempt, version("protea"))


def _rows(stage: Stage) -> int:
    return sum(stage.files[c].rows for c in CATEGORIES)


def _publish(
    config: ExportConfig, inputs: ExportInputs, stages: Mapping[str, Stage], final: Path, mark: str, registry: Registry,
    report: Report, replace: bool, run: dict[str, Any],
) -> None:  # fmt: skip
    """Assemble under a temporary name, verify, move into place, register."""
    start = time.monotonic()
    tmp = final.with_name(f".{config.name}.{mark[:12]}.new")
    fs.remove_tree(tmp)
    tmp.mkdir(parents=True)
    todo = cuts(config, inputs)
    parts = {
        "train": (ROWS, [(c.pair, k) for c in todo if c.kind == "train" for k in CATEGORIES]),
        "eval": (ROWS, [(c.pair, k) for c in todo if c.kind == "eval" for k in CATEGORIES]),
        "truth": (TRUTH, [(c.pair, "truth") for c in todo]),
        "known": (KNOWN, [(c.pair, "known") for c in todo]),
    }
    files: dict[str, FileInfo] = {}
    with _disk(tmp):
        for which, (schema, shards) in parts.items():
            report("assembly.started", file=f"{which}.parquet", shards=len(shards))
            found = [
                (stages[pair].directory / f.name, f.digests) for pair, k in shards for f in [stages[pair].files[k]]
            ]
            files[which] = _stream_assemble(tmp / f"{which}.parquet", schema, found)
        document = manifest.build(config, inputs, todo, stages, files, tmp)
        fs.write_file(tmp / "manifest.json", manifest.dumps(document))
        run |= {"finished": _now(), "assembly_seconds": round(time.monotonic() - start, 3)}
        fs.write_file(tmp / "run.json", (json.dumps(run, indent=2) + "\n").encode())
        if not whole(tmp, document):
            raise StorageError(f"{tmp}: the assembled files are not what was written; the disk may be faulty")
        for warning in document["warnings"]:
            report("export.warning", text=warning)
        old = final.with_name(f".{config.name}.old")
        if final.exists():
            # published under this name while this run was going on, by another export
            row = registry.find(config.name)
            if not replace and not (row and row["fingerprint"] == mark):
                raise _taken(config.name)
            os.rename(final, old)
        fs.commit_dir(tmp, final)
    registry.register(config.name, mark, final, document)
    fs.remove_tree(old)
    report("export.published", name=config.name, path=str(final), n_train_rows=document["n_train_rows"],
           n_eval_rows=document["n_eval_rows"])  # fmt: skip


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """The manifest of a dataset directory, or None."""
    try:
        found = json.loads((directory / "manifest.json").read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def whole(directory: Path, document: Mapping[str, Any]) -> bool:
    """Whether every file of a dataset is there with the recorded size and digest."""
    for name, want in document["files"].items():
        path = directory / name
        if not path.is_file() or path.stat().st_size != want["size"] or fs.sha256_file(path) != want["sha256"]:
            return False
    return True


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class _disk:
    """Turns a failing file system into one line: what happened, and where."""

    def __init__(self, where: Path) -> None:
        self.where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, OSError):
            raise StorageError(
                f"{self.where}: {error.strerror or error}", hint="what was finished is kept; run it again to go on"
            ) from error
