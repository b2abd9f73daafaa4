"""Real GAF files against the figures that their folder's README gives (counted there by other means)."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from protea.core.annotations import SCHEMA, read_gaf
from protea.core.evidence import CAFA, CODES

DATA = Path(os.environ.get("PROTEA_TEST_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="no real data: set PROTEA_TEST_DATA to its folder")

# File: rows, accessions, experimental rows (EXP to IC, without NOT), accessions of those, NOT rows.
FIGURES = {
    "goa_worm_2014-09-30.gaf.gz": (64244, 14094, 24328, 4641, 68),
    "goa_worm_2019-01-14.gaf.gz": (75650, 13894, 24819, 3837, 75),
    "goa_worm_proteome_2020-03-03.gaf.gz": (157451, 18946, 30754, 4870, 83),
    "goa_ecoli_proteome_2020-03-03.gaf.gz": (59085, 3919, 19524, 3351, 14),
    "goa_ecoli_proteome_2022-11-12.gaf.gz": (62038, 3938, 20360, 3392, 15),
    "goa_yeast_2016-10-03.subset_exp-CC-BP.gaf.gz": (23794, 4735, 23751, 4732, 43),
    "goa_yeast_proteome_2020-03-03.gaf.gz": (126835, 6048, 61276, 5445, 37),
    "goa_uniprot_HTP_2020-06-16.gaf.gz": (41957, 24095, 41957, 24095, 0),
    "goa_uniprot_HTP_2021-04-08.gaf.gz": (42172, 24169, 42172, 24169, 0),
    "goa_uniprot_EXP-NOT_2020-06-16.gaf.gz": (4432, 3009, 0, 0, 4432),
    "goa_uniprot_EXP-NOT_2021-04-08.gaf.gz": (4436, 3001, 0, 0, 4436),
}


def read(name, **options):
    if not (DATA / name).exists():
        pytest.skip(f"no {name} in the folder of real data")
    batches: list[pa.RecordBatch] = []
    report = read_gaf(DATA / name, sink=batches.append, **options)
    return report, pa.Table.from_batches(batches, SCHEMA)


@pytest.mark.parametrize("name", FIGURES)
def test_figures(name):
    # The figures count the 9 rows of IntAct complexes in the 2014 worm file; everything else is UniProtKB.
    report, table = read(name, databases=("UniProtKB", "IntAct"))
    cafa = np.isin(table["evidence"].to_numpy(), [CODES.index(c) for c in CAFA])
    experimental = table.filter(pa.array(cafa & ~table["negated"].to_numpy()))
    accessions = len(experimental["accession"].unique()), len(table["accession"].unique())
    assert (report.rows, report.proteins, len(experimental), accessions[0], report.negated) == FIGURES[name]
    assert (report.rejected, report.stored, accessions[1]) == ({}, len(table), report.proteins)


def test_complexes_are_another_database():
    report, table = read("goa_worm_2014-09-30.gaf.gz")
    assert (report.filtered["other_database"], sum(report.other_database_by_date.values())) == (9, 9)
    assert len(table) == 64244 - 9


@pytest.mark.parametrize(
    ("name", "versions", "newest", "taxa"),
    [
        ("goa_worm_2014-09-30.gaf.gz", ("2.0", None), "2014-09-30", {6239}),
        ("goa_ecoli_proteome_2022-11-12.gaf.gz", ("2.1", "2022-11-12"), "2022-11-12", {83333}),
        ("goa_yeast_proteome_2020-03-03.gaf.gz", ("2.1", "2020-03-03"), "2020-03-01", {559292}),
    ],
)
def test_headers_dates_and_taxa(name, versions, newest, taxa):
    report, table = read(name)
    assert report.gaf_version == versions[0]
    assert versions[1] is None or versions[1] in report.go_version
    assert report.last_date == newest
    assert set(table["taxon"].unique().to_pylist()) == taxa


def test_restricted_and_by_small_blocks():
    name = "goa_ecoli_proteome_2022-11-12.gaf.gz"
    report, table = read(name)
    assert read(name, block_size=50_000)[1].combine_chunks().unify_dictionaries().equals(table)
    chosen = table["accession"].unique()[::2]
    fewer, rows = read(name, proteins=chosen.cast(pa.string()))
    mask = pa.compute.is_in(table["accession"].cast(pa.string()), chosen.cast(pa.string()))
    assert rows["go"].combine_chunks().equals(table.filter(mask)["go"].combine_chunks())
    assert fewer.stored + fewer.not_in_proteins == report.rows == report.stored
    assert fewer.sha256 == report.sha256
