"""Workers that share no disk: homes of their own, one database, one bucket of a real S3 server; the same bytes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from sqlalchemy import text
from test_jobs import hook, small  # noqa: F401 - fixtures

import protea
from farm import EVAL, LEASE, TRAIN, Farm, Hook, load
from killing import fixed_commit
from objectstore import BUCKET, KEYS, ObjectStore
from pgserver import PgServer
from product import FILES, Product, Rows
from protea import ingest, planning, upkeep
from protea.catalog import Dataset, open_catalog, upgrade
from protea.catalog.rights import AdvisoryRight
from protea.core import bucket as buckets
from protea.core.bucket import Bucket
from protea.core.operations import export_minijobs as minijobs
from protea.core.remote import Remote
from protea.errors import BusyError, ConfigError, ConflictError, NotFoundError, StorageError
from protea.jobs.local import export as distribute
from protea.settings import Settings
from protea.storage import ObjectStore as Inputs
from worlds import World


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    made = ObjectStore(tmp_path_factory.mktemp("s3"))
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


@dataclass
class Sites:
    """Two homes, a and b, that share a database and a bucket; and what a serial export without a bucket gives."""

    a: Farm
    b: Farm
    store: ObjectStore
    prefix: str
    serial: dict[str, Any]

    def dataset(self, name: str = "world") -> dict[str, Any]:
        """The published bytes, as `Farm.dataset` gives them."""
        (place,) = {n.rpartition("/")[0] for n in self.store.objects(f"{self.prefix}/datasets/{name}")}
        files: dict[str, Any] = {}
        for file in FILES:
            with self.store.filesystem().open_input_stream(
                f"{BUCKET}/{self.prefix}/datasets/{name}/{place}/{file}"
            ) as f:
                files[file] = f.read()
        return files | {"manifest.json": _but_for_commit(files["manifest.json"])}

    def left(self) -> list[str]:
        """What there is of staging, anywhere."""
        here = [str(p) for farm in (self.a, self.b) for p in farm.staging()]
        return here + list(self.store.objects(f"{self.prefix}/export_resume"))

    def check(self) -> None:
        assert self.dataset() == self.serial
        assert not self.left()
        assert not any(list(f.settings.datasets_dir.glob("[!.]*")) for f in (self.a, self.b))


def _but_for_commit(manifest: bytes) -> dict[str, Any]:
    return {k: v for k, v in json.loads(manifest).items() if k != "producer_git_sha"}


@pytest.fixture
def sites(store: ObjectStore, settings: Settings, small: World, tmp_path: Path) -> Iterator[Sites]:  # noqa: F811
    with sites_of(store, settings, small, tmp_path) as made:
        yield made


@contextmanager
def sites_of(store: ObjectStore, settings: Settings, world: World, place: Path, **changes: Any) -> Iterator[Sites]:
    load(settings, world, place / "files")
    made = protea.export(settings=settings, **world.names())
    serial: dict[str, Any] = {name: made.file(name.partition(".")[0]).read_bytes() for name in FILES[:4]}
    serial["manifest.json"] = _but_for_commit((Path(made.path) / "manifest.json").read_bytes())
    with open_catalog(settings) as catalog, catalog.session() as session:
        session.query(Dataset).delete()
    prefix = uuid.uuid4().hex[:8]
    common: dict[str, Any] = {"database_url": settings.database_url, "storage_url": store.url(prefix), "threads": 1,
                              "lease_seconds": LEASE, "retry_seconds": 0.1, "export_queries_per_block": 3}  # fmt: skip
    for x in "ab":
        (place / x).mkdir()
    (a, b) = (Farm(Settings(home=place / x / "home", **(common | changes)), world) for x in "ab")
    load(a.settings, world, place / "again")  # recognised, and stored in the bucket
    try:
        yield Sites(a, b, store, prefix, serial)
    finally:
        a.stop()
        b.stop()


# -- the same bytes


def test_in_place_and_read_elsewhere(sites: Sites, tmp_path: Path) -> None:
    events: list[str] = []
    made = protea.export(settings=sites.a.settings, **sites.a.world.names())
    sites.check()
    assert str(made.path).startswith(f"s3://{BUCKET}/{sites.prefix}/datasets/world/")
    again = protea.export(
        settings=sites.b.settings, report=lambda kind, **what: events.append(kind), **sites.a.world.names()
    )
    assert events == ["export.unchanged"]
    assert not sites.left()
    found = protea.open_dataset("world", settings=sites.b.settings)
    assert (found.path, found.manifest) == (again.path, again.manifest)
    (tmp_path / "train.parquet").write_bytes(sites.serial["train.parquet"])
    assert found.train.to_table().equals(pq.read_table(tmp_path / "train.parquet"))
    assert "published already" in planning.plan(settings=sites.b.settings, **sites.a.world.names()).warnings[0]

    def run(*args: str) -> str:
        env = os.environ | sites.b.settings.environment()
        return subprocess.run(
            [sys.executable, "-m", "protea", *args], env=env, capture_output=True, text=True, check=True
        ).stdout

    assert run("dataset", "path", "world", "--split", "eval").strip() == f"{made.path}/eval.parquet"
    assert f"{made.path}/run.json" in run("dataset", "show", "world")
    assert json.loads(run("dataset", "head", "world", "-n", "2", "--json")) == found.train.head(2).to_pylist()
    # another one under that name: refused, or instead of it
    with pytest.raises(ConflictError, match="--replace"):
        protea.export(settings=sites.b.settings, **sites.a.world.names(), k=2)
    assert not sites.left()
    other = protea.export(settings=sites.b.settings, **sites.a.world.names(), k=2, replace=True)
    assert {n.partition("/")[0] for n in sites.store.objects(f"{sites.prefix}/datasets/world")} == {
        str(other.path).rpartition("/")[2]
    }
    # looked after there: verified, found damaged, removed
    settings = sites.b.settings
    assert {c.state for c in upkeep.doctor(settings) if c.check in ("inputs", "datasets")} == {"ok"}
    remote = settings.remote
    assert remote is not None
    eval_ = f"{remote.name(str(other.path))}/eval.parquet"
    data = remote.read(eval_)
    assert data
    for now, why in (
        (None, "is gone"),
        (data[:-1], f"has {len(data) - 1} bytes"),
        (data[:-9] + data[-8:] + b"x", "damaged"),
    ):
        remote.delete(eval_) if now is None else remote.put(eval_, now)
        with open_catalog(settings) as catalog:
            checks = upkeep.verify_dataset(catalog.find_dataset("world"), settings)
        assert [c.check for c in checks if c.state != "ok"] == ["eval.parquet"]
        assert any(why in c.what for c in checks)
    assert upkeep.remove_dataset(settings, "world") == other.path
    assert not sites.store.objects(f"{sites.prefix}/datasets")
    with pytest.raises(NotFoundError):
        protea.open_dataset("world", settings=settings)


def test_workers_of_one_machine(sites: Sites) -> None:
    made = distribute(settings=sites.a.settings, workers=2, **sites.a.world.names())
    assert made.manifest["name"] == "world"
    sites.check()


def test_workers_of_two_homes(sites: Sites) -> None:
    workers = [farm.worker() for farm in (sites.a, sites.b)]
    job = sites.b.submit(minijobs=True)
    assert sites.a.ended(job).state == "succeeded", sites.a.logs() + sites.b.logs()
    sites.a.until(lambda: not sites.left())
    sites.check()
    done = [e["minijob"] for e in sites.a.events(job, "minijob.done")]
    assert len(done) == len(set(done)) == len(sites.a.minijobs(job))
    assert len({m.owner for m in sites.a.minijobs(job)}) == 2
    assert all(w.poll() is None for w in workers)


@pytest.fixture
def hosts() -> Iterator[tuple[str, list[str]]]:
    """Two network namespaces, each joined to this one alone: an address for servers here, and the namespaces' names."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the program ip (on Debian: apt install iproute2)")

    def ip(*words: str) -> None:
        done = subprocess.run(["ip", *words], capture_output=True, text=True)
        assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"

    tag, net = uuid.uuid4().hex[:6], f"198.18.{os.getpid() % 250}"  # addresses that RFC 2544 sets aside for tests
    names = [f"protea-{tag}-{i}" for i in range(2)]
    try:
        for i, name in enumerate(names):
            ip("netns", "add", name)
            ip("link", "add", f"pt{tag}{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("address", "add", f"{net}.{4 * i + 1}/30", "dev", f"pt{tag}{i}")
            ip("link", "set", f"pt{tag}{i}", "up")
            ip("-n", name, "address", "add", f"{net}.{4 * i + 2}/30", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "route", "add", "default", "via", f"{net}.{4 * i + 1}")
        yield f"{net}.1", names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)  # and its link


