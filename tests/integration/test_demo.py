"""The demo: the same files each time, every corner of a cut in them, and a second run that changes nothing."""

import hashlib
import re
from pathlib import Path

import pyarrow.compute as pc
import pytest

from protea import demo
from protea.core.annotations import read_gaf
from protea.core.ontology import read_obo
from protea.core.proteins import read_fasta
from protea.demo_world import FAMILIES, PROTEINS, RELEASES, Files, write_world
from protea.settings import Settings

DIGEST = "360e37f50804b76a"
"""Of all files of the proteome, uncompressed. Where the files change on purpose, `demo.NAME` must change with this."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_world(tmp_path_factory.mktemp("world") / "new")


def contents(files: Files) -> list[str]:
    annotations = [read_gaf(path).sha256 for path in files.annotations.values()]
    return [read_obo(files.ontology)[1].sha256, read_fasta(files.proteins)[1].sha256, *annotations]


def test_the_files_are_the_same_each_time(files: Files, tmp_path: Path) -> None:
    assert contents(files) == contents(write_world(tmp_path))
    assert contents(files) != contents(write_world(tmp_path, seed=1))
    assert (demo.NAME, hashlib.sha256("".join(contents(files)).encode()).hexdigest()[:16]) == ("demo", DIGEST)


def test_the_files_are_lifelike(files: Files) -> None:
    ontology, report = read_obo(files.ontology)
    assert 300 < len(ontology.ids) < 500
    assert min(report.terms_by_aspect.values()) > 50
    assert report.dangling == report.orphans == 0
    assert report.alt_ids > 20
    assert 0 < report.replaced_by < report.obsolete
    assert report.cross_aspect_edges > 0
    table, proteins = read_fasta(files.proteins)
    assert len(table) == proteins.with_taxon == PROTEINS
    assert proteins.gaps == proteins.duplicates == 0
    gafs = [read_gaf(path) for path in files.annotations.values()]
    assert [g.gaf_version for g in gafs] == ["2.1", "2.1", "2.2", "2.2"]
    assert [g.kept for g in gafs] == sorted({g.kept for g in gafs})
    for gaf, day in zip(gafs, RELEASES.values(), strict=True):
        assert not gaf.rejected
        assert gaf.filtered.keys() == {"no_data", "other_database"}
        assert min(gaf.evidence_groups.values()) > 50
        assert gaf.negated > 10
        assert gaf.last_date is not None
        assert gaf.last_date <= day


def test_the_whole_job_and_again(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    events: list[str] = []
    dataset = demo.run(settings, lambda kind, **what: events.append(kind))
    first = capsys.readouterr().out
    assert events[-1] == "export.published"
    counts = dataset.manifest["counts"]
    assert list(counts) == ["v156-v178", "v178-v197", "v197-v209"]
    for by in (by for categories in counts.values() for aspects in categories.values() for by in aspects.values()):
        assert 0 < by["positives"] < by["rows"]
        assert re.search(rf" {by['rows']:,} +{by['positives']:,}\b", first)
    assert not dataset.manifest["warnings"]
    assert dataset.manifest["dropped"]["annotation_sets"]["156"].keys() >= {"no_data", "other_database", "obsolete"}
    for name in ("train", "eval", "truth", "known"):
        assert str(dataset.file(name)) in first

    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in dataset.path.iterdir()}
    assert demo.run(settings).path == dataset.path
    second = capsys.readouterr().out
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in dataset.path.iterdir()} == before
    assert second.count("already loaded") == 7
    assert "dataset demo unchanged" in second
    assert "\n".join(first.splitlines()[-17:-7]) in second

    family = dict(re.findall(r">sp\|(\w+)\|.* family (\d+) ", (settings.storage / "demo" / "demo.fasta").read_text()))
    assert len(set(family.values())) == FAMILIES
    rows = dataset.train.to_table(columns=["protein_accession", "ref_protein_accession", "distance", "label"])
    pairs = zip(rows["protein_accession"].to_pylist(), rows["ref_protein_accession"].to_pylist(), strict=True)
    assert sum(family[q] == family[r] for q, r in pairs) > 0.6 * len(rows)
    label = pc.cast(rows["label"], "bool")
    near, far = (pc.mean(rows["distance"].filter(x)).as_py() for x in (label, pc.invert(label)))
    assert near < far
