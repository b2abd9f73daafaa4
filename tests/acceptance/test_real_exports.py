"""The whole job on public files: worm releases, yeast by date cuts, E. coli with both.

The numbers of members are held against the figures of the data's README wherever it counts the same thing. It counts
direct (accession, GO id) pairs as written in the files, with the evidence preset `cafa`, for accessions with a sequence:
so `experimental_codes: cafa`, `label_mode: direct` and `exclude_binding_only: false`. What still differs, and why:

- ids are resolved here: an obsolete id without one successor gives no pair, two ids of one term give one, and a few
  obsolete terms carry a whole (protein, aspect), which moves LK by one or two;
- what an old annotation implies is known here (K is closed), so a new pair above an old one is not novel, and PK is smaller;
- a NOT takes the descendants of its term with it.

NK is about proteins without any experimental pair at the old release, so it must agree exactly.
"""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from protea import exporting, ingest, planning
from protea.catalog import open_catalog
from protea.core import evidence
from protea.core.config import parse
from protea.core.cut import prepare
from protea.core.keys import cuts
from protea.core.operations.export_research_dataset import load_inputs
from protea.settings import Settings
from protea.storage import ObjectStore

DATA = Path(os.environ.get("PROTEA_TEST_DATA") or Path(__file__).parents[3] / "shared" / "data")
pytestmark = pytest.mark.skipif(
    not (DATA / "goa_worm_2014-09-30.gaf.gz").is_file(),
    reason="the public test files are not here; PROTEA_TEST_DATA names their directory",
)

