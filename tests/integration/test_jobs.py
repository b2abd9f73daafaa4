"""Queued exports with real worker processes: the same bytes, cancel, kill, pause, failures, retry."""

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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

import protea
from protea import ingest
from protea.catalog import Dataset, Job, Minijob, open_catalog
from protea.jobs import takeover
from protea.jobs.local import submit
from protea.settings import Settings
from worlds import World, random_world

SECONDS = 90


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

    def worker(self, *options: str, **variables: str) -> subprocess.Popen[bytes]:
        env = os.environ | self.settings.environment() | variables
        log = Path(str(self.settings.home)).parent / f"worker{len(self.started)}.log"
        command = [sys.executable, "-m", "protea", "worker", *options]
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
        settings.model_copy(update={"lease_seconds": 3.0, "retry_seconds": 0.1, "threads": 1, **changes}), world
    )
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def small() -> World:
    """One train cut and one eval cut."""
    world = random_world(3, size=12)
    return replace(world, train_versions=world.train_versions[:2], test_versions=world.test_versions[:1])


@pytest.fixture
def farm(settings: Settings, small: World, tmp_path: Path) -> Iterator[Farm]:
    with farm_of(settings, small, tmp_path) as made:
        yield made


@pytest.fixture
def serial(farm: Farm) -> dict[str, Any]:
    return reference(farm)


def reference(farm: Farm, **values: Any) -> dict[str, Any]:
    """What a serial export in place gives; it is removed again."""
    made = protea.export(settings=farm.settings, **{**farm.world.names(), **values})
    found = farm.dataset(made.name)
    shutil.rmtree(made.path)
    with open_catalog(farm.settings) as catalog, catalog.session() as session:
        session.query(Dataset).delete()
    return found


def test_a_worker_makes_the_same_dataset(farm: Farm, serial: dict[str, Any]) -> None:
    job = farm.submit()
    assert farm.job(job).state == "queued"
    assert farm.worker("--until-idle").wait(SECONDS) == 0
    assert farm.job(job).state == "succeeded", farm.logs()
    assert farm.dataset() == serial
    kinds = [e["kind"] for e in farm.events(job)]
    assert kinds[:3] == ["job.submitted", "minijob.started", "export.started"]
    assert kinds[-2:] == ["export.published", "minijob.done"]
    assert not farm.staging()
    with open_catalog(farm.settings) as catalog:
        assert takeover.status(catalog, 3) == []
