"""The minijobs of an export, in any order, repeated, killed, paused, in many processes: the bytes of the serial path."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from test_families import EVERYTHING

from farm import ALL
from killing import Bench, Child, Counter, die, fixed_commit, small_world
from product import Product, Rows, contents, product
from protea.core import parquet_export, runner, shards
from protea.core.alignment_cache import AlignmentCache
from protea.core.operations import export_minijobs as minijobs
from protea.core.operations.export_minijobs import Context, Done, MiniJob
from protea.core.staging import Staging, read_marker
from protea.errors import BusyError, CancelledError, ConflictError, StorageError
from worlds import random_settings, random_world

SIZES = (1, 3, 2000)


@pytest.fixture(autouse=True)
def _commit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One commit in all manifests; nothing waits for the disk: a killed process loses nothing that it has written."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    with fixed_commit():
        yield


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"), small_world())


def work(context: Context, jobs: list[MiniJob]) -> list[tuple[MiniJob, Done]]:
    return [(job, minijobs.run(context, job)) for job in jobs]


def through(p: Product, settings: dict[str, Any], where: str, **how: Any) -> Path:
    """An export by its minijobs, in order, in this process."""
    context = p.context(settings, where, registry=Rows(), **how)
    assert minijobs.validate(context) is None
    done = work(context, list(minijobs.partition(context)))
    assert not any(d.restored for _, d in done)
    assert not list((p.directory / where / "resume").iterdir())
    path = done[-1][1].path
    assert path is not None
    return Path(path)


def in_some_order(jobs: list[MiniJob], rng: random.Random) -> list[MiniJob]:
    """One that the engine may choose: each after what it needs, and some of them twice."""

    def stage(job: MiniJob) -> int:
        return ("knn", "features", "write").index(job.stage) + (job.cut is None)

    keyed = [(rng.random(), stage(job), job) for job in jobs]
    out: list[MiniJob] = []
    waiting = [job for *_, job in sorted(keyed, key=lambda k: k[:2])]
    while waiting:
        done = {job.id for job in out}
        ready = [j for j in waiting if all(o.id in done for o in jobs if needs(j, o))]
        job = rng.choice(ready)
        waiting.remove(job)
        out += [job] * rng.choice((1, 1, 2))
    return out


def needs(job: MiniJob, other: MiniJob) -> bool:
    if job.cut is None:
        return other.cut is not None and other.stage == "write"
    if job.cut != other.cut:
        return False
    return other.stage == "knn" and other.block == job.block if job.stage == "features" else (
        job.stage == "write" and other.stage == "features"
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------ the same bytes


@pytest.mark.parametrize("seed", range(24 if ALL else 8))
def test_any_world(seed: int) -> None:
    world = random_world(seed, size=8 + 2 * seed % 17, families=True)
    settings = random_settings(seed, world, families=True)
    with product(world) as p:
        serial = contents(p.export(settings))
        for size in SIZES:
            assert contents(through(p, settings, f"size{size}", queries_per_block=size)) == serial, size


def test_every_family(tmp_path: Path) -> None:
    """With alignments too long to compute, which are counted once however many blocks have them."""
    world = random_world(11, size=40, families=True)
    settings = {**world.names(), **EVERYTHING, "max_alignment_cells": 400}
    p = Product(world, tmp_path)
    serial = p.export(settings)
    dropped = json.loads((serial / "manifest.json").read_text())["dropped"]["cuts"]
    assert sum(d["alignments_above_max_cells"] for d in dropped.values()) > 5
    for size in SIZES:
        cache = AlignmentCache(tmp_path / "alignments")
        made = through(p, settings, f"size{size}", queries_per_block=size, alignments=cache, threads=1 + size % 2)
        assert contents(made) == contents(serial)


@pytest.mark.parametrize("group", [1, 7, 50])
def test_row_groups_over_blocks(tmp_path: Path, group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups begin and end anywhere in the blocks, and blocks that are there are mixed with computed ones."""
    monkeypatch.setattr(parquet_export, "ROW_GROUP", group)
    world = random_world(5, size=20 if ALL else 12, families=True)
    settings = {**world.names(), **EVERYTHING}
    p = Product(world, tmp_path)
    serial = contents(p.export(settings))
    for size in (1, 4):
        assert contents(through(p, settings, f"all{size}", queries_per_block=size)) == serial
        context = p.context(settings, f"mixed{size}", queries_per_block=size)
        jobs = list(minijobs.partition(context))
        work(context, [j for j in jobs if j.stage == "features" and j.block % 3 == 1])
        work(context, [j for j in jobs if j.stage == "knn" and j.block % 2])
        assert contents(p.export(settings, f"mixed{size}", queries_per_block=size)) == serial


