"""Exports at the same time: one run of an export at once, and one export of a name (acceptance 5)."""

from __future__ import annotations

import os
import signal
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from killing import Bench, Child, blocked, fixed_commit
from product import contents
from protea.core.operations.export_research_dataset import read_manifest
from protea.errors import BusyError


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with fixed_commit():
        yield Bench(tmp_path_factory.mktemp("bench"))


def holding(kind: str, release: Path) -> Callable[[dict[str, Any], int], None]:
    return lambda event, _: blocked(release) if event["kind"] == kind else None


def test_a_second_run_is_refused_by_name(bench: Bench) -> None:
    release = bench.directory / "refused.release"
    first = bench.start("refused", holding("cut.progress", release))
    first.until("cut.progress")
    with pytest.raises(BusyError, match=f"going on: process {first.pid} on .*--wait"):
        bench.product.export(bench.settings, "refused", rows=bench.rows("refused"))
    release.touch()
    assert first.join().status == 0
    bench.check("refused")


def test_a_second_run_waits(bench: Bench) -> None:
    """It says for whom, and gives the finished dataset back without computing anything."""
    release = bench.directory / "waits.release"
    first = bench.start("waits", holding("cut.progress", release))
    first.until("cut.progress")
    second = bench.start("waits", log="second", wait=True)
    second.until("export.waiting")
    release.touch()
    assert first.join().status == 0
    outcome = second.join()
    assert outcome.status == 0
    assert [e["kind"] for e in outcome.events] == ["export.waiting", "export.unchanged"]
    assert f"process {first.pid} " in outcome.events[0]["reason"]
    bench.check("waits")


def test_a_killed_holder_holds_nothing(bench: Bench) -> None:
    """A waiting run takes over as soon as the holder is dead, and goes on from what it finished."""
    first = bench.start("heir", lambda e, _: blocked(Path("/nowhere")) if e.get("number") == 2 else None)
    while not any(e.get("number") == 2 for e in first.events()):
        os.sched_yield()
    second = bench.start("heir", log="second", wait=True)
    second.until("export.waiting")
    os.kill(first.pid, signal.SIGKILL)
    assert first.join().killed
    outcome = second.join()
    assert outcome.status == 0
    assert outcome.cuts("cut.restored") == ["v1-v2"]
    assert outcome.cuts("cut.started") == ["v2-v5"]
    bench.check("heir")


def test_many_at_once(bench: Bench) -> None:
    """All start together and wait: every cut is computed once, everyone gets the dataset."""
    for turn in range(3):
        where = f"many{turn}"
        (bench.directory / where).mkdir()
        go = bench.directory / f"{where}.go"
        work = bench.work(where, wait=True)

        def run(report: Callable[..., None], go: Path = go, work: Callable[..., Path] = work) -> None:
            blocked(go)
            work(report)

        children = [Child(run, bench.directory / f"{where}.{i}") for i in range(4)]
        go.touch()
        outcomes = [c.join() for c in children]
        assert [o.status for o in outcomes] == [0] * 4
        assert Tally(c for o in outcomes for c in o.cuts("cut.started")) == {"v1-v2": 1, "v2-v5": 1}
        bench.check(where)


@pytest.mark.parametrize("replace", [False, True])
def test_two_exports_of_one_name(bench: Bench, replace: bool) -> None:
    """Both get as far as publishing: one wins, the other is told; with --replace the last one stays. Never a mixture."""
    for turn in range(4):
        where = f"name{turn}{replace}"
        (bench.directory / where).mkdir()
        at_end = [bench.directory / f"{where}.{k}.ready" for k in (5, 3)]

        def meet(event: dict[str, Any], _: int, files: list[Path] = at_end, mine: int = 0) -> None:
            if event["kind"] == "assembly.started" and event["file"] == "known.parquet":
                files[mine].touch()
                blocked(files[1 - mine])

        children = [
            bench.start(
                where, lambda e, n, i=i: meet(e, n, mine=i), log=f"log{i}", changed={"k": k}, replace=replace
            )
            for i, k in enumerate((5, 3))
        ]  # fmt: skip
        outcomes = [c.join() for c in children]
        place = bench.dataset(where)
        found = read_manifest(place)
        assert found
        rows = bench.rows(where).history
        assert rows[-1]["fingerprint"] == found["fingerprint"]
        assert contents(place) == (bench.clean() if found["k"] == 5 else bench.clean(k=3))
        assert {p.name for p in place.parent.iterdir()} == {"d", ".lock"}
        if replace:
            assert [o.status for o in outcomes] == [0, 0]
            assert not bench.staging(where)
            continue
        assert sorted(o.status for o in outcomes) == [0, 2]
        assert len(rows) == 1
        (loser,) = [o for o in outcomes if o.status]
        assert loser.of("error")[0]["code"] == "conflict"
        assert "--replace" in loser.error
        (staging,) = bench.staging(where)  # its cuts are kept: with --replace it need not compute them again
        again = bench.run(where, log="again", changed={"k": 3 if found["k"] == 5 else 5}, replace=True)
        assert len(again.cuts("cut.restored")) == 2
        assert not staging.exists()


def test_what_another_run_assembles_is_left_alone(bench: Bench) -> None:
    """An export of the same name, other settings, begins and ends while the first one is assembling."""
    release = bench.directory / "alone.release"
    first = bench.start("alone", holding("assembly.started", release))
    first.until("assembly.started")
    assert bench.run("alone", log="second", changed={"k": 3}).status == 0
    release.touch()
    outcome = first.join()
    assert outcome.of("error")[0]["code"] == "conflict"
    assert contents(bench.dataset("alone")) == bench.clean(k=3)
    assert {p.name for p in bench.dataset("alone").parent.iterdir()} == {"d", ".lock"}


def test_two_exports_of_two_names(bench: Bench) -> None:
    """They do not wait for one another."""
    release = bench.directory / "two.release"
    first = bench.start("two", holding("cut.progress", release))
    first.until("cut.progress")
    second = bench.run("two", log="second", changed={"name": "other"})
    assert second.status == 0
    release.touch()
    assert first.join().status == 0
    assert contents(bench.dataset("two")) == bench.clean()
    assert {p.name for p in bench.dataset("two").parent.iterdir()} == {"d", "other", ".lock"}
