"""Loading: what is recognised, refused, shared and left behind, with real kills; counts against plain Python."""

import datetime as dt
import gzip
import hashlib
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from protea import ingest
from protea.catalog import Catalog, open_catalog
from protea.core.embeddings.source import from_array
from protea.errors import ConfigError, ConflictError, InputError, NotFoundError, StorageError
from protea.settings import Settings
from protea.storage import ObjectStore

TABLES = ("term-vectors", "interpro", "scores", "ia")
KINDS = ("ontology", "annotations", "proteins", "embeddings", "taxonomy", *TABLES)
LOADERS: dict[str, Callable[..., ingest.LoadResult]] = {
    "ontology": ingest.load_ontology,
    "proteins": ingest.load_proteins,
    "embeddings": ingest.load_embeddings,
    "taxonomy": ingest.load_taxonomy,
    "term-vectors": ingest.load_term_vectors,
    "interpro": ingest.load_interpro,
    "scores": ingest.load_scores,
    "ia": ingest.load_ia,
}


def obo(path: Path, version: str | None = "releases/2021-12-15", extra: int = 0) -> Path:
    spaces = {3674: "molecular_function", 8150: "biological_process", 5575: "cellular_component"}
    text = "format-version: 1.2\n" + (f"data-version: {version}\n" if version else "")
    for number, space in spaces.items():
        text += f"\n[Term]\nid: GO:{number:07d}\nname: {space}\nnamespace: {space}\n"
    for i in range(1, 2 + extra):
        text += f"\n[Term]\nid: GO:{i:07d}\nname: t{i}\nnamespace: molecular_function\nis_a: GO:0003674\n"
    path.write_text(text)
    return path


def gaf(path: Path, rows: int = 200, seed: int = 0, bad: int = 0) -> Path:
    """Rows of every fate: other databases, ND, NOT, `bad` malformed ones; dated 2001 to 2020."""
    random.seed(seed)
    lines = ["!gaf-version: 2.1"]
    for i in range(rows):
        database = random.choice(["UniProtKB"] * 8 + ["ComplexPortal"])
        evidence = random.choice(["EXP", "IDA", "IEA", "IEA", "ISS", "ND", "TAS"])
        date = f"{random.randint(2001, 2020)}{random.randint(1, 12):02d}{random.randint(1, 28):02d}"
        qualifier = random.choice(["", "", "", "NOT", "contributes_to"])
        go = f"GO:{random.randint(1, 50):07d}"
        cells = [database, f"P{random.randint(0, 40):05d}", "s", qualifier, go, "PMID:1", evidence, "", "F", "", ""]
        lines.append("\t".join([*cells, "protein", "taxon:6239", "20-10-2020" if i < bad else date, "UniProt", "", ""]))
    path.write_text("\n".join(lines) + "\n")
    return path


def fasta(path: Path, n: int = 30, seed: int = 0) -> Path:
    random.seed(seed)
    letters = "ACDEFGHIKLMNPQRSTVWY"
    text = "".join(f">sp|P{i:05d}|X OX=6239\n{''.join(random.choices(letters, k=60))}\n" for i in range(n))
    path.write_text(text)
    return path


def npz(path: Path, n: int = 30, seed: int = 0) -> Path:
    vectors = np.random.default_rng(seed).normal(size=(n, 24)).astype(np.float32)
    np.savez(path, ids=np.array([f"P{i:05d}" for i in range(n)]), embeddings=vectors)
    return path


def taxdump(path: Path, extra: int = 0) -> Path:
    path.mkdir()
    nodes = [(1, 1), (10, 1), (20, 10), *((100 + i, 20) for i in range(extra))]
    (path / "nodes.dmp").write_text("".join(f"{a}\t|\t{b}\t|\tspecies\t|\n" for a, b in nodes))
    (path / "merged.dmp").write_text("5\t|\t10\t|\n")
    return path


