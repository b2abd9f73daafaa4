"""The GAF reader against a plain one written from the contract, and against each fault that files have."""

import datetime
import gzip
import hashlib
import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protea.core import gafscan
from protea.core.annotations import SCHEMA, GafReport, check_rejected, read_gaf
from protea.core.evidence import CODES, group
from protea.errors import InputError, NotFoundError

GOOD = {0: "UniProtKB", 1: "P10001", 2: "GEN1", 3: "enables", 4: "GO:0005515", 5: "PMID:1", 6: "IDA", 8: "F"}
GOOD |= {9: "Protein 1", 11: "protein", 12: "taxon:9606", 13: "20190102", 14: "UniProt"}


def row(n: int = 17, **columns: str) -> str:
    """A GAF row of n columns; `c5="GO:0000001"` sets the fifth."""
    cells = [GOOD.get(i, "") for i in range(n)]
    for name, value in columns.items():
        cells[int(name[1:]) - 1] = value
    return "\t".join(cells)


def load(tmp_path, text, **options):
    """The report and the stored rows (as dicts) of a file with that text."""
    path = tmp_path / "file.gaf"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    batches: list[pa.RecordBatch] = []
    report = read_gaf(path, sink=batches.append, **options)
    table = pa.Table.from_batches(batches, SCHEMA)
    table.validate(full=True)
    return report, table.to_pylist()


def reason(tmp_path, text):
    """Why the one row is malformed, or None. (A good row beside it makes the file a GAF.)"""
    report, rows = load(tmp_path, row() + "\n" + text + "\n")
    assert report.rows == 2
    assert len(rows) + report.malformed == 2
    if not report.rejected:
        return None
    assert report.problems[0][0] == 2
    assert list(report.rejected) == [report.problems[0][1]]
    return report.problems[0][1]


# The plain reader ---------------------------------------------------------------------------------------------------


def plain(text: str, databases: tuple[str, ...], proteins: set[str] | None):
    rows, counts, by_date = [], {}, {}
    for line in text.split("\n"):
        line = line.removesuffix("\r")
        if line.startswith("!") or not line.strip(" "):
            continue
        counts["rows"] = counts.get("rows", 0) + 1
        why, made = plain_row(line)
        if why is None and made["database"] not in databases:
            why = "other_database"
        elif why is None and proteins is not None and made["accession"] not in proteins:
            why = "not_in_proteins"
        if why:
            counts[why] = counts.get(why, 0) + 1
            if made:
                key = (why, made["date"].isoformat())
                by_date[key] = by_date.get(key, 0) + 1
        else:
            del made["database"]
            rows.append(made)
    return rows, counts, by_date


def plain_row(line: str):
    cells = line.split("\t")
    many = len(cells) > 17
    if len(cells) < 15 or any(c.strip(" ") for c in cells[17:]):
        return "columns", None
    cells += [""] * 17
    database, accession = cells[0].strip(" "), cells[1].strip(" ")
    go, code = cells[4], cells[6]
    date = None
    if len(cells[13]) == 8 and set(cells[13]) <= set("0123456789"):
        try:
            date = datetime.date(int(cells[13][:4]), int(cells[13][4:6]), int(cells[13][6:]))
        except ValueError:
            date = None
    why = None
    if not database:
        why = "database"
    elif not accession:
        why = "accession"
    elif not (go.startswith("GO:") and len(go) == 10 and set(go[3:]) <= set("0123456789")):
        why = "go_id"
    elif code not in (*CODES, "ND"):
        why = "unknown_evidence"
    elif date is None:
        why = "date"
    if why:
        return ("columns" if many else why), None
    tokens = [t.strip(" ") for t in cells[3].lower().split("|")]
    kept = [t for t in tokens if t in ("contributes_to", "colocalizes_with") or t.startswith("acts_upstream_of")]
    taxon = cells[12].split("|")[0].strip(" ").lower().removeprefix("taxon:").strip(" ")
    number = int(taxon) if taxon and set(taxon) <= set("0123456789") else 0
    return None, {
        "database": database,
        "accession": accession,
        "go": int(go[3:]),
        "evidence": (*CODES, "ND").index(code),
        "qualifier": min(kept, default=""),
        "negated": "not" in tokens,
        "isoform": bool(cells[16].strip(" ")),
        "date": date,
        "taxon": number if 0 < number < 2**31 else None,
    }


