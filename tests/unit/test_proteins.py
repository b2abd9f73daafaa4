"""The FASTA reader against a plain line-by-line reading, and the faults it refuses by name."""

import gzip
import hashlib
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protea.core import proteins, textio
from protea.core.proteins import SCHEMA, read_fasta
from protea.errors import InputError, NotFoundError


def write(tmp_path, content: str | bytes):
    path = tmp_path / "x.fasta"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def rows(tmp_path, content):
    table, report = read_fasta(write(tmp_path, content))
    assert table.schema == SCHEMA
    table.validate(full=True)
    assert report.sequences == len(table)
    assert report.residues == sum(table["length"].to_pylist())
    return {r["accession"]: (r["taxon"], r["length"], r["sequence"]) for r in table.to_pylist()}


def refused(tmp_path, content) -> str:
    with pytest.raises(InputError) as e:
        read_fasta(write(tmp_path, content))
    assert "\n" not in str(e.value)
    assert "x.fasta" in str(e.value)
    return str(e.value)


@pytest.mark.parametrize(
    ("header", "accession", "taxon"),
    [
        ("sp|P10001|ONE_HUMAN Protein OS=Homo sapiens OX=9606 GN=X PE=1", "P10001", 9606),
        ("tr|A0A000AAA1|A0A000AAA1_YEAST OX=559292", "A0A000AAA1", 559292),
        ("sp|P10001-2|ONE_HUMAN", "P10001-2", None),
        ("sp|P10001", "P10001", None),
        ("P10001", "P10001", None),
        ("P10001\tOX=7", "P10001", 7),
        ("  P10001 the OX=12 thing", "P10001", 12),
        ("P10001 BOX=5 OX=6", "P10001", 6),
        ("P10001 OX=x OX=6", "P10001", None),
        ("P10001 OX=6a", "P10001", None),
        ("P10001 OX=99999999999", "P10001", None),
        ("P10001 OX=0", "P10001", None),
        ("P10001 OX=", "P10001", None),
        ("OX=5", "OX=5", None),
        ("gi|12|ref|NP_1.1| x", "gi|12|ref|NP_1.1|", None),
        ("SPX|Q|Z", "SPX|Q|Z", None),
        ("P10001 a > b | c", "P10001", None),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_headers(tmp_path, header, accession, taxon, end):
    assert rows(tmp_path, f">{header}{end}MK{end}V{end}") == {accession: (taxon, 3, "MKV")}


@pytest.mark.parametrize(
    ("text", "sequence"),
    [
        ("MKVUOBZJX*", "MKVUOBZJX"),
        ("mk\nv", "MKV"),
        ("M*K", "M*K"),
        ("M*\n", "M"),
        ("MK**", "MK"),
        ("M*\n*\n", "M"),
        ("*M", "*M"),
        ("M K\tV\n\n L ", "MKVL"),
        ("M-K--V-", "MKV"),
    ],
)
def test_sequences(tmp_path, text, sequence):
    assert rows(tmp_path, f"\n>A\n{text}\n>B\nM")["A"] == (None, len(sequence), sequence)


def test_order_is_that_of_bytes_and_gaps_are_counted(tmp_path):
    path = write(tmp_path, ">b\nM\n>B\nM-M\n>a1\nM\n>A\nM\n>a\nM--\n")
    table, report = read_fasta(path)
    assert table["accession"].to_pylist() == sorted(["b", "B", "a1", "A", "a"], key=str.encode)
    assert report.gaps == 3


def test_duplicates_with_the_same_sequence_count_once(tmp_path):
    content = ">A\nMKV\n>B OX=3\nM\n>A OX=9\nmk\nv*\n>A OX=8\nM-KV\n>B\nM\n>C\nM\n>C\nM\n"
    table, report = read_fasta(write(tmp_path, content))
    assert table.to_pylist() == [
        {"accession": "A", "taxon": 9, "length": 3, "sequence": "MKV"},
        {"accession": "B", "taxon": 3, "length": 1, "sequence": "M"},
        {"accession": "C", "taxon": None, "length": 1, "sequence": "M"},
    ]
    assert (report.sequences, report.duplicates, report.residues, report.with_taxon) == (3, 4, 5, 2)
    assert table.schema == SCHEMA
    detail = report.to_json(table)
    assert detail["accessions"] == ["A", "B", "C"]
    assert detail["taxa"] == {"A": 9, "B": 3, "C": None}
    assert detail["lengths"] == {"A": 3, "B": 1, "C": 1}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (">A\nMKV\n>B\nM\n>A\nMKL\n", ["A", "line 5", "line 1", "another sequence"]),
        (">A\nMKV\n>A\nMK\n>B\nM\n>B\nL\n>B\nM\n", ["A", "line 3", "1 other"]),
        (">A\n>B\nM\n", ["A has no sequence", "line 1"]),
        (">B\nM\n>A\n", ["A has no sequence", "line 3"]),
        (">B\nM\n>A\n*\n>C\n\n \n--\n>D\nM\n", ["A has no sequence", "1 more"]),
        (">A\nMK\nM1V\n", ["line 3", "A", "'1'"]),
        (">A\nMK\nM.V\n>B\n", ["line 3", "A", "'.'"]),
        (">A\nMK\n >B\nM\n", ["line 3", "A", "'>'"]),
        (b">A\nMK\xe9\n", ["line 2", "A"]),
        (">\nMK\n", ["line 1", "no accession"]),
        (">A\nM\n>   \nMK\n", ["line 3", "no accession"]),
        (">sp||X\nMK\n", ["line 1", "no accession"]),
        (b">A\nM\n>P\xc3\xa9 x\nMK\n", ["line 3", "ASCII"]),
        ("\nMKV\n>A\nMK\n", ["line 2", "'MKV'", "before any header"]),
        ("<!DOCTYPE html>\n<p>gone</p>\n", ["line 1", "<!DOCTYPE html>"]),
        ("", ["no sequence"]),
        ("\n\n", ["no sequence"]),
    ],
)
def test_faults_are_named(tmp_path, content, words):
    message = refused(tmp_path, content)
    assert all(w in message for w in words), message