def test_two_hosts(hosts: tuple[str, list[str]], small: World, tmp_path: Path) -> None:  # noqa: F811
    """Each sees the servers through a network of its own, and no disk of the other."""
    address, names = hosts
    server, store = PgServer(address, "198.18.0.0/16"), ObjectStore(tmp_path / "s3", address)
    try:
        settings = Settings(home=tmp_path / "alone" / "home", database_url=server.url)
        upgrade(settings)
        with sites_of(store, settings, small, tmp_path, export_minijobs=True) as sites:
            toml = tmp_path / "world.toml"
            toml.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in small.names().items()))
            for farm, name in zip((sites.a, sites.b), names, strict=True):
                farm.before = ("ip", "netns", "exec", name)
                farm.worker()
            submit = [*sites.a.before, sys.executable, "-m", "protea", "job", "submit", str(toml)]
            done = subprocess.run(
                submit, env=os.environ | sites.a.settings.environment(), capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            job = uuid.UUID(done.stdout.strip())
            assert sites.a.ended(job).state == "succeeded", sites.a.logs() + sites.b.logs()
            sites.a.until(lambda: not sites.left())
            sites.check()
            assert len({m.owner for m in sites.a.minijobs(job)}) == 2
    finally:
        store.stop()
        server.stop()


# -- what goes wrong


def test_killed_here_and_resumed_there(sites: Sites, hook: Hook) -> None:  # noqa: F811
    """What the dead home had finished comes from the bucket."""
    hook.set(f"hold-{EVAL}")
    worker = sites.a.worker(**hook.variables)
    job = sites.a.submit(minijobs=False)
    sites.a.until(lambda: hook.begun(EVAL))
    for process in sites.a.family(worker):
        process.kill()
    worker.wait()
    shutil.rmtree(str(sites.a.settings.home))
    hook.clear(f"hold-{EVAL}")
    sites.b.worker(**hook.variables)
    assert sites.b.ended(job).state == "succeeded", sites.b.logs()
    sites.b.until(lambda: not sites.left())
    sites.check()
    assert (hook.begun(TRAIN), hook.begun(EVAL)) == (1, 2)
    assert [e["cut"] for e in sites.b.events(job, "cut.restored")] == [TRAIN]


def test_the_store_goes_away(sites: Sites, hook: Hook) -> None:  # noqa: F811
    """Stopped for 20 seconds, and later for a while silent: nothing is done twice."""
    hook.set(f"hold-{TRAIN}")
    hook.set(f"hold-{EVAL}")
    for farm in (sites.a, sites.b):
        farm.worker(**hook.variables)
    job = sites.a.submit(minijobs=True)
    sites.a.until(lambda: hook.begun(TRAIN) and hook.begun(EVAL))
    sites.store.stop()
    hook.clear(f"hold-{TRAIN}")
    time.sleep(20)
    sites.store.start()
    sites.store.pause()
    hook.clear(f"hold-{EVAL}")
    time.sleep(5)
    sites.store.go_on()
    assert sites.a.ended(job).state == "succeeded", sites.a.logs() + sites.b.logs()
    sites.a.until(lambda: not sites.left())
    sites.check()
    assert not any(m.failures for m in sites.a.minijobs(job))


def test_a_store_that_cannot_be_used(store: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"^s3://b/p cannot be reached: .* \(what was finished is kept") as e:
        Remote("s3://b/p?endpoint_override=127.0.0.1:9&scheme=http&region=us-east-1", patience=0.5).put("x", b"")
    assert "\n" not in str(e.value)
    place = Remote(store.url("x"))
    with pytest.raises(StorageError, match="NO_SUCH_BUCKET"):
        Remote(store.url("x").replace(BUCKET, "nothing")).put("x", b"")
    with pytest.raises(FileNotFoundError):
        place.put("x", tmp_path / "nothing")  # of our own disk: no waiting
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StorageError, match=r"SIGNATURE_DOES_NOT_MATCH.*AWS_\* keys"):
        Remote(store.url("x")).put("x", b"")
    for wrong in ("s3:///p", "gs://b/p", "s3://b/p?reigon=x", "s3://[b/p", "s3://b:1/p", "s3://b/../p"):
        with pytest.raises(ConfigError, match="it looks like s3://bucket/prefix") as c:
            Remote(wrong)
        assert wrong not in str(c.value)
    keyed = Remote("s3://key:secret@b/p%20q?region=x")
    assert (keyed.uri, keyed.options["secret_key"]) == ("s3://b/p q", "secret")


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "marker"])
def test_a_damaged_stage_is_made_again(store: ObjectStore, tmp_path: Path, small: World, damage: str) -> None:  # noqa: F811
    """Home b finds the first cut of home a damaged in the bucket."""
    prefix = uuid.uuid4().hex[:8]
    files, rights = store.filesystem(), Rights()
    with fixed_commit():
        p = Product(small, tmp_path)
        want = {name: (Path(p.export(small.names())) / name).read_bytes() for name in FILES}
        bucket = Bucket(Remote(store.url(prefix)), rights.right)
        a = p.context(small.names(), "a", registry=Rows(), bucket=bucket, queries_per_block=3)
        assert minijobs.validate(a) is None
        jobs = list(minijobs.partition(a))
        first = [minijobs.run(a, job) for job in jobs if job.cut == jobs[0].cut]
        assert not any(d.restored for d in first)
        stage = f"{BUCKET}/{prefix}/export_resume/{a.staging().path.name}/cuts/{jobs[0].cut}"
        looking = p.context(small.names(), "c", bucket=bucket).staging()  # as `plan` does: nothing is fetched
        assert looking.restore(str(jobs[0].cut), a.runner.key(a.cut(jobs[0])))[0] is not None
        assert not looking.path.exists()
        name = f"{stage}/{'done.json' if damage == 'marker' else 'pk.parquet'}"
        with files.open_input_stream(name) as f:
            data = f.read()
        if damage == "gone":
            files.delete_file(name)
        else:
            with files.open_output_stream(name) as out:
                out.write(data[:-9] if damage == "cut" else data[:99] + bytes([data[99] ^ 1]) + data[100:])
        events: list[tuple[str, dict[str, Any]]] = []
        rows = Rows()
        made = p.export(small.names(), "b", rows=rows, bucket=bucket, queries_per_block=3,
                        report=lambda kind, **what: events.append((kind, what)))  # fmt: skip
    told = [what["reason"] for kind, what in events if kind == "cut.discarded"]
    expected = {"flipped": "damaged", "cut": "bytes, not", "gone": "missing", "marker": "its marker is damaged"}
    assert len(told) == 1
    assert expected[damage] in told[0]
    assert f"s3://{stage}" in told[0]
    assert made == rows["world"]["path"] == f"s3://{BUCKET}/{prefix}/datasets/world/{a.mark[:12]}"
    for file, data in want.items():
        with files.open_input_stream(f"{str(made).removeprefix('s3://')}/{file}") as f:
            assert f.read() == data
    assert not store.objects(f"{prefix}/export_resume")
    assert not list((tmp_path / "b" / "resume").iterdir())
    assert list((tmp_path / "a" / "resume").iterdir())  # what a has left
    buckets.tidy(tmp_path / "a" / "resume", bucket.remote)
    assert not list((tmp_path / "a" / "resume").iterdir())
    # late minijobs of a find that there is nothing to do, and store nothing
    late = [minijobs.run(a, job) for job in jobs[:-1]]
    assert all(d.restored for d in late)
    assert not store.objects(f"{prefix}/export_resume")
    # one that stores something while another process removes it all takes it away again
    slow = a.staging()
    slow.acquire(shared=True)
    files.delete_file(f"{BUCKET}/{prefix}/export_resume/{slow.path.name}/begun")
    with pytest.raises(StorageError, match="finished by another process"):
        a.runner.blocks(a.cut(jobs[0]), slow).save_queries(1)
    slow.release()
    assert not store.objects(f"{prefix}/export_resume")
    # the dataset damaged in the bucket: made again
    name = f"{str(made).removeprefix('s3://')}/eval.parquet"
    with files.open_output_stream(name) as out:
        out.write(want["eval.parquet"][:-1])
    with fixed_commit():
        p.export(small.names(), "b", rows=rows, bucket=bucket, queries_per_block=3)
    with files.open_input_stream(name) as f:
        assert f.read() == want["eval.parquet"]
    assert rights.held == 0


