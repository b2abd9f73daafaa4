"""Files and names made to do harm: one line, little memory, nothing outside the home, nothing run.

What takes memory is read by the real program in a child process, whose peak is measured.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import resource
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from isal import igzip

import protea
from protea import ingest
from protea.catalog import open_catalog
from protea.core import limits, obo, scores, term_vectors
from protea.core.config import read_toml
from protea.core.embeddings import inspect_embeddings
from protea.core.proteins import read_fasta
from protea.core.taxonomy import read_taxdump
from protea.errors import InputError, UserError
from protea.settings import Settings
from worlds import gaf_row, obo_text, random_world

MEMORY = 600 << 20
"""Bytes that a process may take in all: some 200 MB are Python's libraries."""
ROW = "\t".join(gaf_row("P12345", "GO:0005515", "IDA")) + "\n"


MEASURE = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-m", "protea", *sys.argv[1:]])
_, status, used = os.wait4(child.pid, 0)
print("", used.ru_maxrss, sep="\\n", file=sys.stderr)
os._exit(os.waitstatus_to_exitcode(status))
"""
"""Between the test and the program, because the peak of a process begins with the memory of whoever starts it."""


def run(*args: str | os.PathLike[str]) -> tuple[int, str, str, int]:
    """Exit status, output, errors and peak memory of the program."""
    done = subprocess.run([sys.executable, "-c", MEASURE, *args], capture_output=True, text=True)
    err, _, peak = done.stderr.rstrip().rpartition("\n")
    return done.returncode, done.stdout, err, int(peak) << 10


def refused(*args: str | os.PathLike[str], says: str) -> None:
    """One line and exit status 2, within MEMORY."""
    code, out, err, peak = run(*args)
    assert (code, out) == (2, ""), err
    lines = [line for line in err.splitlines() if line.startswith("protea: error: ")]
    assert len(lines) == 1, err
    assert "Traceback" not in err
    assert says in lines[0]
    assert len(lines[0]) < 1000
    assert peak < MEMORY, f"{peak >> 20} MB"


def one_line(do: Callable[[], Any]) -> str | None:
    """What `do` says is the user's mistake, None when it works; nothing else may happen."""
    try:
        do()
    except UserError as e:
        said = str(e)
    else:
        return None
    assert "\n" not in said
    return said


def gz(path: Path, parts: Iterable[bytes]) -> Path:
    with igzip.open(path, "wb", compresslevel=1) as f:
        for part in parts:
            f.write(part)
    return path


# --------------------------------------------------------------------------------------------------------------- text


def test_a_line_of_200_megabytes(tmp_path: Path) -> None:
    """In a file of one megabyte, after good rows."""
    path = gz(tmp_path / "a.gaf.gz", [b"!gaf-version: 2.2\n", ROW.encode() * 3, *[b"x" * (1 << 20)] * 200, b"\n"])
    assert path.stat().st_size < 4 << 20
    refused("inspect", "annotations", path, says="line 5: longer than 67108864 bytes")
    refused("inspect", "annotations", path, "--allow-large", says="line 5: longer than")


