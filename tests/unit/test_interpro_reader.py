"""InterPro matches in three formats, against plain recounts; the real interpro2go when the data is there."""

import gzip
import hashlib
import math
import os
import random
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from protea.core import delimited, interpro
from protea.core.interpro import SCHEMA, read_interpro
from protea.core.schema import INTERPRO_DATABASES as DATABASES
from protea.errors import ConfigError, InputError

MASK = {name: 1 << i for i, name in enumerate(DATABASES)}


def load(tmp_path, content, **options):
    """(report, rows as a list of tuples)."""
    path, out = tmp_path / "matches.tsv", tmp_path / "out"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    out.mkdir(exist_ok=True)
    report = read_interpro(path, out, **options)
    table = pq.read_table(out / "rows.parquet")
    assert table.schema.equals(SCHEMA)
    assert report.rows == report.malformed + sum(report.filtered.values()) + report.not_in_proteins + report.kept
    assert report.stored == len(table)
    return report, list(zip(*(column.to_pylist() for column in table.columns), strict=True))


# ------------------------------------------------------------------------------------------------ the contract's table

TABLE = (
    "# a comment\nP1\tGO:0005515\t0.5\tPfam|SMART\t2\n"
    "P1\tGO:0003677\t1\tProSiteProfiles|Gene3D\t1\nQ2\tGO:0005515\t12.5\t\t0\n"
)
TABLE_ROWS = [
    ("P1", 5515, 0.5, MASK["pfam"] | MASK["smart"], 2),
    ("P1", 3677, 1.0, MASK["prosite"], 1),
    ("Q2", 5515, 12.5, 0, 0),
]


@pytest.mark.parametrize(
    "change", [str, lambda t: t.replace("\n", "\r\n"), lambda t: t[:-1], lambda t: "a\tgo\tscore\tdb\tn\n" + t]
)
@pytest.mark.parametrize("size", [50, 1 << 20])
def test_table(tmp_path, change, size):
    text = change(TABLE)
    report, rows = load(tmp_path, text, block_size=size)
    assert rows == TABLE_ROWS
    assert (report.format, report.rows, report.kept, report.proteins, report.rejected) == ("table", 3, 3, 2, {})
    assert {k: n for k, n in report.databases.items() if n} == {"pfam": 1, "smart": 1, "prosite": 1}
    assert report.sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_databases_are_known_without_case_by_prefix(tmp_path):
    names = ["PFAM", "pANTHER", "SuperFamily", "Smart", "CDD", "ProSitePatterns", "prosite", "NCBIfam", "xpfam"]
    _, rows = load(tmp_path, "".join(f"P1\tGO:0005515\t1\t{name}\t1\n" for name in names))
    assert [r[3] for r in rows] == [1, 2, 4, 8, 16, 32, 32, 0, 0]
    assert load(tmp_path, f"P1\tGO:0005515\t1\t{'|'.join(names)}\t1\n")[1][0][3] == 63


def test_table_rows_are_stored_as_they_come(tmp_path):
    assert load(tmp_path, TABLE + TABLE)[1] == TABLE_ROWS * 2


def test_table_malformed(tmp_path):
    bad = [
        "\tGO:0005515\t1\tPfam\t1",
        "P1\tGO:55\t1\tPfam\t1",
        "P1\tGO:0005515\thigh\tPfam\t1",
        "P1\tGO:0005515\t1\tPfam\t1.5",
    ]
    bad += ["P1\tGO:0005515\t1\tPfam\t-1", "P1\tGO:0005515\t1\tPfam", "P1\tGO:0005515\t1\tPfam\t1\t"]
    report, rows = load(tmp_path, TABLE + "\n".join(bad))
    assert rows == TABLE_ROWS
    assert report.rejected == {"accession": 1, "go_id": 1, "score": 1, "signatures": 2, "columns": 2}
    with pytest.raises(InputError, match="7 of 10 rows are malformed"):
        delimited.check_rejected(report)
    with pytest.raises(InputError, match="line 5: the score is not finite"):
        load(tmp_path, TABLE + "P1\tGO:0005515\tNaN\tPfam\t1\n")


@pytest.mark.parametrize("text", ["", "# only\n", "P1 GO:0005515 1 Pfam 1\n", "P1\tGO:0005515\t0.5\n"])
def test_unknown_formats(tmp_path, text):
    with pytest.raises(InputError, match="no InterPro table of a known format"):
        load(tmp_path, text)