@pytest.mark.parametrize("seed", range(12 if ALL else 3))
def test_any_order(bench: Bench, seed: int) -> None:
    """No stage is computed twice, and repeated deliveries change nothing."""
    rng = random.Random(seed)
    where = f"order{seed}"
    context = bench.product.context(
        bench.settings, where, registry=bench.rows(where), queries_per_block=SIZES[seed % 3]
    )
    jobs = in_some_order(list(minijobs.partition(context)), rng)
    assert len(jobs) > len({j.id for j in jobs})
    computed = Tally(job.id for job, done in work(context, jobs) if not done.restored)
    assert set(computed.values()) == {1}
    assert set(computed) == {j.id for j in jobs}
    bench.check(where)


@pytest.mark.parametrize("seed", range(12 if ALL else 3))
def test_out_of_order(bench: Bench, seed: int) -> None:
    """Whoever finds an earlier stage missing does its part, also the dataset's write when it comes first."""
    where = f"disorder{seed}"
    context = bench.product.context(bench.settings, where, registry=bench.rows(where), queries_per_block=2)
    jobs = list(minijobs.partition(context)) * 2
    random.Random(seed).shuffle(jobs)
    work(context, jobs)
    bench.check(where)


def test_minijobs_travel_as_json(bench: Bench) -> None:
    context = bench.product.context(bench.settings, "json", queries_per_block=2)
    jobs = list(minijobs.partition(context))
    assert [MiniJob(**json.loads(json.dumps(j.to_json()))) for j in jobs] == jobs
    assert len({j.id for j in jobs}) == len(jobs)
    assert {(j.operation, j.queue) for j in jobs} == {
        ("export_knn_batch", "protea.training.knn-batch"),
        ("export_features_batch", "protea.training.features"),
        ("export_write", "protea.training.write"),
    }
    assert [j.label for j in jobs if j.stage == "write"] == ["train-1", "eval-5", "dataset"]
    for cut in ("v1-v2", "v2-v5"):
        knn = [j for j in jobs if j.cut == cut and j.stage == "knn"]
        assert [j.first for j in knn] == [0, *(j.last for j in knn[:-1])]
        assert {j.blocks for j in knn} == {len(knn)}
        p = context.runner.prepared(context.cut(knn[0]))
        assert knn[-1].last == len(p.queries)


# ---------------------------------------------------------------------------------------------------- many processes


def worker(
    bench: Bench, where: str, jobs: list[MiniJob], *, kill: int | None = None, **how: Any
) -> Callable[[Callable[..., None]], None]:
    """What a child does: the jobs one after the other, each told with whether it was computed."""
    rows = bench.rows(where)

    def run(report: Callable[..., None]) -> None:
        if kill is not None:
            Counter(kill).install(rows)
        context = bench.product.context(bench.settings, where, registry=rows, queries_per_block=2, **how)
        for job in jobs:
            done = minijobs.run(context, job)
            report("done", id=job.id, **asdict(done))

    return run


def begin(bench: Bench, where: str) -> list[MiniJob]:
    (bench.directory / where).mkdir()
    context = bench.product.context(bench.settings, where, registry=bench.rows(where), queries_per_block=2)
    assert minijobs.validate(context) is None
    return list(minijobs.partition(context))


@pytest.mark.parametrize("seed", range(8 if ALL else 2))
def test_many_processes(bench: Bench, seed: int) -> None:
    """Four of them, all jobs delivered to all, in different orders: no error, one dataset, one row or a repeated one."""
    where, rng = f"many{seed}", random.Random(seed)
    jobs = begin(bench, where)
    orders = [in_some_order(jobs, rng) if seed % 2 else rng.sample(jobs, len(jobs)) for _ in range(4)]
    children = [Child(worker(bench, where, order), bench.directory / f"{where}.{i}") for i, order in enumerate(orders)]
    for outcome in [c.join() for c in children]:
        assert outcome.status == 0, outcome.events
    bench.check(where)