def test_a_gzip_bomb_of_good_rows(tmp_path: Path) -> None:
    """A gigabyte in five megabytes: not read to its end, unless asked for. Nothing of it stays."""
    member = gzip.compress(ROW.encode() * (16 << 20 >> 7), 9, mtime=0)
    path = tmp_path / "a.gaf.gz"
    path.write_bytes(member * (4 + (1 << 30) // (len(ROW) * (16 << 20 >> 7))))
    refused(
        "inspect",
        "annotations",
        path,
        says="over 200 times as many (if it is meant to be like that, give --all",
    )
    code, out, err, peak = run("inspect", "annotations", path, "--allow-large", "--json")
    assert (code, json.loads(out)["kept"] > 10_000_000, peak < MEMORY) == (0, True, True), err


def test_ten_million_synonyms_of_one_term(tmp_path: Path) -> None:
    world = random_world(1, size=6)
    head, rest = obo_text(world.terms).split("\nnamespace:", 1)
    line = b'synonym: "another name of the same thing" EXACT []\n' * 100_000
    path = gz(tmp_path / "go.obo.gz", [f"{head}\n".encode(), *[line] * 100, f"namespace:{rest}".encode()])
    code, out, err, peak = run("inspect", "ontology", path, "--allow-large", "--json")
    assert (code, peak < MEMORY) == (0, True), (err, peak >> 20)
    assert json.loads(out)["terms"] == sum(not t.obsolete for t in world.terms if t.id.startswith("GO:"))


def test_more_text_that_could_take_memory_or_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"[Term]\nid: GO:0000001\n" + b"alt_id: GO:0000002\n" * (obo.MAX_LINES + 1))
    with pytest.raises(InputError, match=r"line 1: a stanza with over 1,000,000 lines"):
        obo.parse_obo(path)
    # each of these would take the old pattern, which was quadratic, hours
    for name in (" " * 1_000_000 + "x !", ' {a="' * 200_000, "a" + " {" * 500_000 + "!"):
        path.write_text(f"[Term]\nid: GO:0000001\nnamespace: biological_process\nname: {name}\n")
        assert obo.parse_obo(path).terms[1].name
    path.write_bytes(b">P1\n" + b"ACDEFGHIK\n" * (limits.MAX_RECORD // 10 + 10 * (1 << 20)))
    with pytest.raises(InputError, match="line 1: a record longer than 67,108,864 bytes"):
        read_fasta(path)


# ---------------------------------------------------------------------------------------------------------- embeddings


def npz(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return path


def npy(array: np.ndarray, shape: tuple[int, ...] | None = None) -> bytes:
    """An .npy file, whose header may promise another shape."""
    out = io.BytesIO()
    head = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": shape or array.shape}
    np.lib.format.write_array_header_1_0(out, head)
    return out.getvalue() + array.tobytes()


class Harm:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.place),)


def test_npz(tmp_path: Path) -> None:
    path, ids, matrix = tmp_path / "v.npz", np.array(["P1", "P2"]), np.ones((2, 3), np.float32)
    for shape in ((10**12,), (2**63,), (3,), (1,), (2, 10**15)):
        for wrong in (
            {"ids": npy(ids, shape), "embeddings": npy(matrix)},
            {"ids": npy(ids), "embeddings": npy(matrix, shape)},
        ):
            with pytest.raises(InputError):
                inspect_embeddings(npz(path, **wrong))
    long = b"\x93NUMPY\x02\x00" + struct.pack("<I", 0xFFFFFFFF)
    with pytest.raises(InputError, match="a header of 4,294,967,295 bytes"):
        inspect_embeddings(npz(path, ids=npy(ids), embeddings=long))
    np.savez(path, ids=np.array([Harm(tmp_path / "harm")], object), embeddings=matrix[:1])
    with pytest.raises(InputError, match="pickled object array"):
        inspect_embeddings(path)
    with pytest.raises(InputError, match=r"pickled objects that are not loaded: it would use posix\.mkdir"):
        term_vectors.read_term_vectors(path, None)
    assert not (tmp_path / "harm").exists()


def test_an_npz_bomb(tmp_path: Path) -> None:
    path = tmp_path / "v.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("embeddings.npy", npy(np.ones((1, 3), np.float32)))
        with archive.open("ids.npy", "w", force_zip64=True) as member:
            member.write(npy(np.empty(0, "U1024"), (1 << 19,)))
            for _ in range(128):
                member.write(bytes(16 << 20))
    refused("inspect", "embeddings", path, says="give --allow-large")


def test_pickled_types_reach_nothing(tmp_path: Path) -> None:
    """A dtype's pickled state can declare that raw bytes are object pointers; ours looks at the byte order alone."""
    evil = pickle.dumps(np.zeros(1, "f8"), 2).replace(b"f8", b"O8")
    held = b"\x80\x02}X\x0a\x00\x00\x00GO:0000001" + evil[2:-1] + b"s."
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|O", "fortran_order": False, "shape": ()})
    with pytest.raises(InputError, match="pickled objects that are not loaded"):
        term_vectors.read_term_vectors(npz(tmp_path / "t.npz", data=head.getvalue() + held), None)


def test_hdf5_keeps_to_itself(tmp_path: Path) -> None:
    """Links to other files, external storage, virtual datasets; and shapes without any data."""
    other, path = tmp_path / "other.h5", tmp_path / "v.h5"
    with h5py.File(other, "w") as f:
        f["secret"] = np.ones(3, np.float32)
    (tmp_path / "raw").write_bytes(bytes(12))

    def made(what: Any) -> Path:
        path.unlink(missing_ok=True)
        with h5py.File(path, "w") as f:
            what(f)
        return path

    def linked(f: h5py.File) -> None:
        f["P1"] = np.ones(3, np.float32)
        f["P2"] = h5py.ExternalLink(str(other), "/secret")
        f["g/P3"] = h5py.ExternalLink(str(other), "/")

    report = inspect_embeddings(made(linked))
    assert (report.accessions.to_pylist(), report.links_skipped) == (["P1"], 2)
    layout = h5py.VirtualLayout((3,), np.float32)
    layout[:] = h5py.VirtualSource(str(other), "secret", (3,))
    for what in (
        lambda f: f.create_dataset("P1", (3,), np.float32, external=[(str(tmp_path / "raw"), 0, 12)]),
        lambda f: f.create_virtual_dataset("P1", layout),
    ):
        with pytest.raises(InputError, match="keeps its values in another file"):
            inspect_embeddings(made(what))
    for shape, says in (((10**9, 1024), "too large for a matrix"), ((1 << 21,), "2,097,152 values")):
        chunks = tuple(min(n, 1024) for n in shape)
        with pytest.raises(InputError, match=says):
            inspect_embeddings(
                made(lambda f, s=shape, c=chunks: f.create_dataset("P1", s, "f4", chunks=c)), pool="mean"
            )

    def two(f: h5py.File) -> None:
        f.create_dataset("ids", (10**10,), "S10", chunks=(1024,))
        f.create_dataset("embeddings", (10**10, 4), np.float32, chunks=(1024, 4))

    with pytest.raises(InputError, match="--allow-large"):
        inspect_embeddings(made(two))


# ------------------------------------------------------------------------------------------------------------- Parquet


def test_a_parquet_file_that_lies(tmp_path: Path) -> None:
    """The length of its footer, and numbers of the footer and of the pages' headers; `bench/fuzz.py` tries thousands."""
    path, out = tmp_path / "v.parquet", tmp_path / "lie.parquet"
    values = pa.array([[float(i), 1.0] for i in range(50)], pa.list_(pa.float32()))
    pq.write_table(pa.table({"accession": [f"P{i % 10:05}" for i in range(50)], "embedding": values}), path)
    data = path.read_bytes()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    length = int.from_bytes(data[-8:-4], "little")
    for lie in (0, 1, length - 1, length + 1, len(data), 0x7FFFFFFF, 0xFFFFFFFF):
        out.write_bytes(data[:-8] + struct.pack("<I", lie) + data[-4:])
        with pytest.raises(InputError):
            inspect_embeddings(out)
    # Thrift writes numbers as bytes with a continuation bit: ten of them make a huge one of whatever it was.
    reads = 0
    for at in [*range(6, 40, 4), *range(len(data) - 8 - length, len(data) - 8, 1 + length // 12)]:
        lie = b"\xfe\xff\xff\xff\x0f"
        out.write_bytes(data[:at] + lie + data[at + len(lie) :])
        reads += one_line(lambda: inspect_embeddings(out)) is None
    assert reads < 10
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < 300 << 20


def test_dictionary_indices_out_of_range(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    table = pa.table({"accession": ["P1", "P2"] * 50, "go_id": ["GO:0005515"] * 100, "score": [0.5] * 100})
    pq.write_table(table, path, compression="none", use_dictionary=["accession", "go_id"], write_statistics=False)
    data = bytearray(path.read_bytes())
    at = data.index(b"\x02\x00\x00\x00P1\x02\x00\x00\x00P2")
    page = data.index(b"\xaa", at)  # the indices 0 1 0 1 ... in packed bits: 0xaa
    data[page - 2 : page] = b"\x05\x1b"  # five bits an index
    data[page : page + 8] = b"\xff" * 8
    path.write_bytes(data)
    with pytest.raises(InputError, match="truncated or damaged"):
        scores.read_scores(path, None)


def test_a_parquet_bomb(tmp_path: Path) -> None:
    """One long text in a million rows; a billion rows of nothing."""
    path = tmp_path / "v.parquet"
    codes = pa.array(np.zeros(1_000_000, np.int32))
    text = pa.DictionaryArray.from_arrays(codes, pa.array(["A" * 900_000]))
    columns = {"accession": text, "go_id": text, "score": np.full(1_000_000, 0.5), "v": np.ones(1_000_000, np.float32)}
    pq.write_table(pa.table(columns).select(["accession", "v"]), path)
    assert path.stat().st_size < 3 << 20
    refused("inspect", "embeddings", path, says="an id of 900,000 bytes")
    pq.write_table(pa.table(columns).select(["accession", "go_id", "score"]), path)
    refused("inspect", "scores", path, says="an accession or a GO id of 900,000 bytes")
    nothing = pa.table({"accession": pa.nulls(1 << 22, pa.string()), "v": pa.nulls(1 << 22, pa.float32())})
    with pq.ParquetWriter(path, nothing.schema) as writer:
        for _ in range(80):
            writer.write_table(nothing)
    refused("inspect", "embeddings", path, says="give --allow-large")


# ------------------------------------------------------------------------------------------------- settings, archives


@pytest.mark.parametrize(
    "text",
    [
        "k = " + "[" * 1_000_000, "k = " + "[" * 90_000, "[" * 90_000, "[[" + "a." * 40_000 + "a]]",
        "name." + "a." * 40_000 + "a = 1", "name." + "a." * 400 + "a = 1",
        "k = " + "{a=" * 20_000, "k = " + "9" * 90_000, "k = 2020-99-99",
        "".join(f"a{'.b' * i} = {{}}\n" for i in range(300)), 'name = "' + "x" * 90_000 + '"', "\x00", '"\\ud800" = 1',
    ],
)  # fmt: skip
def test_settings(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(UserError) as e:
        protea.core.config.parse(read_toml(path), str(path))
    assert len(str(e.value).replace(str(path), "")) < 2500
    assert "\n" not in str(e.value)


def member(name: str, data: bytes = b"", **more: Any) -> tuple[tarfile.TarInfo, io.BytesIO]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in more.items():
        setattr(info, key, value)
    return info, io.BytesIO(data)


def test_taxdump_archives(tmp_path: Path) -> None:
    nodes = b"1\t|\t1\t|\n2\t|\t1\t|\n"
    path = tmp_path / "taxdump.tar.gz"

    def tar(*members: tuple[tarfile.TarInfo, io.BytesIO]) -> Path:
        with tarfile.open(path, "w:gz", compresslevel=1) as archive:
            for info, data in members:
                data.seek(0)
                archive.addfile(info, data)
        return path

    escaping = [member("../../escaped", b"x"), member("/tmp/absolute-escape", b"x"), member("../nodes.dmp", nodes)]

    def link(kind: bytes) -> tuple[tarfile.TarInfo, io.BytesIO]:
        return member("merged.dmp", type=kind, linkname="/etc/passwd")

    before = set(tmp_path.rglob("*")) | {path}
    assert read_taxdump(tar(*escaping))[1].nodes == 2
    assert set(tmp_path.rglob("*")) == before
    assert not Path("/tmp/absolute-escape").exists()
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        with pytest.raises(InputError):
            read_taxdump(tar(*escaping, link(kind)))
    for kind in (tarfile.CHRTYPE, tarfile.FIFOTYPE):
        assert read_taxdump(tar(*escaping, link(kind)))[1].merged == 0
    # a name that goes on for a gigabyte; names within names
    info, _ = member("x", type=tarfile.GNUTYPE_LONGNAME, size=1 << 30)
    gz(path, [info.tobuf(tarfile.GNU_FORMAT), *[bytes(1 << 20)] * 20])
    with pytest.raises(InputError, match="a header of 1,073,741,824 bytes"):
        read_taxdump(path)
    info.size = 1
    gz(path, [(info.tobuf(tarfile.GNU_FORMAT) + b"a".ljust(512, b"\0")) * 5000])
    with pytest.raises(InputError):
        read_taxdump(path)


def test_a_tar_bomb(tmp_path: Path) -> None:
    """Tens of thousands of empty members; then a member of gigabytes of nothing."""
    empty = b"".join(member(f"{i}")[0].tobuf() for i in range(1000))
    path = gz(tmp_path / "taxdump.tar.gz", [*[empty] * 40, *[b"\0" * (1 << 20)] * 2])
    refused("inspect", "taxonomy", path, says="holds no nodes.dmp")
    info, _ = member("readme", size=3 << 30)
    gz(path, [info.tobuf(), *[bytes(1 << 20)] * 1100])
    refused("inspect", "taxonomy", path, says="give --allow-large")


# --------------------------------------------------------------------------------------------------------------- names

NAMES = [
    "..", "../../x", "/etc/x", "a/b", "a\\b", "'; DROP TABLE dataset; --", '"', "$(touch x)", "é", "e\u0301", "名前",
    "a\nb", "a\x1b[31mb", "a\u202eb", "x" * 300, "", " ", ".hidden", "-", "a\x7f", "\udcff", "nul\u2400",
]  # fmt: skip


@pytest.fixture
def world_home(settings: Settings, tmp_path: Path) -> tuple[Settings, dict[str, Any]]:
    files = random_world(3, size=12).write(tmp_path / "files")
    return settings, files


def test_names(world_home: tuple[Settings, dict[str, Any]], tmp_path: Path) -> None:
    """Names of inputs, sources and datasets, and of files: refused in one line, or taken as they are."""
    settings, files = world_home
    tree = set(tmp_path.iterdir())
    gaf = next(iter(files["annotations"].values()))
    export = {
        "annotation_source": "goa", "embedding_config": "e", "train_versions": [1, 2], "test_versions": [3],
        "settings": settings,
    }  # fmt: skip
    taken = set()
    for name in NAMES:
        for load in (
            lambda n: ingest.load_proteins(settings, files["proteins"], name=n),
            lambda n: ingest.load_annotations(settings, gaf, source=n, version=1, max_rejected=1),
            lambda n: protea.export(name=n, **export),
            lambda n: protea.open_dataset(n, settings=settings),
        ):
            if one_line(lambda load=load, name=name: load(name)) is None:  # type: ignore[misc]
                taken.add(name)
    assert taken == {"-"}
    assert set(tmp_path.iterdir()) <= tree | {settings.home}
    # files of such names, with a name given
    data = files["proteins"].read_bytes()
    for i, name in enumerate(n for n in NAMES if n not in ("", "..") and "/" not in n):
        path = tmp_path / "files" / name
        try:
            path.write_bytes(data)
        except OSError:  # 300 characters are too many for the file system
            continue
        row = ingest.load_proteins(settings, path, name=f"p{i}").row
        assert row.source_file == name.encode("utf-8", "backslashreplace").decode()
    for load in (ingest.load_proteins, ingest.load_embeddings, ingest.load_taxonomy, ingest.load_scores):
        for name, says in (("x" * 300, "File name too long"), ("a\0b", "null byte")):
            with pytest.raises(InputError, match=says):
                load(settings, tmp_path / name, name="bad")
    assert {p.name for p in settings.storage.iterdir()} <= {
        "objects", "owners", "tmp", "datasets", "alignments", "export_resume",
    }  # fmt: skip


def test_what_the_catalogue_cannot_hold(world_home: tuple[Settings, dict[str, Any]], tmp_path: Path) -> None:
    """The character 0 and bytes that are no UTF-8, in what a file says of itself and in options."""
    settings, files = world_home
    gaf = tmp_path / "a.gaf"
    gaf.write_bytes(b"!gaf-version: 2\x00\xff\n" + ROW.encode() + b"\x00bad\xff row\n")
    row = ingest.load_annotations(
        settings, gaf, source="goa", version=1, max_rejected=1, databases=["UniProtKB", "\0", "\udcff"]
    ).row
    with open_catalog(settings) as catalog:
        stats = catalog.find("annotations", row.name).stats
    assert stats["gaf_version"] == "2\\x00\ufffd"
    assert stats["databases"] == ["\\x00", "UniProtKB", "\\udcff"]
    ontology = tmp_path / "go.obo"
    ontology.write_bytes(files["ontology"].read_bytes().replace(b"releases/2020-01-01", b"releases/\x00\xff"))
    name = ingest.load_ontology(settings, ontology).row.name
    with open_catalog(settings) as catalog:
        assert catalog.find("ontology", name).stats["version"] == "releases/\\x00ÿ"


def test_the_command_line_says_names_in_one_line(tmp_path: Path) -> None:
    """Control characters of a file's name reach no terminal."""
    path = tmp_path / "a\n\x1b[31m\udcff.gaf"
    path.write_bytes(b"nothing\n")
    refused("inspect", "annotations", path, says=r"a\n\x1b[31m\udcff.gaf")


def test_the_trailer_of_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """The linear patterns give what the old one gave."""
    import re

    from hypothesis import given
    from hypothesis import strategies as st

    old = re.compile(r'(?:\s+\{[^{}"]*=".*"\s*\})?(?:\s+!.*)?$')

    @given(st.text(st.sampled_from(' a={}"!\\')))
    def same(text: str) -> None:
        assert text[: obo._trailer(text)] == old.sub("", text, count=1)

    same()
