"""Queued exports with real worker processes: the same bytes, cancel, kill, pause, failures, retry."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest
from sqlalchemy import text

import protea
from farm import ALL, EVAL, LEASE, SECONDS, TRAIN, Farm, Hook, farm_of, reference
from protea.catalog import Dataset, open_catalog, upgrade
from protea.catalog.embedded import EmbeddedServer
from protea.catalog.jobs import lock
from protea.errors import BusyError, ConfigError, ConflictError, DatabaseError, DiskError, NotFoundError
from protea.jobs import rows, takeover
from protea.jobs.child import FencedRows
from protea.jobs.worker import _away
from protea.settings import Settings
from worlds import World, random_world


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


@pytest.fixture
def hook(tmp_path: Path) -> Hook:
    return Hook(tmp_path / "hook")


def test_cancel_in_every_stage_and_go_on(farm: Farm, serial: dict[str, Any], hook: Hook) -> None:
    """It is over within two seconds, by the stage itself; finished cuts are restored, not computed again."""
    farm.worker(**hook.variables)
    finished: list[str] = []
    for stage in (f"knn-{EVAL}", f"features-{EVAL}", "assembly"):
        hook.set(stage)
        job = farm.submit()
        farm.until(lambda stage=stage: [stage, "begun"] in hook.log())
        start = time.monotonic()
        with open_catalog(farm.settings) as catalog:
            assert rows.cancel(catalog, job).state == "cancelled"
        farm.until(lambda stage=stage: [stage, "stopped"] in hook.log(), 2)
        farm.until(lambda: not farm.busy(), 2)
        assert time.monotonic() - start < 2
        hook.clear(stage)
        events = farm.events(job)
        assert events[-1]["kind"] == "job.cancelled"
        assert set(finished) <= {e["cut"] for e in events if e["kind"] == "cut.restored"}
        finished += [e["cut"] for e in events if e["kind"] == "cut.finished"]
    assert finished == [TRAIN, EVAL]
    with open_catalog(farm.settings) as catalog, pytest.raises(ConflictError, match="is cancelled"):
        rows.cancel(catalog, job)
    again = farm.submit()
    assert farm.ended(again).state == "succeeded", farm.logs()
    assert [e["cut"] for e in farm.events(again, "cut.restored")][-2:] == [TRAIN, EVAL]
    assert not farm.events(again, "cut.finished")
    assert not farm.events(job, "commit.refused")
    assert farm.dataset() == serial


@pytest.mark.parametrize("farm", ["minijobs"], indirect=True)
def test_a_killed_child_is_told_from_a_failed_one(farm: Farm, serial: dict[str, Any], hook: Hook) -> None:
    hook.set(f"hold-{EVAL}")
    worker = farm.worker(**hook.variables)
    job = farm.submit()
    farm.until(lambda: hook.begun(EVAL))
    farm.child(worker).kill()
    farm.until(lambda: hook.begun(EVAL) == 2)
    hook.clear(f"hold-{EVAL}")
    assert farm.ended(job).state == "succeeded", farm.logs()
    (event,) = farm.events(job, "minijob.failed")
    assert (event["code"], "killed by SIGKILL" in event["error"]) == ("killed", True)
    assert farm.dataset() == serial


@pytest.mark.parametrize("farm", ["serial"], indirect=True)
def test_a_killed_worker_is_replaced(farm: Farm, serial: dict[str, Any], hook: Hook) -> None:
    """Its child goes with it; a worker of the same machine sees it at once, and the finished cut is kept."""
    hook.set(f"hold-{EVAL}")
    first = farm.worker(**hook.variables)
    job = farm.submit()
    farm.until(lambda: hook.begun(EVAL))
    child = farm.child(first)
    second = farm.worker("--until-idle", **hook.variables)
    first.kill()
    farm.until(lambda: hook.begun(EVAL) == 2)
    hook.clear(f"hold-{EVAL}")
    assert farm.ended(job).state == "succeeded", farm.logs()
    assert second.wait(20) == 0
    assert not child.is_running()
    assert len(farm.events(job, "worker.lost")) == 1
    assert farm.dataset() == serial


def test_a_paused_worker_may_not_commit_any_more(farm: Farm, serial: dict[str, Any], hook: Hook) -> None:
    hook.set(f"hold-{EVAL}")
    first = farm.worker(**hook.variables)
    job = farm.submit()
    farm.until(lambda: hook.begun(EVAL))
    for process in farm.family(first):
        process.suspend()
    farm.worker(**hook.variables)
    farm.until(lambda: hook.begun(EVAL) == 2)
    hook.clear(f"hold-{EVAL}")
    assert farm.ended(job).state == "succeeded", farm.logs()
    first.send_signal(signal.SIGCONT)
    refused = farm.until(lambda: farm.events(job, "commit.refused"))
    assert refused[0]["token"] < refused[0]["newest"]
    assert len(farm.events(job, "export.published")) == 1
    assert farm.dataset() == serial
    again = farm.submit(name="after")  # the worker that was paused is one of two again
    assert farm.ended(again).state == "succeeded"


def test_three_failures_and_retry(farm: Farm, serial: dict[str, Any], hook: Hook) -> None:
    hook.set(f"raise-{EVAL}")
    farm.worker(**hook.variables)
    job = farm.submit()
    ended = farm.ended(job)
    assert ended.state == "failed"
    assert ended.error_code == "RuntimeError"
    assert "in 3 attempts: RuntimeError: this cut is no good" in str(ended.error_message)
    assert f"protea job retry {job}" in str(ended.error_message)
    assert hook.begun(EVAL) >= 3
    before = hook.begun(TRAIN)
    hook.clear(f"raise-{EVAL}")
    with open_catalog(farm.settings) as catalog:
        assert rows.retry(catalog, job).state == "queued"
    ended = farm.ended(job)
    assert (ended.state, ended.error_message) == ("succeeded", None)
    assert hook.begun(TRAIN) == before
    assert farm.dataset() == serial
    with open_catalog(farm.settings) as catalog, pytest.raises(ConflictError, match="only a failed or cancelled"):
        rows.retry(catalog, job)


@pytest.mark.parametrize("farm", ["serial"], indirect=True)
def test_the_memory_ceiling(farm: Farm, hook: Hook) -> None:
    hook.set(f"hog-{TRAIN}")
    farm.worker("--max-memory", "500M", **hook.variables)
    job = farm.submit()
    ended = farm.ended(job)
    assert (ended.state, ended.error_code) == ("failed", "memory")
    assert "--max-memory allows 500 MB" in str(ended.error_message)


@pytest.mark.parametrize("farm", ["minijobs"], indirect=True)
def test_a_stopped_worker_gives_back_what_it_has(farm: Farm, serial: dict[str, Any], hook: Hook) -> None:
    hook.set(f"hold-{EVAL}")
    first = farm.worker("--grace", "0.5", **hook.variables)
    job = farm.submit()
    farm.until(lambda: hook.begun(EVAL))
    first.terminate()
    assert first.wait(10) == 0
    minijobs = farm.minijobs(job)
    assert {m.state for m in minijobs} <= {"queued", "waiting", "done"}
    assert not any(m.failures or m.losses or m.attempt > 1 for m in minijobs)
    assert farm.events(job)[-1]["kind"] == "minijob.returned"
    hook.clear(f"hold-{EVAL}")
    assert farm.worker("--until-idle", **hook.variables).wait(SECONDS) == 0
    assert farm.job(job).state == "succeeded"
    assert farm.dataset() == serial


@pytest.mark.parametrize("farm", ["serial"], indirect=True)
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


def test_children_share_the_cores(settings: Settings, small: World, tmp_path: Path, hook: Hook) -> None:
    """BLAS, numba, Arrow and our own threads: of one process all cores, of two half of them, however they are started."""
    cores = len(os.sched_getaffinity(0))
    hook.set("threads")

    def told() -> list[set[int]]:
        """The numbers of threads that each child told since the last time."""
        found = {line[1]: set(json.loads(" ".join(line[2:]))) for line in hook.log() if line[0] == "threads"}
        (hook.place / "log").unlink()
        return list(found.values())

    with farm_of(settings, small, tmp_path, threads=0, export_minijobs=True, export_queries_per_block=3) as farm:
        command = [sys.executable, "-m", "protea", "export", "run", "--workers", "2"]
        for name, value in farm.world.names().items():
            command += [f"--{name.replace('_', '-')}", ",".join(map(str, value)) if isinstance(value, list) else value]
        env = os.environ | farm.settings.environment() | hook.variables
        made = subprocess.run(command, env=env, capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        shares = told()
        assert shares
        assert all(share == {max(1, cores // 2)} for share in shares)

        first = farm.worker(**hook.variables)
        assert farm.ended(farm.submit(name="alone")).state == "succeeded", farm.logs()
        assert told() == [{cores}]
        alone = farm.child(first).pid if cores > 1 else 0
        farm.worker(**hook.variables)
        second = farm.until(lambda: len(w := farm.workers()) == 2 and w[1]["started_at"])
        heard = {second}  # the first looks who is there when it says that it lives

        def twice() -> bool:
            heard.add(max(second, farm.workers()[0]["heartbeat_at"]))
            return len(heard) == 3

        farm.until(twice)
        assert farm.ended(farm.submit(name="together", k=3)).state == "succeeded", farm.logs()
        assert str(alone) not in [line[1] for line in hook.log()]
        shares = told()
        assert shares
        assert all(share == {max(1, cores // 2)} for share in shares)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "protea-test", str(place)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root can mount a small file system, and not everywhere")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("farm", ["minijobs"], indirect=True)
def test_a_small_disk_is_refused_before_anything_is_dispatched(farm: Farm, small_disk: Path) -> None:
    serial = reference(farm)
    farm.settings = farm.settings.model_copy(update={"export_resume_dir": small_disk / "resume"})
    message = rf"needs about [\d.]+ [kM]B under {small_disk}/?\S*, 2\d\d kB are free \(make room"
    with pytest.raises(DiskError, match=message):
        reference(farm)
    assert not farm.staging()
    farm.worker()
    job = farm.submit()
    ended = farm.ended(job)
    assert (ended.state, ended.error_code) == ("failed", "disk")
    assert re.search(message, str(ended.error_message))
    assert [m.attempt for m in farm.minijobs(job)] == [1]
    assert not farm.staging()
    subprocess.run(["mount", "-o", "remount,size=3M", str(small_disk)], check=True)
    with open_catalog(farm.settings) as catalog:
        rows.retry(catalog, job)
    assert farm.ended(job).state == "succeeded", farm.logs()
    assert farm.dataset() == serial


def test_many_exports_drain(farm: Farm) -> None:
    """A hundred in full; each in minijobs costs more than it is worth here."""
    n = 100 if ALL else 8 if farm.settings.export_minijobs else 30
    jobs = [farm.submit(name=f"d{i}", k=1 + i % 9) for i in range(n)]
    workers = [farm.worker("--until-idle") for _ in range(2)]
    assert [w.wait(600) for w in workers] == [0, 0]
    assert {farm.job(j).state for j in jobs} == {"succeeded"}
    assert len({e["owner"] for j in jobs for e in farm.events(j, "minijob.started")}) == 2
    assert len(list(farm.settings.datasets_dir.glob("d*"))) == n
    assert not farm.staging()


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


@pytest.mark.parametrize("farm", ["serial"], indirect=True)
def test_locks_of_a_paused_worker_are_let_go(farm: Farm) -> None:
    """One that is stopped in the middle of a transaction, which holds its job's rows."""
    job = farm.submit()
    paused = farm.settings.model_copy(update={"lease_seconds": 1.0})
    (minijob,) = farm.minijobs(job)
    with open_catalog(farm.settings) as catalog, open_catalog(paused) as stopped:

        def transaction() -> None:
            with stopped.session() as session:
                lock(session, job)
                assert rows.claim(catalog, minijob.id, "here:1", 1, "1:1") is not None  # waits, then has it
                session.execute(text("SELECT 1"))

        with pytest.raises(DatabaseError) as error:
            transaction()
        assert _away(error.value)  # so the worker tries again


