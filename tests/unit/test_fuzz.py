"""A little of `bench/fuzz.py` against every reader, always the same; and what longer runs of it have found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench import fuzz

from protea.core import annotations, interpro, scores
from protea.core.embeddings import inspect_embeddings
from protea.errors import InputError
from worlds import gaf_row

EXECUTIONS = 200


@pytest.mark.parametrize("reader", fuzz.READERS)
def test_every_input_gives_a_result_or_one_line(reader: str, tmp_path: Path) -> None:
    found = fuzz.fuzz(reader, 5, 20261129, tmp_path / "crashes", seconds=60, at_most=EXECUTIONS)
    assert found["crashes"] == {}
    assert found["executions"] == EXECUTIONS


def test_a_reader_that_crashes_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fuzzer itself: another exception, an error of several lines, a block size that matters."""

    class Torn(InputError):
        def __str__(self) -> str:
            return "two\nlines"

    def read(path: Path, block_size: int) -> object:
        data = path.read_bytes()
        if len(data) % 3 == 0:
            raise KeyError("x")
        if len(data) % 3 == 1:
            return block_size
        raise Torn("")

    monkeypatch.setitem(fuzz.READERS, "config", (read, True))
    found = fuzz.fuzz("config", 5, 1, tmp_path, at_most=40)["crashes"]
    assert sum(found.values()) == 40
    assert {head.split()[1] for head in found} == {"KeyError", "the", "exit"}


def test_problems_do_not_depend_on_the_block_size(tmp_path: Path) -> None:
    path = tmp_path / "i.tsv"
    path.write_text("P1\tGO:0000001\t0.5\tPfam\t1\nP2\tGO:1\t0.5\tPfam\t1\nP3\tGO:0000001\t0.5\n" * 90)
    problems = [interpro.read_interpro(path, None, block_size=size).problems for size in (64, 1 << 20)]
    assert problems[0] == problems[1] == sorted(problems[0])
    assert len(problems[0]) == 100


def test_text_in_parquet_that_is_no_utf8(tmp_path: Path) -> None:
    """pyarrow looks at it only when it becomes a Python string."""
    path = tmp_path / "x.parquet"
    columns = {"accession": ["PXXXX1"], "go_id": ["GO:0005515"], "score": [0.5], "v": [1.0]}
    for read, names in (
        (inspect_embeddings, ["accession", "v"]),
        (lambda p: scores.read_scores(p, None), [*columns][:3]),
    ):
        pq.write_table(pa.table(columns).select(names), path, compression="none", use_dictionary=False)
        path.write_bytes(path.read_bytes().replace(b"PXXXX1", b"P\xb0\x82\xe1\x961"))
        with pytest.raises(InputError, match=r"UTF-?8"):
            read(path)


def test_statistics_that_end_pyarrow(tmp_path: Path) -> None:
    """Their histogram has another length than the column's type says: an exception that nobody catches in C++."""
    path = tmp_path / "x.parquet"
    rows = pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float32()))
    pq.write_table(pa.table({"accession": ["P1", "P2", "P3"], "v": rows}), path)
    data = path.read_bytes()
    found = set()
    for at in range(len(data) - 8 - int.from_bytes(data[-8:-4], "little"), len(data) - 8):
        if data[at : at + 2] == b"\x19\x46":  # thrift: a list of four 64-bit integers; now three and a rest
            path.write_bytes(data[:at] + b"\x19\x36" + data[at + 2 :])
            with pytest.raises(InputError, match="damaged") as e:
                inspect_embeddings(path)
            found.add(str(e.value).rpartition(": ")[2])
    assert found


def test_npy_arrays_of_nothing(tmp_path: Path) -> None:
    """A billion texts of no bytes fit into any file."""
    from test_hostile import npy, npz

    path = npz(
        tmp_path / "v.npz", ids=npy(np.empty(0, "U1"), (10**9,)).replace(b"<U1", b"<U0"), v=npy(np.ones((1, 2), "f4"))
    )
    with pytest.raises(InputError, match="truncated or damaged"):
        inspect_embeddings(path)


def test_a_gaf_that_begins_with_something_else(tmp_path: Path) -> None:
    """Whether it is taken for one does not depend on the block size: a thousand lines were enough to give up."""
    path = tmp_path / "a.gaf"
    path.write_text("[Term]\n" * 2000 + "\t".join(gaf_row("P1", "GO:0005515", "IDA")) + "\n")
    for size in (512, 1 << 20):
        assert annotations.read_gaf(path, block_size=size).kept == 1
