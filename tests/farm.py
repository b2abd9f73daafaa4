"""Worker processes on a home with a world in it, and hooks into what their children do: for the tests of queued jobs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

import protea
from protea import ingest
from protea.catalog import Dataset, Job, Minijob, open_catalog
from protea.jobs import takeover
from protea.jobs.local import submit
from protea.settings import Settings
from worlds import World

TRAIN, EVAL = "v1-v2", "v2-v5"

SECONDS = 90
ALL = os.environ.get("PROTEA_TEST_ALL") == "1"
"""Whether tests go as far as they can, however long it takes."""
LEASE = 5.0
"""Seconds: a worker on a busy machine must be able to say in time that it lives."""


def load(settings: Settings, world: World, files: Path) -> None:
    paths = world.write(files)
    ingest.load_ontology(settings, paths["ontology"])
    ingest.load_proteins(settings, paths["proteins"])
    ingest.load_embeddings(settings, paths["embeddings"]["npz"], name="vectors")
    for version, path in paths["annotations"].items():
        ingest.load_annotations(settings, path, source="goa", version=version, max_rejected=1)


@dataclass
class Farm:
    """A home with a world in it, and worker processes."""

    settings: Settings
    world: World
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    before: tuple[str, ...] = ()
    """Words before the command of a worker."""

    def worker(self, *options: str, **variables: str) -> subprocess.Popen[bytes]:
        env = os.environ | self.settings.environment() | variables
        log = Path(str(self.settings.home)).parent / f"worker{len(self.started)}.log"
        command = [*self.before, sys.executable, "-m", "protea", "worker", *options]
        with log.open("wb") as out:
            self.started.append(subprocess.Popen(command, env=env, stderr=out, stdout=out))
        return self.started[-1]

    def stop(self) -> None:
        for worker in self.started:
            for process in self.family(worker):
                process.kill()
            worker.wait()

    @staticmethod
    def family(worker: subprocess.Popen[bytes]) -> list[psutil.Process]:
        """A worker and its children."""
        try:
            process = psutil.Process(worker.pid)
            return [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def child(self, worker: subprocess.Popen[bytes]) -> psutil.Process:
        return self.family(worker)[1]

    def submit(self, **values: Any) -> uuid.UUID:
        return submit(settings=self.settings, **{**self.world.names(), **values}).id

    def job(self, job: uuid.UUID) -> Job:
        with open_catalog(self.settings) as catalog:
            return catalog.jobs.get(job)

    def minijobs(self, job: uuid.UUID) -> list[Minijob]:
        with open_catalog(self.settings) as catalog, catalog.session() as session:
            return list(session.query(Minijob).filter_by(job_id=job).order_by(Minijob.id))

    def workers(self) -> list[dict[str, Any]]:
        """What `protea worker status` says."""
        with open_catalog(self.settings) as catalog:
            return takeover.status(catalog, LEASE)

    def busy(self) -> bool:
        """Whether a worker has a child process."""
        return any(w.poll() is None and len(self.family(w)) > 1 for w in self.started)

    def events(self, job: uuid.UUID, kind: str | None = None) -> list[dict[str, Any]]:
        with open_catalog(self.settings) as catalog:
            found = catalog.jobs.events(job)
        assert [e.seq for e in found] == list(range(1, len(found) + 1))
        return [{"kind": e.kind, **e.payload} for e in found if kind in (None, e.kind)]

    def until(self, what: Callable[[], Any], seconds: float = SECONDS) -> Any:
        end = time.monotonic() + seconds
        while not (found := what()):
            assert time.monotonic() < end, self.logs()
            time.sleep(0.05)
        return found

    def ended(self, job: uuid.UUID, seconds: float = SECONDS) -> Job:
        states = ("succeeded", "failed", "cancelled")
        return self.until(lambda: (j := self.job(job)).state in states and j, seconds)

    def logs(self) -> str:
        place = Path(str(self.settings.home)).parent
        return "\n".join(p.read_text() for p in sorted(place.glob("worker*.log")))

    def dataset(self, name: str = "world") -> dict[str, Any]:
        """The bytes of a dataset's files, the manifest as it is but for the commit of the checkout."""
        place = self.settings.datasets_dir / name
        files: dict[str, Any] = {p.name: p.read_bytes() for p in place.iterdir() if p.name != "run.json"}
        files["manifest.json"] = {
            k: v for k, v in json.loads(files["manifest.json"]).items() if k != "producer_git_sha"
        }
        return files

    def staging(self) -> list[Path]:
        return list(self.settings.resume_dir.iterdir()) if self.settings.resume_dir.exists() else []