# -------------------------------------------------------------------------------------------------------- InterProScan


def scan_row(accession, analysis, signature, score, go, *, n=15):
    fields = [accession, "d" * 32, "100", analysis, signature, "a domain", "1", "90", score, "T", "01-01-2024"]
    return "\t".join([*fields, "IPR000001", "An entry", go, "-"][:n])


def test_interproscan(tmp_path):
    rows = [
        scan_row("P1", "Pfam", "PF00001", "1.0E-20", "GO:0005515(InterPro)|GO:0003677(PANTHER)"),
        scan_row("P1", "Pfam", "PF00001", "1.0E-10", "GO:0005515(InterPro)"),  # the same domain again
        scan_row("P1", "ProSiteProfiles", "PS50001", "25.5", "GO:0005515(InterPro)"),  # a score, no e-value
        scan_row("P1", "ProSitePatterns", "PS00001", "-", "GO:0005634|GO:0005634"),
        scan_row("P1", "PANTHER", "PTHR1:SF2", "0.0", "GO:0003677(PANTHER)"),
        scan_row("P1", "Hamap", "MF_0001", "40.0", "GO:0000001(InterPro)"),
        scan_row("P1", "Coils", "Coil", "-", "-"),
        scan_row("sp|Q2|X", "SMART", "SM00001", "5.0", "GO:0005515(InterPro)"),
        scan_row("Q3", "CDD", "cd00001", "1E-5", "", n=11),
    ]
    report, got = load(tmp_path, "\n".join(rows) + "\n")
    assert got == [
        ("P1", 1, 1.0, 0, 1),
        ("P1", 3677, 300.0, MASK["pfam"] | MASK["panther"], 2),
        ("P1", 5515, 20.0, MASK["pfam"] | MASK["prosite"], 2),
        ("P1", 5634, 1.0, MASK["prosite"], 1),
        ("Q2", 5515, 0.0, MASK["smart"], 1),
    ]
    assert (report.format, report.kept, report.filtered, report.proteins) == ("interproscan", 7, {"no_go": 2}, 2)


def test_interproscan_malformed(tmp_path):
    good = scan_row("P1", "Pfam", "PF00001", "0.001", "GO:0005515(InterPro)")
    bad = [
        scan_row("", "Pfam", "PF00001", "1", "GO:0005515(InterPro)"),
        scan_row("P1", "Pfam", "", "1", "GO:0005515(InterPro)"),
        scan_row("P1", "Pfam", "PF00001", "1", "GO:0005515(InterPro)|GO:1(InterPro)"),
        scan_row("P1", "Pfam", "PF00001", "high", "GO:0005515(InterPro)"),
        scan_row("P1", "Pfam", "PF00001", "-1", "GO:0005515(InterPro)"),
        "P1\tGO:0005515",
    ]
    report, rows = load(tmp_path, "\n".join([good, *bad]))
    assert rows == [("P1", 5515, 3.0, MASK["pfam"], 1)]
    assert report.rejected == {"accession": 1, "signature": 1, "go_id": 1, "score": 2, "columns": 1}
    with pytest.raises(InputError, match="line 2: the e-value is not finite"):
        load(tmp_path, good + "\n" + scan_row("P1", "Pfam", "PF00001", "nan", "GO:0005515(InterPro)"))


def test_interproscan_without_go_terms(tmp_path):
    with pytest.raises(InputError, match="-goterms"):
        load(tmp_path, scan_row("P1", "Pfam", "PF00001", "1", "", n=13))
    with pytest.raises(ConfigError, match="leave out --interpro2go"):
        load(tmp_path, scan_row("P1", "Pfam", "PF00001", "1", "GO:0005515"), interpro2go=tmp_path / "none")


# --------------------------------------------------------------------------------------------------------- protein2ipr

MAPPING = (
    "!date: 2022\n"
    "InterPro:IPR000003 Retinoid X receptor/HNF4 > GO:DNA binding ; GO:0003677\n"
    "InterPro:IPR000003 Retinoid X receptor/HNF4 > GO:nucleus ; GO:0005634\n"
    "InterPro:IPR000006 Odd > name ; here > GO:metal ion binding ; GO:0046872\n"
)


def mapping(tmp_path, text=MAPPING, compressed=False):
    path = tmp_path / "interpro2go"
    path.write_bytes(gzip.compress(text.encode()) if compressed else text.encode())
    return path