def table(path: Path, kind: str, seed: int = 0) -> Path:
    """A file of one of the tables of the later families: 150 rows, about 10 proteins."""
    random.seed(seed)
    lines = []
    for i in range(150):
        protein, go, number = f"P{i % 10:05d}", f"GO:{i + 1:07d}", f"{random.random():.6f}"
        lines.append(
            {
                "term-vectors": f"{go} {number} {random.random():.6f}",
                "interpro": f"{protein}\t{go}\t{number}\tPfam|SMART\t2",
                "scores": f"{protein}\t{go}\t{number}",
                "ia": f"{go}\t{number}",
            }[kind]
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def make(kind: str, folder: Path, other: bool = False) -> Path:
    """A small file of a kind; `other`: one with another content."""
    folder.mkdir(parents=True, exist_ok=True)
    name = "other" if other else "one"
    if kind == "ontology":
        return obo(folder / f"{name}.obo", extra=other)
    if kind == "annotations":
        return gaf(folder / f"{name}.gaf", seed=other)
    if kind == "proteins":
        return fasta(folder / f"{name}.fasta", seed=other)
    if kind == "embeddings":
        return npz(folder / f"{name}.npz", seed=other)
    if kind in TABLES:
        return table(folder / f"{name}.tsv", kind, seed=other)
    return taxdump(folder / name, extra=other)


def load(settings: Settings, kind: str, path: Path, name: str | None) -> ingest.LoadResult:
    if kind == "annotations":
        source = name or "goa"
        return ingest.load_annotations(settings, path, source=source, version="2020-03-03")
    return LOADERS[kind](settings, path, name=name)


def rows(settings: Settings) -> dict[str, list[Any]]:
    with open_catalog(settings) as catalog:
        return {kind: catalog.inputs(kind) for kind in KINDS}


def names(settings: Settings) -> list[str]:
    return [row.name for found in rows(settings).values() for row in found]


def objects(settings: Settings) -> list[str]:
    return sorted(str(p.relative_to(settings.storage / "objects")) for p in (settings.storage / "objects").glob("*/*"))


def staged(settings: Settings) -> list[Path]:
    return sorted((settings.storage / "tmp").glob("load-*"))


# -- recognised, shared, refused


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind(settings: Settings, tmp_path: Path, kind: str) -> None:
    path, other = make(kind, tmp_path / "in"), make(kind, tmp_path / "in", other=True)
    first = load(settings, kind, path, "first")
    assert first.new == (True,)
    assert not first.already_loaded
    row = first.row
    assert row.source_file == path.name
    assert len(row.identity) == 64
    assert objects(settings) == [f"{kind}/{row.object_digest}"]
    store = ObjectStore(settings.storage)
    assert store.intact(kind, row.object_digest)
    size = sum(f.stat().st_size for f in store.path(kind, row.object_digest).iterdir() if f.name != "files.json")
    assert row.stats["bytes"] == size

    again = load(settings, kind, path, "first")
    assert again.already_loaded
    assert again.row.id == row.id
    shared = load(settings, kind, path, "second").row  # the same content under another name
    assert (shared.identity, shared.object_digest) == (row.identity, row.object_digest)
    assert len(objects(settings)) == 1
    with pytest.raises(ConflictError, match=r"first.*loaded already, from another file") as caught:
        load(settings, kind, other, "first")
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(objects(settings)) == 1
    third = load(settings, kind, other, "third").row
    assert third.identity != row.identity
    assert len(objects(settings)) == 2
    assert len(rows(settings)[kind]) == 3
    assert staged(settings) == []


def test_the_identity_is_of_the_uncompressed_bytes(settings: Settings, tmp_path: Path) -> None:
    for kind in ("ontology", "proteins", *TABLES):
        path = make(kind, tmp_path)
        packed = tmp_path / f"{path.name}.gz"
        data = path.read_bytes()
        packed.write_bytes(gzip.compress(data[:100]) + gzip.compress(data[100:]))
        row = load(settings, kind, path, "x").row
        assert row.identity == hashlib.sha256(data).hexdigest()
        assert load(settings, kind, packed, "x").already_loaded


def test_default_names(settings: Settings, tmp_path: Path) -> None:
    assert ingest.load_ontology(settings, obo(tmp_path / "a.obo")).row.name == "2021-12-15"
    assert (
        ingest.load_ontology(settings, obo(tmp_path / "b.obo", "2020-01-01/go plus")).row.name == "2020-01-01-go-plus"
    )
    assert ingest.load_ontology(settings, obo(tmp_path / "go_c.obo", None)).row.name == "go_c"
    packed = tmp_path / "worm_2014-01.v2.fasta.gz"
    packed.write_bytes(gzip.compress(fasta(tmp_path / "x").read_bytes()))
    assert ingest.load_proteins(settings, packed).row.name == "worm_2014-01.v2"
    assert ingest.load_embeddings(settings, npz(tmp_path / "u.npz")).row.name == "u"
    assert ingest.load_taxonomy(settings, taxdump(tmp_path / "taxdump_2020")).row.name == "taxdump_2020"
    assert load(settings, "annotations", gaf(tmp_path / "x.gaf"), None).row.name == "goa:2020-03-03"
    with pytest.raises(ConfigError, match=r"'my proteins' is no name.*--name"):
        ingest.load_proteins(settings, fasta(tmp_path / "my proteins.fasta"))


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a b", "x" * 101, "naïve"])
def test_names_that_are_none(settings: Settings, tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="is no name"):
        ingest.load_proteins(settings, fasta(tmp_path / "a.fasta"), name=name)


def test_computed_embeddings(settings: Settings) -> None:
    import pyarrow as pa

    source = from_array(pa.array(["A", "B", "C"]), np.eye(3, dtype=np.float32), where="k-mer")
    with pytest.raises(ConfigError, match="need a name"):
        ingest.load_embeddings(settings, source)
    row = ingest.load_embeddings(settings, source, name="kmer").row
    assert (row.dim, row.dtype, row.vectors, row.source_file) == (3, "float32", 3, "")


@pytest.mark.parametrize("kind", KINDS)
def test_bad_files_leave_nothing(settings: Settings, tmp_path: Path, kind: str) -> None:
    with pytest.raises(NotFoundError, match="there is no such file"):
        load(settings, kind, tmp_path / "absent.gz", "x")
    (tmp_path / "bad.gz").write_bytes(b"<html>no</html>\n" * 100)
    with pytest.raises(InputError) as caught:
        load(settings, kind, tmp_path / "bad.gz", "x")
    assert "\n" not in str(caught.value)
    assert names(settings) == []
    assert objects(settings) == []
    assert staged(settings) == []


# -- annotations


def plain(path: Path, until: str = "9999", databases: tuple[str, ...] = ("UniProtKB",)) -> dict[str, Any]:
    """What a set holds, row by row."""
    groups = {"EXP": "experimental", "IDA": "experimental", "IEA": "electronic", "ISS": "curated", "TAS": "curated"}
    count: Counter[str] = Counter()
    seen, dates, kinds = set(), [], Counter[str]()
    for line in path.read_text().splitlines():
        cells = line.split("\t")
        if len(cells) != 17:
            continue
        if "-" in cells[13]:
            count["malformed"] += 1
            continue
        day = f"{cells[13][:4]}-{cells[13][4:6]}-{cells[13][6:]}"
        if day > until:
            continue
        if cells[0] not in databases:
            count["other_database"] += 1
            continue
        seen.add(cells[1])
        if cells[6] == "ND":
            count["no_data"] += 1
            continue
        count["kept"] += 1
        count["negated"] += cells[3] == "NOT"
        kinds[groups[cells[6]]] += 1
        dates.append(day)
    return {
        "rows": count["kept"] + count["no_data"] + count["other_database"] + count["malformed"],
        "kept": count["kept"],
        "negated": count["negated"],
        "proteins": len(seen),
        "filtered": {k: count[k] for k in ("other_database", "no_data") if count[k]},
        "evidence_groups": {g: kinds[g] for g in ("experimental", "curated", "electronic")},
        "first_date": min(dates),
        "last_date": max(dates),
    }


def of(stats: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    return {key: stats[key] for key in expected}


def test_sets_by_date(settings: Settings, tmp_path: Path) -> None:
    path = gaf(tmp_path / "a.gaf", 2000, bad=5)
    cuts = ["2016-01-01", "2010-06-15", dt.date(2019, 1, 1)]
    result = ingest.load_annotations(settings, path, source="worm", version="2020-03-03", cut_dates=cuts)
    assert [r.name for r in result.rows] == [
        "worm:2020-03-03", "worm:2010-06-15", "worm:2016-01-01", "worm:2019-01-01",
    ]  # fmt: skip
    assert [r.derived_from_date for r in result.rows] == [False, True, True, True]
    assert [str(r.cut_date) for r in result.rows] == ["None", "2010-06-15", "2016-01-01", "2019-01-01"]
    assert len(objects(settings)) == 1
    assert len({r.identity for r in result.rows}) == 4
    assert len({r.object_digest for r in result.rows}) == 1
    assert {r.file_identity for r in result.rows} == {hashlib.sha256(path.read_bytes()).hexdigest()}
    for row in result.rows:
        expected = plain(path, str(row.cut_date) if row.cut_date else "9999")
        assert of(row.stats, expected) == expected
        assert row.stats["rejected"] == {"date": 5}  # of the file, for each
    stored = pq.read_table(settings.storage / "objects" / "annotations" / result.row.object_digest / "rows.parquet")
    assert len(stored) == result.row.stats["kept"] + result.row.stats["filtered"]["no_data"]
    later = ingest.load_annotations(settings, path, source="worm", cut_dates=["2016-01-01", "2012-01-01"])
    assert later.new == (True, False)
    assert later.rows[0].object_digest == result.row.object_digest
    assert len(objects(settings)) == 1


def test_restricting_to_proteins_and_databases(settings: Settings, tmp_path: Path) -> None:
    path = gaf(tmp_path / "a.gaf", 1000)
    proteins = ingest.load_proteins(settings, fasta(tmp_path / "p.fasta", 20), name="few").row
    whole = ingest.load_annotations(settings, path, source="a", version=1).row
    few = ingest.load_annotations(settings, path, source="a", version=2, proteins="few").row
    both = ingest.load_annotations(settings, path, source="a", version=3, databases=["ComplexPortal", "UniProtKB"]).row
    assert len({r.identity for r in (whole, few, both)}) == len({r.object_digest for r in (whole, few, both)}) == 3
    table = pq.read_table(settings.storage / "objects" / "annotations" / few.object_digest / "rows.parquet")
    allowed = {f"P{i:05d}" for i in range(20)}
    assert set(table["accession"].to_pylist()) == allowed
    stored = whole.stats["kept"] + whole.stats["filtered"]["no_data"]
    assert few.stats["not_in_proteins"] == stored - len(table)
    assert both.stats["kept"] == plain(path, databases=("UniProtKB", "ComplexPortal"))["kept"]
    cut = ingest.load_annotations(settings, path, source="b", cut_dates=["2010-01-01"], proteins="few").row
    assert cut.stats["not_in_proteins"] == sum(
        n for day, n in few.stats["not_in_proteins_by_date"].items() if day <= "2010-01-01"
    )
    assert cut.stats["kept"] + cut.stats["filtered"]["no_data"] == sum(
        day <= dt.date(2010, 1, 1) for day in table["date"].to_pylist()
    )
    with pytest.raises(ConflictError, match="with other options"):
        ingest.load_annotations(settings, path, source="a", version=1, proteins="few")
    with pytest.raises(NotFoundError, match="few"):
        ingest.load_annotations(settings, path, source="a", version=4, proteins="fex")
    # the restriction is by content: the same proteins under another name give the same set
    ingest.load_proteins(settings, tmp_path / "p.fasta", name="same")
    again = ingest.load_annotations(settings, path, source="a", version=2, proteins="same")
    assert again.already_loaded
    assert proteins.identity


def test_too_many_malformed_rows(settings: Settings, tmp_path: Path) -> None:
    path = gaf(tmp_path / "a.gaf", 100, bad=3)
    with pytest.raises(InputError, match=r"3 of 100 rows are malformed.*line 2.*--max-rejected"):
        ingest.load_annotations(settings, path, source="a", version=1)
    assert objects(settings) == []
    row = ingest.load_annotations(settings, path, source="a", version=1, max_rejected=0.03).row
    assert row.stats["rejected"] == {"date": 3}


@pytest.mark.parametrize("version", ["2014-13-01", "v1", "2014/01/01", "", "1.5", "-3", "2014-9-3", "20140930x"])
def test_versions_that_are_none(settings: Settings, tmp_path: Path, version: str) -> None:
    with pytest.raises(ConfigError, match="neither an integer nor a date"):
        ingest.load_annotations(settings, gaf(tmp_path / "a.gaf"), source="a", version=version)


def test_versions(settings: Settings, tmp_path: Path) -> None:
    path = gaf(tmp_path / "a.gaf")
    for version, text in (
        (57, "57"),
        ("058", "58"),
        (dt.date(2020, 1, 2), "2020-01-02"),
        (" 2020-01-03 ", "2020-01-03"),
    ):
        assert ingest.load_annotations(settings, path, source="a", version=version).row.version == text
    for wrong, words in (
        ({}, "need a version or cut dates"),
        ({"cut_dates": ["12"]}, "the cut date '12' is no date"),
        ({"cut_dates": ["2014-01-01", "2014-01-01"]}, "asked for twice"),
        ({"version": "2014-01-01", "cut_dates": ["2014-01-01"]}, "asked for twice"),
        ({"version": 3, "cut_dates": ["2014-01-01"], "name": "n"}, "one name"),
    ):
        with pytest.raises(ConfigError, match=words):
            ingest.load_annotations(settings, path, source="w", **wrong)
    with pytest.raises(ConfigError, match="colon"):
        ingest.load_annotations(settings, path, source="a:b", version=1)
    with pytest.raises(InputError, match=r"no row is dated 1999-01-01 or before; the first is of 200"):
        ingest.load_annotations(settings, path, source="w", cut_dates=["1999-01-01"])
    named = ingest.load_annotations(settings, path, source="w", version=1, name="mine").row
    assert (named.name, named.source, named.version) == ("mine", "w", "1")
    with pytest.raises(ConflictError, match="'mine' is w 1"):
        ingest.load_annotations(settings, path, source="w", version=1, name="yours")
    with pytest.raises(ConflictError, match="'mine' is w 1"):
        ingest.load_annotations(settings, path, source="w", version=2, name="mine")
    assert ingest.load_annotations(settings, path, source="w", version=1, name="mine").already_loaded


# -- tables of the later families


@pytest.mark.parametrize("kind", TABLES)
def test_malformed_rows_of_tables(settings: Settings, tmp_path: Path, kind: str) -> None:
    path = make(kind, tmp_path)
    bad = {"term-vectors": "what 1 2\n", "interpro": "P1\tx\t1\tPfam\t1\n", "scores": "P1\tx\t1\n", "ia": "x\t1\n"}[
        kind
    ]
    path.write_text(path.read_text() + bad)
    row = load(settings, kind, path, "one").row
    assert row.stats["rejected"] == {"go_id": 1}
    assert row.stats["rows"] == 151
    path.write_text(path.read_text() + bad)
    with pytest.raises(InputError, match=r"2 of 152 rows are malformed.*line 151 \(go_id\)"):
        load(settings, kind, path, "two")
    assert LOADERS[kind](settings, path, name="two", max_rejected=0.02).row.stats["rejected"] == {"go_id": 2}


@pytest.mark.parametrize("kind", ["interpro", "scores"])
def test_tables_restricted_to_proteins(settings: Settings, tmp_path: Path, kind: str) -> None:
    path = make(kind, tmp_path)
    few = ingest.load_proteins(settings, fasta(tmp_path / "few.fasta", n=3)).row
    row = LOADERS[kind](settings, path, name="x", proteins="few").row
    assert row.stats["restricted_to"] == "few"
    assert (row.stats["kept"], row.stats["not_in_proteins"], row.stats["proteins"]) == (45, 105, 3)
    stored = pq.read_table(ObjectStore(settings.storage).path(kind, row.object_digest) / "rows.parquet")
    assert set(stored["accession"].to_pylist()) == {"P00000", "P00001", "P00002"}
    assert row.identity not in (few.identity, load(settings, kind, path, "whole").row.identity)
    assert LOADERS[kind](settings, path, name="x", proteins="few").already_loaded
    with pytest.raises(ConflictError, match="with other options"):
        load(settings, kind, path, "x")
    with pytest.raises(NotFoundError, match="did you mean 'few'"):
        LOADERS[kind](settings, path, name="y", proteins="fex")


def test_protein2ipr_has_the_identity_of_both_files(settings: Settings, tmp_path: Path) -> None:
    path, mapping = tmp_path / "protein2ipr.dat", tmp_path / "interpro2go"
    path.write_text("A1\tIPR000003\tName\tPF00001\t1\t9\nA2\tIPR000003\tName\tPF00001\t1\t9\n")
    mapping.write_text("InterPro:IPR000003 Name > GO:DNA binding ; GO:0003677\n")
    with pytest.raises(ConfigError, match="--interpro2go"):
        ingest.load_interpro(settings, path)
    first = ingest.load_interpro(settings, path, interpro2go=mapping).row
    assert (first.name, first.stats["stored"]) == ("protein2ipr", 2)
    assert first.stats["files"]["interpro2go"] == hashlib.sha256(mapping.read_bytes()).hexdigest()
    mapping.write_text(mapping.read_text() + "InterPro:IPR000003 Name > GO:nucleus ; GO:0005634\n")
    second = ingest.load_interpro(settings, path, interpro2go=mapping, name="more").row
    assert second.identity != first.identity
    assert second.stats["stored"] == 4


# -- damage, kills, full disks


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_object_is_mended_by_loading_again(settings: Settings, tmp_path: Path, kind: str) -> None:
    path = make(kind, tmp_path)
    row = load(settings, kind, path, "x").row
    store = ObjectStore(settings.storage)
    folder = store.path(kind, row.object_digest)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    victim = max((p for p in folder.iterdir() if p.name != "files.json"), key=lambda p: p.stat().st_size)
    damages: list[Callable[[], Any]] = [
        lambda: victim.write_bytes(before[victim.name][:-1] + bytes([before[victim.name][-1] ^ 1])),
        victim.unlink,
        lambda: (folder / "files.json").unlink(),
        lambda: (folder / "files.json").write_text("{"),
        lambda: folder.rename(tmp_path / "away"),
    ]
    for damage in damages:
        damage()
        assert not store.intact(kind, row.object_digest)
        assert load(settings, kind, path, "x").already_loaded
        assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
        assert staged(settings) == []


def test_a_missing_object_is_said(settings: Settings) -> None:
    with pytest.raises(StorageError, match=r"missing.*load its file again"):
        ObjectStore(settings.storage).path("proteins", "0" * 64)


KILLED = """
import os, signal, sys
from protea import ingest, storage
from protea.catalog import Catalog
from protea.settings import Settings
def die(*a, **k): os.kill(os.getpid(), signal.SIGKILL)
where, kind, path = sys.argv[1:]
add, move = Catalog.add, storage.commit_dir
if where == "reading": ingest.Found = die if kind != "annotations" else ingest.Found
if where == "reading" and kind == "annotations": import protea.core.annotations as a; a.check_rejected = die
if where == "before the object": storage.commit_dir = die
if where == "before the row": Catalog.add = die
if where == "after the row": Catalog.add = lambda *a, **k: (add(*a, **k), die())
if kind == "annotations": ingest.load_annotations(Settings(), path, source="x", version=1, cut_dates=["2015-01-01"])
else: getattr(ingest, "load_" + kind)(Settings(), path, name="x")
"""


def environment(settings: Settings) -> dict[str, str]:
    return os.environ | {"PROTEA_HOME": str(settings.home), "PROTEA_DATABASE_URL": settings.database_url or ""}


@pytest.mark.parametrize("kind", ["annotations", "embeddings"])
@pytest.mark.parametrize("where", ["reading", "before the object", "before the row", "after the row"])
def test_killed_half_way(settings: Settings, tmp_path: Path, kind: str, where: str) -> None:
    path = make(kind, tmp_path)
    killed = subprocess.run([sys.executable, "-c", KILLED, where, kind, path], env=environment(settings))
    assert killed.returncode == -signal.SIGKILL
    assert len(staged(settings)) == 1
    done = where == "after the row"
    count = (2 if kind == "annotations" else 1) if done else 0
    assert len(rows(settings)[kind]) == count
    if where in ("reading", "before the object"):
        assert objects(settings) == []
    load(settings, "proteins", make("proteins", tmp_path), "next")  # any load sweeps
    assert staged(settings) == []
    assert [o.partition("/")[0] for o in objects(settings)] == [*([kind] if done else []), "proteins"]
    with open_catalog(settings) as catalog:
        for row in catalog.inputs(kind):
            assert ObjectStore(settings.storage).intact(kind, row.object_digest)
    again = load(settings, kind, path, "x")
    assert again.row.name.startswith("x")


def test_the_object_of_a_killed_load_is_kept_when_another_row_has_it(settings: Settings, tmp_path: Path) -> None:
    path = make("embeddings", tmp_path)
    row = load(settings, "embeddings", path, "mine").row
    subprocess.run([sys.executable, "-c", KILLED, "before the row", "embeddings", path], env=environment(settings))
    load(settings, "proteins", make("proteins", tmp_path), "next")
    assert staged(settings) == []
    assert ObjectStore(settings.storage).intact("embeddings", row.object_digest)


def test_what_a_killed_load_left_for_another_database_is_not_touched(
    settings: Settings, tmp_path: Path, own_settings: Settings
) -> None:
    path = make("embeddings", tmp_path)
    subprocess.run([sys.executable, "-c", KILLED, "after the row", "embeddings", path], env=environment(settings))
    load(own_settings, "proteins", make("proteins", tmp_path), "next")  # the same home, the embedded database
    assert settings.storage == own_settings.storage
    (row,) = rows(settings)["embeddings"]
    assert ObjectStore(settings.storage).intact("embeddings", row.object_digest)
    assert len(staged(settings)) == 1
    load(settings, "proteins", make("proteins", tmp_path), "next")
    assert staged(settings) == []


def test_killed_at_any_instant(settings: Settings, tmp_path: Path) -> None:
    path = gaf(tmp_path / "a.gaf", 20000)
    code = (
        "import sys; from protea import ingest; from protea.settings import Settings; import protea.core.annotations\n"
        "print('go', flush=True)\n"
        "ingest.load_annotations(Settings(), sys.argv[1], source='x', version=1, cut_dates=['2015-01-01'])"
    )
    random.seed(1)
    for _ in range(6):
        one = subprocess.Popen(
            [sys.executable, "-c", code, path], env=environment(settings), stdout=subprocess.PIPE, text=True
        )
        assert one.stdout is not None
        one.stdout.readline()
        time.sleep(random.random() * 0.5)
        one.kill()
        one.wait()
        found = rows(settings)["annotations"]
        assert len(found) in (0, 2)
        load(settings, "proteins", make("proteins", tmp_path), "next")
        assert staged(settings) == []
        assert any(o.startswith("annotations") for o in objects(settings)) == (len(found) == 2)
    ingest.load_annotations(settings, path, source="x", version=1)


def test_the_same_load_at_once(settings: Settings, tmp_path: Path) -> None:
    path = gaf(tmp_path / "a.gaf", 5000)
    code = (
        "import sys; from protea import ingest; from protea.settings import Settings\n"
        "r = ingest.load_annotations(Settings(), sys.argv[1], source='x', version=1, cut_dates=['2015-01-01'])\n"
        "print(sum(r.new))"
    )
    pipe = subprocess.PIPE
    both = [
        subprocess.Popen([sys.executable, "-c", code, path], env=environment(settings), stdout=pipe, text=True)
        for _ in range(3)
    ]
    assert sorted(p.communicate(timeout=120)[0].strip() for p in both) == ["0", "0", "2"]
    assert len(objects(settings)) == 1
    assert staged(settings) == []


@pytest.mark.parametrize("kind", ["annotations", "proteins", "ontology", "embeddings", "scores", "term-vectors"])
def test_a_full_disk_is_one_line_and_leaves_nothing(settings: Settings, tmp_path: Path, kind: str) -> None:
    path = make(kind, tmp_path / "in")
    with open_catalog(settings) as catalog:
        assert isinstance(catalog, Catalog)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # as ENOSPC, but only for this process
    try:
        with pytest.raises(StorageError) as caught:
            load(settings, kind, path, "x")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert objects(settings) == []
    assert staged(settings) == []
    assert names(settings) == []


# -- real files


def test_yeast_by_date_against_a_plain_count(settings: Settings) -> None:
    folder = Path(os.environ.get("PROTEA_TEST_DATA") or Path(__file__).parents[2] / ".." / "shared" / "data")
    path = folder / "goa_yeast_proteome_2020-03-03.gaf.gz"
    if not path.is_file():
        pytest.skip(f"{path.name} is not there: set PROTEA_TEST_DATA to the folder of public files")
    cuts = ["2010-01-01", "2014-01-01", "2018-01-01"]
    result = ingest.load_annotations(settings, path, source="yeast", cut_dates=cuts)
    kept: Counter[str] = Counter()
    electronic: Counter[str] = Counter()
    with gzip.open(path, "rt") as f:
        for line in f:
            cells = line.rstrip("\n").split("\t")
            if line.startswith("!") or cells[0] != "UniProtKB" or cells[6] == "ND":
                continue
            for cut in cuts:
                if cells[13] <= cut.replace("-", ""):
                    kept[cut] += 1
                    electronic[cut] += cells[6] == "IEA"
    assert {r.version: r.stats["kept"] for r in result.rows} == dict(kept)
    assert {r.version: r.stats["evidence_groups"]["electronic"] for r in result.rows} == dict(electronic)
