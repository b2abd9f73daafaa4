"""Queued exports with real worker processes: the same bytes, cancel, kill, pause, failures, retry."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest
from sqlalchemy import text

import protea
from protea import ingest
from protea.catalog import Dataset, Job, Minijob, open_catalog, upgrade
from protea.catalog.embedded import EmbeddedServer
from protea.errors import BusyError, ConfigError, ConflictError, NotFoundError
from protea.jobs import rows, takeover
from protea.jobs.child import FencedRows
from protea.jobs.local import submit
from protea.settings import Settings
from worlds import World, random_world

SECONDS = 90
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


@pytest.fixture
def small() -> World:
    """One train cut and one eval cut."""
    world = random_world(3, size=12)
    return replace(world, train_versions=world.train_versions[:2], test_versions=world.test_versions[:1])


@pytest.fixture(params=["serial", "minijobs"])
def farm(settings: Settings, small: World, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Farm]:
    minijobs = request.param == "minijobs"
    with farm_of(settings, small, tmp_path, export_minijobs=minijobs, export_queries_per_block=3) as made:
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
    minijobs = farm.minijobs(job)
    assert {m.state for m in minijobs} == {"done"}
    assert {m.attempt for m in minijobs} == {1}
    if farm.settings.export_minijobs:
        stages = [(m.stage, m.cut) for m in minijobs]
        assert stages.count(("write", "")) == stages.count(("write", TRAIN)) == stages.count(("write", EVAL)) == 1
        assert stages.count(("knn", EVAL)) == stages.count(("features", EVAL)) > 1
    else:
        assert [m.stage for m in minijobs] == ["coordinator"]
    assert not farm.staging()
    with open_catalog(farm.settings) as catalog:
        assert takeover.status(catalog, 3) == []


@pytest.mark.parametrize("farm", ["minijobs"], indirect=True)
def test_several_workers_and_processes(farm: Farm, serial: dict[str, Any]) -> None:
    """Workers of some queues each, more processes than cores, two exports that interleave: each its own bytes."""
    jobs = [farm.submit(), farm.submit(name="other", k=3)]
    farm.worker("--queues", "protea.training,protea.training.write", "--processes", "2")
    farm.until(lambda: all(farm.minijobs(j)[0].state == "done" for j in jobs))
    farm.worker("--queues", "protea.training.knn-batch,protea.training.features", "--processes", "2")
    assert [farm.ended(j).state for j in jobs] == ["succeeded"] * 2, farm.logs()
    assert farm.dataset() == serial
    order = [(m.job_id, m.started_at) for j in jobs for m in farm.minijobs(j) if m.stage == "knn"]
    order.sort(key=lambda m: m[1])
    changes = sum(a[0] != b[0] for a, b in pairwise(order))
    assert changes > 2
    owners = {m.stage: m.owner for j in jobs for m in farm.minijobs(j)}
    assert owners["knn"] == owners["features"] != owners["write"] == owners["coordinator"]
    assert farm.dataset("other") == reference(farm, name="other2", k=3) | {
        "manifest.json": farm.dataset("other")["manifest.json"]
    }


# -- what goes wrong

HOOK = """
import os, sys, time
if "protea.jobs.child" in sys.orig_argv:
    import protea.core.runner as runner
    place, real = os.environ["HOOK"], runner.prepare
    def prepare(cut, *args, **kwargs):
        at = lambda what: os.path.exists(os.path.join(place, f"{what}-{cut.pair}"))
        with open(os.path.join(place, "log"), "a") as f:
            f.write(f"{cut.pair} {os.getpid()}\\n")
        while at("hold"):
            time.sleep(0.02)
        if at("raise"):
            raise RuntimeError("this cut is no good")
        if at("hog"):
            hog = bytearray(b"x" * (700 << 20))
            time.sleep(60)
        return real(cut, *args, **kwargs)
    runner.prepare = prepare
"""


class Hook:
    """Makes children hold, raise or use memory when they begin a cut, as long as a file says so."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir()
        (place / "sitecustomize.py").write_text(HOOK)
        self.variables = {"HOOK": str(place), "PYTHONPATH": os.pathsep.join([str(place), *filter(None, sys.path)])}

    def set(self, what: str, cut: str) -> None:
        (self.place / f"{what}-{cut}").touch()

    def clear(self, what: str, cut: str) -> None:
        (self.place / f"{what}-{cut}").unlink()

    def begun(self, cut: str) -> int:
        """How often the cut was begun."""
        log = self.place / "log"
        return sum(line.split()[0] == cut for line in log.read_text().splitlines()) if log.exists() else 0


@pytest.fixture
def hook(tmp_path: Path) -> Hook:
    return Hook(tmp_path / "hook")


