"""Runs of an export in child processes that die: at an event, at a file-system operation, or by a signal.

Children are forked from the test's process, so numba is loaded once. What survives them is on disk: the log of their
events, and `FileRows`, a registry of `Dataset` rows in a file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from product import Product, contents
from protea.core import manifest, parquet_export
from protea.core.operations.export_research_dataset import read_manifest, whole
from protea.core.staging import read_marker
from protea.errors import DatabaseError, ProteaError
from worlds import World, random_world

_replace = os.replace
OPERATIONS = ("mkdir", "replace", "rename", "unlink", "rmdir", "fsync", "ftruncate", "pwrite")
"""Calls of `os` that are counted; with them, every row group written and every row registered (before and after)."""


class FileRows:
    """`Dataset` rows in a file; `history` lists every registration, so that a second one shows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.before: Callable[[], None] = lambda: None

    @property
    def history(self) -> list[dict[str, Any]]:
        return json.loads(self.path.read_text()) if self.path.exists() else []

    def find(self, name: str) -> Mapping[str, Any] | None:
        return next((r for r in reversed(self.history) if r["name"] == name), None)

    def register(self, name: str, fingerprint: str, path: Path, manifest: Mapping[str, Any]) -> None:
        self.before()
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            row = {"name": name, "fingerprint": fingerprint, "path": str(path), "manifest": manifest}
            rows = [*self.history, row]
            tmp = self.path.with_suffix(f".{os.getpid()}")
            tmp.write_text(json.dumps(rows))
            _replace(tmp, self.path)
        self.before()


@dataclass
class Outcome:
    """How a child ended: its exit status, or minus the signal; and the events that it reported."""

    status: int
    events: list[dict[str, Any]]

    @property
    def killed(self) -> bool:
        return self.status == -signal.SIGKILL

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [e for e in self.events if e["kind"] == kind]

    def cuts(self, kind: str) -> list[str]:
        return [e["cut"] for e in self.of(kind)]

    @property
    def error(self) -> str:
        return self.of("error")[0]["text"]


class Child:
    """A forked process that runs `work(report)`; `at(event, number)` is called in it for every event."""

    def __init__(
        self, work: Callable[[Callable[..., None]], Any], log: Path, at: Callable[[dict[str, Any], int], None] | None = None
    ) -> None:  # fmt: skip
        self.log = log
        log.unlink(missing_ok=True)
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.pid = os.fork()
        if self.pid == 0:
            number = 0

            def report(kind: str, **what: Any) -> None:
                nonlocal number
                number += 1
                event = {"kind": kind, **what}
                os.write(fd, (json.dumps(event) + "\n").encode())
                if at:
                    at(event, number)

            status = 0
            try:
                work(report)
            except ProteaError as e:
                status, at = 2, None
                report("error", code=e.code, text=str(e))
            except KeyboardInterrupt:
                status = 130
            except BaseException:
                status, at = 99, None
                report("crash", text=traceback.format_exc())
            finally:
                os._exit(status)
        os.close(fd)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def until(self, kind: str, seconds: float = 60) -> None:
        """Wait until the child has reported an event of that kind."""
        end = time.monotonic() + seconds
        while not any(e["kind"] == kind for e in self.events()):
            assert time.monotonic() < end, f"no {kind}: {self.events()}"
            time.sleep(0.01)

    def join(self) -> Outcome:
        _, status = os.waitpid(self.pid, 0)
        outcome = Outcome(os.waitstatus_to_exitcode(status), self.events())
        assert not outcome.of("crash"), outcome.of("crash")[0]["text"]
        return outcome


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def blocked(release: Path) -> None:
    """Stay here until the file `release` is there; two minutes at most, so that a lost test ends."""
    end = time.monotonic() + 120
    while not release.exists() and time.monotonic() < end:
        time.sleep(0.01)


