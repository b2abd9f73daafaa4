"""The taxdump reader: every form it comes in, what it refuses, depths against plain walks, storing."""

import gzip
import hashlib
import io
import itertools
import tarfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protea.core.taxonomy import Taxonomy, read_taxdump
from protea.errors import InputError, NotFoundError, StorageError

NODES = {1: 1, 131567: 1, 2: 131567, 9606: 2}
MERGED = {12: 2, 30: 12, 36: 77}
DELETED = [5, 3]


def node_text(nodes, end="\t|\n"):
    return "".join(f"{i}\t|\t{p}\t|\tno rank\t|\t\t|\t8\t|{end[2:]}" for i, p in nodes.items())


def merged_text(merged):
    return "".join(f"{o}\t|\t{n}\t|\n" for o, n in merged.items())


FILES = {
    "nodes.dmp": node_text(NODES).encode(),
    "merged.dmp": merged_text(MERGED).encode(),
    "delnodes.dmp": b"".join(b"%d\t|\n" % d for d in DELETED),
}


def directory(tmp_path, **files):
    """A taxdump directory; `nodes="text"` replaces a file."""
    d = tmp_path / "dump"
    d.mkdir(exist_ok=True)
    for name, content in FILES.items():
        key = name.split(".")[0]
        content = files.get(key, content)
        if content is not None:
            (d / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return d


def refused(path) -> str:
    with pytest.raises(InputError) as e:
        read_taxdump(path)
    assert "\n" not in str(e.value)
    assert str(path) in str(e.value)
    return str(e.value)


def check(taxonomy, report):
    assert taxonomy.nodes.to_pylist() == [{"tax_id": i, "parent": NODES[i]} for i in sorted(NODES)]
    assert taxonomy.merged.to_pylist() == [{"old": o, "new": MERGED[o]} for o in sorted(MERGED)]
    assert taxonomy.deleted.to_pylist() == [{"tax_id": i} for i in sorted(DELETED)]
    assert {str(f.type) for t in (taxonomy.nodes, taxonomy.merged, taxonomy.deleted) for f in t.schema} == {"int32"}
    assert report.to_json() == {
        "sha256": {n: hashlib.sha256(c).hexdigest() for n, c in FILES.items()},
        "nodes": 4,
        "merged": 3,
        "deleted": 2,
        "max_depth": 4,
        "merged_to_nowhere": 1,
        "missing": [],
    }


def test_a_directory(tmp_path):
    seen = []
    check(*read_taxdump(directory(tmp_path), seen.append))
    assert seen == list(itertools.accumulate(map(len, FILES.values())))


def test_a_directory_of_gzipped_files(tmp_path):
    for name, content in FILES.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
    check(*read_taxdump(tmp_path))


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("prefix", ["", "./", "taxdump/"])
@pytest.mark.parametrize("gzipped", [False, True])
def test_an_archive(tmp_path, mode, prefix, gzipped):
    path = tmp_path / "taxdump.tar.gz"
    with tarfile.open(path, mode) as tar:
        for name, content in [("names.dmp", b"1\t|\troot\t|\n"), *reversed(FILES.items())]:
            data = gzip.compress(content) if gzipped else content
            info = tarfile.TarInfo(prefix + name + ".gz" * gzipped)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    seen = []
    check(*read_taxdump(path, seen.append))
    assert seen[-1] <= path.stat().st_size


def test_missing_parts_are_reported(tmp_path):
    taxonomy, report = read_taxdump(directory(tmp_path, merged=None, delnodes=None))
    assert report.missing == ["merged.dmp", "delnodes.dmp"]
    assert (taxonomy.merged.num_rows, taxonomy.deleted.num_rows) == (0, 0)
    assert taxonomy.merged.column_names == ["old", "new"]
    assert list(report.sha256) == ["nodes.dmp"]


def test_windows_line_ends_repeated_and_blank_lines(tmp_path):
    text = node_text(NODES)
    taxonomy, report = read_taxdump(directory(tmp_path, nodes=(text + "\n" + text).replace("\n", "\r\n"), merged=""))
    assert taxonomy.nodes.num_rows == report.nodes == 4
    assert report.missing == []


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"nodes": None}, ["no nodes.dmp"]),
        ({"nodes": node_text({1: 1, 5: 9, 4: 8})}, ["line 2", "the parent 9 of 5"]),
        ({"nodes": node_text({1: 1, 2: 3, 3: 4, 4: 2, 7: 1})}, ["cycle", "2 -> 3 -> 4 -> 2"]),
        ({"nodes": node_text({1: 2, 2: 1})}, ["cycle", "1 -> 2 -> 1"]),
        ({"nodes": node_text({1: 1, 2: 2, 3: 1})}, ["2 roots", "1 and 2"]),
        ({"nodes": node_text({1: 1, 2: 1}) + node_text({2: 2})}, ["line 3", "2 leads to 2", "line 2 to 1"]),
        ({"nodes": node_text({1: 1}) + "x\t|\t1\t|\n"}, ["line 2", "two tax ids"]),
        ({"nodes": node_text({1: 1}) + "2\t|\n"}, ["line 2", "two tax ids"]),
        ({"nodes": node_text({1: 1}) + "2\t|\t1"}, ["line 2", "two tax ids"]),
        ({"nodes": node_text({1: 1}) + "99999999999\t|\t1\t|\n"}, ["line 2"]),
        ({"nodes": node_text({1: 1}) + "0\t|\t1\t|\n"}, ["line 2"]),
        ({"nodes": ""}, ["empty"]),
        ({"nodes": "<html>\n"}, ["line 1"]),
        ({"merged": merged_text({5: 6, 6: 7, 7: 5})}, ["merged.dmp", "5 -> 6 -> 7 -> 5"]),
        ({"merged": merged_text({5: 5})}, ["merged.dmp", "5 -> 5"]),
        ({"merged": merged_text({5: 2}) + merged_text({5: 1})}, ["merged.dmp", "line 2", "5 leads to 1"]),
        ({"delnodes": "a\t|\n"}, ["delnodes.dmp", "line 1", "a tax id"]),
    ],
)
def test_faults_are_named(tmp_path, files, words):
    message = refused(directory(tmp_path, **files))
    assert all(w in message for w in words), message