CELLS = {
    1: ["UniProtKB"] * 6 + ["", " ", "RNAcentral", "uniprotkb", " UniProtKB", "UniProt", "PDB"],
    2: ["P1", "P1", "P2", "P22", "A0A000", "P1 ", "", "  ", "Prot\u00e9ine"],
    4: [
        *["", "enables", "NOT", "not|enables", "NOT|acts_upstream_of_or_within", "Contributes_to", "|", "NOTE", "n ot"],
        *["colocalizes_with | Not", "contributes_to|acts_upstream_of", "acts_upstream_of_x|acts_upstream_of"],
        *["acts_upstream_of|acts_upstream_of_x", "contributes_to2"],
    ],
    5: ["GO:0005515"] * 5 + ["GO:0000001", "GO:9999999", "GO:123", "go:0005515", "GO:0005515 ", "GO:00055155", ""],
    7: [*CODES, "ND", "ida", "XYZ", "", "I", "IDA ", "IDAA", "N", "ic", "I@C"],
    13: [
        "taxon:9606",
        "6239",
        "taxon:1|taxon:2",
        "",
        "|taxon:3",
        "taxon:",
        "Taxon: 7 ",
        "taxon:x",
        "0",
        "99999999999",
        "2147483647",
    ],
    14: ["20190102"] * 6
    + ["20200229", "20190229", "19000229", "20000229", "00000000", "00010101", "99991231", "2019-01-02"]
    + ["20191342", "20190431", "2019010", "201901021", " 20190102", "20190100", "20190001"],
    17: ["", "", "", "UniProtKB:P1-2", " "],
    18: ["", "", "", " ", "x"],
}


@st.composite
def gaf_line(draw):
    kind = draw(st.sampled_from(["row"] * 12 + ["!", "! x\ty", "", " ", "text", "\t" * 16, "\t" * 3]))
    if kind != "row":
        return kind
    n = draw(st.sampled_from([15, 16, 17, 17, 17, 18, 19, 14, 25]))
    changed = draw(st.sets(st.sampled_from(sorted(c for c in CELLS if c <= n)), max_size=4))
    return row(n, **{f"c{c}": draw(st.sampled_from(CELLS[c])) for c in sorted(changed)})


@settings(max_examples=200, deadline=None)
@given(
    lines=st.lists(gaf_line(), max_size=12),
    ends=st.lists(st.sampled_from(["\n", "\r\n"]), min_size=12, max_size=12),
    last_newline=st.booleans(),
    size=st.sampled_from([5, 150, 1 << 20]),
    databases=st.sampled_from([("UniProtKB",), ("PDB", "UniProtKB"), ("UniProt",)]),
    proteins=st.sampled_from([None, None, {"P1", "Prot\u00e9ine"}, set(), {"P22", "P2", "P1", "Q9", "A0A000"}]),
)
def test_agrees_with_the_plain_reader(tmp_path_factory, lines, ends, last_newline, size, databases, proteins):
    text = row() + "\n" + "".join(a + b for a, b in zip(lines, ends, strict=False))
    text = text if last_newline else text.removesuffix("\n")
    want, counts, by_date = plain(text, databases, proteins)
    given_ = None if proteins is None else pa.array([*sorted(proteins), None], pa.string())
    report, rows = load(
        tmp_path_factory.mktemp("gaf"), text, databases=databases, proteins=given_, block_size=size, detail=True
    )
    assert rows == want
    kept = [r for r in rows if r["evidence"] < len(CODES)]
    assert report.rows == counts.pop("rows")
    assert report.not_in_proteins == counts.pop("not_in_proteins", 0)
    assert {**report.rejected, **report.filtered} == counts | ({"no_data": n} if (n := len(rows) - len(kept)) else {})
    for why, got in (
        ("other_database", report.other_database_by_date),
        ("not_in_proteins", report.not_in_proteins_by_date),
    ):
        assert got == {day: n for (w, day), n in by_date.items() if w == why}
        assert list(got) == sorted(got)
    assert (report.kept, report.negated) == (len(kept), sum(r["negated"] for r in kept))
    assert report.stored == len(rows)
    assert report.proteins == len({r["accession"] for r in rows})
    for name, n in report.evidence_groups.items():
        assert n == sum(group(CODES[r["evidence"]]) == name for r in kept)
    dates = [r["date"].isoformat() for r in kept]
    assert (report.first_date, report.last_date) == (min(dates, default=None), max(dates, default=None))
    taxa = {}
    for r in rows:
        taxa[r["accession"]] = taxa.get(r["accession"]) or r["taxon"]
    assert report.taxa == taxa
    assert report.sha256 == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("n", [15, 17, 18])
def test_every_pair_of_cells_agrees_with_the_plain_reader(tmp_path, n):
    cells = [(f"c{column}", value) for column in CELLS if column <= n for value in CELLS[column]]
    lines = [row(n, **dict([a, b])) for a in cells for b in cells if a[0] <= b[0]]
    want, counts, _ = plain("\n".join(lines), ("UniProtKB",), None)
    report, rows = load(tmp_path, "\n".join(lines))
    assert rows == want
    assert report.rows == counts.pop("rows") == len(lines)
    assert report.rejected | {"other_database": report.filtered["other_database"]} == counts


