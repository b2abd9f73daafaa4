"""Vectors of GO terms: both forms of NPZ and word2vec text; what is refused, and how."""

import gzip
import hashlib
import pickle
import zipfile

import numpy as np
import pyarrow.parquet as pq
import pytest

from protea.core import delimited
from protea.core.term_vectors import read_term_vectors
from protea.errors import InputError, NotFoundError

IDS = ["GO:0005515", "GO:0003674", "GO:0003677"]
MATRIX = np.array([[1.5, -2], [0, 3], [0.1, 1e-3]])
ORDER = [1, 2, 0]


def load(tmp_path, path, **options):
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    report = read_term_vectors(path, out, **options)
    ids, matrix = pq.read_table(out / "ids.parquet")["go"].to_pylist(), np.load(out / "matrix.npy")
    assert report.rows == report.malformed + sum(report.filtered.values()) + report.kept
    assert (report.kept, report.dim, report.dtype) == (*matrix.shape, str(matrix.dtype))
    return report, ids, matrix


def npz(tmp_path, **arrays):
    np.savez(tmp_path / "v.npz", **arrays)
    return tmp_path / "v.npz"


def text(tmp_path, content):
    (tmp_path / "v.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    return tmp_path / "v.txt"


LINES = "".join(f"{i} {a!r} {b!r}\n" for i, (a, b) in zip(IDS, MATRIX.tolist(), strict=True))


@pytest.mark.parametrize(
    "names", [("ids", "vectors"), ("go_ids", "embeddings"), ("terms", "x"), ("anything", "whatever")]
)
@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("text_kind", ["U10", "S10"])
def test_npz_with_ids_and_matrix(tmp_path, names, kind, text_kind):
    path = npz(tmp_path, **{names[0]: np.array(IDS, text_kind), names[1]: MATRIX.astype(kind)})
    report, ids, matrix = load(tmp_path, path)
    assert ids == [3674, 3677, 5515]
    stored = np.float64 if kind == np.float64 else np.float32
    assert matrix.dtype == stored
    assert np.array_equal(matrix, MATRIX.astype(kind)[ORDER].astype(stored))
    assert report.file_dtype == np.dtype(kind).name
    assert report.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_npz_with_a_vector_an_id(tmp_path):
    path = npz(tmp_path, **dict(zip(IDS, MATRIX, strict=True)))
    _, ids, matrix = load(tmp_path, path)
    assert ids == [3674, 3677, 5515]
    assert np.array_equal(matrix, MATRIX[ORDER])
    with pytest.raises(InputError, match=r"GO:0000001 has the shape \(3,\), GO:0005515 \(2,\)"):
        load(tmp_path, npz(tmp_path, **{IDS[0]: MATRIX[0], "GO:0000001": np.ones(3)}))


@pytest.mark.parametrize("dtype", [">f4", ">f8"])
def test_big_endian(tmp_path, dtype):
    _, _, matrix = load(tmp_path, npz(tmp_path, ids=np.array(IDS), vectors=MATRIX.astype(dtype)))
    assert matrix.dtype.isnative
    assert np.array_equal(matrix, MATRIX.astype(dtype)[ORDER])


def test_a_pickled_dict_of_arrays_is_read(tmp_path):
    """Anc2Vec's own archive: numpy.savez(embds={GO id: vector})."""
    vectors = {"GO:0000002": np.array([1, 2], np.float32), "GO:0000001": np.array([3, 4], np.float32)}
    for protocol in (2, 3, 4, 5):
        path = tmp_path / f"{protocol}.npz"
        with zipfile.ZipFile(path, "w") as archive, archive.open("embds.npy", "w") as f:
            np.lib.format.write_array_header_1_0(f, {"descr": "|O", "fortran_order": False, "shape": ()})
            pickle.dump(np.array(vectors, dtype=object), f, protocol=protocol)
        report = read_term_vectors(path, tmp_path)
        assert (report.rows, report.rejected) == (2, {})
        assert np.load(tmp_path / "matrix.npy").tolist() == [[3, 4], [1, 2]]
    np.savez(tmp_path / "own.npz", embds=np.array(vectors, dtype=object))
    assert read_term_vectors(tmp_path / "own.npz", None).rows == 2


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize(
    "what", [lambda p: Bomb(p), lambda p: {"GO:0000001": Bomb(p)}, lambda _: {"GO:0000001": 1}, lambda _: [1]]
)
def test_other_pickles_are_refused_with_advice(tmp_path, what):
    mark = tmp_path / "ran"
    held = np.empty((), dtype=object)
    held[()] = what(mark)
    np.savez(tmp_path / "x.npz", embds=held)
    with pytest.raises(InputError, match=r"pickled objects.*numpy\.savez\(NEW, ids=list\(d\)"):
        read_term_vectors(tmp_path / "x.npz", tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize("head", ["", "3 2\n"])
@pytest.mark.parametrize(
    "change", [str, lambda t: t.replace(" ", "\t"), lambda t: t.replace("\n", " \r\n"), lambda t: t[:-1]]
)
@pytest.mark.parametrize("size", [30, 1 << 20])
def test_word2vec(tmp_path, head, change, size):
    path = text(tmp_path, change(head + LINES))
    report, ids, matrix = load(tmp_path, path, block_size=size)
    assert ids == [3674, 3677, 5515]
    assert np.array_equal(matrix, MATRIX[ORDER])
    assert (report.format, report.rows, report.sha256) == ("word2vec", 3, hashlib.sha256(path.read_bytes()).hexdigest())


def test_word2vec_gzipped(tmp_path):
    report, _, matrix = load(tmp_path, text(tmp_path, gzip.compress(LINES.encode())))
    assert np.array_equal(matrix, MATRIX[ORDER])
    assert report.sha256 == hashlib.sha256(LINES.encode()).hexdigest()


def test_one_dimension_is_not_taken_for_a_header(tmp_path):
    _, ids, matrix = load(tmp_path, text(tmp_path, "GO:0000001 2\nGO:0000002 3\n"))
    assert (ids, matrix.tolist()) == ([1, 2], [[2], [3]])


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (LINES + "GO:0000001 1 2 3\n", "line 4: not 2 values"),
        (LINES + "GO:0000001 1\n", "line 4: not 2 values"),
        (LINES + "GO:0000001 1 x\n", "line 4: a value is no number"),
        (LINES + "GO:0000001 1 nan\n", "line 4: a value is not finite"),
        (LINES + "GO:0000001 inf 1\n", "line 4: a value is not finite"),
        (LINES + "GO:0000001 0 -0.0\n", "GO:0000001 are all zeros"),
        (LINES + "GO:0003674 0 4\n", "GO:0003674 are there twice and differ"),
        ("4 2\n" + LINES, "header says 4 vectors, the file has 3"),
        ("3 4\n" + LINES, "header says 4 values a vector, but the first one has 2"),
        ("", "no vectors"),
        ("3 2\n", "header says 2 values|no vectors"),
        (b"3 2\nGO:0000001 \x00\x01\x02", "not a text file"),
        (b"\x93NUMPY", "no GO ids"),
        (b"PK\x03\x04", "truncated or damaged"),
    ],
)
def test_refused(tmp_path, content, match):
    with pytest.raises(InputError, match=match):
        load(tmp_path, text(tmp_path, content))


