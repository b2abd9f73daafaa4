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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import ConflictError, DiskError, StorageError
from .. import fs, manifest, room
from ..alignment_cache import AlignmentCache
from ..arrays import nothing
from ..config import ExportConfig
from ..cut import QUERIES_PER_BLOCK
from ..keys import ExportInputs, fingerprint
from ..parquet_export import FileInfo, _stream_assemble
from ..runner import CutRunner, Report, load_inputs, never, silent
from ..schema import CATEGORIES, KNOWN, ROWS, TRUTH
from ..staging import Stage, Staging

if TYPE_CHECKING:
    from ..bucket import Bucket
    from ..remote import Remote

__all__ = ["Place", "Registry", "export_research_dataset", "load_inputs", "read_manifest", "silent", "whole"]

HEX12 = "[0-9a-f]" * 12


class Registry(Protocol):
    """The `Dataset` rows, as the operation needs them."""

    def find(self, name: str) -> Mapping[str, Any] | None:
        """`fingerprint`, `path` and `manifest` of a published dataset."""

    def register(self, name: str, fingerprint: str, path: Path | str, manifest: Mapping[str, Any]) -> None:
        """Insert the row, or replace the one of that name. `path`: a directory, or the URI of one in a bucket."""


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
    cancelled: Callable[[], bool] = never,
    commit_guard: Callable[[], None] = nothing,
    shared: bool = False,
    bucket: "Bucket | None" = None,
) -> Path | str:
    """Make the dataset, or go on making it, and return its directory (a URI when there is a `bucket`).

    `config` is resolved (every name is filled in). `cancelled` is asked several times a second, `commit_guard` is called
    right before a finished cut or the dataset gets its place, and raises when this process may not commit any more;
    `shared`: minijobs of this export may be at work too. What they have finished is used in any case.
    Errors: ConflictError for a taken name, DiskError when there is not enough room, BusyError while another run of the same
    export is going on (unless `wait`), StorageError for a disk that fails, CancelledError.
    """
    mark = fingerprint(config, inputs)
    staging = open_staging(bucket, resume_dir, config.name, mark, commit_guard)
    place = open_place(bucket, config.name, mark, datasets_dir / config.name, registry, report, replace, staging.guard)
    staging.acquire(shared=shared, wait=wait, waiting=lambda why: report("export.waiting", reason=why))
    try:
        with fs.one_line_errors(staging.path):
            staging.sweep()
            if not place.settled():
                runner = CutRunner(config, inputs, report, threads, queries_per_block, alignments, cancelled)
                room.check(runner, staging, datasets_dir)
                run = {"started": _now(), "host": socket.gethostname(), "cpus": os.cpu_count()}
                report("export.started", name=config.name, fingerprint=mark, staging=str(staging.path))
                stages = {cut.pair: runner.finish(cut, staging) for cut in runner.cuts}
                runner.forget()
                _publish(runner, stages, place, run)
            staging.remove()
    except (ConflictError, DiskError):
        if staging.present() and staging.untouched():
            staging.remove()  # refused before any work
        raise
    except StorageError:
        if staging.present() or not place.settled():  # else another process has published it meanwhile
            raise
    finally:
        staging.release()
    return place.where


def open_staging(
    bucket: "Bucket | None", base: Path, name: str, fingerprint: str, guard: Callable[[], None] = nothing
) -> Staging:
    """The staging directory of an export, not locked yet."""
    return (bucket.staging if bucket else Staging)(base, name, fingerprint, guard)


def open_place(bucket: "Bucket | None", *what: Any) -> "Place":
    """Where a dataset is to be; `what`: the fields of a `Place`."""
    return bucket.place(*what) if bucket else Place(*what)