class Counter:
    """Counts file-system operations in this process and does something at the n-th: dies, or fails once."""

    def __init__(self, n: int, then: Callable[[], None] = die) -> None:
        self.n, self.then, self.count = n, then, 0

    def __call__(self) -> None:
        self.count += 1
        if self.count == self.n:
            self.then()

    def install(self, rows: FileRows | None = None) -> None:
        """For good: only a child calls this."""
        for name in OPERATIONS:
            real = getattr(os, name)
            setattr(os, name, self._wrapped(real))
        parquet_export._SplitWriter.write_group = self._wrapped(parquet_export._SplitWriter.write_group)  # type: ignore[method-assign]
        if rows is not None:
            rows.before = self

    def _wrapped(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self()
            return real(*args, **kwargs)

        return call


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Bench:
    """A small world of one train and one eval cut (`cuts` says more), and the undisturbed results to compare with."""

    def __init__(self, directory: Path, world: World | None = None) -> None:
        self.directory = directory
        world = world or small_world()
        self.product = Product(world, directory)
        self.settings: dict[str, Any] = world.names() | {"name": "d"}
        self._clean: dict[str, dict[str, bytes]] = {}

    def work(self, where: str, *, counter: Counter | None = None, **how: Any) -> Callable[[Callable[..., None]], Path]:
        """What a child does: the export below `where`, with `how` (settings in `changed`)."""
        settings = {**self.settings, **how.pop("changed", {})}
        rows = self.rows(where)
        (self.directory / where).mkdir(exist_ok=True)

        def run(report: Callable[..., None]) -> Path:
            os.fsync = lambda fd: None  # a killed process loses nothing that it has written; only a machine does
            if counter:
                counter.install(rows)
            return self.product.export(settings, where, report, rows=rows, queries_per_block=2, **how)

        return run

    def run(self, where: str, at: Callable[[dict[str, Any], int], None] | None = None, **how: Any) -> Outcome:
        return self.start(where, at, **how).join()

    def start(self, where: str, at: Callable[[dict[str, Any], int], None] | None = None, **how: Any) -> Child:
        log = self.directory / f"{where}.{how.pop('log', 'log')}"
        return Child(self.work(where, **how), log, at)

    def rows(self, where: str) -> FileRows:
        return FileRows(self.directory / where / "rows.json")

    def clean(self, **changed: Any) -> dict[str, bytes]:
        """The files of an undisturbed run."""
        key = json.dumps(changed, sort_keys=True)
        if key not in self._clean:
            where = f"clean{len(self._clean)}"
            self._clean[key] = contents(self.product.export({**self.settings, **changed}, where))
        return self._clean[key]

    def dataset(self, where: str) -> Path:
        return self.directory / where / "datasets" / "d"

    def staging(self, where: str) -> list[Path]:
        base = self.directory / where / "resume"
        return sorted(base.iterdir()) if base.exists() else []

    def finished(self, where: str) -> list[str]:
        """The cuts that have a marker, in any staging directory."""
        found = [d for s in self.staging(where) for d in (s / "cuts").glob("*") if read_marker(d)]
        return sorted(d.name for d in found)

    def copy(self, old: str, new: str) -> None:
        """The same state in another place: files, and rows that point at them."""
        shutil.copytree(self.directory / old, self.directory / new)
        rows = self.rows(new)
        if rows.path.exists():
            a, b = str(self.directory / old) + "/", str(self.directory / new) + "/"
            rows.path.write_text(rows.path.read_text().replace(a, b))

    def check(self, where: str, registered: int | None = 1, **changed: Any) -> None:
        """The dataset is the undisturbed one, registered, and nothing else is left."""
        assert contents(self.dataset(where)) == self.clean(**changed)
        history = self.rows(where).history
        assert registered is None or len(history) == registered
        found = read_manifest(self.dataset(where))
        assert found is not None
        assert (history[-1]["fingerprint"], history[-1]["path"]) == (found["fingerprint"], str(self.dataset(where)))
        assert whole(self.dataset(where), found)
        assert not self.staging(where)
        assert {p.name for p in self.dataset(where).parent.iterdir()} == {"d", ".lock"}

    def drop(self, where: str) -> None:
        shutil.rmtree(self.directory / where)


def small_world() -> World:
    """One train cut and one eval cut, a few hundred rows."""
    world = random_world(3, size=12)
    from dataclasses import replace

    return replace(world, train_versions=world.train_versions[:2], test_versions=world.test_versions[:1])


@contextlib.contextmanager
def fixed_commit() -> Iterator[None]:
    """The manifest's commit as a constant: the checkout may move on while tests run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "_git_sha", lambda: "0" * 40)
        yield


def no_database() -> None:
    raise DatabaseError("the database is down")