@contextmanager
def farm_of(settings: Settings, world: World, directory: Path, **changes: Any) -> Iterator[Farm]:
    load(settings, world, directory / "files")
    made = Farm(
        settings.model_copy(update={"lease_seconds": LEASE, "retry_seconds": 0.1, "threads": 1, **changes}), world
    )
    try:
        yield made
    finally:
        made.stop()


def reference(farm: Farm, **values: Any) -> dict[str, Any]:
    """What a serial export in place gives; it is removed again."""
    made = protea.export(settings=farm.settings, **{**farm.world.names(), **values})
    found = farm.dataset(made.name)
    shutil.rmtree(made.path)
    with open_catalog(farm.settings) as catalog, catalog.session() as session:
        session.query(Dataset).delete()
    return found


HOOK = """
import json, os, sys, time
if "protea.jobs.child" in sys.orig_argv:
    import protea.core.features as features
    import protea.core.knn.exact as exact
    import protea.core.parquet_export as assembly
    import protea.core.runner as runner
    from protea.core.staging import Staging
    from protea.errors import CancelledError
    place = os.environ["HOOK"]
    os.fsync = lambda fd: None  # a killed process loses nothing that it has written

    def at(what):
        return os.path.exists(os.path.join(place, what))

    def log(*what):
        with open(os.path.join(place, "log"), "a") as f:
            print(*what, file=f)

    def prepare(cut, *args, _real=runner.prepare, **kwargs):
        global now
        now = cut.pair
        log(cut.pair, os.getpid())
        if at("threads"):
            import numba, pyarrow, threadpoolctl
            log("threads", os.getpid(), json.dumps([numba.get_num_threads(), pyarrow.cpu_count(), args[0].threads,
                *(t["num_threads"] for t in threadpoolctl.threadpool_info())]))
        while at(f"hold-{cut.pair}"):
            time.sleep(0.02)
        if at(f"raise-{cut.pair}"):
            raise RuntimeError("this cut is no good")
        if at(f"hog-{cut.pair}"):
            hog = bytearray(b"x" * (700 << 20))
            time.sleep(60)
        return _real(cut, *args, **kwargs)

    now = ""

    # a stage that goes on and on, and looks at what the real one looks at

    def search(self, *args, _real=exact.ExactSearch._search):
        *_, stop = args
        if at(f"knn-{now}"):
            log(f"knn-{now}", "begun")
            while at(f"knn-{now}") and not stop.is_set():
                time.sleep(0.02)
            if stop.is_set():
                log(f"knn-{now}", "stopped")
        return _real(self, *args)

    def long(name, checkpoint):
        if at(name):
            log(name, "begun")
            try:
                while at(name):
                    checkpoint()
                    time.sleep(0.02)
            except CancelledError:
                log(name, "stopped")
                raise

    def compute(block, _real=features.compute):
        long(f"features-{now}", block.cut.checkpoint)
        time.sleep(0.3 if at("slow") else 0)
        return _real(block)

    def join(out, empty, files, checkpoint, _real=assembly.join):
        long("assembly", checkpoint)
        return _real(out, empty, files, checkpoint)

    def finish(self, name, *args, _real=Staging.finish):
        stage = _real(self, name, *args)
        log("finished", name)
        return stage

    Staging.finish = finish
    runner.prepare, exact.ExactSearch._search, features.compute, assembly.join = prepare, search, compute, join
"""


class Hook:
    """Makes children hold, raise or use memory when they begin a cut, as long as a file says so."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir()
        (place / "sitecustomize.py").write_text(HOOK)
        self.variables = {"HOOK": str(place), "PYTHONPATH": os.pathsep.join([str(place), *filter(None, sys.path)])}

    def set(self, what: str) -> None:
        """`hold-`, `raise-`, `hog-` a cut when it begins; `knn-`, `features-` of a cut and `assembly` go on and on;
        `slow`: features take a while;
        `threads`: they log how many they have."""
        (self.place / what).touch()

    def clear(self, what: str) -> None:
        (self.place / what).unlink()

    def log(self) -> list[list[str]]:
        log = self.place / "log"
        return [line.split() for line in log.read_text().splitlines()] if log.exists() else []

    def begun(self, cut: str) -> int:
        """How often the cut was begun."""
        return sum(line[0] == cut for line in self.log())
