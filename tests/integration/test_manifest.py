"""`manifest.json` against the files that it describes (contract section 8)."""

import hashlib
import itertools
import json
import re
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from product import Product, read
from protea.core import schema
from protea.core.config import ExportConfig
from protea.core.parquet_export import logical_digest, split_digest
from worlds import random_settings, random_world

KEYS = {
    *("schema_version", "name", "k", "embedding_config_id", "ontology_snapshot_id", "annotation_source"),
    *("train_snapshot_pairs", "eval_snapshot_pair", "schema_sha", "schema_digest", "n_train_rows", "n_eval_rows"),
    *("format", "feature_families", "producer_version", "producer_git_sha", "config", "fingerprint", "inputs"),
    *("columns", "counts", "dropped", "families", "files", "logical_sha256", "libraries"),
}
COUNTS = {
    *("members", "queried", "absent_from_old", "novel_terms", "reached"),
    *("rows", "positives", "proteins", "without_candidate"),
}


@pytest.fixture(scope="module", params=range(6))
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Product, Path]:
    """Worlds of all kinds and settings: whole and dated versions, derived sets, one and two eval cuts."""
    seed = (2, 7, 11, 31, 40, 53)[request.param]
    world = random_world(seed, 40)
    drawn = {**random_settings(seed, world), "keep_known": False}
    p = Product(world, tmp_path_factory.mktemp("m"))
    return p, p.export(drawn)


