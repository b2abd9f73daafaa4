"""The published files: row groups, dictionaries, digests, and nothing half-written under a final name."""

import errno
import gc
import hashlib
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from protea.core import parquet_export as px
from protea.core.parquet_export import FileInfo, _SplitWriter, _stream_assemble, by_appearance, logical_digest
from protea.core.schema import DICT, KNOWN, ROW_GROUP, ROWS, TRUTH
from protea.errors import StorageError

SMALL = pa.schema(
    [("who", DICT), ("n", pa.int32()), ("x", pa.float32()), ("flag", pa.bool_()), ("i8", pa.int8()), ("off", DICT)]
)
WORDS = pa.array([f"word {i}" for i in range(50)])


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> int:
    """Row groups of 100 rows instead of 200,000."""
    monkeypatch.setattr(px, "ROW_GROUP", 100)
    return 100


def coded(n: int, seed: int = 0, nulls: float = 0.2) -> pa.Table:
    """Random rows with codes in `who` and without the column `off`."""
    rng = np.random.default_rng(seed)

    def some(values: np.ndarray) -> pa.Array:
        return pa.array(values, mask=rng.random(n) < nulls)

    return pa.table(
        {
            "who": some(rng.integers(0, len(WORDS), n).astype(np.int32)),
            "n": some(rng.integers(-9, 9, n).astype(np.int32)),
            "x": some(rng.normal(size=n).astype(np.float32)),
            "flag": some(rng.random(n) < 0.5),
            "i8": some(rng.integers(-128, 128, n).astype(np.int8)),
        }
    )


def words_of(table: pa.Table) -> list[str | None]:
    """The strings behind the codes of `who`."""
    return [None if c is None else WORDS[c].as_py() for c in table["who"].to_pylist()]


def batches(table: pa.Table, sizes: Any) -> Iterator[pa.Table]:
    """The rows of `table` in pieces of the given sizes, then the rest."""
    start = 0
    for size in sizes:
        yield table.slice(start, size)
        start += size
    yield table.slice(start)


def write(path: Path, parts: list[Iterator[pa.Table]], schema: pa.Schema = SMALL, words: Any = None) -> FileInfo:
    w = _SplitWriter(path, schema, words or {"who": WORDS})
    for part in parts:
        for batch in part:
            w.write(batch)
        w.end_part()
    return w.close()


@pytest.mark.parametrize(("threads", "own"), [(1, 0), (2, 1)])
def test_one_thread_is_the_callers(tmp_path: Path, small_groups: int, threads: int, own: int) -> None:
    """Asked for one thread the writer starts none; the bytes are the same."""
    want = write(tmp_path / "want.parquet", [batches(coded(350), [])])
    w = _SplitWriter(tmp_path / "f.parquet", SMALL, {"who": WORDS}, threads)
    w.write(coded(350))
    assert sum(t.name.startswith("protea-write") for t in threading.enumerate()) == own
    assert w.close().sha256 == want.sha256


def groups(path: Path) -> list[int]:
    with pq.ParquetFile(path) as f:
        return [f.metadata.row_group(i).num_rows for i in range(f.num_row_groups)]


# ------------------------------------------------------------------------ pages, read without the library that wrote them