def ipr_row(accession, entry, signature):
    return f"{accession}\t{entry}\tSome name\t{signature}\t1\t90\n"


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("size", [45, 1 << 20])
def test_protein2ipr(tmp_path, compressed, size):
    text = (
        ipr_row("A1", "IPR000003", "PF00001")
        + ipr_row("A1", "IPR000003", "PF00001")  # a second domain
        + ipr_row("A1", "IPR000003", "PTHR00001")
        + ipr_row("A1", "IPR000006", "G3DSA:1.10")
        + ipr_row("B2", "IPR000999", "PF00002")  # no GO term
        + ipr_row("B3", "IPR999999", "PF00002")  # above any entry of the mapping
        + ipr_row("B4", "IPR000006", "cd00002")
        + ipr_row("A1", "IPR000006", "SM00001")  # out of order
    )
    report, rows = load(tmp_path, text, interpro2go=mapping(tmp_path, compressed=compressed), block_size=size)
    assert rows == [
        ("A1", 3677, 1.0, MASK["pfam"] | MASK["panther"], 2),
        ("A1", 5634, 1.0, MASK["pfam"] | MASK["panther"], 2),
        ("A1", 46872, 1.0, MASK["smart"], 2),
        ("B4", 46872, 1.0, MASK["cdd"], 1),
    ]
    assert (report.format, report.rows, report.kept, report.filtered) == ("protein2ipr", 8, 6, {"no_go": 2})
    assert (report.proteins, report.entries, report.mappings) == (2, 2, 3)
    of = {name: hashlib.sha256(t.encode()).hexdigest() for name, t in (("protein2ipr", text), ("interpro2go", MAPPING))}
    assert report.files == of
    assert report.sha256 == hashlib.sha256("\n".join(of.values()).encode()).hexdigest()


def test_signatures_name_their_database(tmp_path):
    names = [
        "PF00001",
        "PTHR1",
        "SSF123",
        "SM00001",
        "cd00001",
        "PS50001",
        "PR00001",
        "PIRSF1",
        "G3DSA:3",
        "NF0001",
        "SMxx",
    ]
    for name, bit in zip(names, [1, 2, 4, 8, 16, 32, 0, 0, 0, 0, 0], strict=True):
        assert load(tmp_path, ipr_row("A1", "IPR000006", name), interpro2go=mapping(tmp_path))[1][0][3] == bit


def test_protein2ipr_malformed(tmp_path):
    text = (
        ipr_row("A1", "IPR000006", "PF00001") + ipr_row("", "IPR000006", "PF00001") + ipr_row("A1", "IPR6", "PF00001")
    )
    text += ipr_row("A1", "IPR00000x", "PF1") + ipr_row("A1", "IPR000006", "") + "A1\tIPR000006\tx\tPF1\t1\n"
    report, rows = load(tmp_path, text, interpro2go=mapping(tmp_path))
    assert len(rows) == 1
    assert report.rejected == {"accession": 1, "entry": 2, "signature": 1, "columns": 1}


def test_protein2ipr_needs_its_mapping(tmp_path):
    row = ipr_row("A1", "IPR000006", "PF00001")
    with pytest.raises(ConfigError, match="--interpro2go FILE"):
        load(tmp_path, row)
    with pytest.raises(InputError, match=r"1 of 1 lines.*line 2: 'nonsense'"):
        load(tmp_path, row, interpro2go=mapping(tmp_path, "! c\nnonsense\n"))
    with pytest.raises(InputError, match="0 of 0 lines"):
        load(tmp_path, row, interpro2go=mapping(tmp_path, ""))


def test_too_much_for_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(interpro, "LIMIT", 2)
    with pytest.raises(InputError, match="--proteins"):
        load(
            tmp_path,
            ipr_row("A1", "IPR000003", "PF1") + ipr_row("A2", "IPR000003", "PF1"),
            interpro2go=mapping(tmp_path),
        )