def manifest_of(dataset: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((dataset / "manifest.json").read_text())
    return found


def test_counts_add_up(published: tuple[Product, Path]) -> None:
    _, dataset = published
    m = manifest_of(dataset)
    rows = read(dataset / "train.parquet") + read(dataset / "eval.parquet")
    truth, known = read(dataset / "truth.parquet"), read(dataset / "known.parquet")
    assert (m["n_train_rows"], m["n_eval_rows"]) == (
        pq.read_metadata(dataset / "train.parquet").num_rows,
        pq.read_metadata(dataset / "eval.parquet").num_rows,
    )
    assert rows

    def cell(r: dict[str, Any]) -> tuple[str, str, str]:
        return r["snapshot_pair"], r["category"], r["aspect"]

    n_rows = Counter(map(cell, rows))
    positives = Counter(cell(r) for r in rows if r["label"] == 1)
    reached = Counter(cell(r) for r in truth if r["reached"])
    novel = Counter(map(cell, truth))
    members = Counter(c for c, _ in {(cell(r), r["protein_accession"]) for r in truth})
    proteins = Counter(c for c, _ in {(cell(r), r["protein_accession"]) for r in rows})
    cells = {(pair, c, a): n for pair, by in m["counts"].items() for c, of in by.items() for a, n in of.items()}
    assert len(cells) == len(m["counts"]) * 9
    for where, n in cells.items():
        assert set(n) == COUNTS
        assert n["rows"] == n_rows[where]
        assert n["positives"] == n["reached"] == positives[where] == reached[where]  # a novel term is never known
        assert n["novel_terms"] == novel[where]
        assert n["members"] == members[where]
        assert n["proteins"] == proteins[where]
        assert n["queried"] == n["proteins"] + n["without_candidate"] <= n["members"]
        assert n["absent_from_old"] <= n["members"]
    for pair, dropped in m["dropped"]["cuts"].items():
        here = [n for where, n in cells.items() if where[0] == pair]
        assert dropped["no_embedding_members"] == sum(n["members"] - n["queried"] for n in here)
        assert dropped["no_embedding_proteins"] <= dropped["no_embedding_members"]
    positive = {(*cell(r), r["protein_accession"], r["go_term_id"]) for r in rows if r["label"] == 1}
    told = {(*cell(r), r["protein_accession"], r["go_term_id"]) for r in truth if r["reached"]}
    assert positive == told
    who = {(r["snapshot_pair"], r["protein_accession"]) for r in truth}
    assert {(r["snapshot_pair"], r["protein_accession"]) for r in known} <= who
    experienced = {(r["snapshot_pair"], r["protein_accession"]) for r in truth if r["category"] != "nk"}
    assert {(r["snapshot_pair"], r["protein_accession"]) for r in known} == experienced


def test_files_and_digests(published: tuple[Product, Path]) -> None:
    _, dataset = published
    m = manifest_of(dataset)
    assert set(m["files"]) == {"train.parquet", "eval.parquet", "truth.parquet", "known.parquet"}
    assert {p.name for p in dataset.iterdir()} == {*m["files"], "manifest.json", "run.json"}
    for name, info in m["files"].items():
        data = (dataset / name).read_bytes()
        assert info == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    for split in ("train", "eval"):
        with pq.ParquetFile(dataset / f"{split}.parquet") as f:
            digests = [logical_digest(f.read_row_group(i)) for i in range(f.num_row_groups)]
        assert m["logical_sha256"][split] == split_digest(digests)


def test_row_groups_are_parts(published: tuple[Product, Path]) -> None:
    """No row group spans two (cut, category) parts, and rows come in the published order."""
    _, dataset = published
    for which in ("train", "eval", "truth", "known"):
        with pq.ParquetFile(dataset / f"{which}.parquet") as f:
            for g in range(f.num_row_groups):
                part = f.read_row_group(g)
                assert len(part["snapshot_pair"].unique()) == 1
                assert which == "known" or len(part["category"].unique()) == 1
        rows = read(dataset / f"{which}.parquet")
        m = manifest_of(dataset)
        pairs, aspects = list(m["counts"]), ("mfo", "bpo", "cco")
        keys = [
            (
                pairs.index(r["snapshot_pair"]),
                ("nk", "lk", "pk").index(r["category"]) if which != "known" else 0,
                r["protein_accession"].encode(),
                aspects.index(r["aspect"]),
                r["go_term_id"].encode(),
            )
            for r in rows
        ]
        assert keys == sorted(set(keys))


def test_what_it_says_of_itself(published: tuple[Product, Path]) -> None:
    p, dataset = published
    m = manifest_of(dataset)
    assert set(m) >= KEYS
    assert m["columns"] == [
        {"name": c.name, "type": str(c.type), "family": c.family, "description": c.description, "unit": c.unit}
        for c in schema.COLUMNS
    ]
    with pq.ParquetFile(dataset / "train.parquet") as f:
        assert [(c["name"], c["type"]) for c in m["columns"]] == [(x.name, str(x.type)) for x in f.schema_arrow]
    assert (m["schema_sha"], m["schema_digest"]) == (schema.schema_sha(), schema.schema_digest())
    assert m["format"] == "parquet"
    assert set(m["config"]) == set(ExportConfig.model_fields)
    assert m["config"]["k"] == m["k"]
    versions = [*m["config"]["train_versions"], *m["config"]["test_versions"]]
    n = len(m["config"]["train_versions"])
    train = [f"v{a}-v{b}" for a, b in itertools.pairwise(versions[:n])]
    evals = [f"v{versions[n - 1]}-v{t}" for t in versions[n:]]
    assert m["train_snapshot_pairs"] == train
    assert m["eval_snapshot_pair"] == (evals[0] if len(evals) == 1 else evals)
    assert list(m["counts"]) == list(m["dropped"]["cuts"]) == train + evals
    assert set(m["dropped"]["annotation_sets"]) == {str(v) for v in versions}
    assert set(m["inputs"]["annotation_sets"]) == {str(v) for v in versions}
    derived = [v for v, s in m["inputs"]["annotation_sets"].items() if s["derived_by_date"]]
    assert derived == m["derived_by_date"] == [v for v in map(str, versions) if v in p.world.cut_dates]
    for digest in (m["embedding_config_id"], m["ontology_snapshot_id"], m["fingerprint"]):
        assert re.fullmatch("[0-9a-f]{64}", digest)


def test_families_say_what_varies(published: tuple[Product, Path]) -> None:
    """Produced families vary; the others, and each column that does not, are named with the reason."""
    _, dataset = published
    m = manifest_of(dataset)
    rows = read(dataset / "train.parquet") + read(dataset / "eval.parquet")
    assert set(m["families"]) == set(schema.FAMILIES)
    assert m["feature_families"] == [f for f in schema.FAMILIES if m["families"][f]["status"] == "produced"]
    for family, told in m["families"].items():
        names = [c.name for c in schema.COLUMNS if c.family == family]
        constant = {n for n in names if len({r[n] for r in rows}) == 1}
        assert told["status"] in ("produced", "absent")
        if told["status"] == "produced":
            assert set(told.get("absent_columns", {})) == constant
            assert constant != set(names)
        else:
            assert constant == set(names)
            assert told["reason"]
    assert m["families"]["alignment_nw"]["status"] == "absent"
    assert "lineage_ancestor_of_count" in m["families"]["lineage"].get("absent_columns", {}) or (
        m["families"]["lineage"]["status"] == "absent"
    )


def strings(tree: Any) -> list[str]:
    """Every key and every string of a JSON tree."""
    if isinstance(tree, dict):
        return [*tree, *(s for value in tree.values() for s in strings(value))]
    if isinstance(tree, list):
        return [s for value in tree for s in strings(value)]
    return [tree] if isinstance(tree, str) else []


def test_nothing_of_the_time_and_place(published: tuple[Product, Path]) -> None:
    p, dataset = published
    m = manifest_of(dataset)
    found = strings({k: v for k, v in m.items() if k != "columns"})
    assert not [s for s in found if s.startswith(("/", "~")) or str(p.directory) in s or s == socket.gethostname()]
    assert not [s for s in found if re.match(r"\d{4}-\d\d-\d\d[T ]\d\d:", s)]
    run = json.loads((dataset / "run.json").read_text())
    assert {"started", "finished", "host"} <= set(run)
