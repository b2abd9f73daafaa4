"""Who begins which minijob: deliveries of a real queue, taken in random order by processes of several workers."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import select, text

from protea.catalog import Catalog, Minijob, open_catalog
from protea.core.operations.export_minijobs import MiniJob
from protea.jobs import queue, rows
from protea.jobs.rows import Lease
from protea.settings import Settings

STAGES = ("knn", "features", "write")


def plan(blocks: list[int]) -> list[dict[str, Any]]:
    """The minijobs of an export of cuts with so many blocks, as the coordinator tells them."""
    made = []
    for number, n in enumerate(blocks, 1):
        cut, label = f"v{number}-v{number + 1}", f"train-{number}"
        made += [MiniJob(s, cut, label, number, b, n, b, b + 1) for s in ("knn", "features") for b in range(n)]
        made += [MiniJob("write", cut, label, number, 0, n, 0, n)]
    return [m.to_json() for m in [*made, MiniJob("write", None, "dataset", 0, 0, len(blocks), 0, 0)]]


@dataclass
class Process:
    """A child of a worker that takes the deliveries of some stages."""

    catalog: Catalog
    name: str
    stages: tuple[str, ...] = STAGES
    fetched: tuple[int, int] | None = None
    before: Lease | None = None
    lease: Lease | None = None
    began: list[str] = field(default_factory=list)

    def fetch(self) -> bool:
        """Take a delivery as Procrastinate does: the first of the highest priority."""
        first = (
            "SELECT id FROM procrastinate_jobs WHERE status = 'todo' AND queue_name = ANY(:queues)"
            " ORDER BY priority DESC, id LIMIT 1"
        )
        take = f"UPDATE procrastinate_jobs SET status = 'doing' WHERE id = ({first}) RETURNING id, args ->> 'minijob'"
        with self.catalog.session() as session:
            found = session.execute(text(take), {"queues": [queue.QUEUES[s] for s in self.stages]}).first()
        self.fetched = None if found is None else (int(found[0]), int(found[1]))
        return self.fetched is not None

    def claim(self) -> Lease | None:
        assert self.fetched is not None
        delivery, minijob = self.fetched
        self.fetched = None
        lease = rows.claim(self.catalog, minijob, self.name, 1, "1:1", delivery=delivery, stages=self.stages,
                           before=self.before)  # fmt: skip
        with self.catalog.session() as session:
            session.execute(text("DELETE FROM procrastinate_jobs WHERE id = :id"), {"id": delivery})
        if lease:
            self.lease = self.before = lease
            self.began.append(lease.name)
        return lease

    def go_on(self) -> bool:
        """Finish what it does, and begin what comes next; False when nothing does."""
        if self.lease is not None:
            assert rows.done(self.catalog, self.lease, rows=1)
            self.lease = None
        return self.fetch() and self.claim() is not None

    def step(self, chance: random.Random) -> bool:
        """Go on; False when there is nothing to do."""
        if self.lease is not None:
            how = chance.random()
            if how < 0.05:
                assert rows.put_back(self.catalog, self.lease, "stopped")
            elif how < 0.1:
                assert rows.failed(self.catalog, self.lease, "died", "it died", retry=0, lost=True)
            else:
                assert rows.done(self.catalog, self.lease, rows=1)
            self.lease = None
            return True
        if self.fetched is not None:
            self.claim()
            return True
        return self.fetch()


def begun(catalog: Catalog, blocks: list[int]) -> Any:
    """A job whose coordinator has planned cuts of so many blocks; its id."""
    job = rows.submit(catalog, {"name": "queue"}, {})
    coordinator = Process(catalog, "coordinator", ("coordinator",))
    assert coordinator.fetch()
    lease = coordinator.claim()
    assert lease is not None
    assert rows.planned(catalog, lease, plan(blocks))
    assert rows.done(catalog, lease, rows=None)
    return job.id


def left(catalog: Catalog) -> int:
    with catalog.session() as session:
        return session.execute(text("SELECT count(*) FROM procrastinate_jobs")).scalar_one()


@pytest.mark.parametrize("seed", range(6))
def test_every_minijob_is_done_once_whoever_is_given_what(settings: Settings, seed: int) -> None:
    """Deliveries change hands between fetching and claiming; none is lost, and nobody does what it does not serve."""
    chance = random.Random(seed)
    with open_catalog(settings) as catalog:
        catalog.prepare_queue()
        job = begun(catalog, [chance.randrange(4) for _ in range(4)])
        serve = [STAGES, STAGES, ("knn",), ("features",), ("knn", "write")][: 2 + seed % 4]
        workers = [Process(catalog, f"w{i}", stages) for i, stages in enumerate(serve)]
        while catalog.jobs.get(job).state == "running":
            chance.shuffle(workers)
            assert any(w.step(chance) for w in workers), "something waits that nobody brings"
        assert catalog.jobs.get(job).state == "succeeded"
        done = [e.payload["minijob"] for e in catalog.jobs.events(job) if e.kind == "minijob.done"]
        with catalog.session() as session:
            rest = list(session.scalars(select(Minijob).where(Minijob.job_id == job)))
        assert {m.state for m in rest} == {"done"}
        assert sorted(done) == sorted(rows.name(m.stage, m.cut, m.block) for m in rest)  # each once
        assert all(name.split("/")[1] in w.stages for w in workers for name in w.began)
        assert all(w.step(chance) is False for w in workers if not w.fetched)
        for w in workers:
            if w.fetched:
                assert w.claim() is None
        assert left(catalog) == 0


def test_a_process_stays_with_its_cut(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through all stages, since what it has read and prepared serves them all; another one begins another cut."""
    monkeypatch.setattr(rows, "LEFT", "1 hour")  # however slow this machine is
    with open_catalog(settings) as catalog:
        catalog.prepare_queue()
        job = begun(catalog, [2, 2, 1])
        a, b = Process(catalog, "a"), Process(catalog, "b")
        while catalog.jobs.get(job).state == "running":
            for w in (a, b):
                w.go_on()
        first = [f"v{{0}}-v{{1}}/{s}" for s in ("knn/0", "features/0", "knn/1", "features/1", "write")]
        assert a.began[:5] == [name.format(1, 2) for name in first]
        assert b.began[:5] == [name.format(2, 3) for name in first]
        rest = {"v3-v4/knn/0", "v3-v4/features/0", "v3-v4/write", "dataset/write"}
        assert {*a.began[5:], *b.began[5:]} == rest