@pytest.mark.parametrize("farm", ["serial"], indirect=True)
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


@contextmanager
def farm_with_server(world: World, place: Path, **changes: Any) -> Iterator[tuple[Farm, EmbeddedServer]]:
    """A farm on a server of its own, which can be stopped."""
    server = EmbeddedServer(place / "server")
    server.acquire()
    try:
        url = f"postgresql://postgres@/postgres?host={quote(str(server.socket_dir), safe='')}"
        settings = Settings(home=place / "home", database_url=url)
        upgrade(settings)
        with farm_of(settings, world, place, **changes) as farm:
            yield farm, server
    finally:
        server.release()


@pytest.mark.parametrize(("minijobs", "kills"), [(False, 20 if ALL else 2), (True, 20 if ALL else 5)])
def test_random_kills(small: World, tmp_path: Path, hook: Hook, minijobs: bool, kills: int) -> None:
    """A worker or a child is killed every few seconds, the server restarted in between, until it is done: the same bytes,
    published once, nothing left over, and nothing that was finished is computed again."""
    chance = random.Random(5)
    with farm_with_server(small, tmp_path, export_minijobs=minijobs, export_queries_per_block=1) as (farm, server):
        serial = reference(farm)
        hook.set("slow")
        hook.set("assembly")  # it cannot be done before all kills are
        job = farm.submit()
        for n in range(kills):
            alive = [w for w in farm.started if w.poll() is None]
            alive += [farm.worker(**hook.variables) for _ in range(2 - len(alive))]
            time.sleep(chance.uniform(1, 4))
            with suppress(psutil.NoSuchProcess):
                chance.choice(farm.family(chance.choice(alive))).kill()
            if n == kills // 2:
                server._stop()
                time.sleep(1)
                server.revive()
        hook.clear("assembly")
        farm.worker(**hook.variables)
        assert farm.ended(job).state == "succeeded", farm.logs()
        assert farm.dataset() == serial
        assert len(farm.events(job, "export.published")) == 1
        with open_catalog(farm.settings) as catalog:
            assert [d.name for d in catalog.datasets()] == ["world"]
        assert not farm.staging()
        finished = [line[1] for line in hook.log() if line[0] == "finished"]
        assert len(finished) == len(set(finished))
        assert {TRAIN, EVAL} <= set(finished)
        done = [e["minijob"] for e in farm.events(job, "minijob.done")]
        assert len(done) == len(set(done)) == len(farm.minijobs(job))
        assert sum(m.losses for m in farm.minijobs(job)) > 0


