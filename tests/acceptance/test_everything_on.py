"""Real exports with every family switched on: worm, yeast, and the two together.

The taxonomy excerpt and interpro2go are the public files. The protein to InterPro table is made of the InterPro entries
that the GAF files name in their column 8, with made-up signatures; term vectors and another predictor's scores are
random and seeded. A single species cannot make the taxonomy columns vary, and the export must say so; the two together
must produce every family.
"""

import gzip
import os
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protea import exporting, ingest
from protea.core import schema
from protea.settings import Settings

DATA = Path(os.environ.get("PROTEA_TEST_DATA") or Path(__file__).parents[3] / "shared" / "data")
pytestmark = pytest.mark.skipif(
    not (DATA / "goa_worm_2014-09-30.gaf.gz").is_file(),
    reason="the public test files are not here; PROTEA_TEST_DATA names their directory",
)
WORM, YEAST = DATA / "goa_worm_proteome_2020-03-03.gaf.gz", DATA / "goa_yeast_proteome_2020-03-03.gaf.gz"
DAYS = ["2009-12-31", "2013-12-31", "2017-12-31", "2020-03-02"]
SIGNATURES = ("PF{}", "PTHR{}", "SSF{}", "SM{}", "cd{}", "PS{}")


def lines(*files: Path) -> list[str]:
    return [line for file in files for line in gzip.open(file, "rt", encoding="utf-8").read().splitlines()]


def protein2ipr(gaf: list[str], path: Path) -> Path:
    """`accession, entry, name, signature, start, end` of every InterPro entry that a row's column 8 names."""
    found = set()
    for line in gaf:
        fields = line.split("\t")
        if not line.startswith("!") and len(fields) > 8:
            found |= {(fields[1], entry) for entry in re.findall(r"InterPro:(IPR\d{6})", fields[7])}
    rows = []
    for accession, entry in sorted(found):
        signature = SIGNATURES[int(entry[3:]) % 6].format(entry[4:])
        rows.append(f"{accession}\t{entry}\ta domain\t{signature}\t1\t50\n")
    path.write_text("".join(rows))
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    files = tmp_path_factory.mktemp("files")
    settings = Settings(home=tmp_path_factory.mktemp("everything"))
    ingest.load_ontology(settings, DATA / "go-basic_2021-12-15.obo.gz")
    fasta = {name: DATA / f"{name}.fasta.gz" for name in ("worm_swissprot_2014-01", "yeast_uniprot")}
    both = files / "both.fasta.gz"  # gzip members one after the other
    both.write_bytes(b"".join(f.read_bytes() for f in fasta.values()))
    ingest.load_proteins(settings, fasta["worm_swissprot_2014-01"], name="worm")
    ingest.load_proteins(settings, fasta["yeast_uniprot"], name="yeast")
    ingest.load_proteins(settings, both, name="both")

    import pyarrow.parquet as pq

    from protea.core.embeddings.store import VectorStore
    from protea.storage import ObjectStore

    vectors = {}
    for name, file in (("worm", "worm_unirep64.parquet"), ("yeast", "yeast_unirep64.h5")):
        row = ingest.load_embeddings(settings, DATA / file, name=name).row
        store = VectorStore.open(ObjectStore(settings.storage).path("embeddings", row.object_digest))
        vectors[name] = (np.array(store.ids.to_pylist()), np.array(store.matrix))
    ids, matrices = zip(*vectors.values(), strict=True)
    np.savez(files / "both.npz", ids=np.concatenate(ids), embeddings=np.concatenate(matrices))
    ingest.load_embeddings(settings, files / "both.npz", name="both")

    gaf = {"worm": WORM, "yeast": YEAST, "both": files / "both.gaf.gz"}
    gaf["both"].write_bytes(WORM.read_bytes() + YEAST.read_bytes())
    for name, file in gaf.items():
        ingest.load_annotations(settings, file, source=name, cut_dates=DAYS, proteins=name)

    dump = files / "taxdump"
    dump.mkdir()
    shutil.copy(DATA / "ncbi_taxonomy_nodes_excerpt_2013.dmp.gz", dump / "nodes.dmp.gz")
    shutil.copy(DATA / "ncbi_taxonomy_merged_2013.dmp.gz", dump / "merged.dmp.gz")
    ingest.load_taxonomy(settings, dump, name="ncbi")
    text = lines(WORM, YEAST)
    matches = protein2ipr(text, files / "protein2ipr.dat")
    ingest.load_interpro(settings, matches, interpro2go=DATA / "interpro2go_2022-10-05.gz", name="ipr")

    terms = sorted(set(re.findall(r"^id: (GO:\d{7})$", "\n".join(lines(DATA / "go-basic_2021-12-15.obo.gz")), re.M)))
    rng = np.random.default_rng(1)
    np.savez(files / "terms.npz", ids=np.array(terms), vectors=rng.normal(size=(len(terms), 32)).astype(np.float32))
    ingest.load_term_vectors(settings, files / "terms.npz", name="random")
    accessions = np.concatenate(ids).tolist()
    dice = random.Random(2)
    used = sorted({line.split("\t")[4] for line in text if not line.startswith("!")})
    scores = [f"{dice.choice(accessions)}\t{dice.choice(used)}\t{dice.random():.4f}\n" for _ in range(300_000)]
    (files / "scores.tsv").write_text("".join(scores))
    ingest.load_scores(settings, files / "scores.tsv", name="predictor")
    assert pq.read_table(ObjectStore(settings.storage).path("taxonomy", _only(settings, "taxonomy")) / "nodes.parquet")
    return settings