@pytest.mark.parametrize(
    ("ids", "matrix", "match"),
    [
        (IDS, MATRIX * [[1], [0], [1]], "GO:0003674 are all zeros"),
        (IDS, MATRIX * [[1], [np.nan], [1]], "GO:0003674 hold NaN"),
        (["GO:0005515", "GO:0005515", "GO:0003677"], MATRIX, "GO:0005515 are there twice and differ"),
        (IDS[:2], MATRIX, "2 ids but 3 rows"),
        (IDS, MATRIX.astype(int), "int64 are not accepted"),
        (IDS, MATRIX[:, :, None], r"shape \(3, 2, 1\)"),
        ([], np.zeros((0, 2)), "no vectors"),
    ],
)
def test_npz_refused(tmp_path, ids, matrix, match):
    with pytest.raises(InputError, match=match):
        load(tmp_path, npz(tmp_path, ids=np.array(ids, "U10"), vectors=matrix))


def test_equal_vectors_of_one_id_count_once(tmp_path):
    report, ids, _ = load(tmp_path, text(tmp_path, LINES + LINES))
    assert (ids, report.filtered) == ([3674, 3677, 5515], {"repeated": 3})


@pytest.mark.parametrize("form", ["text", "npz", "named"])
def test_other_ids_are_counted(tmp_path, form):
    names = [*IDS, "</s>", "GO_0000001"]
    matrix = np.vstack([MATRIX, [0, 0], [np.nan, 1]])
    if form == "text":
        path = text(tmp_path, LINES + "</s> 0 0\nGO_0000001 nan 1\n")
    else:
        given = {"ids": np.array(names), "vectors": matrix}
        path = npz(
            tmp_path,
            **(given if form == "npz" else dict(zip(["a", *names[:3], "b"], matrix[[3, 0, 1, 2, 4]], strict=True))),
        )
    report, ids, _ = load(tmp_path, path)
    assert (ids, report.rejected, report.rows) == ([3674, 3677, 5515], {"go_id": 2}, 5)
    with pytest.raises(InputError, match="2 of 5 rows are malformed"):
        delimited.check_rejected(report)


def test_the_same_input_gives_the_same_bytes(tmp_path):
    path = npz(tmp_path, ids=np.array(IDS), vectors=MATRIX)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        read_term_vectors(path, tmp_path / name)
    for name in ("ids.parquet", "matrix.npy"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    with pytest.raises(NotFoundError):
        read_term_vectors(tmp_path / "none", None)