class Thrift:
    """As much of the compact protocol as a page header takes."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def zigzag(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def value(self, kind: int) -> Any:
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            self.at += 1
            return self.data[self.at - 1]
        if kind in (4, 5, 6):
            return self.zigzag()
        if kind == 7:
            self.at += 8
            return None
        if kind == 8:
            size = self.varint()
            self.at += size
            return self.data[self.at - size : self.at]
        assert kind == 12, kind
        return self.struct()

    def struct(self) -> dict[int, Any]:
        out: dict[int, Any] = {}
        field = 0
        while (head := self.data[self.at]) != 0:
            self.at += 1
            field = field + (head >> 4) if head >> 4 else self.zigzag()
            out[field] = self.value(head & 15)
        self.at += 1
        return out


def pages(path: Path, group: int, column: int) -> tuple[int | None, list[int]]:
    """Entries of the dictionary page (None without one) and the encoding of each data page (0 plain, 8 dictionary)."""
    data = path.read_bytes()
    with pq.ParquetFile(path) as f:
        c = f.metadata.row_group(group).column(column)
    at = c.dictionary_page_offset if c.has_dictionary_page else c.data_page_offset
    end = at + c.total_compressed_size
    entries: int | None = None
    encodings = []
    while at < end:
        t = Thrift(data, at)
        header = t.struct()
        if header[1] == 2:
            entries = header[7][1]
        else:
            encodings.append(header[5][2] if header[1] == 0 else header[8][4])
        at = t.at + header[3]
    assert at == end
    return entries, encodings


# -------------------------------------------------------------------------------------------------------- row groups


@pytest.mark.parametrize("size", [1, 7, 99, 100, 101, 333, 1000])
def test_row_groups_whatever_the_batches(tmp_path: Path, small_groups: int, size: int) -> None:
    """Two parts of 730 and 100 rows: 7 x 100 + 30, then 100; the same bytes from every way of cutting them."""
    one, two = coded(730), coded(100, seed=1)
    whole = write(tmp_path / "whole.parquet", [batches(one, []), batches(two, [])])
    cut = write(tmp_path / "cut.parquet", [batches(one, [size] * (730 // size)), batches(two, [size] * (100 // size))])
    assert groups(tmp_path / "cut.parquet") == [100] * 7 + [30, 100]
    assert (whole.sha256, whole.size, whole.digests) == (cut.sha256, cut.size, cut.digests)
    assert (tmp_path / "whole.parquet").read_bytes() == (tmp_path / "cut.parquet").read_bytes()
    with pq.ParquetFile(tmp_path / "cut.parquet") as f:
        assert f.read_row_group(7).to_pylist() == f.read().slice(700, 30).to_pylist()
        read = f.read()
    rows = pa.concat_tables([one, two])
    assert read["who"].to_pylist() == words_of(rows)
    assert all(read[c].to_pylist() == rows[c].to_pylist() for c in ("n", "x", "flag", "i8"))
    assert read["off"].null_count == 830
    assert read.schema == SMALL


def test_random_batches(tmp_path: Path, small_groups: int) -> None:
    table = coded(1234, seed=3)
    want = write(tmp_path / "want.parquet", [batches(table, [])])
    for seed in range(20):
        rng = np.random.default_rng(seed)
        got = write(tmp_path / "got.parquet", [batches(table, rng.integers(0, 300, 6))])
        assert (got.sha256, got.digests) == (want.sha256, want.digests)


def test_parts_never_share_a_row_group(tmp_path: Path, small_groups: int) -> None:
    parts = [coded(n, seed=n) for n in (0, 5, 0, 100, 250, 1)]
    info = write(tmp_path / "f.parquet", [batches(t, []) for t in parts])
    assert groups(tmp_path / "f.parquet") == [5, 100, 100, 100, 50, 1]
    assert (info.rows, len(info.digests), info.name) == (356, 6, "f.parquet")
    one = write(tmp_path / "g.parquet", [batches(pa.concat_tables(parts), [])])
    assert groups(tmp_path / "g.parquet") == [100, 100, 100, 56]
    assert one.digests != info.digests


def test_the_real_size_of_a_row_group(tmp_path: Path) -> None:
    assert ROW_GROUP == px.ROW_GROUP == 200_000
    table = coded(450_001)
    write(tmp_path / "f.parquet", [batches(table, [123_457] * 3), batches(table.slice(0, 3), [])])
    assert groups(tmp_path / "f.parquet") == [200_000, 200_000, 50_001, 3]


# ------------------------------------------------------------------------------------------------------- dictionaries


def test_dictionaries_hold_the_words_of_their_row_group(tmp_path: Path, small_groups: int) -> None:
    table = coded(950, seed=5)
    path = tmp_path / "f.parquet"
    write(path, [batches(table, [70] * 13)])
    words = words_of(table)
    with pq.ParquetFile(path) as f:
        for g in range(f.num_row_groups):
            who = f.read_row_group(g)["who"]
            want = list(dict.fromkeys(w for w in words[g * 100 : g * 100 + 100] if w is not None))
            assert [c.dictionary.to_pylist() for c in who.chunks] == [want]
            assert pages(path, g, 0) == (len(want), [8])


def unlike(n: int) -> tuple[pa.Table, pa.Schema, dict[str, pa.Array]]:
    """n rows with n long words: 13 MB of dictionary in a full row group."""
    schema = pa.schema([("who", DICT)])
    words = pa.array([f"{i:06d}" + "x" * 58 for i in range(n)])
    return pa.table({"who": pa.array(np.arange(n, dtype=np.int32)[::-1])}), schema, {"who": words}


def test_a_dictionary_never_falls_back_to_plain(tmp_path: Path) -> None:
    table, schema, words = unlike(ROW_GROUP)
    write(tmp_path / "f.parquet", [iter([table])], schema, words)
    entries, encodings = pages(tmp_path / "f.parquet", 0, 0)
    assert entries == ROW_GROUP
    assert set(encodings) == {8}
    # negative control: the library's own way with strings does fall back, and `pages` sees it
    strings = pa.table({"who": words["who"].take(table["who"])})
    pq.write_table(strings, tmp_path / "g.parquet", use_dictionary=True)
    assert {0, 8} <= set(pages(tmp_path / "g.parquet", 0, 0)[1])


def test_only_strings_are_dictionary_encoded(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    write(path, [iter([coded(500, nulls=0.0)])])
    for i, field in enumerate(SMALL):
        entries, encodings = pages(path, 0, i)
        if pa.types.is_dictionary(field.type):
            assert (entries or 0, set(encodings)) == (len(WORDS) if field.name == "who" else 0, {8})
        else:
            assert (entries, 8 in encodings) == (None, False)


def test_by_appearance() -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        n, m = int(rng.integers(0, 60)), int(rng.integers(1, 30))
        words = pa.array([f"w{i}" for i in range(m)])
        codes = pa.array(rng.integers(0, m, n).astype(np.int32), mask=rng.random(n) < rng.choice([0, 0.3, 1]))
        made = by_appearance(codes, words)
        want = [None if c is None else f"w{c}" for c in codes.to_pylist()]
        assert made.to_pylist() == want
        assert made.dictionary.to_pylist() == list(dict.fromkeys(w for w in want if w is not None))
        assert made.type == DICT
    assert by_appearance(pa.array([], pa.int32()), pa.array([], pa.string())).to_pylist() == []


# ----------------------------------------------------------------------------------------------------------- digests


def recomputed(table: pa.Table) -> str:
    """`logical_digest`, from Python values."""
    formats = {pa.int8(): "b", pa.int32(): "i", pa.float32(): "f", pa.bool_(): "?", DICT: "i"}
    h = hashlib.sha256()
    for field, column in zip(table.schema, table.columns, strict=True):
        values = column.to_pylist()
        nulls = [v is None for v in values]
        h.update(struct.pack("<qq", len(values), sum(nulls)))
        if any(nulls):
            bits = "".join("1" if x else "0" for x in nulls)
            bits += "0" * (-len(bits) % 8)
            h.update(bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8)))
            if all(nulls):
                continue
        kept = [v for v in values if v is not None]
        if field.type == DICT:
            words = list(dict.fromkeys(kept))
            h.update(struct.pack(f"<{len(words)}q", *(len(w.encode()) for w in words)))
            h.update("".join(words).encode())
            kept = [words.index(w) for w in kept]
        h.update(struct.pack(f"<{len(kept)}{formats[field.type]}", *kept))
    return h.hexdigest()


def test_logical_digests_are_what_they_are_said_to_be(tmp_path: Path, small_groups: int) -> None:
    path = tmp_path / "f.parquet"
    info = write(path, [batches(coded(250, seed=9), [17] * 4), batches(coded(60, nulls=0.0), [])])
    with pq.ParquetFile(path) as f:
        tables = [f.read_row_group(i) for i in range(f.num_row_groups)]
    assert [recomputed(t) for t in tables] == list(info.digests)
    assert [logical_digest(t) for t in tables] == list(info.digests)
    assert px.split_digest(info.digests) == hashlib.sha256("".join(info.digests).encode()).hexdigest()


def test_a_digest_sees_every_change() -> None:
    def table(**new: list[Any]) -> pa.Table:
        columns: dict[str, list[Any]] = {"who": ["a", "bc", None], "n": [1, 2, None], "x": [0.5, None, 2.0]}
        columns |= new
        kinds = {"who": pa.string(), "n": pa.int32(), "x": pa.float32()}
        arrays = {k: pa.array(v, kinds[k]) for k, v in columns.items()}
        arrays["who"] = arrays["who"].dictionary_encode()
        return pa.table(arrays)

    changed = [
        table(),
        table(who=["ab", "c", None]),
        table(who=["a", "bc", "a"]),
        table(who=[None, "a", "bc"]),
        table(n=[1, None, 2]),
        table(n=[1, 2, 0]),
        table(n=[2, 1, None]),
        table(x=[0.5, None, 2.0000002]),
        table(x=[-0.5, None, 2.0]),
        table(x=[None, None, None]),
        table(who=[], n=[], x=[]),
    ]
    assert len({logical_digest(t) for t in changed}) == len(changed)
    assert logical_digest(table()) == logical_digest(table())


# ------------------------------------------------------------------------------------------- empty, short and abandoned


@pytest.mark.parametrize("schema", [ROWS, TRUTH, KNOWN])
def test_an_empty_file_is_valid(tmp_path: Path, schema: pa.Schema) -> None:
    info = write(tmp_path / "f.parquet", [], schema)
    table = pq.read_table(tmp_path / "f.parquet")
    assert (table.num_rows, info.rows, info.digests) == (0, 0, ())
    assert table.schema == schema
    assert groups(tmp_path / "f.parquet") == []
    again = write(tmp_path / "g.parquet", [iter([])], schema)
    assert again.sha256 == info.sha256


def test_nothing_under_the_final_name_before_close(tmp_path: Path, small_groups: int) -> None:
    path = tmp_path / "f.parquet"
    w = _SplitWriter(path, SMALL, {"who": WORDS})
    w.write(coded(350))
    assert not path.exists()  # what a kill would leave
    w.abandon()
    assert list(tmp_path.iterdir()) == []
    w.abandon()
    w = _SplitWriter(path, SMALL, {"who": WORDS})
    w.write(coded(350))
    info = w.close()
    assert [p.name for p in tmp_path.iterdir()] == ["f.parquet"]
    assert info.size == path.stat().st_size
    assert info.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_abandon_on_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The footer cannot be written either: the file goes all the same, without another word."""
    w = _SplitWriter(tmp_path / "f.parquet", SMALL, {"who": WORDS})

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    w.abandon()
    del w
    gc.collect()
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_wrote_too_little_is_found_out(tmp_path: Path, small_groups: int) -> None:
    path = tmp_path / "f.parquet"
    w = _SplitWriter(path, SMALL, {"who": WORDS})
    w.write(coded(350))
    w._writer.write_table = lambda *a, **k: None
    w.end_part()
    with pytest.raises(StorageError, match="350 rows were written and 300 read back"):
        w.close()
    assert not path.exists()


