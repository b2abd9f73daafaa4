"""External scores: text, CAFA predictions, Parquet; every refusal and count."""

import gzip
import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from protea.core import delimited
from protea.core.scores import SCHEMA, read_scores
from protea.errors import InputError, NotFoundError


def write(tmp_path, text, name="scores.tsv"):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def load(tmp_path, text, **options):
    """(report, rows as a list of tuples)."""
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    report = read_scores(write(tmp_path, text) if isinstance(text, str | bytes) else text, out, **options)
    table = pq.read_table(out / "rows.parquet")
    assert table.schema.equals(SCHEMA)
    assert report.rows == report.malformed + sum(report.filtered.values()) + report.not_in_proteins + report.kept
    return report, list(zip(*(column.to_pylist() for column in table.columns), strict=True))


ROWS = "P1\tGO:0005515\t0.5\nP1\tGO:0003677\t1\nQ2\tGO:0005515\t1e-3\n"
WANTED = [("P1", 5515, 0.5), ("P1", 3677, 1.0), ("Q2", 5515, 0.001)]


@pytest.mark.parametrize("head", ["", "accession\tgo_id\tscore\n", "# made by\n\nEntryID\tterm\tProba\n"])
def test_text_with_and_without_a_header(tmp_path, head):
    report, rows = load(tmp_path, head + ROWS)
    assert rows == WANTED
    assert (report.rows, report.kept, report.proteins, report.rejected) == (3, 3, 2, {})
    assert (report.lowest, report.highest) == (0.001, 1.0)
    assert report.sha256 == hashlib.sha256((head + ROWS).encode()).hexdigest()


@pytest.mark.parametrize(
    "change", [lambda t: t.replace("\n", "\r\n"), lambda t: t[:-1], lambda t: t.replace("\t", "  ")]
)
def test_line_ends_and_blanks(tmp_path, change):
    assert load(tmp_path, change(ROWS))[1] == WANTED


def test_gzip_has_the_identity_of_its_content(tmp_path):
    report, rows = load(tmp_path, gzip.compress(ROWS.encode()))
    assert rows == WANTED
    assert report.sha256 == hashlib.sha256(ROWS.encode()).hexdigest()


def test_uniprot_names_give_their_accession(tmp_path):
    _, rows = load(tmp_path, "sp|P1|A_HUMAN\tGO:0005515\t.5\ntr|Q2|B\tGO:0005515\t1\n")
    assert rows == [("P1", 5515, 0.5), ("Q2", 5515, 1.0)]


def test_repeated_pairs_are_stored_as_they_come(tmp_path):
    _, rows = load(tmp_path, "P1\tGO:0005515\t0.5\nP1\tGO:0005515\t0.75\nP1\tGO:0005515\t0.5\n")
    assert [r[2] for r in rows] == [0.5, 0.75, 0.5]


def test_malformed_rows_are_counted_once_by_reason(tmp_path):
    text = (
        ROWS + "P1\tGO:5515\t0.5\n\tGO:0005515\t0.5\nP1\tGO:0005515\tNA\nP1\tGO:0005515\nP1\tGO:0005515\t1\t2\n\tx\ty\n"
    )
    report, rows = load(tmp_path, text)
    assert rows == WANTED
    assert report.rejected == {"columns": 2, "accession": 2, "go_id": 1, "score": 1}
    assert sorted((line, reason) for line, reason, _ in report.problems) == [
        (4, "go_id"), (5, "accession"), (6, "score"), (7, "columns"), (8, "columns"), (9, "accession"),
    ]  # fmt: skip
    with pytest.raises(InputError, match=r"6 of 9 rows are malformed.*line 4 \(go_id\)"):
        delimited.check_rejected(report)
    delimited.check_rejected(report, 0.7)


def test_one_per_cent_is_the_limit(tmp_path):
    report, _ = load(tmp_path, "P1\tGO:0005515\t0.5\n" * 99 + "P1\tx\t1\n")
    delimited.check_rejected(report)
    report, _ = load(tmp_path, "P1\tGO:0005515\t0.5\n" * 98 + "P1\tx\t1\n")
    with pytest.raises(InputError, match="1 of 99"):
        delimited.check_rejected(report)


@pytest.mark.parametrize("value", ["nan", "NaN", "inf", "-Infinity", "1e999"])
def test_what_is_not_finite_is_refused_with_its_line(tmp_path, value):
    with pytest.raises(InputError, match=r"line 3: the score is not finite: 'P1"):
        load(tmp_path, f"P1\tGO:0005515\tx\n\nP1\tGO:0005515\t{value}\n")


@pytest.mark.parametrize("text", ["", "# nothing\n", "accession\tgo_id\tscore\n"])
def test_no_row(tmp_path, text):
    with pytest.raises(InputError, match="no row"):
        load(tmp_path, text)


def test_what_is_no_text_and_what_is_not_there(tmp_path):
    with pytest.raises(InputError, match="not a text file"):
        load(tmp_path, b"\x00\x01\x02")
    with pytest.raises(NotFoundError):
        read_scores(tmp_path / "none.tsv", None)


def test_numbers_are_correctly_rounded(tmp_path):
    rng = np.random.default_rng(5)
    values = [repr(float(x)) for x in rng.random(300) * 10.0 ** rng.integers(-30, 30, 300)] + [
        "0.1000000000000000055511151231257827021181583404541015625",
        "+3",
        "-0.25",
        "5e-324",
        "7.",
    ]
    _, rows = load(tmp_path, "".join(f"P1\tGO:0005515\t{v}\n" for v in values))
    assert [r[2] for r in rows] == [float(v) for v in values]