# One fault each -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (row(17), None),
        (row(15), None),
        (row(16), None),
        (row(14), "columns"),
        (row(18), None),
        (row(40), None),
        (row(18, c18=" "), None),
        (row(18, c18="x"), "columns"),
        (row(30, c30="x"), "columns"),
        (row(18, c5="GO:1"), "columns"),
        (row(17, c5="GO:1"), "go_id"),
        (row(18, c14=""), "columns"),
        (row(c1=""), "database"),
        (row(c1="", c2="", c5="x"), "database"),
        (row(c2="", c5="x"), "accession"),
        (row(c5="x", c7="x"), "go_id"),
        (row(c7="x", c14="x"), "unknown_evidence"),
        (row(c7="ida"), "unknown_evidence"),
        (row(c5="GO:0005515 "), "go_id"),
        (row(c5="GO:000551\u0665"), "go_id"),  # a digit, but not an ASCII one
        (row(c14="00000000"), "date"),
        (row(c14="20190229"), "date"),
        (row(c14="20200229"), None),
        (row(c14="21000229"), "date"),
        (row(c14="00001231"), "date"),
        (row().replace("\t", "  "), "columns"),
        ("\0" * 50, "columns"),
        (">sp|P10001|X\tY", "columns"),
    ],
)
def test_malformed(tmp_path, text, why):
    assert reason(tmp_path, text) == why


def test_precedence_over_filters(tmp_path):
    report, rows = load(
        tmp_path,
        "\n".join([row(c1="PDB", c5="x"), row(c1="PDB", c7="ND"), row(c2="Q1", c7="ND"), row(c7="ND")]),
        proteins=pa.array(["P10001"]),
    )
    assert report.rejected == {"go_id": 1}
    assert report.filtered == {"other_database": 1, "no_data": 1}
    assert report.not_in_proteins == 1
    assert (report.kept, report.stored, report.proteins, len(rows)) == (0, 1, 1, 1)


def test_every_day_of_the_calendar(tmp_path):
    days = [datetime.date(1896, 1, 1) + datetime.timedelta(i) for i in range(0, 90000, 7)]
    days += [datetime.date(y, m, 28) + datetime.timedelta(1) for y in range(1895, 2105) for m in range(1, 13)]
    _, rows = load(tmp_path, "\n".join(row(15, c14=f"{d:%Y%m%d}") for d in days))
    assert [r["date"] for r in rows] == days


def test_every_code(tmp_path):
    _, rows = load(tmp_path, "\n".join(row(c7=c) for c in (*CODES, "ND")))
    assert [r["evidence"] for r in rows] == list(range(26))


@pytest.mark.parametrize("data", [b"P\xff1", b"\xc3", b"P\xff2|\xe9"])
def test_an_accession_that_is_not_utf8(tmp_path, data):
    text = row(c2="A1").encode() + b"\n" + row(c2="@").encode().replace(b"@", data)
    report, rows = load(tmp_path, text)
    assert [r["accession"] for r in rows] == ["A1", data.decode("utf-8", "backslashreplace")]
    assert report.proteins == 2


def test_bytes_that_are_not_utf8_elsewhere(tmp_path):
    text = (
        row(c10="@", c4="acts_upstream_of_@").encode().replace(b"@", b"\xe9")
        + b"\n"
        + row(3, c3="@").encode().replace(b"@", b"\xe9")
    )
    report, rows = load(tmp_path, text)
    assert rows[0]["qualifier"] == "acts_upstream_of_\\xe9"
    json.dumps(report.to_json())


def test_headers(tmp_path):
    report, _ = load(
        tmp_path,
        "\ufeff!gaf-version: 2.1 \r\n!\n!GO-version: http://x/2019-01-01/go.owl\n" + row() + "\n!gaf-version: 9",
    )
    assert (report.gaf_version, report.go_version) == ("2.1", "http://x/2019-01-01/go.owl")
    assert report.rows == 1
    report, _ = load(tmp_path, row())
    assert (report.gaf_version, report.go_version) == (None, None)


@pytest.mark.parametrize("text", ["", "\n\n", "!gaf-version: 2.2\n", "!a\n \r\n!b"])
def test_no_rows(tmp_path, text):
    with pytest.raises(InputError, match="no annotation"):
        load(tmp_path, text)