@pytest.mark.parametrize("seed", range(8 if ALL else 2))
def test_killed_processes(bench: Bench, seed: int) -> None:
    """Three processes, killed at random operations again and again; then what is left, in one that lives."""
    where, rng = f"killed{seed}", random.Random(seed)
    jobs = begin(bench, where)
    killed = 0
    for round in range(12):
        shares = in_some_order(jobs, rng)
        children = [
            Child(worker(bench, where, shares[i::3], kill=rng.randint(1, 80)), bench.directory / f"{where}.{round}.{i}")
            for i in range(3)
        ]
        for outcome in [c.join() for c in children]:
            assert outcome.killed or outcome.status == 0, outcome.events
            killed += outcome.killed
        if bench.rows(where).history and not bench.staging(where):
            break
    assert killed > 2
    assert Child(worker(bench, where, jobs), bench.directory / f"{where}.last").join().status == 0
    bench.check(where, None)
    assert len({json.dumps(r) for r in bench.rows(where).history}) == 1


PARTS = 4
STEP = 1 if ALL else 9


@pytest.mark.parametrize("start", range(PARTS))
def test_killed_at_any_operation(bench: Bench, start: int) -> None:
    """One process killed at operation n, then gone on by minijobs (odd n) or a serial run: finished stages are kept.
    Every ninth n, or all of them."""
    kills = 0
    template = f"template{start}"
    jobs = begin(bench, template)
    for n in range(1 + start * STEP, 5000, PARTS * STEP):
        where = f"kill{n}"
        bench.copy(template, where)
        first = Child(worker(bench, where, jobs, kill=n), bench.directory / f"{where}.log").join()
        if not first.killed:
            assert first.status == 0
            break
        kills += 1
        finished = {e["id"] for e in first.of("done")}
        if n % 2:
            second = Child(worker(bench, where, jobs), bench.directory / f"{where}.log2").join()
            assert second.status == 0, second.events
            again = {e["id"] for e in second.of("done") if not e["restored"]}
            assert not again & finished
        else:
            second = bench.run(where, log="serial")
            assert second.status == 0, second.events
            cuts = {i.partition("/")[0] for i in finished if i.endswith("/write") and i != "dataset/write"}
            if second.of("export.started"):
                assert cuts <= set(second.cuts("cut.restored"))
        bench.check(where, None)
        bench.drop(where)
    assert kills > 5


def test_a_paused_process_blocks_nobody(bench: Bench) -> None:
    """Stopped in the middle of a block, while the others finish everything; then it may not commit, and leaves nothing."""
    jobs = begin(bench, "paused")
    stale = bench.directory / "stale"

    def guard() -> None:
        if stale.exists():
            raise StorageError("the lease is lost")

    def paused(report: Callable[..., None]) -> None:
        context = bench.product.context(
            bench.settings, "paused", queries_per_block=2, commit_guard=guard, report=report
        )
        minijobs.run(context, jobs[0])
        context.report = lambda kind, **what: (report(kind, **what), time.sleep(0.5))
        minijobs.run(context, next(j for j in jobs if j.stage == "features"))

    child = Child(paused, bench.directory / "paused.log")
    child.until("minijob.progress")
    os.kill(child.pid, signal.SIGSTOP)
    stale.touch()
    context = bench.product.context(bench.settings, "paused", registry=bench.rows("paused"), queries_per_block=2)
    work(context, jobs)
    bench.check("paused")
    os.kill(child.pid, signal.SIGCONT)
    outcome = child.join()
    assert outcome.status in (0, 2)
    bench.check("paused")


# -------------------------------------------------------------------------------------------------- serial and minijobs


def test_a_serial_run_goes_on_with_blocks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = begin(bench, "blocks")
    context = bench.product.context(bench.settings, "blocks", queries_per_block=2)
    work(context, [j for j in jobs if j.cut == "v1-v2"])
    work(context, [j for j in jobs if j.stage == "features"])
    monkeypatch.setattr(shards, "rows", None)  # every block is there: nothing is computed
    heard: list[tuple[str, str]] = []
    rows = bench.rows("blocks")
    report: Callable[..., None] = lambda kind, **what: heard.append((kind, what.get("cut", "")))  # noqa: E731
    bench.product.export(bench.settings, "blocks", report, rows=rows, queries_per_block=2)
    assert [c for kind, c in heard if kind == "cut.restored"] == ["v1-v2"]
    assert [c for kind, c in heard if kind == "cut.started"] == ["v2-v5"]
    bench.check("blocks")


