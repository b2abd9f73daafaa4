"""The alignment cache: what goes in comes out, whoever else writes, dies, or damages it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from protea.core import alignment_cache
from protea.core.alignment_cache import VALUES, AlignmentCache, pair_keys

WRITER = """
import sys, numpy as np
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_alignment_cache import rows
from protea.core.alignment_cache import AlignmentCache
cache = AlignmentCache(Path(sys.argv[2]), int(sys.argv[5]))
for start in range(int(sys.argv[3]), int(sys.argv[4]), 500):
    keys, values = rows(start, start + 1000)
    cache.insert(keys, values)
    print(start, flush=True)
    found, kept = cache.lookup(keys)
    assert (kept[found] == values[found]).all()
print(cache.problems)
"""


def rows(start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values that depend on the row's number only."""
    number = np.arange(start, end, dtype=np.uint64)
    digests = np.stack([number, number * np.uint64(77)], axis=1)
    values = np.stack([number * np.uint64(7 + c) % np.uint64(99991) for c in range(VALUES)], axis=1)
    return pair_keys(digests, digests, "test"), values.astype(np.int32) - 1000


def writer(path: Path, start: int, end: int, max_bytes: int = 1 << 30) -> subprocess.Popen[str]:
    here = str(Path(__file__).parent)
    arguments = [sys.executable, "-c", WRITER, here, str(path), str(start), str(end), str(max_bytes)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def size(path: Path) -> int:
    return sum(p.stat().st_size for p in path.glob("*.segment"))


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    cache = AlignmentCache(tmp_path / "a" / "b")
    keys, values = rows(0, 5000)
    cache.insert(keys[:3000], values[:3000])
    cache.insert(keys[2000:4000], values[2000:4000])
    shuffled = np.random.default_rng(0).permutation(5000)
    found, kept = AlignmentCache(tmp_path / "a" / "b").lookup(keys[shuffled])
    np.testing.assert_array_equal(found, shuffled < 4000)
    np.testing.assert_array_equal(kept[found], values[shuffled][found])
    assert not kept[~found].any()
    assert not cache.problems
    assert cache.lookup(keys[:0])[0].shape == (0,)


def test_keys_depend_on_both_sequences_their_order_and_the_scoring() -> None:
    digests = np.random.default_rng(1).integers(0, 1 << 63, (1000, 2), dtype=np.uint64)
    other = digests[::-1].copy()
    every = np.concatenate(
        [pair_keys(digests, other, "a"), pair_keys(digests, digests, "a"), pair_keys(digests, other, "b")]
    )
    assert len(np.unique(every[:, 0])) == len(np.unique(every[:, 1])) == 3000
    swapped = pair_keys(digests, digests[:, ::-1], "a")
    assert not np.isin(swapped[:, 0], every[:, 0]).any()
    np.testing.assert_array_equal(pair_keys(digests, other, "a"), every[:1000])


def test_many_small_inserts_are_merged(tmp_path: Path) -> None:
    cache = AlignmentCache(tmp_path)
    for start in range(0, 6000, 100):
        cache.insert(*rows(start, start + 100))
    assert len(list(tmp_path.glob("*.segment"))) <= 30
    keys, values = rows(0, 6000)
    found, kept = cache.lookup(keys)
    assert found.all()
    np.testing.assert_array_equal(kept, values)


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = AlignmentCache(tmp_path, max_bytes=600_000)  # some 10,000 pairs
    for number, start in enumerate(range(0, 9000, 1000)):
        cache.insert(*rows(start, start + 1000))
        for path in tmp_path.glob("*.segment"):
            if path.stat().st_mtime > 1000:  # not yet aged: this insert's
                os.utime(path, (number, number))
    assert cache.lookup(rows(0, 1000)[0])[0].all()  # the oldest is used again
    cache.insert(*rows(20_000, 24_000))
    assert size(tmp_path) <= 600_000
    assert cache.lookup(rows(0, 1000)[0])[0].all()
    assert cache.lookup(rows(20_000, 24_000)[0])[0].all()
    assert not cache.lookup(rows(1000, 2000)[0])[0].any()
    cache.insert(*rows(100_000, 150_000))
    assert size(tmp_path) <= 600_000


def test_writers_in_several_processes(tmp_path: Path) -> None:
    running = [writer(tmp_path, start, start + 20_000) for start in (0, 10_000, 20_000)]
    for process in running:
        out, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
        assert out.splitlines()[-1] == "[]"
    keys, values = rows(0, 40_000)
    found, kept = AlignmentCache(tmp_path).lookup(keys)
    assert found.all()
    np.testing.assert_array_equal(kept, values)
    assert not list(tmp_path.glob("*.tmp"))


def test_writers_that_drop_what_others_read(tmp_path: Path) -> None:
    running = [writer(tmp_path, start, start + 15_000, 300_000) for start in (0, 5_000)]
    for process in running:
        out, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
        assert out.splitlines()[-1] == "[]"
    assert size(tmp_path) <= 400_000


@pytest.mark.parametrize("after", [1, 7, 30])
def test_a_kill_loses_nothing_that_was_inserted(tmp_path: Path, after: int) -> None:
    process = writer(tmp_path, 0, 10_000_000)
    assert process.stdout is not None
    last = [int(process.stdout.readline()) for _ in range(after)][-1]
    time.sleep(0.003 * after)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    cache = AlignmentCache(tmp_path)
    keys, values = rows(0, last + 1000)
    found, kept = cache.lookup(keys)
    assert found.all()
    np.testing.assert_array_equal(kept, values)
    assert not cache.problems
    for path in tmp_path.glob("*.tmp"):
        os.utime(path, (0, 0))
    cache.insert(*rows(0, 1))
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("damage", ["cut", "empty", "head", "number", "value", "tail"])
def test_a_damaged_file_is_set_aside_and_said(tmp_path: Path, damage: str) -> None:
    cache = AlignmentCache(tmp_path)
    keys, values = rows(0, 2000)
    cache.insert(keys, values)
    (path,) = tmp_path.glob("*.segment")
    raw = bytearray(path.read_bytes())
    if damage == "cut":
        raw = raw[:-7]
    elif damage == "empty":
        raw = bytearray()
    else:
        raw[{"head": 3, "number": 16, "value": -20_000, "tail": -1}[damage]] ^= 0x40
    path.write_bytes(raw)
    found, kept = cache.lookup(keys)
    assert not found.any()
    assert not kept.any()
    assert len(cache.problems) == 1
    assert "damaged" in cache.problems[0]
    assert str(path) in cache.problems[0]
    assert (tmp_path / "last.damaged").exists()
    cache.insert(keys, values)
    found, kept = cache.lookup(keys)
    assert found.all()
    np.testing.assert_array_equal(kept, values)


def test_a_damaged_file_does_not_survive_a_merge(tmp_path: Path) -> None:
    cache = AlignmentCache(tmp_path)
    for start in range(0, 2400, 100):
        cache.insert(*rows(start, start + 100))
    path = sorted(tmp_path.glob("*.segment"))[5]
    raw = bytearray(path.read_bytes())
    raw[-500] ^= 1
    path.write_bytes(raw)
    cache.insert(*rows(5000, 5100))
    assert len(cache.problems) == 1
    found, kept = cache.lookup(rows(0, 2400)[0])
    assert found.sum() == 2300
    np.testing.assert_array_equal(kept[found], rows(0, 2400)[1][found])


def test_a_place_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a directory")
    keys, values = rows(0, 10)
    cache = AlignmentCache(tmp_path / "file" / "alignments")
    assert not cache.lookup(keys)[0].any()
    cache.insert(keys, values)
    assert cache.problems
    assert all("cannot be kept" in problem for problem in cache.problems)

    kept = AlignmentCache(tmp_path / "full")
    kept.insert(keys, values)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(alignment_cache, "commit_file", full)
    kept.insert(*rows(10, 20))
    assert kept.problems == [f"alignments cannot be kept in {tmp_path / 'full'}: No space left on device"]
    assert not list((tmp_path / "full").glob("*.tmp"))
    assert kept.lookup(keys)[0].all()


def test_hundreds_of_thousands_of_pairs_take_a_moment(tmp_path: Path) -> None:
    cache = AlignmentCache(tmp_path)
    keys, values = rows(0, 300_000)
    started = time.process_time()
    cache.insert(keys, values)
    found, _ = cache.lookup(keys)
    assert found.all()
    assert time.process_time() - started < 2.0