@dataclass(frozen=True)
class Place:
    """`datasets/<name>/`, where the dataset `mark` is to be, and what else a publication under that name may have left.

    .lock                        held while anything under `datasets/` is moved and its row follows
    .<name>.<mark>-<random>.new  being assembled, by a process that holds its lock
    .<name>.old                  the dataset that is being replaced, until the row of the new one is in
    """

    name: str
    mark: str
    final: Path
    registry: Registry
    report: Report
    replace: bool
    guard: Callable[[], None] = nothing

    @property
    def where(self) -> Path | str:
        """What its row says."""
        return self.final

    @property
    def old(self) -> Path:
        return self.final.with_name(f".{self.name}.old")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        fs.make_dirs(self.final.parent)
        with fs.locked(self.final.parent / ".lock"):
            yield

    @contextlib.contextmanager
    def assembling(self) -> Iterator[Path]:
        """A directory beside the dataset's for this process alone."""
        tmp, lock = fs.own_dir(self.final.parent, f".{self.name}.{self.mark[:12]}-", ".new")
        try:
            yield tmp
        finally:
            # in place, or of no use: the finished cuts are what the next run goes on from
            with contextlib.suppress(OSError):
                fs.remove_tree(tmp)
            os.close(lock)

    def settled(self) -> bool:
        """Whether this very dataset is in place, with its row (see `settle`); what killed runs were assembling goes."""
        with self.locked():
            self.sweep()
            return self.settle()

    def sweep(self) -> None:
        """Remove what killed runs were assembling here."""
        for tmp in self.final.parent.glob(f".{self.name}.{HEX12}-{HEX12}.new"):
            fs.remove_abandoned(tmp)

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
            if found is not None and here is not None and as_recorded(found, row) and whole(self.final, found):
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
            raise name_taken(self.name)
        return False

    def put(self, tmp: Path, document: Mapping[str, Any]) -> None:
        """Move the dataset assembled in `tmp` into place, and insert its row."""
        with self.locked():
            # published under this name while this run was going on, by another export?
            if self.settle(again=True):
                return
            self.guard()
            if replaced := self.final.exists():
                os.rename(self.final, self.old)
            try:
                fs.commit_dir(tmp, self.final)
            except BaseException:
                if replaced and not self.final.exists():
                    os.rename(self.old, self.final)
                raise
            self.registry.register(self.name, self.mark, self.final, document)
            fs.remove_tree(self.old)
        self._published(document)

    def _published(self, document: Mapping[str, Any], **more: Any) -> None:
        self.report("export.published", name=self.name, path=str(self.where),
                    n_train_rows=document["n_train_rows"], n_eval_rows=document["n_eval_rows"], **more)  # fmt: skip


def name_taken(name: str) -> ConflictError:
    return ConflictError(f"a dataset named {name!r} exists with other settings or inputs",
                         hint="choose another name, or pass --replace")  # fmt: skip


def _publish(runner: CutRunner, stages: Mapping[str, Stage], place: Place, run: dict[str, Any]) -> None:
    """Assemble under a temporary name, verify, move into place, register."""
    start = time.monotonic()
    todo = runner.cuts
    parts = {
        "train": (ROWS, [(c.pair, k) for c in todo if c.kind == "train" for k in CATEGORIES]),
        "eval": (ROWS, [(c.pair, k) for c in todo if c.kind == "eval" for k in CATEGORIES]),
        "truth": (TRUTH, [(c.pair, "truth") for c in todo]),
        "known": (KNOWN, [(c.pair, "known") for c in todo]),
    }
    files: dict[str, FileInfo] = {}
    with place.assembling() as tmp, fs.one_line_errors(tmp):
        for which, (schema, shards) in parts.items():
            place.report("assembly.started", file=f"{which}.parquet", shards=len(shards))
            found = [
                (stages[pair].directory / f.name, f.digests) for pair, k in shards for f in [stages[pair].files[k]]
            ]
            files[which] = _stream_assemble(tmp / f"{which}.parquet", schema, found, runner.checkpoint)
        document = manifest.build(runner.config, runner.inputs, todo, stages, files, tmp)
        fs.write_file(tmp / "manifest.json", manifest.dumps(document))
        run |= {"cuts": runner.timing, "finished": _now(), "assembly_seconds": round(time.monotonic() - start, 3)}
        fs.write_file(tmp / "run.json", (json.dumps(run, indent=2) + "\n").encode())
        if not whole(tmp, document):
            raise StorageError(f"{tmp}: the assembled files are not what was written; the disk may be faulty")
        for warning in [*document["warnings"], *manifest.still(document["families"])]:
            place.report("export.warning", text=warning)
        place.put(tmp, document)


def read_manifest(directory: Path | str, remote: "Remote | None" = None) -> dict[str, Any] | None:
    """The manifest of a dataset's directory, or None. A URI must be one below `remote`."""
    try:
        if isinstance(directory, Path):
            data: bytes | None = (directory / "manifest.json").read_bytes()
        else:
            data = remote.read(f"{remote.name(directory)}/manifest.json") if remote else None
        found = json.loads(data or b"null")
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and {"fingerprint", "files"} <= found.keys() else None


def as_recorded(found: Mapping[str, Any], row: Mapping[str, Any] | None) -> bool:
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