def test_minijobs_go_on_with_a_serial_cut(bench: Bench) -> None:
    first = bench.run("serial", lambda e, _: die() if e["kind"] == "cut.prepared" and e["cut"] == "v2-v5" else None)
    assert first.killed
    context = bench.product.context(bench.settings, "serial", registry=bench.rows("serial"), queries_per_block=2)
    jobs = list(minijobs.partition(context))
    assert [j.id for j in jobs if j.cut == "v1-v2"] == ["v1-v2/write"]
    done = {job.id: d for job, d in work(context, jobs)}
    assert done["v1-v2/write"].restored
    assert not done["v2-v5/write"].restored
    bench.check("serial")


def test_a_serial_run_and_minijobs_keep_apart(bench: Bench) -> None:
    jobs = begin(bench, "apart")
    context = bench.product.context(bench.settings, "apart", registry=bench.rows("apart"), queries_per_block=2)
    held = Staging(context.resume_dir, "d", context.mark)
    held.acquire()
    for call in (lambda: work(context, jobs[:1]), lambda: minijobs.validate(context)):
        with pytest.raises(BusyError, match=f"process {os.getpid()} on "):
            call()
    held.release()
    held.acquire(shared=True)
    work(context, jobs[:1])
    with pytest.raises(BusyError, match="other minijobs"):
        bench.product.export(bench.settings, "apart")
    held.release()
    work(context, jobs)
    bench.check("apart")
    assert all(d.restored for _, d in work(context, jobs))
    bench.check("apart")


def test_validate(bench: Bench) -> None:
    context = bench.product.context(bench.settings, "valid", registry=bench.rows("valid"))
    (bench.directory / "valid").mkdir()
    work(context, list(minijobs.partition(context)))
    assert minijobs.validate(context) == bench.dataset("valid")
    other = bench.product.context({**bench.settings, "k": 3}, "valid", registry=bench.rows("valid"))
    with pytest.raises(ConflictError, match="--replace"):
        minijobs.validate(other)
    bench.check("valid")
    sets = {v: replace(s, path=s.path / "gone") for v, s in context.inputs.sets.items()}
    context.inputs = replace(context.inputs, sets=sets)
    with pytest.raises(StorageError, match="annotation set 1 are gone"):
        minijobs.validate(context)


# ------------------------------------------------------------------------------------------- damage, fences, cancelling


def stages(bench: Bench, where: str) -> list[Path]:
    (staging,) = bench.staging(where)
    return sorted(d for d in staging.glob("blocks/*/*") if read_marker(d))