@pytest.mark.parametrize(
    "data",
    [
        b"<!DOCTYPE html>\n<html></html>",
        b'{"results": [\n{"a": 1}]}',
        b">sp|P10001|X\nMKV\n",
        b"\x00\x01\x02\tx\ny" * 50,
        bytes(range(256)) * 40,
        b"\x89HDF\r\n\x1a\n" + bytes(500),
        row().encode("utf-16"),
        row().replace("\t", "    ").encode(),
        row().replace("\t", ",").encode(),
        row(c5="uniprotkb:P1").encode(),  # 17 columns of something else
        b"UniProtKB\tP10001\tenables\tGO:0005515\tPMID:1\tECO:0000269\t\t\t20190102\tUniProt\t\t\n",  # GPAD
        b"x\n" * 5000,
    ],
)
def test_not_a_gaf(tmp_path, data):
    sent: list[pa.RecordBatch] = []
    path = tmp_path / "file.gaf"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"file\.gaf is not a GAF"):
        read_gaf(path, sink=sent.append)
    assert not sent


def test_files(tmp_path):
    with pytest.raises(NotFoundError):
        read_gaf(tmp_path / "none.gaf")
    text = "".join(row(c2=f"P{i}") + "\n" for i in range(3000)).encode()
    report, _ = load(tmp_path, gzip.compress(text[:100]) + gzip.compress(text[100:]))
    assert report.kept == report.proteins == 3000
    with pytest.raises(InputError, match="truncated"):
        load(tmp_path, gzip.compress(text)[:-9])


def test_progress_and_batches(tmp_path):
    path, seen, batches = tmp_path / "file.gaf", [], []
    path.write_text(
        "".join(row(c2=f"P{i // 3}", c4=("", "NOT", "colocalizes_with")[i % 3]) + "\n" for i in range(3000))
    )
    read_gaf(path, progress=seen.append, sink=batches.append, block_size=10_000)
    assert seen == sorted(seen)
    assert seen[-1] == path.stat().st_size
    assert len(batches) > 20
    assert all(
        b.schema == SCHEMA and len(set(d := b.column("accession").dictionary.to_pylist())) == len(d) for b in batches
    )


def test_problems_are_the_first_hundred_with_their_lines(tmp_path):
    text = "!x\n" + "".join((row(c14="x") if i % 2 else row()) + "\n" for i in range(1000))
    report, _ = load(tmp_path, text, block_size=3000)
    assert [p[0] for p in report.problems] == list(range(3, 203, 2))
    assert report.rejected == {"date": 500}
    assert all(why == "date" and text == row(c14="x")[:80] for _, why, text in report.problems)
    assert report.to_json()["problem_lines"] == [p[0] for p in report.problems]


def test_report_as_json(tmp_path):
    report, _ = load(tmp_path, row())
    out = json.loads(json.dumps(report.to_json()))
    assert "taxa" not in out
    assert "file" not in out
    assert out["rejected"] == {} == out["filtered"]
    report, _ = load(tmp_path, row(), detail=True)
    assert report.to_json()["taxa"] == {"P10001": 9606}


@pytest.mark.parametrize(
    ("bad", "limit", "refused"), [(1, 0.01, False), (2, 0.01, True), (29, 0.29, False), (100, 1, True), (0, 0, False)]
)
def test_check_rejected(tmp_path, bad, limit, refused):
    report, _ = load(tmp_path, "\n".join(row(c14="x") if i < bad else row() for i in range(100)))
    if refused:
        with pytest.raises(InputError, match=r"line 1 \(date\)" if bad < 100 else "no annotation is left") as e:
            check_rejected(report, limit)
        assert "\n" not in str(e.value)
    else:
        check_rejected(report, limit)


def test_nothing_left_is_refused(tmp_path):
    report, _ = load(tmp_path, row(c1="MGI"))
    with pytest.raises(InputError, match="1 other_database"):
        check_rejected(report)
    check_rejected(GafReport("f", rows=1, filtered={"no_data": 1}))


def test_accession_tables(tmp_path):
    words = [f"Q{i}" for i in range(2000)]
    text = "\n".join(row(c2=f"Q{i}") for i in range(0, 4000, 3))
    for chosen in (
        pa.array(words),
        pa.chunked_array([words[:9], words[9:]]),
        pa.array(["x", *words])[1:].dictionary_encode(),
    ):
        report, rows = load(tmp_path, text, proteins=chosen)
        assert [r["accession"] for r in rows] == [f"Q{i}" for i in range(0, 2000, 3)]
        assert report.not_in_proteins == len(range(0, 4000, 3)) - len(rows)


def test_no_block_holds_more_rows_than_there_is_room_for(tmp_path):
    shortest = "D\tA\t\t\tGO:0000001\t\tIC\t\t\t\t\t\t\t20190101\t"
    assert len(shortest) == gafscan._MIN_ROW
    report, _ = load(tmp_path, "\n".join([shortest] * 1000), databases=["D"])
    assert report.kept == 1000
