"""What lies on disk is not trusted: damaged shards, markers and published files are noticed, told and made again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from killing import Bench, FileRows, die, fixed_commit
from product import contents
from protea.errors import ConflictError

CUT, OTHER = "v1-v2", "v2-v5"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """`ready`: killed at the beginning of the assembly, both cuts finished. `done`: published."""
    with fixed_commit():
        bench = Bench(tmp_path_factory.mktemp("bench"))
        assert bench.run("ready", lambda e, _: die() if e["kind"] == "assembly.started" else None).killed
        assert bench.finished("ready") == [CUT, OTHER]
        assert bench.run("done").status == 0
        yield bench


def flip(path: Path, at: float = 0.5) -> None:
    data = bytearray(path.read_bytes())
    data[int(at * (len(data) - 1))] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def extend(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more")


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def swap(path: Path) -> None:
    """The other cut's file of that name."""
    shutil.copy(path.parents[1] / OTHER / path.name, path)


SHARD: list[tuple[str, Callable[[Path], None], str]] = [
    ("pk", truncate, "pk.parquet has [0-9]+ bytes, not [0-9]+"),
    ("nk", Path.unlink, "nk.parquet is missing"),
    ("lk", flip, "lk.parquet is damaged"),
    ("truth", empty, "truth.parquet has 0 bytes"),
    ("known", extend, "known.parquet has [0-9]+ bytes"),
    ("truth", directory, "truth.parquet is missing"),
    ("pk", swap, "pk.parquet (has [0-9]+ bytes|is damaged)"),
]
MARKER: list[tuple[Callable[[Path], None], str]] = [
    (truncate, "its marker is damaged"),
    (empty, "its marker is damaged"),
    (flip, "its marker is damaged"),
    (Path.unlink, "it was interrupted before its marker was written"),
    (directory, "its marker is damaged"),
    (swap, "it was made from something else: .*pair: v2-v5 -> v1-v2"),
    (lambda p: p.write_text("[]"), "its marker is damaged"),
    (lambda p: p.write_text('{"check": 1}'), "its marker is damaged"),
    (lambda p: p.write_bytes(b"\xff\x00" * 40), "its marker is damaged"),
]
CASES = [(f"{which}.parquet", how, why) for which, how, why in SHARD] + [("done.json", how, why) for how, why in MARKER]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_damaged_cut(bench: Bench, number: int) -> None:
    """The damaged cut is made again and the reason is told; the other one is restored; the bytes are the same."""
    import re

    name, how, why = CASES[number]
    where = f"case{number}"
    bench.copy("ready", where)
    (staging,) = bench.staging(where)
    how(staging / "cuts" / CUT / name)
    outcome = bench.run(where)
    assert outcome.status == 0
    (discarded,) = outcome.of("cut.discarded")
    assert discarded["cut"] == CUT
    assert re.match(why, discarded["reason"]), discarded["reason"]
    assert outcome.cuts("cut.started") == [CUT]
    assert outcome.cuts("cut.restored") == [OTHER]
    bench.check(where)


def test_a_marker_of_other_settings(bench: Bench) -> None:
    """Another export's finished cut, put where this one's should be: it says which setting differs."""
    stop = bench.run("other", lambda e, _: die() if e["kind"] == "assembly.started" else None, changed={"k": 3})
    assert stop.killed
    bench.copy("ready", "foreign")
    (mine,), (theirs,) = bench.staging("foreign"), bench.staging("other")
    shutil.rmtree(mine / "cuts")
    shutil.copytree(theirs / "cuts", mine / "cuts")
    outcome = bench.run("foreign")
    assert [e["reason"] for e in outcome.of("cut.discarded")] == [
        "it was made from something else: settings.k: 3 -> 5"
    ] * 2
    bench.check("foreign")