TRAIN, EVAL = "v1-v2", "v2-v5"


def test_cancel_during_a_cut_and_go_on(farm: Farm, serial: dict[str, Any], hook: Hook) -> None:
    """It is over within two seconds, the process too; the finished cut is not computed again."""
    hook.set("hold", EVAL)
    worker = farm.worker(**hook.variables)
    job = farm.submit()
    farm.until(lambda: hook.begun(EVAL))
    child = farm.child(worker)
    start = time.monotonic()
    with open_catalog(farm.settings) as catalog:
        assert rows.cancel(catalog, job).state == "cancelled"
    farm.until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    assert time.monotonic() - start < 2
    with open_catalog(farm.settings) as catalog, pytest.raises(ConflictError, match="is cancelled"):
        rows.cancel(catalog, job)
    hook.clear("hold", EVAL)
    before = hook.begun(TRAIN)
    again = farm.submit()
    assert farm.ended(again).state == "succeeded", farm.logs()
    assert TRAIN in [e["cut"] for e in farm.events(again, "cut.restored")]
    assert hook.begun(TRAIN) == before
    assert farm.dataset() == serial
    assert farm.job(job).state == "cancelled"
    assert not farm.events(job, "commit.refused")


def test_a_killed_child_is_told_from_a_failed_one(farm: Farm, serial: dict[str, Any], hook: Hook) -> None:
    hook.set("hold", EVAL)
    worker = farm.worker(**hook.variables)
    job = farm.submit()
    farm.until(lambda: hook.begun(EVAL))
    farm.child(worker).kill()
    farm.until(lambda: hook.begun(EVAL) == 2)
    hook.clear("hold", EVAL)
    assert farm.ended(job).state == "succeeded", farm.logs()
    (event,) = farm.events(job, "minijob.failed")
    assert (event["code"], "killed by SIGKILL" in event["error"]) == ("killed", True)
    assert farm.dataset() == serial


def test_a_killed_worker_is_replaced(farm: Farm, serial: dict[str, Any], hook: Hook) -> None:
    """Its child goes with it; a worker of the same machine sees it at once, and the finished cut is kept."""
    hook.set("hold", EVAL)
    first = farm.worker(**hook.variables)
    job = farm.submit()
    farm.until(lambda: hook.begun(EVAL))
    child = farm.child(first)
    second = farm.worker("--until-idle", **hook.variables)
    first.kill()
    farm.until(lambda: hook.begun(EVAL) == 2, 20)
    hook.clear("hold", EVAL)
    assert farm.ended(job).state == "succeeded", farm.logs()
    assert second.wait(20) == 0
    assert not child.is_running()
    assert len(farm.events(job, "worker.lost")) == 1
    assert farm.dataset() == serial


def test_a_paused_worker_may_not_commit_any_more(farm: Farm, serial: dict[str, Any], hook: Hook) -> None:
    hook.set("hold", EVAL)
    first = farm.worker(**hook.variables)
    job = farm.submit()
    farm.until(lambda: hook.begun(EVAL))
    for process in farm.family(first):
        process.suspend()
    farm.worker(**hook.variables)
    farm.until(lambda: hook.begun(EVAL) == 2, 30)
    hook.clear("hold", EVAL)
    assert farm.ended(job).state == "succeeded", farm.logs()
    first.send_signal(signal.SIGCONT)
    refused = farm.until(lambda: farm.events(job, "commit.refused"))
    assert refused[0]["token"] < refused[0]["newest"]
    assert len(farm.events(job, "export.published")) == 1
    assert farm.dataset() == serial
    again = farm.submit(name="after")  # the worker that was paused is one of two again
    assert farm.ended(again).state == "succeeded"


def test_three_failures_and_retry(farm: Farm, serial: dict[str, Any], hook: Hook) -> None:
    hook.set("raise", EVAL)
    farm.worker(**hook.variables)
    job = farm.submit()
    ended = farm.ended(job)
    assert ended.state == "failed"
    assert ended.error_code == "RuntimeError"
    assert "in 3 attempts: RuntimeError: this cut is no good" in str(ended.error_message)
    assert f"protea job retry {job}" in str(ended.error_message)
    assert hook.begun(EVAL) >= 3
    before = hook.begun(TRAIN)
    hook.clear("raise", EVAL)
    with open_catalog(farm.settings) as catalog:
        assert rows.retry(catalog, job).state == "queued"
    ended = farm.ended(job)
    assert (ended.state, ended.error_message) == ("succeeded", None)
    assert hook.begun(TRAIN) == before
    assert farm.dataset() == serial
    with open_catalog(farm.settings) as catalog, pytest.raises(ConflictError, match="only a failed or cancelled"):
        rows.retry(catalog, job)