@pytest.mark.parametrize("kind", ["table", "protein2ipr"])
@pytest.mark.parametrize("size", [60, 1 << 20])
def test_restricted_to_proteins(tmp_path, kind, size):
    if kind == "table":
        text, options = TABLE, {}
    else:
        text = "".join(ipr_row(a, "IPR000006", s) for a in ("P1", "Q2", "Q3", "P1") for s in ("PF00001", "PF00002"))
        options = {"interpro2go": mapping(tmp_path)}
    report, rows = load(tmp_path, text, proteins=pa.array(["B", "P1"]), block_size=size, **options)
    _, whole = load(tmp_path, text, **options)
    assert rows == [r for r in whole if r[0] == "P1"] != []
    assert (report.proteins, report.not_in_proteins) == (1, 1 if kind == "table" else 4)


# ------------------------------------------------------------------------------------------------------- random, recounted


def recount(rows):
    """rows: (accession, go, signature, mask, score or None)."""
    groups = {}
    for accession, go, signature, mask, score in rows:
        group = groups.setdefault((accession, go), [set(), 0, []])
        group[0].add(signature)
        group[1] |= mask
        group[2] += [score] if score is not None else []
    return {(*key, max(scores, default=1.0), mask, len(s)) for key, (s, mask, scores) in groups.items()}


@pytest.mark.parametrize("seed", range(5))
def test_interproscan_against_a_recount(tmp_path, seed):
    rng = random.Random(seed)
    lines, wanted = [], []
    analyses = {"Pfam": "pfam", "SMART": "smart", "ProSitePatterns": "prosite", "Gene3D": None}
    for _ in range(400):
        accession, analysis = f"P{rng.randint(0, 9)}", rng.choice(list(analyses))
        signature = f"{analysis}{rng.randint(0, 5)}"
        e = rng.choice(["-", "1.0E-5", "3.2E-12", "0.5", "7"])
        terms = [rng.randint(1, 20) for _ in range(rng.randint(0, 3))]
        lines.append(
            scan_row(accession, analysis, signature, e, "|".join(f"GO:{t:07}(InterPro)" for t in terms) or "-")
        )
        score = None if e == "-" or analysis == "ProSitePatterns" else max(0.0, -math.log10(float(e)))
        wanted += [(accession, t, signature, MASK.get(analyses[analysis], 0), score) for t in terms]
    for size in (200, 5000, 1 << 20):
        _, rows = load(tmp_path, "\n".join(lines), block_size=size)
        assert len(rows) == len(set(rows))
        assert {(a, g, round(s, 9), m, n) for a, g, s, m, n in rows} == {
            (a, g, round(s, 9), m, n) for a, g, s, m, n in recount(wanted)
        }
        first = list(dict.fromkeys(r[0] for r in rows))
        assert rows == sorted(rows, key=lambda r: (first.index(r[0]), r[1]))


def test_real_interpro2go(tmp_path):
    place = Path(os.environ.get("PROTEA_TEST_DATA") or Path(__file__).parents[3] / "shared" / "data")
    source = place / "interpro2go_2022-10-05.gz"
    if not source.exists():
        pytest.skip(f"no real data: {source} is not there (PROTEA_TEST_DATA names the directory)")
    terms: dict[str, set[int]] = {}
    for line in gzip.decompress(source.read_bytes()).decode().splitlines():
        if line.startswith("InterPro:"):
            terms.setdefault(line[9:18], set()).add(int(re.search(r"GO:(\d{7})$", line.strip())[1]))
    assert (len(terms), sum(map(len, terms.values()))) == (14_548, 30_205)
    rng = random.Random(2)
    entries = [*terms, *(f"IPR{i:06}" for i in range(900_000, 900_500))]
    lines, wanted, unmapped = [], [], 0
    for i in range(3000):
        for _ in range(rng.randint(1, 6)):
            entry, n = rng.choice(entries), rng.randint(0, 3)
            signature, mask = rng.choice(
                [(f"PF{n:05}", 1), (f"PTHR{n:05}", 2), (f"SSF{n}", 4), (f"PS{n:05}", 32), (f"PR{n}", 0)]
            )
            lines.append(ipr_row(f"A0A{i:03}", entry, signature))
            wanted += [(f"A0A{i:03}", t, signature, mask, None) for t in terms.get(entry, ())]
            unmapped += entry not in terms
    report, rows = load(tmp_path, gzip.compress("".join(lines).encode()), interpro2go=source, block_size=1 << 16)
    assert set(rows) == recount(wanted)
    assert len(rows) == len(set(rows))
    assert (report.entries, report.mappings, report.rows) == (14_548, 30_205, len(lines))
    assert report.filtered == {"no_go": unmapped}
    delimited.check_rejected(report)
