"""Exports under everything that can happen to them, for as long as you like; what comes out must be as if nothing had.

    python -m bench.soak MINUTES [--seed N] [--place DIRECTORY]

Each round takes a random world and random settings, exports them undisturbed and serially, removes that, and exports them
again in one of three ways (`in place`: the program `protea export run`, run again whenever it ends badly; `queued` to
workers; `minijobs` of workers) while faults strike: SIGKILL, SIGTERM or SIGINT to a run, worker or child; SIGSTOP for
shorter or longer than a lease, then SIGCONT; the database stopped, or killed, and started again; a full disk (the kernel
refuses every write beyond 4 kB of a file). With seaweedfs installed every third round exports to a bucket, from one or two
homes that begin empty (each program that is started takes one by chance), and the object store is stopped or paused too.
The disk is slow (each fsync takes a while), so that faults meet the work rather than the start of programs. Then the
oracle, `Round.verify`:

- the files are those of the undisturbed run, byte for byte, and the dataset is whole; one in a bucket can be opened there;
- one `Dataset` row of that name, one `export.published` or fewer (a run may die between publication and its event);
- no staging directory is left, nor anything but datasets beside the datasets. Of a round with a bucket: after the next
  worker's or run's `tidy` and `gc`, since another home may have finished the export; objects below the finished export's
  prefix may be left when a process was killed or stalled, until the same export is run again, which changes nothing;
- no cut is started after its `cut.finished` was logged, unless `cut.discarded` says why; no minijob is done twice. (What is
  finished but killed before it is logged is restored from its marker, which this cannot see; `test_resume` does.)
- what is started after the last fault is over does not fail, and failures before that are one line.

Everything random comes from the seed, but for the moments at which the faults meet the work.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

import protea  # noqa: E402
from objectstore import BUCKET, KEY, SECRET, ObjectStore, program  # noqa: E402
from protea import ingest  # noqa: E402
from protea.catalog import Dataset, Job, JobEvent, Minijob, open_catalog, upgrade  # noqa: E402
from protea.catalog.embedded import EmbeddedServer  # noqa: E402
from protea.collecting import gc  # noqa: E402
from protea.core.operations.export_research_dataset import read_manifest, whole  # noqa: E402
from protea.errors import ProteaError, UserError  # noqa: E402
from protea.exporting import tidy  # noqa: E402
from protea.jobs import rows  # noqa: E402
from protea.jobs.local import submit  # noqa: E402
from protea.settings import Settings  # noqa: E402
from worlds import TABLES, random_settings, random_world  # noqa: E402

WAYS = ("minijobs", "in place", "queued")
LEASE = 4.0
PATIENCE = 240.0
"""Seconds that an export may take after the last fault."""
SLOW_DISK = """
import os, time
_fsync = os.fsync
def fsync(fd):
    time.sleep(float(os.environ.get("SOAK_FSYNC", "0")))
    _fsync(fd)