@pytest.mark.parametrize("size", [24, 64, 1000])
def test_the_block_size_changes_nothing(tmp_path, size):
    text = "accession\tgo_id\tscore\n" + "".join(f"P{i // 7}\tGO:{i % 50:07}\t{i}\n" for i in range(300)) + "bad\n"
    whole, rows = load(tmp_path, text)
    report, again = load(tmp_path, text, block_size=size)
    assert again == rows
    assert report.to_json() == whole.to_json()
    assert report.rejected == {"columns": 1}
    assert whole.problems == [(302, "columns", "bad")]


@pytest.mark.parametrize("size", [32, 1 << 20])
def test_restricted_to_proteins(tmp_path, size):
    text = "accession\tgo_id\tscore\n" + ROWS + "P1\tGO:0000001\t0.25\nZ9\tGO:x\t1\n"
    report, rows = load(tmp_path, text, proteins=pa.array(["A0", "P1"]), block_size=size)
    assert rows == [*WANTED[:2], ("P1", 1, 0.25)]
    assert (report.rows, report.not_in_proteins, report.proteins, report.rejected) == (5, 2, 1, {})


CAFA = (
    "AUTHOR Some One\nMODEL 1\nKEYWORDS sequence alignment, blast.\n"
    "P1\tGO:0005515\t0.50\nP1 GO:0003677 1.00\nQ2 GO:0005515 0.001\nEND\n"
)


@pytest.mark.parametrize("text", [CAFA, CAFA.replace("\n", "\r\n"), CAFA[:-1], "\n" + CAFA + "\n\n"])
def test_cafa(tmp_path, text):
    report, rows = load(tmp_path, text)
    assert rows == WANTED
    assert (report.format, report.rejected, report.rows) == ("cafa", {}, 3)
    assert report.about == {"author": "Some One", "model": "1", "keywords": "sequence alignment, blast."}


def test_cafa_files_one_after_the_other(tmp_path):
    assert load(tmp_path, CAFA + CAFA.replace("MODEL 1", "MODEL 2"))[1] == WANTED * 2


@pytest.mark.parametrize("size", [40, 1 << 20])
def test_cafa_that_is_cut_off(tmp_path, size):
    for text in (CAFA.replace("END\n", ""), CAFA + "P1 GO:0005515 0.5\n"):
        with pytest.raises(InputError, match="cut off"):
            load(tmp_path, text, block_size=size)
    load(tmp_path, CAFA, block_size=size)


def parquet(tmp_path, **columns):
    pq.write_table(pa.table(columns), tmp_path / "s.parquet", row_group_size=2)
    return tmp_path / "s.parquet"


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
@pytest.mark.parametrize("number", [pa.float64(), pa.float32()])
def test_parquet(tmp_path, kind, number):
    names = pa.array(["P1", "sp|P1|X", "Q2"]).cast(kind)
    ids = pa.array(["GO:0005515", "GO:0003677", "GO:0005515"]).cast(kind)
    path = parquet(tmp_path, score=pa.array([0.5, 1, 0.25], number), extra=[1, 2, 3], Accession=names, term=ids)
    report, rows = load(tmp_path, path)
    assert rows == [*WANTED[:2], ("Q2", 5515, 0.25)]
    assert (report.format, report.rows, report.proteins) == ("parquet", 3, 2)
    assert report.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_parquet_malformed_rows_and_restriction(tmp_path):
    path = parquet(
        tmp_path,
        accession=["P1", None, "", "P1", "P1", "P1", "Z9"],
        go_id=["GO:0005515", "GO:0005515", "GO:0005515", "GO:1", None, "GO:0005515", "GO:0005515"],
        score=[0.5, 1, 1, 1, 1, None, 1],
    )
    report, rows = load(tmp_path, path)
    assert rows == [WANTED[0], ("Z9", 5515, 1.0)]
    assert report.rejected == {"accession": 2, "go_id": 2, "score": 1}
    assert [line for line, _, _ in sorted(report.problems)] == [2, 3, 4, 5, 6]
    report, rows = load(tmp_path, path, proteins=pa.array(["P1"]))
    assert rows == WANTED[:1]
    assert report.not_in_proteins == 1


def test_a_refusal_is_one_line_whatever_the_columns_are_called(tmp_path):
    """Found by fuzzing: a flipped byte made a line break of a column's name."""
    path = parquet(tmp_path, **{"accession": ["P1"], "go\n~d": ["GO:0005515"], "\x1b[31m\u202e": [1]})
    with pytest.raises(InputError) as error:
        load(tmp_path, path)
    assert r"(there is: accession, go\n~d, \x1b[31m\u202e)" in str(error.value)
    assert str(error.value).isprintable()


def test_parquet_refusals(tmp_path):
    with pytest.raises(InputError, match="row 3: the score of P1 for GO:0005515 is nan"):
        load(tmp_path, parquet(tmp_path, accession=["P1"] * 3, go_id=["GO:0005515"] * 3, score=[1.0, 0, float("nan")]))
    with pytest.raises(InputError, match="no column go_id"):
        load(tmp_path, parquet(tmp_path, accession=["P1"], what=["GO:0005515"], score=[1.0]))
    with pytest.raises(InputError, match="score is string, not a number"):
        load(tmp_path, parquet(tmp_path, accession=["P1"], go_id=["GO:0005515"], score=["1"]))
    with pytest.raises(InputError, match="truncated or damaged"):
        load(tmp_path, parquet(tmp_path, accession=["P1"], go_id=["x"], score=[1.0]).read_bytes()[:-9])