def test_the_database_is_restarted(small: World, tmp_path: Path, hook: Hook) -> None:
    """Away for longer than a lease: nobody is taken for dead, nothing is computed twice, the same bytes."""
    with farm_with_server(small, tmp_path, export_minijobs=True, export_queries_per_block=3) as (farm, server):
        serial = reference(farm)
        hook.set(f"hold-{EVAL}")
        farm.worker("--processes", "2", **hook.variables)
        farm.worker(**hook.variables)
        job = farm.submit()
        farm.until(lambda: hook.begun(EVAL))
        server._stop()
        hook.clear(f"hold-{EVAL}")
        time.sleep(LEASE + 1)
        server.revive()
        assert farm.ended(job).state == "succeeded", farm.logs()
        assert farm.dataset() == serial
        assert not farm.events(job, "worker.lost")
        done = [e["minijob"] for e in farm.events(job, "minijob.done")]
        assert len(done) == len(set(done)) == len(farm.minijobs(job))
        assert {m.attempt for m in farm.minijobs(job)} == {1}


def test_connections_are_cut(small: World, tmp_path: Path, hook: Hook) -> None:
    """All of them, several times a second, wherever workers and children are just then: nothing fails, the same bytes."""
    with farm_with_server(small, tmp_path, export_minijobs=True, export_queries_per_block=1) as (farm, _):
        serial = reference(farm)
        hook.set("slow")
        workers = [farm.worker("--processes", "2", **hook.variables), farm.worker(**hook.variables)]
        farm.until(lambda: len(farm.workers()) == 2)
        job = farm.submit()
        chance, cut = random.Random(7), 0
        with open_catalog(farm.settings) as catalog:
            while farm.job(job).state in ("queued", "running") and cut < (400 if ALL else 60):
                time.sleep(chance.uniform(0, 0.3))
                with catalog.session() as session:
                    all_others = text(
                        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
                    )
                    cut += session.execute(all_others).scalar_one()
        assert farm.ended(job).state == "succeeded", farm.logs()
        assert cut > 20
        assert farm.dataset() == serial
        assert len(farm.events(job, "export.published")) == 1
        assert not farm.events(job, "minijob.failed")
        assert all(w.poll() is None for w in workers), farm.logs()


def test_an_embedded_server_that_dies_is_started_again(small: World, tmp_path: Path, hook: Hook) -> None:
    with farm_of(Settings(home=tmp_path / "home"), small, tmp_path) as farm:
        hook.set(f"hold-{TRAIN}")
        farm.worker(**hook.variables)
        job = farm.submit()
        farm.until(lambda: hook.begun(TRAIN))
        pid = int((farm.settings.storage / "postgres" / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        hook.clear(f"hold-{TRAIN}")
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
        lines = protea_("job", "events", job["id"], "--follow", "--json").stdout.splitlines()
        assert json.loads(lines[-1])["kind"] == "minijob.done"
        again = protea_("export", "run", str(toml), "--workers", "1")
        assert again.returncode == 0, again.stderr
        assert "is there already" in again.stderr
        wrong = protea_("job", "submit", str(toml), "--k", "4")
        assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
        assert protea_("job", "retry", job["id"]).stderr.startswith("protea: error: job ")