def test_the_memory_ceiling(farm: Farm, hook: Hook) -> None:
    hook.set("hog", TRAIN)
    farm.worker("--max-memory", "500M", **hook.variables)
    job = farm.submit()
    ended = farm.ended(job)
    assert (ended.state, ended.error_code) == ("failed", "memory")
    assert "--max-memory allows 500 MB" in str(ended.error_message)


def test_a_stopped_worker_gives_back_what_it_has(farm: Farm, serial: dict[str, Any], hook: Hook) -> None:
    hook.set("hold", EVAL)
    first = farm.worker("--grace", "0.5", **hook.variables)
    job = farm.submit()
    farm.until(lambda: hook.begun(EVAL))
    first.terminate()
    assert first.wait(10) == 0
    minijobs = farm.minijobs(job)
    assert {m.state for m in minijobs} <= {"queued", "waiting", "done"}
    assert not any(m.failures or m.losses or m.attempt > 1 for m in minijobs)
    assert farm.events(job)[-1]["kind"] == "minijob.returned"
    hook.clear("hold", EVAL)
    assert farm.worker("--until-idle", **hook.variables).wait(SECONDS) == 0
    assert farm.job(job).state == "succeeded"
    assert farm.dataset() == serial


def test_what_is_wrong_is_said_when_it_is_submitted(farm: Farm) -> None:
    with pytest.raises(ConfigError, match="did you mean 'label_mode'"):
        farm.submit(label_mod="direct")
    with pytest.raises(NotFoundError, match="vectors"):
        farm.submit(embedding_config="vector")
    protea.export(settings=farm.settings, **farm.world.names())
    with pytest.raises(ConflictError, match="--replace"):
        farm.submit(k=3)
    with open_catalog(farm.settings) as catalog:
        assert len(catalog.jobs.recent()) == 1


def test_many_exports_drain(farm: Farm) -> None:
    jobs = [farm.submit(name=f"d{i}", k=1 + i) for i in range(20)]
    workers = [farm.worker("--until-idle") for _ in range(2)]
    assert [w.wait(180) for w in workers] == [0, 0]
    assert {farm.job(j).state for j in jobs} == {"succeeded"}
    assert len({e["owner"] for j in jobs for e in farm.events(j, "minijob.started")}) == 2


@pytest.mark.parametrize("farm", ["serial"], indirect=True)
def test_an_old_token_commits_nothing(farm: Farm) -> None:
    """Whatever a worker whose minijob was taken over tries."""
    farm.submit()
    with open_catalog(farm.settings) as catalog:
        (minijob,) = farm.minijobs(catalog.jobs.recent()[0].id)
        old = rows.claim(catalog, minijob.id, "here:1", 1, "1:1")
        assert old is not None
        assert rows.claim(catalog, minijob.id, "here:2", 2, "2:2") is None
        assert takeover.sweep(catalog, 0) == 1
        new = rows.claim(catalog, minijob.id, "here:2", 2, "2:2")
        assert new is not None
        assert new.token > old.token
        known = Dataset(name="d", fingerprint="f", path="p", manifest={}, n_train_rows=0, n_eval_rows=0)
        for refused in (
            rows.done(catalog, old, rows=1),
            rows.planned(catalog, old, []),
            rows.failed(catalog, old, "died", "it died", retry=1),
            rows.put_back(catalog, old, "stopped"),
        ):
            assert refused is False
        with pytest.raises(BusyError, match="taken over"):
            FencedRows(catalog, old).add(known)
        assert catalog.datasets() == []
        assert takeover.still_held(catalog, {0: old, 1: new}) == {1}
        assert [e["doing"] for e in farm.events(old.job, "commit.refused")] == [
            "commit", "planning", "failure", "giving it back",
        ]  # fmt: skip
        assert rows.done(catalog, new, rows=1, last=True)
        assert rows.done(catalog, new, rows=1, last=True) is False  # a repeated answer: no event
        assert farm.job(new.job).state == "succeeded"
        assert len(farm.events(old.job, "commit.refused")) == 4


def test_a_lost_delivery_is_made_good(farm: Farm) -> None:
    """A worker that dies between fetching and claiming leaves a minijob that nobody brings."""
    job = farm.submit()
    with open_catalog(farm.settings) as catalog:
        with catalog.session() as session:
            session.execute(text("DELETE FROM procrastinate_jobs"))
        assert takeover.sweep(catalog, 60) == 0
        assert takeover.sweep(catalog, 0) == 1
    assert farm.worker("--until-idle").wait(SECONDS) == 0
    assert farm.job(job).state == "succeeded"