class Rights:
    """Rights that everybody gets, and how many are held."""

    held = 0

    def right(self, what: str) -> Any:
        rights = self

        class Held:
            had = 0

            def take(self, *, shared: bool) -> None:
                self.had, rights.held = 1, rights.held + 1

            def check(self) -> None:
                assert self.had

            def release(self) -> None:
                self.had, rights.held = 0, rights.held - self.had

        return Held()


def test_inputs_are_fetched_mended_and_shared(sites: Sites) -> None:
    """Fetched when missing or damaged here; damaged in the bucket it is told, and another load mends it."""
    a, b = (Inputs.of(f.settings) for f in (sites.a, sites.b))
    with open_catalog(sites.a.settings) as catalog:
        digest = catalog.find("proteins").object_digest
        sets = {r.object_digest for r in catalog.inputs("annotations")}
    assert not b.objects.exists()
    path = b.path("proteins", digest)
    assert (path / "proteins.parquet").read_bytes() == (a.path("proteins", digest) / "proteins.parquet").read_bytes()
    (path / "proteins.parquet").write_bytes(b"damaged")
    assert b.intact("proteins", digest)
    assert (path / "proteins.parquet").read_bytes() != b"damaged"
    # the file that b loads as a did is recognised, without reading it again
    place = Path(str(sites.b.settings.home)).parents[1] / "files"
    version, gaf = next(iter(sites.b.world.write(place)["annotations"].items()))
    again = ingest.load_annotations(sites.b.settings, gaf, source="goa", version=version, max_rejected=1)
    assert again.already_loaded
    assert again.row.object_digest in sets
    assert b.intact("annotations", again.row.object_digest)
    # damaged there
    name = f"{BUCKET}/{sites.prefix}/objects/proteins/{digest}/proteins.parquet"
    with sites.store.filesystem().open_output_stream(name) as out:
        out.write(b"x")
    shutil.rmtree(path)
    assert not b.there("proteins", digest)
    with pytest.raises(StorageError, match=r"gone or damaged \(load it again"):
        protea.export(settings=sites.b.settings, **sites.b.world.names())
    with pytest.raises(StorageError, match=r"gone or damaged \(load it again"):
        sites.a.submit()
    ingest.load_proteins(sites.a.settings, sites.a.world.write(place)["proteins"])
    assert b.intact("proteins", digest)


def test_one_run_at_a_time_among_all_machines(settings: Settings) -> None:
    with open_catalog(settings) as catalog:
        mine, other, third = (AdvisoryRight(catalog.url, "export_resume/d-1") for _ in range(3))
        assert mine.take(shared=True) is None
        assert other.take(shared=True) is None
        other.release()
        assert f"process {os.getpid()}" in str(other.take(shared=False))
        mine.release()
        assert third.take(shared=False) is None
        with pytest.raises(BusyError, match=r"export is going on: protea, process .*wait"):
            buckets.take(other, True, "another run of this export is going on", wait=False)
        third.release()
        # the connection is lost: taken again, unless somebody else was faster
        assert mine.take(shared=False) is None
        kill = text("SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory'")
        with catalog.session() as session:
            session.execute(kill)
        mine.check()
        assert other.take(shared=False) is not None
        with catalog.session() as session:
            session.execute(kill)
        other = AdvisoryRight(catalog.url, "export_resume/d-1")
        assert other.take(shared=False) is None
        with pytest.raises(BusyError, match="taken over by protea, process"):
            mine.check()
        other.release()
