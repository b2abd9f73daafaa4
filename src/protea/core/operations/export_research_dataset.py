"""`export_research_dataset`, the serial path: cuts, assembly, publication; resumable at any instant.

Called by `protea.exporting` (and by a worker for a queued job). The catalogue is reached only through `Registry`.
The order of publication is what makes a kill harmless: assemble under a temporary name, verify, move into
`datasets/<name>/`, register the row, and only then remove the staging directory.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import pyarrow.parquet as pq

from ...errors import ConflictError, StorageError
from .. import annotation_set, fs, manifest, side_tables
from ..alignment_cache import AlignmentCache
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
        """`fingerprint`, `path` and `manifest` of a published dataset."""

    def register(self, name: str, fingerprint: str, path: Path, manifest: Mapping[str, Any]) -> None:
        """Insert the row, or replace the one of that name."""


def silent(kind: str, **what: Any) -> None:
    """A report that nobody reads."""


def load_inputs(
    config: ExportConfig, inputs: ExportInputs, threads: int = 0, alignments: AlignmentCache | None = None
) -> CutInputs:
    """Open what every cut shares."""
    onto = Ontology.load(inputs.ontology.path)
    return CutInputs(
        config,
        onto,
        VectorStore.open(inputs.embeddings.path),
        pq.read_table(inputs.proteins.path / "proteins.parquet"),
        side_tables.load({name: ref.path for name, ref in inputs.tables.items()}, onto),
        threads,
        alignments,
    )


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
    alignments: AlignmentCache | None = None,
) -> Path:
    """Make the dataset, or go on making it, and return its directory.

    `config` is resolved (every name is filled in). Errors: ConflictError for a taken name, BusyError while another run of
    the same export is going on (unless `wait`), StorageError for a disk that fails.
    """
    mark = fingerprint(config, inputs)
    staging = Staging(resume_dir, config.name, mark)
    staging.acquire(wait=wait, waiting=lambda why: report("export.waiting", reason=why))
    try:
        with _disk(staging.path):
            final = datasets_dir / config.name
            place = _Place(config.name, mark, final, registry, report, replace)
            with place.locked():
                place.sweep(resume_dir)
                done = place.settle()
            if not done:
                timing: dict[str, Any] = {}
                run = {"started": _now(), "host": socket.gethostname(), "cpus": os.cpu_count(), "cuts": timing}
                report("export.started", name=config.name, fingerprint=mark, staging=str(staging.path))
                stages = _make_cuts(config, inputs, staging, report, timing, threads, queries_per_block, alignments)
                _publish(config, inputs, stages, place, run)
            staging.remove()
            return final
    except ConflictError:
        if not (staging.path / "cuts").exists():
            staging.remove()  # refused before any work
        raise
    finally:
        staging.release()


@dataclass(frozen=True)
class _Place:
    """`datasets/<name>/`, where the dataset `mark` is to be, and what else a publication under that name may have left.

    .lock               held while anything under `datasets/` is moved and its row follows
    .<name>.<mark>.new  being assembled
    .<name>.old         the dataset that is being replaced, until the row of the new one is in
    """

    name: str
    mark: str
    final: Path
    registry: Registry
    report: Report
    replace: bool

    @property
    def tmp(self) -> Path:
        return self.final.with_name(f".{self.name}.{self.mark[:12]}.new")

    @property
    def old(self) -> Path:
        return self.final.with_name(f".{self.name}.old")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        self.final.parent.mkdir(parents=True, exist_ok=True)
        with fs.locked(self.final.parent / ".lock"):
            yield

    def sweep(self, resume_dir: Path) -> None:
        """Remove what killed runs of other exports of this name were assembling."""
        for tmp in self.final.parent.glob(f".{self.name}.{'[0-9a-f]' * 12}.new"):
            if tmp != self.tmp and Staging(resume_dir, self.name, tmp.name[-16:-4]).idle():
                fs.remove_tree(tmp)

    def settle(self, *, again: bool = False) -> bool:
        """Whether this very dataset is in place, with its row.

        Finishes a publication under this name that was cut short, whoever's it was, or undoes it when its files are not
        whole. ConflictError when the name is taken by something else (unless it is to be replaced).
        """
        found, row = read_manifest(self.final), self.registry.find(self.name)
        here = None if found is None else (found["fingerprint"], str(self.final))
        at = before = None if row is None else (row["fingerprint"], row["path"])
        mine = here is not None and here[0] == self.mark
        ours = at is not None and at[0] == self.mark
        if mine or self.old.exists() or here != at:
            if found is not None and here is not None and _as_recorded(found, row) and whole(self.final, found):
                # a row of other data in another place is no publication cut short: that name is taken
                if at is None or here[0] == at[0] or here[1] == at[1] or (mine and self.replace):
                    if here != at:
                        self.registry.register(self.name, here[0], self.final, found)
                    at = here
                fs.remove_tree(self.old)
                if mine and at == here:
                    if at == before:
                        self.report("export.unchanged", name=self.name, path=str(self.final))
                    else:
                        self._published(found, finished=True)
                    return True
                ours = at is not None and at[0] == self.mark
            elif self.old.exists():
                fs.remove_tree(self.final)
                os.rename(self.old, self.final)
                fs.fsync_dir(self.final.parent)
                return self.settle(again=again)
            elif self.final.exists() and (mine or ours) and not again:
                self.report("export.warning", text=f"{self.final} is damaged; its files are made again")
        taken = not ours and (at is not None or (self.final.exists() and not mine))
        if taken and not self.replace:
            raise _taken(self.name)
        return False

    def put(self, document: Mapping[str, Any]) -> None:
        """Move the assembled dataset into place, and insert its row."""
        with self.locked():
            # published under this name while this run was going on, by another export?
            if self.settle(again=True):
                return
            if replaced := self.final.exists():
                os.rename(self.final, self.old)
            try:
                fs.commit_dir(self.tmp, self.final)
            except BaseException:
                if replaced and not self.final.exists():
                    os.rename(self.old, self.final)
                raise
            self.registry.register(self.name, self.mark, self.final, document)
            fs.remove_tree(self.old)
        self._published(document)

    def _published(self, document: Mapping[str, Any], **more: Any) -> None:
        self.report("export.published", name=self.name, path=str(self.final),
                    n_train_rows=document["n_train_rows"], n_eval_rows=document["n_eval_rows"], **more)  # fmt: skip


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
    alignments: AlignmentCache | None,
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
                shared = load_inputs(config, inputs, threads, alignments)
            sets = {s.version: sets.get(s.version) or annotation_set.load(s, shared.onto) for s in (cut.old, cut.new)}
            stage, aligned = _make_cut(cut, shared, sets, staging, key, report, where, queries_per_block)
            seconds = round(time.monotonic() - start, 3)
            timing[cut.pair] = {"seconds": seconds} | ({"alignments": aligned} if aligned else {})
            report("cut.finished", rows=_rows(stage), seconds=seconds, **where)
        else:
            timing[cut.pair] = {"restored": True}
            report("cut.restored", rows=_rows(stage), **where)
        stages[cut.pair] = stage
    return stages


def _make_cut(
    cut: Cut, shared: CutInputs, sets: Mapping[Any, AnnotationSet], staging: Staging, key: Mapping[str, Any],
    report: Report, where: Mapping[str, Any], queries_per_block: int,
) -> tuple[Stage, dict[str, int]]:  # fmt: skip
    """The finished stage, and how many pairs of sequences were aligned, and found in the cache."""
    with _disk(staging.stage_dir(cut.pair)):
        directory, attempt = staging.begin(cut.pair)
        prepared = prepare(cut, shared, sets[cut.old.version], sets[cut.new.version])
        report("cut.prepared", members=len(prepared.truth.protein), queries=len(prepared.queries),
               donors=len(prepared.search.donors), **where)  # fmt: skip
        files, result = write_shards(
            prepared,
            directory,
            lambda done, of, rows: report("cut.progress", done=done, queries=of, rows=rows, **where),
            queries_per_block,
        )
        aligned = dict(prepared.arrays.memo.get("alignments", {}))
        if aligned:
            report("cut.aligned", **aligned, **where)
        return staging.finish(cut.pair, key, files, result, attempt, version("protea")), aligned


def _rows(stage: Stage) -> int:
    return sum(stage.files[c].rows for c in CATEGORIES)


def _publish(
    config: ExportConfig, inputs: ExportInputs, stages: Mapping[str, Stage], place: _Place, run: dict[str, Any]
) -> None:
    """Assemble under a temporary name, verify, move into place, register."""
    start = time.monotonic()
    tmp = place.tmp
    todo = cuts(config, inputs)
    parts = {
        "train": (ROWS, [(c.pair, k) for c in todo if c.kind == "train" for k in CATEGORIES]),
        "eval": (ROWS, [(c.pair, k) for c in todo if c.kind == "eval" for k in CATEGORIES]),
        "truth": (TRUTH, [(c.pair, "truth") for c in todo]),
        "known": (KNOWN, [(c.pair, "known") for c in todo]),
    }
    files: dict[str, FileInfo] = {}
    try:
        with _disk(tmp):
            fs.remove_tree(tmp)
            tmp.mkdir(parents=True)
            for which, (schema, shards) in parts.items():
                place.report("assembly.started", file=f"{which}.parquet", shards=len(shards))
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
            for warning in [*document["warnings"], *manifest.still(document["families"])]:
                place.report("export.warning", text=warning)
            place.put(document)
    finally:
        # in place, or of no use: the finished cuts are what the next run goes on from
        with contextlib.suppress(OSError):
            fs.remove_tree(tmp)


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """The manifest of a dataset directory, or None."""
    try:
        found = json.loads((directory / "manifest.json").read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and {"fingerprint", "files"} <= found.keys() else None


def _as_recorded(found: Mapping[str, Any], row: Mapping[str, Any] | None) -> bool:
    """Whether a manifest is the one in the row of the same dataset, if there is one: its own digest is nowhere."""
    recorded = row.get("manifest") if row is not None and row["fingerprint"] == found["fingerprint"] else None
    return recorded is None or json.loads(manifest.dumps(recorded)) == found


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
        if isinstance(error, OSError) and not isinstance(error, ConnectionError):  # a pipe that nobody reads is no disk
            raise StorageError(
                f"{error.filename or self.where}: {error.strerror or error}",
                hint="what was finished is kept; run it again to go on",
            ) from error