WORM = {
    "annotation_source": "goa",
    "train_versions": ["2014-09-30", "2019-01-14"],
    "test_versions": ["2020-03-03"],
    "proteins": "worm_swissprot_2014-01",
    "embedding_config": "worm_unirep64",
}
YEAST = {
    "annotation_source": "yeast",
    "train_versions": ["2009-12-31", "2011-12-31", "2013-12-31", "2015-12-31", "2017-12-31"],
    "test_versions": ["2020-03-02"],
    "proteins": "yeast_uniprot",
    "embedding_config": "yeast_unirep64",
}
ECOLI = {
    "annotation_source": "ecoli",
    "train_versions": ["2009-12-31", "2013-12-31", "2017-12-31", "2020-03-03"],
    "test_versions": ["2022-11-12"],
    "proteins": "ecoli_uniprot",
    "embedding_config": "ecoli_unirep64",
}
AS_README = {"experimental_codes": "cafa", "label_mode": "direct", "exclude_binding_only": False}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A home with everything loaded."""
    return loaded(Settings(home=tmp_path_factory.mktemp("real")))


def loaded(settings: Settings) -> Settings:
    ingest.load_ontology(settings, DATA / "go-basic_2021-12-15.obo.gz")
    for name, version in (
        ("goa_worm_2014-09-30", "2014-09-30"),
        ("goa_worm_2019-01-14", "2019-01-14"),
        ("goa_worm_proteome_2020-03-03", "2020-03-03"),
    ):
        ingest.load_annotations(settings, DATA / f"{name}.gaf.gz", source="goa", version=version)
    days = [*YEAST["train_versions"], *YEAST["test_versions"]]
    ingest.load_annotations(settings, DATA / "goa_yeast_proteome_2020-03-03.gaf.gz", source="yeast", cut_dates=days)
    early = DATA / "goa_ecoli_proteome_2020-03-03.gaf.gz"
    ingest.load_annotations(
        settings, early, source="ecoli", version="2020-03-03", cut_dates=ECOLI["train_versions"][:-1]
    )
    ingest.load_annotations(
        settings, DATA / "goa_ecoli_proteome_2022-11-12.gaf.gz", source="ecoli", version="2022-11-12"
    )
    for name in ("worm_swissprot_2014-01", "yeast_uniprot", "ecoli_uniprot"):
        ingest.load_proteins(settings, DATA / f"{name}.fasta.gz")
    for name in ("worm_unirep64.parquet", "yeast_unirep64.h5", "ecoli_unirep64.npz"):
        ingest.load_embeddings(settings, DATA / name)
    return settings


def experimental_pairs(settings: Settings, source: str, version: str, sequences: set[str]) -> set[tuple[str, int]]:
    """(accession, GO number) of the stored rows that the README counts."""
    with open_catalog(settings) as catalog:
        row = catalog.annotation_set(source, version)
    table = pq.read_table(ObjectStore(settings.storage).path("annotations", row.object_digest) / "rows.parquet")
    codes = [i for i, c in enumerate(evidence.CODES) if c in evidence.CAFA]
    mask = pc.and_(pc.is_in(table["evidence"], value_set=pc.cast(np.array(codes), "int8")), pc.invert(table["negated"]))
    if row.cut_date is not None:
        mask = pc.and_(mask, pc.less_equal(table["date"], row.cut_date))
    kept = table.filter(mask)
    return {
        (a, g) for a, g in zip(kept["accession"].to_pylist(), kept["go"].to_pylist(), strict=True) if a in sequences
    }


def sequences(settings: Settings, name: str) -> set[str]:
    with open_catalog(settings) as catalog:
        row = catalog.find("proteins", name)
    table = pq.read_table(ObjectStore(settings.storage).path("proteins", row.object_digest) / "proteins.parquet")
    return set(table["accession"].to_pylist())


@pytest.mark.parametrize(
    ("config", "old", "new", "t0", "t1", "new_pairs", "lost"),
    [
        (WORM, "2014-09-30", "2019-01-14", (6899, 1402), (8909, 1525), 2461, 451),
        (WORM, "2019-01-14", "2020-03-03", (8909, 1525), (9040, 1538), 196, 65),
        (WORM, "2014-09-30", "2020-03-03", (6899, 1402), (9040, 1538), 2607, 466),
        (ECOLI, "2020-03-03", "2022-11-12", (13096, 3351), (13724, 3388), 1795, 1167),
    ],
)
def test_pairs_as_the_readme_counts_them(home, config, old, new, t0, t1, new_pairs, lost):  # type: ignore[no-untyped-def]
    have = sequences(home, config["proteins"])
    before = experimental_pairs(home, config["annotation_source"], old, have)
    after = experimental_pairs(home, config["annotation_source"], new, have)
    assert (len(before), len({a for a, _ in before})) == t0
    assert (len(after), len({a for a, _ in after})) == t1
    assert (len(after - before), len(before - after)) == (new_pairs, lost)


def members(settings: Settings, config: dict[str, object]) -> dict[str, dict[str, int]]:
    """Per cut: proteins known at the old release, NK proteins, LK and PK pairs, of accessions with a sequence."""
    with open_catalog(settings) as catalog:
        resolved, inputs = exporting.resolve(parse({"name": "x", **config, **AS_README}), catalog, settings)
    shared = load_inputs(resolved, inputs)
    out = {}
    for cut in cuts(resolved, inputs):
        p = prepare(cut, shared)
        have = pc.is_in(p.accessions, value_set=shared.proteins["accession"].combine_chunks())
        has = have.to_numpy(zero_copy_only=False)
        t, known = p.truth, p.truth.known // len(shared.onto.ids)
        mine = has[t.protein]
        out[cut.pair] = {
            "known": len(np.unique(known[has[known]])),
            "nk": len(np.unique(t.protein[mine & (t.category == 0)])),
            "lk": int((mine & (t.category == 1)).sum()),
            "pk": int((mine & (t.category == 2)).sum()),
        }
    return out


def test_worm_members(home: Settings) -> None:
    found = members(home, WORM)
    first, second = found["v2014-09-30-v2019-01-14"], found["v2019-01-14-v2020-03-03"]
    assert (first["known"], first["nk"]) == (1402, 135)
    assert (second["known"], second["nk"], second["lk"]) == (1525, 13, 13)
    assert abs(first["lk"] - 164) <= 2
    assert first["pk"] <= 713
    assert second["pk"] <= 101


def test_yeast_members(home: Settings) -> None:
    found = members(home, YEAST)
    # the README's windows are 2010-2013, 2014-2015, 2016 and 2017, 2018 and 2019-2020: "first ever" proteins
    known = [found[pair]["known"] for pair in found]
    assert [known[0], *known[2:]] == [4846, 5197, 5262, 5401]  # it has no window that begins at the end of 2011
    nk = [found[pair]["nk"] for pair in found]
    assert [nk[0] + nk[1], nk[2], nk[3], nk[4]] == [351, 65, 132 + 7, 12 + 32]


def test_ecoli_members(home: Settings) -> None:
    found = members(home, ECOLI)["v2020-03-03-v2022-11-12"]
    assert (found["known"], found["nk"]) == (3351, 61)
    assert abs(found["lk"] - 281) <= 3
    assert found["pk"] <= 1035


@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("config", [WORM, YEAST, ECOLI], ids=["worm", "yeast", "ecoli"])
def test_export(home: Settings, config: dict[str, object], expand: bool) -> None:
    """Planned, made, and consistent with itself: counts, files and manifest."""
    name = f"{config['annotation_source']}-{'expanded' if expand else 'plain'}"
    settings = {"name": name, **config, "expand_votes_to_ancestors": expand, "use_embedding_pca": True}
    plan = planning.plan(settings=home, **settings)
    dataset = exporting.export(settings=home, **settings)
    m = dataset.manifest
    rows = {split: pq.read_metadata(dataset.file(split)).num_rows for split in ("train", "eval")}
    assert rows == {"train": m["n_train_rows"], "eval": m["n_eval_rows"]}
    assert abs(plan.expected_rows - sum(rows.values())) < 0.25 * sum(rows.values())
    cells = [
        n for by_category in m["counts"].values() for by_aspect in by_category.values() for n in by_aspect.values()
    ]
    total = Counter[str]()
    for cell in cells:
        total.update(cell)
        assert cell["positives"] == cell["reached"] <= cell["novel_terms"]
        assert cell["proteins"] + cell["without_candidate"] == cell["queried"] <= cell["members"]
    assert total["rows"] == sum(rows.values())
    truth, known = pq.read_table(dataset.file("truth")), pq.read_table(dataset.file("known"))
    assert total["novel_terms"] == len(truth)
    assert total["reached"] == pc.sum(truth["reached"]).as_py()
    assert len(known) > 1000
    positives = sum(
        pc.sum(pq.read_table(dataset.file(split), columns=["label"])["label"]).as_py() for split in ("train", "eval")
    )
    assert positives == total["positives"] > 100
    assert {f for f, s in m["families"].items() if s["status"] == "produced"} == {
        *("identity", "annotation_meta", "knn", "go_context", "length", "lineage", "emb_pca")
    }
    derived = [w for w in m["warnings"] if "cut by date" in w]
    assert len(derived) == {"goa": 0, "yeast": 5, "ecoli": 3}[str(config["annotation_source"])]