def test_what_is_no_taxdump(tmp_path):
    with pytest.raises(NotFoundError):
        read_taxdump(tmp_path / "none")
    path = tmp_path / "nodes.dmp"
    path.write_bytes(FILES["nodes.dmp"])
    assert "no tar archive" in refused(path)
    (tmp_path / "nodes.dmp.gz").write_bytes(gzip.compress(FILES["nodes.dmp"]))
    assert "twice" in refused(tmp_path)


def test_a_truncated_archive(tmp_path):
    path = tmp_path / "t.tar"
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo("nodes.dmp")
        info.size = len(FILES["nodes.dmp"]) * 1000
        tar.addfile(info, io.BytesIO(node_text(dict.fromkeys(range(1, 20000), 1)).encode()))
    path.write_bytes(path.read_bytes()[:20000])
    refused(path)
    path.write_bytes(gzip.compress(path.read_bytes())[:500])
    assert "truncated" in refused(path)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.integers(2, 30), st.integers(1, 30), max_size=25))
def test_depths_and_cycles_against_plain_walks(tmp_path, tree):
    tree = {1: 1} | {i: p if p in tree else 1 for i, p in tree.items() if i != p}
    tree = {i: p if p in tree else 1 for i, p in tree.items()}

    def depth(i):
        path = [i]
        while tree[path[-1]] != path[-1]:
            path.append(tree[path[-1]])
            if path[-1] in path[:-1]:
                return None
        return len(path)

    depths = {depth(i) for i in tree}
    path = directory(tmp_path, nodes=node_text(tree))
    if None in depths:
        ring = [int(x) for x in refused(path).split("cycle: ")[1].split(" (")[0].split(" -> ")]
        assert ring[0] == ring[-1]
        assert all(tree[a] == b for a, b in itertools.pairwise(ring))
    else:
        assert read_taxdump(path)[1].max_depth == max(depths)


def test_store_and_read_back(tmp_path):
    taxonomy, _ = read_taxdump(directory(tmp_path))
    for d in ("a", "b"):
        (tmp_path / d).mkdir()
        taxonomy.save(tmp_path / d)
    assert {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()} == {
        p.name: p.read_bytes() for p in (tmp_path / "b").iterdir()
    }
    again = Taxonomy.load(tmp_path / "a")
    assert (again.nodes, again.merged, again.deleted) == (taxonomy.nodes, taxonomy.merged, taxonomy.deleted)
    assert again.nodes.schema == taxonomy.nodes.schema
    (tmp_path / "a" / "merged.parquet").unlink()
    with pytest.raises(StorageError):
        Taxonomy.load(tmp_path / "a")