@pytest.mark.parametrize("how", ["flip", "missing", "empty"])
def test_damaged_blocks(bench: Bench, how: str) -> None:
    """Any file of any stage, in one way or all: it is told, made again by whoever needs it, and the bytes are the same."""
    jobs = begin(bench, f"damage-{how}")
    early = [j for j in jobs if j.stage != "write"]
    work(bench.product.context(bench.settings, f"damage-{how}", queries_per_block=2), early)
    names = {p.relative_to(d) for d in stages(bench, f"damage-{how}") for p in d.iterdir()}
    assert len(names) == 8
    for number, name in enumerate(sorted(names)):
        if not ALL and number % 3 != ("flip", "missing", "empty").index(how):
            continue
        where = f"{how}{number}"
        bench.copy(f"damage-{how}", where)
        for stage in stages(bench, where):
            if (path := stage / name).exists():
                data = bytearray(path.read_bytes())
                data[len(data) // 2] ^= 1
                path.unlink() if how == "missing" else path.write_bytes(data if how == "flip" else b"")
        heard: list[dict[str, Any]] = []
        context = bench.product.context(bench.settings, where, registry=bench.rows(where), queries_per_block=2)
        context.report = lambda kind, heard=heard, **what: heard.append({"kind": kind, **what})
        knn = name.stem in ("row", "distance", "count")  # of which the write has no need
        work(context, jobs if number % 2 or knn else [j for j in jobs if j.stage == "write"])
        assert any(e["kind"] == "block.discarded" and e["reason"] for e in heard)
        bench.check(where)
        bench.drop(where)


def test_other_sizes_and_settings_are_other_blocks(bench: Bench) -> None:
    jobs = begin(bench, "other")
    work(bench.product.context(bench.settings, "other", queries_per_block=2), [j for j in jobs if j.stage != "write"])
    context = bench.product.context(bench.settings, "other", registry=bench.rows("other"), queries_per_block=3)
    assert not any(d.restored for _, d in work(context, list(minijobs.partition(context))))
    bench.check("other")


@pytest.mark.parametrize("stage", ["knn", "features", "write", "dataset"])
def test_a_stale_process_cannot_commit(bench: Bench, stage: str) -> None:
    where = f"stale-{stage}"
    jobs = begin(bench, where)
    at = next(i for i, j in enumerate(jobs) if stage in (j.stage, j.label))
    context = bench.product.context(bench.settings, where, registry=bench.rows(where), queries_per_block=2)
    work(context, jobs[:at])

    def files() -> set[Path]:
        """All of them, but for the numbers of attempts and the lock of the datasets."""
        found = bench.directory.joinpath(where).rglob("*")
        return {p for p in found if p.is_file() and p.parent.name != "attempts" and p.name != ".lock"}

    before = files()

    def stale() -> None:
        raise StorageError("the lease is lost")

    context.commit_guard = stale
    with pytest.raises(StorageError, match="the lease is lost"):
        minijobs.run(context, jobs[at])
    assert files() == before
    context.commit_guard = lambda: None
    work(context, jobs[at:])
    bench.check(where)


def test_a_stale_serial_run_cannot_commit(bench: Bench) -> None:
    allowed = 0

    def guard() -> None:
        nonlocal allowed
        allowed -= 1
        if allowed < 0:
            raise StorageError("the lease is lost")

    for n in range(3):  # the first cut, the second one, the dataset
        allowed = min(n, 1)  # a restored cut is not committed again
        with pytest.raises(StorageError, match="the lease is lost"):
            bench.product.export(bench.settings, "serially", rows=bench.rows("serially"), commit_guard=guard)
        assert not bench.dataset("serially").exists()
    assert len(bench.finished("serially")) == 2
    bench.product.export(bench.settings, "serially", rows=bench.rows("serially"))
    bench.check("serially")


def test_cancelled_anywhere(bench: Bench) -> None:
    """At the n-th time it is asked: what was finished is kept, nothing half-done is left, and the next run goes on."""
    jobs = begin(bench, "cancel")
    rows = bench.rows("cancel")
    for n in range(1, 200, 3):
        asked = 0

        def cancelled(n: int = n) -> bool:
            nonlocal asked
            asked += 1
            return asked >= n

        context = bench.product.context(
            bench.settings, "cancel", registry=rows, queries_per_block=2, cancelled=cancelled
        )
        try:
            work(context, jobs)
        except CancelledError:
            (staging,) = bench.staging("cancel")
            assert not list(staging.glob("open/*"))
            continue
        break
    assert n > 10
    bench.check("cancel")


def test_cancelled_serially(bench: Bench, tmp_path: Path) -> None:
    for n in range(1, 400, 3):
        asked = 0

        def cancelled(n: int = n) -> bool:
            nonlocal asked
            asked += 1
            return asked >= n

        try:
            bench.product.export(
                bench.settings, "cancelled", rows=bench.rows("cancelled"), cancelled=cancelled, queries_per_block=2
            )
        except CancelledError:
            continue
        break
    assert n > 10
    bench.check("cancelled")


def test_alignments_are_cancelled(tmp_path: Path) -> None:
    """In the middle of one block: they ask a few times a second."""
    world = random_world(3, size=24, families=True)
    p = Product(world, tmp_path)
    settings = {**world.names(), **EVERYTHING}
    context = p.context(settings)
    job = next(j for j in minijobs.partition(context) if j.stage == "features")
    inside = 0

    def cancelled() -> bool:
        nonlocal inside
        import traceback

        inside += any(f.name == "align" for f in traceback.extract_stack())
        return inside > 0

    context.cancelled = cancelled
    with pytest.raises(CancelledError):
        minijobs.run(context, job)
    assert inside == 1


def test_a_process_keeps_the_last_cut(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[str] = []
    real = runner.prepare
    monkeypatch.setattr(runner, "prepare", lambda cut, *a: prepared.append(cut.pair) or real(cut, *a))
    jobs = begin(bench, "warm")
    work(bench.product.context(bench.settings, "warm", registry=bench.rows("warm"), queries_per_block=2), jobs)
    assert prepared == ["v1-v2", "v2-v5"]
    bench.check("warm")