os.fsync = fsync
"""


class Violation(AssertionError):
    """The oracle does not hold."""


@dataclass
class Tally:
    """What happened so far."""

    exports: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    recoveries: Counter[str] = field(default_factory=Counter)

    def text(self) -> str:
        def line(name: str, counts: Counter[str]) -> str:
            return f"{name:11}{sum(counts.values()):5}  " + ", ".join(f"{k} {n}" for k, n in sorted(counts.items()))

        return "\n".join(line(n, getattr(self, n)) for n in ("exports", "faults", "recoveries"))


class Soak:
    """A home, a database server of its own, an object store if there is one, and some worlds loaded."""

    def __init__(self, place: Path, seed: int, worlds: int = 3) -> None:
        self.place, self.seed, self.tally = place, seed, Tally()
        self.store = ObjectStore(place / "store") if program() else None
        self.server = EmbeddedServer(place / "server")
        self.server.acquire()
        url = f"postgresql://postgres@/postgres?host={quote(str(self.server.socket_dir), safe='')}"
        self.settings = Settings(
            home=place / "home", database_url=url, lease_seconds=LEASE, retry_seconds=0.2, threads=1,
            export_queries_per_block=4,
        )  # fmt: skip
        upgrade(self.settings)
        hook = place / "hook"
        hook.mkdir()
        (hook / "sitecustomize.py").write_text(SLOW_DISK)
        self.environment = {
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "1",  # Python 3.11 makes half a module's cache of a full disk, and trips over it
            "PYTHONPATH": os.pathsep.join([str(hook), str(ROOT / "src")]),
        }  # fmt: skip
        url = self.store.url("soak").replace("s3://", f"s3://{KEY}:{SECRET}@") if self.store else None
        self.loading = self.settings.model_copy(update={"storage_url": url})
        self.homes = [self.loading.model_copy(update={"home": place / x}) for x in "ab"] if url else []
        """Where a round with a bucket may run."""
        self.worlds = [self._load(i) for i in range(worlds)]

    def _load(self, i: int) -> tuple[Any, dict[str, Any]]:
        """A world, and the names of its inputs as settings."""
        world = random_world(1000 * self.seed + i, size=14, families=True)
        files, name = world.write(self.place / f"world{i}"), f"w{i}"
        ingest.load_ontology(self.loading, files["ontology"], name=name)
        ingest.load_proteins(self.loading, files["proteins"], name=name)
        ingest.load_embeddings(self.loading, files["embeddings"]["npz"], name=name)
        for version, path in files["annotations"].items():
            ingest.load_annotations(self.loading, path, source=name, version=version, max_rejected=1)
        if files["derived"]:
            ingest.load_annotations(
                self.loading, files["derived"], source=name, cut_dates=world.cut_dates, max_rejected=1
            )
        loaders = {
            "taxonomy": ingest.load_taxonomy, "term_vectors": ingest.load_term_vectors,
            "interpro": ingest.load_interpro, "external_scores": ingest.load_scores,
            "information_accretion": ingest.load_ia,
        }  # fmt: skip
        names = dict.fromkeys(("ontology", "proteins", "embedding_config", "annotation_source"), name)
        for table, load in loaders.items():
            if files.get(table):
                how = {} if table == "taxonomy" else {"max_rejected": 1.0}
                load(self.loading, files[table], name=name, **how)
                names[table] = name
        return world, names

    def draw(self, number: int) -> tuple[dict[str, Any], str]:
        """Settings and the way of a round."""
        chance = random.Random(f"soak {self.seed} {number}")
        world, names = chance.choice(self.worlds)
        drawn = random_settings(chance.randrange(1 << 30), world, families=True) | {"name": f"d{number}"}
        for table in TABLES:
            if drawn.get(table) is not None and table not in names:
                del drawn[table]
        drawn |= {k: v for k, v in names.items() if k not in TABLES or drawn.get(k) is not None}
        if "taxonomy" not in drawn:
            drawn["compute_taxonomy"] = False
        if "interpro" not in drawn:
            drawn["interpro_candidates"] = False
        return {k: v for k, v in drawn.items() if v is not None}, WAYS[number % len(WAYS)]

    def close(self) -> None:
        if self.store:
            self.store.stop()
        self.server.release()


class Round:
    """One export, undisturbed and then disturbed."""

    def __init__(self, soak: Soak, number: int, log: Callable[[str], None]) -> None:
        self.soak, self.number = soak, number
        self.values, self.way = soak.draw(number)
        self.name = self.values["name"]
        self.chance = random.Random(f"faults {soak.seed} {number}")
        self.faults = self.chance.randint(1, 5)
        self.struck = Counter[str]()
        self.homes = [soak.settings]
        self.remote = None
        if soak.homes and (number + number // len(WAYS)) % 3 == 0:  # so each of the ways gets its share
            self.homes = soak.homes[: self.chance.randint(1, 2)]
            self.remote = self.homes[0].remote
        self.log = lambda text: log(f"round {number}: {text}")
        self.processes: list[subprocess.Popen[bytes]] = []
        self.paused: list[tuple[float, psutil.Process]] = []
        self.calm_since = time.monotonic()
        self.pace = str(self.chance.choice((0.02, 0.05, 0.1)))

    # -- processes

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        """A program of PROTEA's. Its output goes through a pipe: no fault of ours reaches the log."""
        home = self.chance.choice(self.homes)
        environment = self.soak.environment | home.environment() | {"SOAK_FSYNC": self.pace}
        process = subprocess.Popen(
            [sys.executable, "-m", "protea", *args], env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        process.said = []  # type: ignore[attr-defined]
        process.born = time.monotonic()  # type: ignore[attr-defined]
        threading.Thread(target=lambda: process.said.extend(process.stdout), daemon=True).start()  # type: ignore[attr-defined]
        self.processes.append(process)
        return process

    def family(self) -> list[psutil.Process]:
        """All processes of this round that are alive: programs, and their children."""
        found = []
        for process in self.processes:
            with suppress(psutil.NoSuchProcess):
                if process.poll() is None:
                    program = psutil.Process(process.pid)
                    found += [program, *program.children(recursive=True)]
        return found

    def said(self) -> str:
        return "\n".join(
            f"-- {' '.join(map(str, p.args))[-80:]} ({p.poll()})\n" + b"".join(p.said[-30:]).decode(errors="replace")  # type: ignore[attr-defined]
            for p in self.processes[-6:]
        )

    def expect(self, good: bool, what: str) -> None:
        if not good:
            raise Violation(
                f"seed {self.soak.seed}, round {self.number} ({self.way}): {what}\n{self.values}\n{self.said()}"
            )

    def stop(self) -> None:
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for process in self.processes:
            process.wait()

    # -- faults

    def disturb(self) -> None:
        """One fault, if there is something to hurt."""
        family = self.family()
        kinds: list[Callable[[list[psutil.Process]], str]] = [
            self.kill, self.kill, self.pause, self.restart_database, self.fill_disk
        ]  # fmt: skip
        if self.remote is not None:
            kinds = [*(kinds if self.struck else ()), self.restart_store, self.pause_store]  # first one of these
        if family:
            try:
                said = self.chance.choice(kinds)(family)
            except psutil.NoSuchProcess:  # it ended by itself
                return
            self.struck[said.partition(":")[0]] += 1
            self.soak.tally.faults[said.partition(":")[0]] += 1
            self.faults -= 1
            self.log(said)
        self.calm_since = time.monotonic()

    def kill(self, family: list[psutil.Process]) -> str:
        victim = self.chance.choice(family)
        number = self.chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
        what = "child" if "protea.jobs.child" in victim.cmdline() else "run" if self.way == "in place" else "worker"
        victim.send_signal(number)
        return f"{number.name} {what}: {victim.pid}"

    def pause(self, family: list[psutil.Process]) -> str:
        victim, seconds = self.chance.choice(family), self.chance.choice((0.5, 2.0, LEASE + 2))
        victim.suspend()
        self.paused.append((time.monotonic() + seconds, victim))
        return f"pause {'over' if seconds > LEASE else 'under'} a lease: {victim.pid}"

    def wake(self, all_: bool = False) -> None:
        for moment, process in self.paused[:]:
            if all_ or time.monotonic() > moment:
                self.paused.remove((moment, process))
                with suppress(psutil.NoSuchProcess):
                    process.resume()
                self.calm_since = time.monotonic()

    def restart_database(self, family: list[psutil.Process]) -> str:
        server, crash = self.soak.server, self.chance.random() < 0.5
        if crash:
            pid = int((server.data / "postmaster.pid").read_text().split()[0])
            with suppress(psutil.NoSuchProcess):
                postmaster = psutil.Process(pid)
                postmaster.kill()
                psutil.wait_procs([postmaster], 10)
        else:
            server._stop()
        time.sleep(self.chance.choice((0, 1, LEASE + 1)))
        server.revive()
        return "database killed" if crash else "database restarted"

    def restart_store(self, family: list[psutil.Process]) -> str:
        assert self.soak.store is not None
        self.soak.store.stop()
        time.sleep(self.chance.choice((0, 1, LEASE + 1)))
        self.soak.store.start()
        return "object store killed"

    def pause_store(self, family: list[psutil.Process]) -> str:
        assert self.soak.store is not None
        self.soak.store.pause()
        time.sleep(self.chance.choice((0.5, 2, LEASE + 1)))
        self.soak.store.go_on()
        return "object store paused"

    def fill_disk(self, family: list[psutil.Process]) -> str:
        """No file may grow beyond 4 kB for a while; children that are started meanwhile inherit it."""
        end = time.monotonic() + self.chance.choice((0.3, 1, 2))
        while time.monotonic() < end:
            self._limit(self.family(), 4096)
            time.sleep(0.05)
        self._limit(self.family(), resource.RLIM_INFINITY)
        time.sleep(0.3)
        self._limit(self.family(), resource.RLIM_INFINITY)  # a child that was being started in between
        return "disk full"

    @staticmethod
    def _limit(family: list[psutil.Process], size: int) -> None:
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.rlimit(psutil.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    # -- the export

    def undisturbed(self) -> dict[str, Any]:
        """The bytes of the export in place, which is removed again."""
        settings = self.soak.settings
        made = protea.export(settings=settings, **self.values)
        found = files_of(made.path)
        shutil.rmtree(made.path)
        with open_catalog(settings) as catalog, catalog.session() as session:
            session.query(Dataset).filter_by(name=self.name).delete()
            self.before = {job.id for job in session.query(Job)}
        return found

    def run(self) -> None:
        wanted = self.undisturbed()
        where = f" in a bucket from {len(self.homes)} homes" if self.remote else ""
        self.log(
            f"{self.way}{where}, {self.faults} faults, fsync {self.pace} s, {json.dumps(self.values, default=str)}"
        )
        try:
            if self.way == "in place":
                self._in_place()
            else:
                self._queued()
            self.wake(all_=True)
        finally:
            self.stop()
        self.verify(wanted)
        self.soak.tally.exports[self.way + (" in a bucket" if self.remote else "")] += 1

    def _moments(self) -> Iterator[None]:
        """Small steps of time, with a fault now and then; ends with a Violation when nothing comes to an end."""
        next_fault = time.monotonic() + self.chance.uniform(1, 4)
        while True:
            time.sleep(0.1)
            self.wake()
            if self.faults and time.monotonic() > next_fault:
                self.disturb()
                next_fault = time.monotonic() + self.chance.uniform(0.3, 4)
            self.expect(time.monotonic() < self.calm_since + PATIENCE, "it does not come to an end")
            yield

    def _in_place(self) -> None:
        config = self.soak.place / "config.toml"
        config.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in self.values.items()))
        process = self.start("export", "run", str(config))
        for _ in self._moments():
            code = process.poll()
            if code == 0:
                return
            if code is not None:
                calm = process.born > self.calm_since  # type: ignore[attr-defined]
                self.expect(not calm, f"it ended with {code} although nothing was done to it")
                said = b"".join(process.said).decode(errors="replace")  # type: ignore[attr-defined]
                self.expect("Traceback" not in said, f"it ended with {code} and a traceback")
                self.soak.tally.recoveries["run again"] += 1
                process = self.start("export", "run", str(config))

    def _queued(self) -> None:
        job = submit(settings=self.homes[0], minijobs=self.way == "minijobs", **self.values).id
        of = self.chance.choice((1, 2, 2))
        retried = 0.0
        for step, _ in enumerate(self._moments()):
            if step % 5:
                continue
            alive = [p for p in self.processes if p.poll() is None]
            if len(alive) < of:
                if self.processes and len(self.processes) >= of:
                    self.soak.tally.recoveries["worker replaced"] += 1
                self.start("worker", "--grace", "1")
            with suppress(ProteaError), open_catalog(self.soak.settings) as catalog:
                found = catalog.jobs.get(job)
                if found.state == "succeeded":
                    return
                if found.state == "failed":
                    calm = retried > self.calm_since
                    self.expect(not calm, f"it fails although nothing is done to it: {found.error_message}")
                    rows.retry(catalog, job)
                    retried = time.monotonic()
                    self.soak.tally.recoveries["job retried"] += 1

    # -- the oracle

    def verify(self, wanted: dict[str, Any]) -> None:
        settings = self.soak.settings
        if self.remote is not None:
            found = self._in_bucket()
        else:
            place = settings.datasets_dir / self.name
            found = files_of(place)
        self.expect(found.keys() == wanted.keys(), f"the files are {sorted(found)}")
        for file, data in wanted.items():
            self.expect(found[file] == data, f"{file} differs")
        if self.remote is None:
            manifest = read_manifest(place)
            self.expect(manifest is not None and whole(place, manifest), "the dataset is not whole")
        for home in self.homes:
            if self.remote is not None:
                tidy(home)
                gc(home)
            left = list(home.resume_dir.iterdir()) if home.resume_dir.exists() else []
            left += (home.storage / "tmp").glob("load-*")
            self.expect(not left, f"staging is left: {left}")
            datasets = {p.name for p in home.datasets_dir.iterdir()} if home.datasets_dir.exists() else set()
            beside = datasets - (set() if self.remote else {f"d{i}" for i in range(self.number + 1)})
            self.expect(beside <= {".lock"}, f"beside the datasets: {beside}")
        with open_catalog(settings) as catalog, catalog.session() as session:
            self.expect(session.query(Dataset).filter_by(name=self.name).count() == 1, "not one row")
            jobs = [j for j in session.query(Job).order_by(Job.created_at) if j.id not in self.before]
            published, finished = 0, set[str]()
            for job in jobs:
                for event in session.query(JobEvent).filter_by(job_id=job.id).order_by(JobEvent.seq):
                    cut = event.payload.get("cut")
                    published += event.kind == "export.published"
                    if event.kind == "cut.finished":
                        finished.add(cut)
                    elif event.kind == "cut.discarded":
                        finished.discard(cut)
                    elif event.kind == "cut.started":
                        self.expect(cut not in finished, f"{cut} was finished, and is started again")
                done = [
                    e.payload["minijob"] for e in session.query(JobEvent).filter_by(job_id=job.id, kind="minijob.done")
                ]
                self.expect(len(done) == len(set(done)), "a minijob was done twice")
                if self.way == "minijobs":
                    states = {m.state for m in session.query(Minijob).filter_by(job_id=job.id)}
                    self.expect(states == {"done"}, f"minijobs are {states}")
            self.expect(published <= 1, f"published {published} times")
        shutil.rmtree(settings.storage / "alignments", ignore_errors=True)
        for home in self.soak.homes:
            shutil.rmtree(home.storage, ignore_errors=True)

    def _in_bucket(self) -> dict[str, Any]:
        """As `files_of`, of the dataset in the bucket; and what is to be there and what is not."""
        assert self.soak.store is not None
        store = self.soak.store
        made = protea.open_dataset(self.name, settings=self.homes[-1])
        place = str(made.path).removeprefix(f"s3://{BUCKET}/")
        for split in ("train", "eval"):
            rows_ = getattr(made, split).count_rows()
            self.expect(rows_ == made.manifest[f"n_{split}_rows"], f"{split} has {rows_} rows")
        files = store.filesystem()
        at, _, mark = place.rpartition("/")
        names = store.objects(at)
        self.expect({n.partition("/")[0] for n in names} == {mark}, f"beside it: {sorted(names)}")
        data = {n.partition("/")[2]: files.open_input_file(f"{BUCKET}/{at}/{n}").read() for n in names}
        left = list(store.objects("soak/export_resume"))
        if left and any("pause" in what or "SIG" in what or "killed" in what for what in self.struck):
            self.soak.tally.recoveries["objects removed by the next run"] += 1
            self.log(f"the next run removes {left}")
            said = list[str]()
            protea.export(settings=self.homes[0], report=lambda kind, **what: said.append(kind), **self.values)
            self.expect(said == ["export.unchanged"], f"the next run says {said}")
            left = list(store.objects("soak/export_resume"))
        self.expect(not left, f"staging is left in the bucket: {left}")
        return promised(data)