def _only(settings: Settings, kind: str) -> str:
    from protea.catalog import open_catalog

    with open_catalog(settings) as catalog:
        return catalog.find(kind, None).object_digest


def everything(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": f"{name}-everything",
        "annotation_source": name,
        "embedding_config": name,
        "proteins": name,
        "train_versions": DAYS[:-1],
        "test_versions": DAYS[-1:],
        "taxonomy": "ncbi",
        "term_vectors": "random",
        "interpro": "ipr",
        "external_scores": "predictor",
        "compute_alignments": True,
        "compute_taxonomy": True,
        "compute_self_prior": True,
        "compute_association": True,
        "interpro_candidates": True,
        "use_embedding_pca": True,
        **more,
    }


TAXONOMY = {"taxonomy_pair", "taxonomy_voters"}


@pytest.mark.parametrize(("name", "still"), [("worm", TAXONOMY), ("yeast", TAXONOMY), ("both", set())])
def test_everything_on(home: Settings, name: str, still: set[str]) -> None:
    dataset = exporting.export(settings=home, **everything(name))
    families = dataset.manifest["families"]
    assert set(families) == set(schema.FAMILIES)
    assert {f for f, s in families.items() if s["status"] == "absent"} == still
    for family in still:
        assert "always" in families[family]["reason"]
    table = dataset.train.to_table()
    assert set(table["knn_present"].to_pylist()) == {True, False}
    only_interpro = table.filter(~np.array(table["knn_present"]))
    assert only_interpro["ref_protein_accession"].null_count == len(only_interpro) > 0
    assert table["identity_nw"].null_count < len(table)
    for column in ("identity_nw", "similarity_sw", "gaps_pct_nw", "association_total"):
        values = table[column].drop_null().to_numpy()
        assert ((values >= 0) & (values <= 1)).all(), column


def test_a_second_export_with_another_k_reuses_alignments(home: Settings) -> None:
    """k = 3 needs a part of the pairs of k = 5: the columns agree, and the cache gives all of them."""
    aligned: list[dict[str, Any]] = []
    five = exporting.export(settings=home, **everything("worm")).train.to_table()
    settings = everything("worm") | {"name": "worm-k3", "k": 3}
    three = exporting.export(
        settings=home,
        report=lambda kind, **what: aligned.append(what) if kind == "cut.aligned" else None,
        **settings,
    ).train.to_table()
    assert len(aligned) == len(DAYS) - 1
    assert all(a["computed"] == 0 and a["from_cache"] == a["asked"] > 0 for a in aligned)
    keys = ["snapshot_pair", "protein_accession", "ref_protein_accession"]
    columns = [*keys, "alignment_score_nw", "identity_nw", "gaps_pct_sw", "alignment_length_sw"]

    def pairs(table: Any) -> dict[tuple[str, ...], tuple[float, ...]]:
        rows = table.select(columns).to_pylist()
        return {tuple(r[k] for k in keys[1:]): tuple(r[c] for c in columns[3:]) for r in rows if r[keys[2]]}

    old, new = pairs(five), pairs(three)
    assert new
    assert all(old[pair] == value for pair, value in new.items())