def test_a_file_where_a_cut_should_be(bench: Bench) -> None:
    bench.copy("ready", "file")
    (staging,) = bench.staging("file")
    shutil.rmtree(staging / "cuts" / CUT)
    (staging / "cuts" / CUT).write_text("a file")
    (staging / "attempts" / CUT).write_bytes(b"\xff not a number")
    outcome = bench.run("file")
    assert outcome.cuts("cut.discarded") == [CUT]
    bench.check("file")


def test_litter_is_removed(bench: Bench) -> None:
    bench.copy("ready", "litter")
    (staging,) = bench.staging("litter")
    (staging / "cuts" / CUT / ".pk.parquet.tmp").write_text("half a shard")
    (staging / "cuts" / "v9-v10").mkdir()
    (staging / "notes.txt").write_text("anything")
    assert bench.run("litter").cuts("cut.restored") == [CUT, OTHER]
    bench.check("litter")


# ------------------------------------------------------------------------------------------------------- published files


@pytest.mark.parametrize("name", ["train.parquet", "eval.parquet", "truth.parquet", "known.parquet", "manifest.json"])
@pytest.mark.parametrize("how", [flip, Path.unlink, truncate])
def test_damaged_published_files(bench: Bench, name: str, how: Callable[[Path], None]) -> None:
    """They are made again from nothing, and it is said; the row stays one row."""
    where = f"{name}-{how.__name__}"
    bench.copy("done", where)
    how(bench.dataset(where) / name)
    outcome = bench.run(where, log="log2")
    assert outcome.status == 0
    assert outcome.cuts("cut.started") == [CUT, OTHER]
    assert any("is damaged" in e["text"] for e in outcome.of("export.warning"))
    bench.check(where, 2)


@pytest.mark.parametrize("how", [flip, Path.unlink])
def test_damaged_before_the_row_was_in(bench: Bench, how: Callable[[Path], None]) -> None:
    """In place but not registered, and damaged: assembled again from the finished cuts."""
    where = f"early-{how.__name__}"

    class Killing(FileRows):
        def register(self, *args: object) -> None:
            die()

    def work(report: Callable[..., None]) -> None:
        rows = Killing(bench.rows(where).path)
        bench.product.export(bench.settings, where, report, rows=rows, queries_per_block=2)

    from killing import Child

    bench.copy("ready", where)
    assert Child(work, bench.directory / "early.log").join().killed
    how(bench.dataset(where) / "train.parquet")
    outcome = bench.run(where)
    assert outcome.cuts("cut.restored") == [CUT, OTHER]
    assert len(outcome.of("export.warning")) == 1
    bench.check(where)


def test_a_foreign_directory_of_that_name(bench: Bench) -> None:
    """Files that PROTEA did not publish are not touched unless it is told to."""
    place = bench.dataset("foreigner")
    place.mkdir(parents=True)
    (place / "manifest.json").write_text(json.dumps({"name": "mine"}))
    rows = bench.rows("foreigner")
    with pytest.raises(ConflictError):
        bench.product.export(bench.settings, "foreigner", rows=rows)
    assert [p.name for p in place.iterdir()] == ["manifest.json"]
    bench.product.export(bench.settings, "foreigner", rows=rows, replace=True)
    bench.check("foreigner")


def test_a_row_whose_files_are_gone(bench: Bench) -> None:
    bench.copy("done", "gone")
    shutil.rmtree(bench.dataset("gone"))
    assert bench.run("gone", log="log2").cuts("cut.started") == [CUT, OTHER]
    bench.check("gone", 2)


def test_files_that_were_moved(bench: Bench) -> None:
    """The whole home in another place: the row follows, nothing is computed."""
    shutil.copytree(bench.directory / "done", bench.directory / "moved")
    outcome = bench.run("moved", log="log2")
    assert [e["kind"] for e in outcome.events] == ["export.published"]
    bench.check("moved", 2)
    assert contents(bench.dataset("moved")) == contents(bench.dataset("done"))