def test_processes_share_a_cut_when_there_is_no_other(settings: Settings) -> None:
    """The one with most to do for each process that is at it; what a process began before is its own first."""
    with open_catalog(settings) as catalog:
        catalog.prepare_queue()
        begun(catalog, [2, 5])
        four = [Process(catalog, str(i), ("knn",)) for i in range(4)]
        for w in four:
            assert w.go_on()
        assert [w.began for w in four] == [["v1-v2/knn/0"], ["v2-v3/knn/0"], ["v2-v3/knn/1"], ["v2-v3/knn/2"]]
        assert four[0].go_on()
        assert four[0].began[-1] == "v1-v2/knn/1"


def test_what_a_process_passes_over_comes_by_its_own_queue(settings: Settings) -> None:
    """So that a process of just that queue is given it."""
    with open_catalog(settings) as catalog:
        catalog.prepare_queue()
        begun(catalog, [2])
        every, searching = Process(catalog, "every"), Process(catalog, "searching", ("knn",))
        assert every.go_on()
        with catalog.session() as session:  # it fetches the other search before the features are queued
            session.execute(text("UPDATE procrastinate_jobs SET priority = 5"))
        assert every.go_on()
        assert every.began == ["v1-v2/knn/0", "v1-v2/features/0"]
        assert searching.go_on()
        assert searching.began == ["v1-v2/knn/1"]
        assert left(catalog) == 0


def test_a_write_that_is_left_is_done_by_others(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process was stopped: others finish that cut before they begin another one, and other jobs do not wait for it."""
    monkeypatch.setattr(rows, "LEFT", "1 hour")
    with open_catalog(settings) as catalog:
        catalog.prepare_queue()
        job = begun(catalog, [1, 3, 3])
        a, b = Process(catalog, "a"), Process(catalog, "b")
        while "v1-v2/write" not in a.began:
            assert a.go_on()
            assert b.go_on()
        assert a.lease is not None
        assert rows.put_back(catalog, a.lease, "stopped")
        begun(catalog, [1])
        with catalog.session() as session:
            late = "UPDATE minijob SET heartbeat_at = heartbeat_at - interval '2 hours' WHERE stage = 'write'"
            session.execute(text(late))
        so_far = len(b.began)
        for _ in range(3):
            assert b.go_on()
        assert b.began[so_far:] == ["v1-v2/write", "v1-v2/knn/0", "v1-v2/features/0"]  # of the other job, the last two
        assert b.lease is not None
        assert b.lease.job != job