def test_check(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    write(path, [iter([coded(50)])])
    px.check(path, SMALL, 50)
    with pytest.raises(StorageError, match="51 rows were written and 50 read back"):
        px.check(path, SMALL, 51)
    with pytest.raises(StorageError, match="read back"):
        px.check(path, SMALL.remove(0), 50)
    whole = path.read_bytes()
    for size in (0, 3, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(StorageError, match="cannot be read back"):
            px.check(path, SMALL, 50)
    with pytest.raises(StorageError):
        px.check(tmp_path / "none.parquet", SMALL, 0)


# ----------------------------------------------------------------------------------------------------------- assembly


def test_assembly_is_writing_the_parts_one_after_the_other(tmp_path: Path, small_groups: int) -> None:
    parts = [coded(n, seed=n) for n in (250, 0, 100, 30)]
    infos = [write(tmp_path / f"{i}.parquet", [batches(t, [40])]) for i, t in enumerate(parts)]
    joined = _stream_assemble(tmp_path / "j.parquet", SMALL, [(tmp_path / i.name, i.digests) for i in infos])
    direct = write(tmp_path / "direct.parquet", [batches(t, []) for t in parts])
    assert groups(tmp_path / "j.parquet") == [100, 100, 50, 100, 30]
    assert (joined.sha256, joined.rows, joined.digests) == (direct.sha256, 380, direct.digests)
    with pq.ParquetFile(tmp_path / "j.parquet") as f:
        assert [logical_digest(f.read_row_group(i)) for i in range(5)] == list(joined.digests)


def test_assembly_of_nothing(tmp_path: Path) -> None:
    info = _stream_assemble(tmp_path / "j.parquet", ROWS, [])
    assert info.rows == 0
    assert pq.read_schema(tmp_path / "j.parquet") == ROWS


def test_a_failed_assembly_leaves_nothing(tmp_path: Path, small_groups: int) -> None:
    info = write(tmp_path / "0.parquet", [batches(coded(250), [])])
    (tmp_path / "out").mkdir()
    shards = [(tmp_path / "0.parquet", info.digests), (tmp_path / "missing.parquet", ())]
    with pytest.raises(FileNotFoundError):
        _stream_assemble(tmp_path / "out" / "j.parquet", SMALL, shards)
    assert list((tmp_path / "out").iterdir()) == []
