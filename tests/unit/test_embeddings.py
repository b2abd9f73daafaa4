"""The vector store and its readers: what is accepted, what is refused and how it is said, and the bytes written."""

import json
import os
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from protea.core.embeddings import VectorStore, build_store, hdf5, inspect_embeddings, pca
from protea.core.embeddings import source as common
from protea.errors import ConfigError, InputError, NotFoundError, StorageError

IDS = ["Q9", "P10002", "A0A1", "P10001-2", "P10001"]
SORTED = sorted(IDS)


@pytest.fixture
def vectors() -> np.ndarray:
    return np.random.default_rng(5).standard_normal((5, 7)).astype(np.float32)


def build(path, out: Path, **options) -> VectorStore:
    out.mkdir()
    build_store(path, out, **options)
    return VectorStore.open(out)


def write_h5(path: Path, data: dict, **options) -> Path:
    with h5py.File(path, "w", **options) as f:
        for key, value in data.items():
            f[key] = value
    return path


def refused(path, *words: str, kind=InputError, **options) -> str:
    with pytest.raises(kind) as e:
        inspect_embeddings(path, **options)
    message = str(e.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


# --- one store, whatever the file ------------------------------------------------------------------------------------


def all_formats(tmp_path: Path, ids: list[str], m: np.ndarray):
    order = np.random.default_rng(1).permutation(len(ids))
    shuffled, rows = [ids[i] for i in order], m[order]
    yield write_h5(tmp_path / "a.h5", dict(zip(ids, m, strict=True))), {}
    yield write_h5(tmp_path / "b.h5", {"embeddings": rows, "ids": [f"sp|{i}|X" for i in shuffled]}), {}
    yield write_h5(tmp_path / "c.h5", {"x/accessions": np.array(shuffled, "S"), "x/m": rows.astype(">f4")}), {}
    np.savez(tmp_path / "d.npz", ids=shuffled, embeddings=rows)
    yield tmp_path / "d.npz", {}
    np.savez_compressed(tmp_path / "e.npz", names=np.array(shuffled, "S"), foo=np.asfortranarray(rows))
    yield tmp_path / "e.npz", {}
    np.save(tmp_path / "f.npy", np.asfortranarray(rows))
    (tmp_path / "f.txt").write_bytes("\r\n".join(["\ufeff" + shuffled[0], *shuffled[1:], "", ""]).encode())
    yield tmp_path / "f.npy", {"ids": tmp_path / "f.txt"}
    lists = pa.array(list(rows), pa.list_(pa.float32()))
    pq.write_table(pa.table({"n": [1] * len(ids), "accession": shuffled, "embedding": lists}), tmp_path / "g.parquet")
    yield tmp_path / "g.parquet", {}
    fixed = lists.cast(pa.list_(pa.float32(), m.shape[1]))
    names = pa.array(shuffled).dictionary_encode()
    pq.write_table(pa.table({"vec": fixed, "who": names}), tmp_path / "h.parquet", row_group_size=2)
    yield tmp_path / "h.parquet", {}
    wide = {"id": shuffled} | {f"d{j}": rows[:, j] for j in range(m.shape[1])}
    pq.write_table(pa.table(wide), tmp_path / "i.parquet")
    yield tmp_path / "i.parquet", {}


def test_every_format_gives_the_same_bytes(tmp_path, vectors, monkeypatch):
    seen = {}
    for path, options in all_formats(tmp_path, IDS, vectors):
        monkeypatch.setattr(common, "BLOCK_BYTES", 60 if path.name > "d" else 16 << 20)
        out = tmp_path / f"out_{path.name}"
        store = build(path, out, **options)
        assert store.ids.to_pylist() == SORTED
        assert store.matrix.dtype == np.float32
        np.testing.assert_array_equal(store.matrix, vectors[[IDS.index(i) for i in SORTED]])
        assert (
            inspect_embeddings(path, **options).to_json() | {"identity": store.identity}
            == build_store(path, out, **options).to_json()
        )
        seen[path.name] = tuple((p.name, p.read_bytes()) for p in sorted(out.iterdir()))
    assert len(set(seen.values())) == 1


def test_the_identity_covers_matrix_type_ids_and_pca(tmp_path, vectors):
    def identity(name, ids, m):
        np.savez(tmp_path / f"{name}.npz", ids=ids, embeddings=m)
        return build(tmp_path / f"{name}.npz", tmp_path / name).identity

    changed = vectors.copy()
    changed[2, 3] = np.nextafter(changed[2, 3], 9)
    half = vectors.astype(np.float16)
    all_of_them = [
        identity("a", IDS, vectors), identity("b", IDS, changed), identity("c", ["P1", *IDS[1:]], vectors),
        identity("d", IDS, half), identity("e", IDS, half.astype(np.float32)),
    ]  # fmt: skip
    assert len(set(all_of_them)) == 5


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_rows_come_out_by_accession_bytes(tmp_path_factory, data):
    ids = data.draw(st.lists(st.text("ABZaz09_-.é", min_size=1, max_size=6), min_size=1, max_size=30, unique=True))
    m = np.random.default_rng(len(ids)).standard_normal((len(ids), 3)).astype(np.float16)
    tmp = tmp_path_factory.mktemp("h")
    np.savez(tmp / "x.npz", ids=ids, embeddings=m)
    store = build(tmp / "x.npz", tmp / "out")
    assert store.ids.to_pylist() == sorted(ids, key=str.encode)
    assert store.rows(pa.array([*ids, "absent"])).tolist() == [store.ids.to_pylist().index(i) for i in ids] + [-1]
    np.testing.assert_array_equal(store.matrix[store.rows(pa.array(ids))], m)


# --- HDF5 ------------------------------------------------------------------------------------------------------------


def test_hdf5_keys_name_accessions(tmp_path):
    keys = {
        "sp|P10001|ONE_HUMAN Protein OS=Homo": "P10001", "UP000/P10002": "P10002", "a/b/tr|A0A1|X": "A0A1",
        "sp|P10003|X 50S/30S ribosomal": "P10003", "P10004 some words": "P10004", "sp|P10005-2": "P10005-2",
    }  # fmt: skip
    path = write_h5(tmp_path / "x.h5", {key: np.ones(4, np.float16) for key in keys})
    assert inspect_embeddings(path).accessions.to_pylist() == sorted(keys.values())


@pytest.mark.parametrize("options", [{}, {"libver": "latest"}, {"userblock_size": 1024}, {"track_order": True}])
def test_hdf5_layouts(tmp_path, options):
    """Contiguous, chunked, compressed, compact, big-endian and (1, d) datasets, in every kind of file."""
    m = np.random.default_rng(3).standard_normal((9, 6)).astype(np.float32)
    with h5py.File(tmp_path / "x.h5", "w", **options) as f:
        for i in range(3):
            f[f"P{i}"] = m[i]
        f.create_dataset("P3", data=m[3], chunks=(2,))
        f.create_dataset("P4", data=m[4], chunks=(6,), compression="gzip", shuffle=True)
        made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        made.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((6,))
        h5py.h5d.create(f.id, b"P5", h5py.h5t.IEEE_F32LE, space, made).write(h5py.h5s.ALL, h5py.h5s.ALL, m[5])
        f["P6"] = m[6].astype(">f4").astype("<f4")
        f["P7"] = m[7:8]
        f["P8"] = m[8]
        f["P8"].attrs["note"] = "another header"
        f["group/P8-2"] = f["P8"]  # a hard link: one dataset, two accessions
        f["group/again"] = f["/"]  # a ring
    store = build(tmp_path / "x.h5", tmp_path / "out")
    assert store.ids.to_pylist() == [*(f"P{i}" for i in range(9)), "P8-2"]
    np.testing.assert_array_equal(store.matrix, m[[*range(9), 8]])


def test_hdf5_headers_are_compared_not_guessed(tmp_path, monkeypatch):
    """The fast path must give what HDF5 gives, with values at addresses that look like other fields."""
    rng = np.random.default_rng(0)
    data = {f"P{i:04d}": rng.standard_normal(1024).astype(np.float16) for i in range(300)}
    path = write_h5(tmp_path / "x.h5", data)
    opened = []
    real = hdf5.h5o.open
    monkeypatch.setattr(hdf5.h5o, "open", lambda *a, **k: opened.append(a[1]) or real(*a, **k))
    store = build(path, tmp_path / "out")
    assert set(opened) == {b"P0000"}
    for i, key in enumerate(store.ids.to_pylist()):
        np.testing.assert_array_equal(store.matrix[i], data[key])


def test_hdf5_big_endian_is_stored_native(tmp_path, vectors):
    store = build(write_h5(tmp_path / "x.h5", dict(zip(IDS, vectors.astype(">f4"), strict=True))), tmp_path / "out")
    assert store.matrix.dtype.isnative
    np.testing.assert_array_equal(store.matrix[store.rows(pa.array(IDS))], vectors)


def test_hdf5_links_are_skipped_and_counted(tmp_path):
    write_h5(tmp_path / "other.h5", {"P2": np.ones(4, np.float32)})
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f["P1"] = np.ones(4, np.float32)
        f["P2"] = h5py.ExternalLink("other.h5", "P2")
        f["P3"] = h5py.SoftLink("/P1")
        f["P4"] = h5py.SoftLink("/nowhere")
    report = inspect_embeddings(tmp_path / "x.h5")
    assert (report.accessions.to_pylist(), report.links_skipped) == (["P1"], 3)
    with h5py.File(tmp_path / "y.h5", "w") as f:
        f["P2"] = h5py.ExternalLink("other.h5", "P2")
    refused(tmp_path / "y.h5", "no vectors", "1 links")


def test_hdf5_values_in_other_files_are_refused(tmp_path):
    (tmp_path / "secret").write_bytes(b"\x3c" * 64)
    write_h5(tmp_path / "other.h5", {"m": np.ones((2, 4), np.float32)})
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f.create_dataset("P1", (4,), np.float32, external=[(str(tmp_path / "secret"), 0, 64)])
    refused(tmp_path / "x.h5", "P1", "another file")
    layout = h5py.VirtualLayout((2, 4), np.float32)
    layout[:] = h5py.VirtualSource(tmp_path / "other.h5", "m", (2, 4))
    with h5py.File(tmp_path / "y.h5", "w") as f:
        f.create_virtual_dataset("embeddings", layout)
        f["ids"] = ["P1", "P2"]
    refused(tmp_path / "y.h5", "embeddings", "another file")


def test_hdf5_file_that_the_caller_has_open(tmp_path):
    path = write_h5(tmp_path / "x.h5", {"P1": np.ones(4, np.float32)})
    with h5py.File(path):
        assert inspect_embeddings(path).vectors == 1


def test_hdf5_original_ids(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as f:
        for i, name in enumerate(["sp|P10001|X", "P10002"]):
            f[str(i)] = np.full(3, i + 1, np.float32)
            f[str(i)].attrs["original_id"] = name
        f["2"] = np.ones(3, np.float32)
    refused(tmp_path / "x.h5", "original_id", "2 of 3")
    with h5py.File(tmp_path / "x.h5", "a") as f:
        del f["2"]
    assert inspect_embeddings(tmp_path / "x.h5").accessions.to_pylist() == ["P10001", "P10002"]


def test_per_residue_matrices(tmp_path):
    rng = np.random.default_rng(2)
    data = {f"P{i}": rng.standard_normal((length, 5)).astype(np.float16) for i, length in enumerate([40, 1, 33])}
    path = write_h5(tmp_path / "x.h5", data)
    refused(path, "P0", "per-residue", "--pool mean")
    report = inspect_embeddings(path, pool="mean")
    assert (report.dtype, report.pooled) == ("float16", 2)
    store = build(path, tmp_path / "out", pool="mean")
    want = np.stack([np.float16(m.astype(np.float64).mean(axis=0)) for m in data.values()])
    np.testing.assert_array_equal(store.matrix, want)
    refused(write_h5(tmp_path / "e.h5", {"P1": np.ones((0, 5), np.float16)}), "P1", pool="mean")
    refused(path, "median", kind=ConfigError, pool="median")
    np.save(tmp_path / "x.npy", np.ones((2, 9, 5), np.float16))
    (tmp_path / "ids").write_text("P1\nP2\n")
    refused(tmp_path / "x.npy", "per-residue", ids=tmp_path / "ids")


def test_hdf5_refusals(tmp_path):
    one = np.ones(4, np.float32)
    refused(write_h5(tmp_path / "a.h5", {"P1": one, "P2": np.ones(5, np.float32)}), "P2 has 5", "P1 has 4")
    refused(write_h5(tmp_path / "b.h5", {"P1": one, "P2": one.astype(np.float16)}), "P2", "float16", "float32")
    refused(write_h5(tmp_path / "c.h5", {"P1": one.astype(np.int8)}), "P1", "int8", "not accepted")
    refused(write_h5(tmp_path / "d.h5", {"P1": np.float32(1)}), "P1")
    refused(write_h5(tmp_path / "e.h5", {"P1": h5py.Empty("f4")}), "P1")
    refused(write_h5(tmp_path / "f.h5", {}), "no vectors")
    refused(write_h5(tmp_path / "g.h5", {"a/P1": one, "b/P1": one}), "P1", "more than one vector")
    refused(write_h5(tmp_path / "h.h5", {"embeddings": np.ones((3, 4)), "ids": ["P1", "P2"]}), "(2,)", "(3, 4)")
    refused(write_h5(tmp_path / "i.h5", {"embeddings": np.ones((1, 4)), "ids": [b"\xff\xfe"]}), "UTF-8")
    refused(write_h5(tmp_path / "k.h5", {"embeddings": np.ones((1, 4)), "ids": [" "]}), "id 1 of 1 is empty")
    good = write_h5(tmp_path / "j.h5", {f"P{i}": one for i in range(50)}).read_bytes()
    for size in (100, 900, len(good) // 2, len(good) - 8):
        (tmp_path / "j.h5").write_bytes(good[:size])
        refused(tmp_path / "j.h5", "truncated")


# --- NPZ, NPY, Parquet -----------------------------------------------------------------------------------------------


def test_npz_refusals(tmp_path, vectors):
    def npz(**arrays):
        np.savez(tmp_path / "x.npz", **arrays)
        return tmp_path / "x.npz"

    refused(npz(ids=np.array(IDS, object), embeddings=vectors), "pickled", "dtype=str")
    refused(npz(ids=IDS, embeddings=vectors[:4]), "5 ids", "4 rows")
    refused(npz(ids=IDS), "embeddings", "none")
    refused(npz(embeddings=vectors), "ids", "none")
    refused(npz(ids=IDS, a=vectors, b=vectors), "a, b")
    refused(npz(ids=IDS, embeddings=vectors.astype(np.int32)), "int32")
    refused(npz(ids=IDS, embeddings=np.ones((5, 9, 2))), "per-residue")
    refused(npz(ids=["P1", "P2", "P1"], embeddings=np.ones((3, 2))), "P1", "more than one")
    refused(npz(ids=np.zeros(0, "U3"), embeddings=np.ones((0, 2))), "no vectors")
    good = npz(ids=IDS, labels=["a"] * 5, embeddings=vectors, other=vectors)
    assert inspect_embeddings(good).vectors == 5
    data = good.read_bytes()
    for size in (30, len(data) // 2, len(data) - 5):
        good.write_bytes(data[:size])
        refused(good, "x.npz")
    broken = bytearray(data)
    broken[data.index(vectors[2].tobytes())] ^= 1
    good.write_bytes(broken)
    refused(good, "damaged")


def test_npy_refusals(tmp_path, vectors):
    np.save(tmp_path / "x.npy", vectors)
    ids = tmp_path / "ids.txt"
    refused(tmp_path / "x.npy", "--ids")
    refused(tmp_path / "x.npy", "ids.txt", kind=NotFoundError, ids=ids)
    ids.write_text("\n".join(IDS[:4]))
    refused(tmp_path / "x.npy", "4 ids", "5 vectors", ids=ids)
    ids.write_text("P1\n\nP2\nP3\nP4\n")
    refused(tmp_path / "x.npy", "ids.txt", "id 2", ids=ids)
    np.save(tmp_path / "o.npy", np.array([{}, 1], object), allow_pickle=True)
    refused(tmp_path / "o.npy", "o.npy", ids=ids)
    np.savez(tmp_path / "x.npz", ids=IDS, embeddings=vectors)
    refused(tmp_path / "x.npz", "--ids", kind=ConfigError, ids=ids)
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-3])
    refused(tmp_path / "x.npy", "truncated", ids=ids)


def test_parquet_refusals(tmp_path, vectors):
    def parquet(**columns):
        pq.write_table(pa.table(columns), tmp_path / "x.parquet")
        return tmp_path / "x.parquet"

    f32 = pa.list_(pa.float32())
    refused(parquet(accession=["P1", "P2"], embedding=pa.array([[1.0, 2], [1]], f32)), "P2 has 1", "has 2")
    refused(parquet(accession=["P1", "P2"], embedding=pa.array([[1.0, 2], None], f32)), "P2", "null")
    refused(parquet(accession=["P1", "P2"], embedding=pa.array([[1.0, 2], [None, 3]], f32)), "P2", "null")
    refused(parquet(accession=["P1", None], embedding=pa.array([[1.0], [1.0]], f32)), "accession")
    refused(parquet(accession=["P1"], embedding=pa.array([[1, 2]])), "int64")
    refused(parquet(accession=["P1"], embedding=pa.array([[[1.0]]], pa.list_(f32))), "per-residue")
    refused(parquet(accession=["P1"], a=[1.0], length=[7]), "length", "int64")
    refused(parquet(accession=["P1"]), "no column of vectors")
    twice = pa.table([pa.array(["P1"]), pa.array([1.0]), pa.array([2.0])], names=["accession", "v1", "v1"])
    pq.write_table(twice, tmp_path / "x.parquet")
    refused(tmp_path / "x.parquet", "more than one column is called 'v1'")
    refused(parquet(embedding=pa.array([[1.0]], f32)), "accessions", "none")
    refused(parquet(accession=pa.array([], pa.string()), embedding=pa.array([], f32)), "no vectors")
    half = pa.array([np.float16(1), np.float16(2)], pa.float16())
    assert inspect_embeddings(parquet(accession=["P1", "P2"], a=half, b=half)).dtype == "float16"
    path = parquet(accession=[b"P1"], embedding=pa.array([[1.0]], f32))
    assert inspect_embeddings(path).accessions.to_pylist() == ["P1"]
    refused(parquet(accession=[b"\xff"], embedding=pa.array([[1.0]], f32)), "UTF-8")
    path.write_bytes(path.read_bytes()[:-9])
    refused(path, "x.parquet", "Parquet")


def test_other_files(tmp_path):
    (tmp_path / "x.h5").write_text("<html>" + "no " * 3000)
    refused(tmp_path / "x.h5", "not an HDF5")
    (tmp_path / "x.h5").write_bytes(b"")
    refused(tmp_path / "x.h5", "not an HDF5")
    (tmp_path / "x.h5").write_bytes(b"\x1f\x8b rest")
    refused(tmp_path / "x.h5", "gunzip")
    refused(tmp_path / "absent.h5", "absent.h5", kind=NotFoundError)
    refused(tmp_path, "directory")


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_nan_infinite_and_zero_vectors_are_all_named(tmp_path, dtype):
    m = np.ones((6, 40), dtype)
    m[1, 39], m[2, 7], m[3, 0], m[4] = np.nan, np.inf, -np.inf, -0.0
    m[5, 1:] = 0
    np.savez(tmp_path / "x.npz", ids=[f"P{i}" for i in range(6)], embeddings=m)
    message = refused(tmp_path / "x.npz", "P1 (NaN), P2 (infinite), P3 (infinite), P4 (zero);")
    assert "P0" not in message
    assert "P5" not in message


def test_float64_is_narrowed_said_and_checked_as_stored(tmp_path):
    m = np.random.default_rng(1).standard_normal((3, 4))
    np.savez(tmp_path / "x.npz", ids=["P1", "P2", "P3"], embeddings=m)
    store = build(tmp_path / "x.npz", tmp_path / "out")
    np.testing.assert_array_equal(store.matrix, m.astype(np.float32))
    report = inspect_embeddings(tmp_path / "x.npz").to_json()
    assert (report["dtype"], report["file_dtype"], report["narrowed"]) == ("float32", "float64", True)
    m[0, 0], m[2] = 1e39, 1e-60
    np.savez(tmp_path / "x.npz", ids=["P1", "P2", "P3"], embeddings=m)
    refused(tmp_path / "x.npz", "float32", "P1 (infinite), P3 (zero)")


def test_a_long_list_of_bad_vectors_is_capped(tmp_path):
    ids = [f"P{i:03d}" for i in range(100)]
    np.savez(tmp_path / "x.npz", ids=ids[::-1], embeddings=np.zeros((100, 2), np.float32))
    message = refused(tmp_path / "x.npz", "P000 (zero)", "P019 (zero) and 80 more")
    assert "P020" not in message


def test_smallest_and_largest_values_are_kept(tmp_path):
    for dtype in (np.float16, np.float32):
        info = np.finfo(dtype)
        m = np.array([[info.smallest_subnormal, 0], [info.max, info.min]], dtype)
        np.savez(tmp_path / "x.npz", ids=["P1", "P2"], embeddings=m)
        np.testing.assert_array_equal(build(tmp_path / "x.npz", tmp_path / dtype.__name__).matrix, m)


# --- PCA -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "d"), [(200, 40), (200, 5), (9, 40), (2, 3), (1, 3), (17, 17), (60, 1)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_pca_agrees_with_an_svd(tmp_path, n, d, dtype, monkeypatch):
    monkeypatch.setattr(pca, "BLOCK_VALUES", 37 * d)
    m = (np.random.default_rng(n).standard_normal((n, d)) * np.linspace(3, 1, d) + 10).astype(dtype)
    np.savez(tmp_path / "x.npz", ids=[f"P{i:03d}" for i in range(n)], embeddings=m)
    store = build(tmp_path / "x.npz", tmp_path / "out")
    exact = m.astype(np.float64)
    centred = exact - exact.mean(axis=0)
    _, _, rows = np.linalg.svd(centred, full_matrices=False)
    c = min(16, d, n - 1)
    want = rows[:c]
    for row in want:
        row *= np.sign(row[np.abs(row).argmax()])
    np.testing.assert_allclose(store.pca_mean, exact.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(store.pca_components, want, atol=1e-9)
    np.testing.assert_allclose(store.project(np.arange(n)), centred @ want.T, atol=1e-8)


def test_pca_sign_takes_the_first_of_equal_magnitudes():
    m = np.array([[1.0, -1.0], [-1.0, 1.0], [3.0, -3.0]], np.float32)
    _, components = pca.fit(m)
    half = np.sqrt(0.5)
    np.testing.assert_allclose(components, [[half, -half], [0, 0]], atol=1e-15)


def test_pca_of_directions_without_variance():
    rng = np.random.default_rng(0)
    m = np.full((50, 30), 3.3, np.float32)
    m[:, [4, 9, 20]] = rng.standard_normal((50, 3))
    mean, components = pca.fit(m)
    assert components.shape == (16, 30)
    np.testing.assert_allclose(np.linalg.norm(components, axis=1), [1] * 3 + [0] * 13, atol=1e-12)
    assert np.isfinite(mean).all()
    assert not pca.project(m, mean, components)[:, 3:].any()
    same = np.full((5, 4), 0.1, np.float32)
    mean, components = pca.fit(same)
    assert not pca.project(same, mean, components).any()


def test_pca_does_not_depend_on_threads_or_on_other_rows():
    m = np.random.default_rng(0).standard_normal((3000, 96)).astype(np.float32)
    m[:, 1] = m[:, 0]
    results = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            results.append(b"".join(a.tobytes() for a in pca.fit(m)))
    assert results[0] == results[1]
    mean, components = pca.fit(m)
    values = pca.project(m, mean, components)
    np.testing.assert_array_equal(pca.project(m[100:101], mean, components), values[100:101])


# --- the store -------------------------------------------------------------------------------------------------------


def test_open_refuses_a_damaged_store(tmp_path, vectors):
    np.savez(tmp_path / "x.npz", ids=IDS, embeddings=vectors)
    out = tmp_path / "out"
    build(tmp_path / "x.npz", out)
    good = {p.name: p.read_bytes() for p in out.iterdir()}

    def damaged(name: str, data: bytes | None) -> None:
        (out / name).unlink()
        if data is not None:
            (out / name).write_bytes(data)
        with pytest.raises(StorageError, match="load it again"):
            VectorStore.open(out)
        (out / name).write_bytes(good[name])

    for name, data in good.items():
        damaged(name, None)
        damaged(name, b"")
        damaged(name, data[: len(data) // 2])
    np.save(tmp_path / "other.npy", np.ones((5, 8), np.float32))
    damaged("matrix.npy", (tmp_path / "other.npy").read_bytes())
    damaged("store.json", json.dumps(json.loads(good["store.json"]) | {"vectors": 4}).encode())
    damaged("store.json", json.dumps(json.loads(good["store.json"]) | {"format": 2}).encode())
    assert len(VectorStore.open(out)) == 5


def test_the_matrix_is_a_read_only_memory_map(tmp_path, vectors):
    np.savez(tmp_path / "x.npz", ids=IDS, embeddings=vectors)
    store = build(tmp_path / "x.npz", tmp_path / "out")
    assert isinstance(store.matrix, np.memmap)
    assert not store.matrix.flags.writeable
    assert store.dim == 7


def test_a_full_disk_is_an_error_not_a_crash(tmp_path, vectors, monkeypatch):
    np.savez(tmp_path / "x.npz", ids=IDS, embeddings=vectors)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(StorageError, match="No space left"):
        build(tmp_path / "x.npz", tmp_path / "out")


def test_progress_counts_bytes(tmp_path, vectors, monkeypatch):
    monkeypatch.setattr(common, "BLOCK_BYTES", 60)
    np.savez(tmp_path / "x.npz", ids=IDS, embeddings=vectors)
    seen: list[int] = []
    inspect_embeddings(tmp_path / "x.npz", progress=seen.append)
    assert seen == [56, 112, 140]