def test_a_missing_file(tmp_path):
    with pytest.raises(NotFoundError):
        read_fasta(tmp_path / "none.fasta")


def test_gzip_members_progress_and_digest(tmp_path):
    raw = b">A\nMKV\n>B\nMK\n"
    path = write(tmp_path, gzip.compress(raw[:5]) + gzip.compress(raw[5:]))
    seen = []
    table, report = read_fasta(path, seen.append)
    assert report.sha256 == hashlib.sha256(raw).hexdigest()
    assert table["sequence"].to_pylist() == ["MKV", "MK"]
    assert seen[-1] == path.stat().st_size


def plain(text):
    """accession -> (taxon, sequence), or the accession or line at fault."""
    found, now = {}, None
    for line in text.splitlines():
        if line.startswith(">"):
            word = line[1:].split()[0]
            now = word.split("|")[1] if word[:3] in ("sp|", "tr|") else word
            taxon = re.search(r"\sOX=(\d+)(?!\S)", line)
            found.setdefault(now, []).append([taxon and int(taxon[1]), ""])
        else:
            found[now][-1][1] += line.strip().upper().replace("-", "")
    out = {}
    for accession, records in found.items():
        sequences = {s.rstrip("*") for _, s in records}
        if "" in sequences or len(sequences) > 1:
            return None
        out[accession] = (next((t for t, _ in records if t), None), *sequences)
    return out


RECORD = st.tuples(
    st.sampled_from(["A", "B", "sp|A|X", "tr|C-2|Y", "Z9"]),
    st.sampled_from(["", " OX=5", " text OX=6 GN=x", "\tOX=77"]),
    st.lists(st.sampled_from(["MK", "mk", "M*", "", "M-V", "MKVLLA" * 7, "-", "*"]), min_size=1, max_size=3),
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(RECORD, min_size=1, max_size=8), st.integers(1, 60), st.booleans(), st.sampled_from(["\n", "\r\n"]))
def test_random_files_in_blocks_of_any_size(tmp_path, records, size, final, end):
    text = end.join(f">{a}{h}{end}" + end.join(lines) for a, h, lines in records) + end * final
    path = write(tmp_path, text)
    want = plain(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proteins, "blocks", lambda reader: textio.blocks(reader, size=size))
        if want is None:
            with pytest.raises(InputError):
                read_fasta(path)
            return
        table, report = read_fasta(path)
    got = {r["accession"]: (r["taxon"], r["sequence"]) for r in table.to_pylist()}
    assert got == want
    assert list(got) == sorted(got)
    assert report.duplicates == len(records) - len(want)
