"""IA files: header, order, repeats, refusals."""

import hashlib

import pyarrow.parquet as pq
import pytest

from protea.core import delimited
from protea.core.accretion import SCHEMA, read_ia
from protea.errors import InputError


def load(tmp_path, text, **options):
    path, out = tmp_path / "IA.txt", tmp_path / "out"
    path.write_text(text)
    out.mkdir(exist_ok=True)
    report = read_ia(path, out, **options)
    table = pq.read_table(out / "rows.parquet")
    assert table.schema.equals(SCHEMA)
    assert report.rows == report.malformed + sum(report.filtered.values()) + report.kept
    return report, list(zip(table["go"].to_pylist(), table["ia"].to_pylist(), strict=True))


ROWS = "GO:0005515\t1.25\nGO:0003674\t0.0\nGO:0003677\t10\n"
WANTED = [(3674, 0.0), (3677, 10.0), (5515, 1.25)]


@pytest.mark.parametrize("head", ["", "go_id\tia\n", "term\tia\n", "# comment\nGO term\tIA\n"])
@pytest.mark.parametrize("size", [20, 1 << 20])
def test_rows_are_sorted_by_id(tmp_path, head, size):
    report, rows = load(tmp_path, head + ROWS, block_size=size)
    assert rows == WANTED
    assert (report.rows, report.kept, report.highest, report.rejected) == (3, 3, 10.0, {})
    assert report.sha256 == hashlib.sha256((head + ROWS).encode()).hexdigest()


def test_blanks_and_dos(tmp_path):
    assert load(tmp_path, ROWS.replace("\t", " ").replace("\n", "\r\n"))[1] == WANTED


def test_negative_zero_is_zero(tmp_path):
    _, rows = load(tmp_path, "GO:0003674\t-0.0\n")
    assert str(rows[0][1]) == "0.0"


def test_repeated_once_and_conflicts_refused(tmp_path):
    report, rows = load(tmp_path, ROWS + "GO:0005515\t1.250\n")
    assert rows == WANTED
    assert report.filtered == {"repeated": 1}
    with pytest.raises(InputError, match=r"line 4: GO:0005515 has the IA 1.5, but at line 1 1.25"):
        load(tmp_path, ROWS + "GO:0005515\t1.5\n")


def test_malformed(tmp_path):
    report, rows = load(tmp_path, ROWS + "GO:1\t1\nGO:0000001\tx\nGO:0000001\nGO:0000001\t1\t2\n")
    assert rows == WANTED
    assert report.rejected == {"columns": 2, "go_id": 1, "ia": 1}
    with pytest.raises(InputError, match="4 of 7 rows are malformed"):
        delimited.check_rejected(report)


@pytest.mark.parametrize(("value", "what"), [("nan", "finite"), ("inf", "finite"), ("-0.5", "negative")])
def test_refused_with_the_line(tmp_path, value, what):
    with pytest.raises(InputError, match=rf"line 4: the IA is (not )?{what}"):
        load(tmp_path, ROWS + f"GO:0000001\t{value}\n")


def test_another_kind_of_file(tmp_path):
    report, rows = load(tmp_path, "a,b\nc,d\n")
    assert rows == []
    with pytest.raises(InputError, match="2 of 2 rows"):
        delimited.check_rejected(report)
    with pytest.raises(InputError, match="no row"):
        load(tmp_path, "go_id\tia\n")