def test_random_kills(farm: Farm, serial: dict[str, Any]) -> None:
    """Workers and children are killed again and again until it is done."""
    chance = random.Random(5)
    job = farm.submit()
    kills = 0
    while farm.job(job).state in ("queued", "running"):
        alive = [w for w in farm.started if w.poll() is None]
        for _ in range(2 - len(alive)):
            farm.worker()
        time.sleep(chance.uniform(1, 4))
        if kills < 8:
            family = farm.family(chance.choice([w for w in farm.started if w.poll() is None]))
            with suppress(psutil.NoSuchProcess):
                chance.choice(family).kill()
                kills += 1
        assert len(farm.started) < 30, farm.logs()
    assert farm.job(job).state == "succeeded", farm.logs()
    assert farm.dataset() == serial
    assert len(farm.events(job, "export.published")) == 1
    assert not farm.staging()
    done = [e["minijob"] for e in farm.events(job, "minijob.done")]
    assert len(done) == len(set(done))


@pytest.mark.parametrize("minijobs", [False, True])
def test_the_database_is_restarted(small: World, tmp_path: Path, hook: Hook, minijobs: bool) -> None:
    """Away for longer than a lease: nobody is taken for dead, nothing is computed twice, the same bytes."""
    server = EmbeddedServer(tmp_path / "server")
    server.acquire()
    try:
        url = f"postgresql://postgres@/postgres?host={quote(str(server.socket_dir), safe='')}"
        settings = Settings(home=tmp_path / "home", database_url=url)
        upgrade(settings)
        with farm_of(settings, small, tmp_path, export_minijobs=minijobs, export_queries_per_block=3) as farm:
            serial = reference(farm)
            hook.set("hold", EVAL)
            farm.worker("--processes", "2", **hook.variables)
            farm.worker(**hook.variables)
            job = farm.submit()
            farm.until(lambda: hook.begun(EVAL))
            server._stop()
            hook.clear("hold", EVAL)
            time.sleep(LEASE + 1)
            server.revive()
            assert farm.ended(job).state == "succeeded", farm.logs()
            assert farm.dataset() == serial
            assert not farm.events(job, "worker.lost")
            done = [e["minijob"] for e in farm.events(job, "minijob.done")]
            assert len(done) == len(set(done)) == len(farm.minijobs(job))
            assert {m.attempt for m in farm.minijobs(job)} == {1}
    finally:
        server.release()


def test_an_embedded_server_that_dies_is_started_again(small: World, tmp_path: Path, hook: Hook) -> None:
    with farm_of(Settings(home=tmp_path / "home"), small, tmp_path) as farm:
        hook.set("hold", TRAIN)
        farm.worker(**hook.variables)
        job = farm.submit()
        farm.until(lambda: hook.begun(TRAIN))
        pid = int((farm.settings.storage / "postgres" / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        hook.clear("hold", TRAIN)
        assert farm.ended(job).state == "succeeded", farm.logs()


def test_one_command_submits_works_and_stops(settings: Settings, small: World, tmp_path: Path) -> None:
    with farm_of(settings, small, tmp_path, export_queries_per_block=3) as farm:
        serial = reference(farm)
        toml = tmp_path / "world.toml"
        toml.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in small.names().items()))

        def protea_(*args: str) -> subprocess.CompletedProcess[str]:
            env = os.environ | farm.settings.environment()
            return subprocess.run([sys.executable, "-m", "protea", *args], env=env, capture_output=True, text=True)

        done = protea_("export", "run", str(toml), "--workers", "2", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["name"] == "world"
        assert "published world" in done.stderr
        assert farm.dataset() == serial
        with open_catalog(farm.settings) as catalog:
            assert takeover.status(catalog, 3) == []
        job, _ = json.loads(protea_("job", "list", "--json").stdout)
        assert job["state"] == "succeeded"
        board = json.loads(protea_("job", "show", job["id"][:8], "--json").stdout)["board"]
        assert [line["cut"] for line in board] == ["coordinator", TRAIN, EVAL, "dataset"]
        shown = protea_("job", "show", job["id"]).stdout
        assert "state      succeeded, attempt 1" in shown
        lines = protea_("job", "events", job["id"], "--follow", "--json").stdout.splitlines()
        assert json.loads(lines[-1])["kind"] == "minijob.done"
        again = protea_("export", "run", str(toml), "--workers", "1")
        assert again.returncode == 0, again.stderr
        assert "is there already" in again.stderr
        wrong = protea_("job", "submit", str(toml), "--k", "4")
        assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
        assert protea_("job", "retry", job["id"]).stderr.startswith("protea: error: job ")
        other = protea_("job", "submit", str(toml), "--name", "other").stdout.strip()
        assert protea_("job", "cancel", other).returncode == 0
        assert farm.job(uuid.UUID(other)).state == "cancelled"