def files_of(place: Path) -> dict[str, Any]:
    """The files whose bytes are promised; the manifest without the commit of the checkout."""
    return promised({p.name: p.read_bytes() for p in place.iterdir()})


def promised(files: dict[str, bytes]) -> dict[str, Any]:
    manifest = json.loads(files["manifest.json"])
    return {n: data for n, data in files.items() if n != "run.json"} | {
        "manifest.json": {k: v for k, v in manifest.items() if k != "producer_git_sha"}
    }


@contextmanager
def soak_of(place: Path, seed: int, **how: Any) -> Iterator[Soak]:
    made = Soak(place, seed, **how)
    try:
        yield made
    finally:
        made.close()


def rounds(made: Soak, minutes: float, log: Callable[[str], None]) -> Tally:
    """Rounds for so many minutes, one at least; Violation when the oracle does not hold."""
    end, number = time.monotonic() + 60 * minutes, 0
    while number == 0 or time.monotonic() < end:
        try:
            Round(made, number, log).run()
        except UserError as e:  # settings that do not go with this world
            log(f"round {number}: {e}")
        number += 1
    return made.tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("minutes", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--place", type=Path, help="an empty directory for everything; default: a temporary one")
    given = parser.parse_args()
    place = given.place or Path(tempfile.mkdtemp(prefix="protea-soak-"))
    place.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()

    def log(text: str) -> None:
        print(f"{time.monotonic() - start:7.1f} s  {text}", flush=True)

    log(f"seed {given.seed}, {place}")
    try:
        with soak_of(place, given.seed) as made:
            tally = rounds(made, given.minutes, log)
    except Violation as e:
        print(f"VIOLATION {e}\n(everything is kept in {place})")
        return 1
    print(f"{time.monotonic() - start:.0f} s, seed {given.seed}; every oracle held\n{tally.text()}")
    if given.place is None:
        shutil.rmtree(place, ignore_errors=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
