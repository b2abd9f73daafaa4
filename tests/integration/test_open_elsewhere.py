"""A published file in the tools that people have: pandas, polars, DuckDB, pyarrow.dataset, LightGBM."""

from pathlib import Path
from typing import Any

import duckdb
import lightgbm
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from product import Product
from protea.core.schema import COLUMNS, DICT, NAMES, ROWS
from protea.exporting import Dataset
from worlds import random_world

TEXT = [c.name for c in COLUMNS if c.type == DICT]
FLAGS = [c.name for c in COLUMNS if c.type == pa.bool_()]
MEASURED = [c.name for c in COLUMNS if c.type == pa.float32()]
COUNTED = [c.name for c in COLUMNS if c.type == pa.int32()]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A few thousand rows, with nulls in filled columns (no sequence) and whole columns of null (families off)."""
    world = random_world(31, 160)
    settings = {"k": 9, "expand_votes_to_ancestors": True, "use_embedding_pca": True}
    path = Product(world, tmp_path_factory.mktemp("d")).export({**world.names(), **settings})
    return Dataset("world", path, {})


@pytest.fixture(scope="module")
def table(dataset: Dataset) -> pa.Table:
    found = pq.read_table(dataset.file("train"))
    assert found.num_rows > 2000
    assert found.schema == ROWS
    assert 0 < found["length_query"].null_count < found.num_rows
    assert found["identity_nw"].null_count == found.num_rows
    assert 0 < found["label"].to_numpy().sum() < found.num_rows
    return found


def plain(table: pa.Table) -> dict[str, list[Any]]:
    return {name: table[name].to_pylist() for name in NAMES}


def test_pandas(dataset: Dataset, table: pa.Table) -> None:
    frame = pd.read_parquet(dataset.file("train"))
    assert list(frame.columns) == list(NAMES)
    assert all(isinstance(frame[c].dtype, pd.CategoricalDtype) for c in TEXT)
    assert all(frame[c].dtype == np.float32 for c in MEASURED)
    assert frame["label"].dtype == np.int8
    assert frame["vote_count"].dtype == np.int32
    assert frame["lineage_is_ancestor_of_known"].dtype == np.bool_
    nullable = pd.read_parquet(dataset.file("train"), dtype_backend="pyarrow")
    assert nullable["length_query"].dtype == pd.ArrowDtype(pa.int32())
    want = plain(table)
    for name in NAMES:
        assert [None if pd.isna(x) else x for x in nullable[name]] == want[name], name
    assert frame["distance"].to_numpy().tobytes() == table["distance"].to_numpy().tobytes()
    assert frame["go_term_id"].astype(str).tolist() == want["go_term_id"]


def test_polars(dataset: Dataset, table: pa.Table) -> None:
    frame = pl.read_parquet(dataset.file("train"))
    kinds = {
        DICT: pl.Categorical,
        pa.int8(): pl.Int8,
        pa.int32(): pl.Int32,
        pa.float32(): pl.Float32,
        pa.bool_(): pl.Boolean,
    }
    assert frame.columns == list(NAMES)
    for c in COLUMNS:
        assert frame.schema[c.name] == kinds[c.type], c.name
    want = plain(table)
    for name in NAMES:
        assert frame[name].to_list() == want[name], name
    lazy = pl.scan_parquet(dataset.file("train")).group_by("aspect").agg(pl.col("label").sum()).collect()
    assert lazy["label"].sum() == sum(want["label"])


def test_duckdb(dataset: Dataset, table: pa.Table) -> None:
    kinds = {DICT: "VARCHAR", pa.int8(): "TINYINT", pa.int32(): "INTEGER", pa.float32(): "FLOAT", pa.bool_(): "BOOLEAN"}
    with duckdb.connect() as db:
        described = db.execute("DESCRIBE SELECT * FROM read_parquet(?)", [str(dataset.file("train"))]).fetchall()
        assert [(row[0], row[1]) for row in described] == [(c.name, kinds[c.type]) for c in COLUMNS]
        rows = db.execute("SELECT * FROM read_parquet(?)", [str(dataset.file("train"))]).fetchall()
        want = plain(table)
        for i, name in enumerate(NAMES):
            assert [row[i] for row in rows] == want[name], name
        joined = """
            SELECT count(*) FROM read_parquet($truth) t JOIN read_parquet($rows) r
            USING (snapshot_pair, protein_accession, aspect, category, go_term_id) WHERE t.reached AND r.label = 1"""
        both = [dataset.file("train"), dataset.file("eval")]
        found = db.execute(joined, {"truth": str(dataset.file("truth")), "rows": [str(p) for p in both]}).fetchone()
        assert found == (sum(want["label"]) + sum(dataset.eval.to_table()["label"].to_pylist()),)


def test_pyarrow_dataset(dataset: Dataset, table: pa.Table) -> None:
    for which, rows in (("train", table.num_rows), ("eval", None), ("truth", None), ("known", None)):
        opened: ds.Dataset = getattr(dataset, which)
        assert opened.schema == pq.read_schema(dataset.file(which))
        assert opened.count_rows() == (rows or pq.read_metadata(dataset.file(which)).num_rows)
    positive = dataset.train.to_table(columns=["go_term_id", "distance"], filter=ds.field("label") == 1)
    assert positive.num_rows == sum(table["label"].to_pylist())
    nk = dataset.train.count_rows(filter=ds.field("category") == "nk")
    assert nk == table["category"].to_pylist().count("nk") > 0


def test_truth_and_known_open_everywhere(dataset: Dataset) -> None:
    for which in ("truth", "known"):
        path = dataset.file(which)
        want = pq.read_table(path)
        assert want.num_rows > 20
        assert pl.read_parquet(path).to_dicts() == want.to_pylist()
        assert pd.read_parquet(path).astype(object).to_dict("records") == want.to_pylist()
        with duckdb.connect() as db:
            found = db.execute("SELECT * FROM read_parquet(?)", [str(path)]).fetchall()
        assert [dict(zip(want.column_names, row, strict=True)) for row in found] == want.to_pylist()


def test_an_empty_split_opens_everywhere(tmp_path: Path) -> None:
    """Nothing new between the last two releases: a valid file without rows."""
    world = random_world(5, 12, corners=())
    last, before = str(world.test_versions[-1]), str(world.train_versions[-1])
    world.releases[last] = list(world.releases[before])
    drawn = {**world.names(), "test_versions": [world.test_versions[-1]]}
    path = Product(world, tmp_path).export(drawn) / "eval.parquet"
    assert pq.read_table(path).schema == ROWS
    assert len(pd.read_parquet(path)) == len(pl.read_parquet(path)) == ds.dataset(path).count_rows() == 0
    with duckdb.connect() as db:
        assert db.execute("SELECT count(*) FROM read_parquet(?)", [str(path)]).fetchone() == (0,)


def test_a_booster_trains_on_it(dataset: Dataset) -> None:
    """As a user would: the file as it is, label against numbers, flags and a few categories."""
    train, test = (pd.read_parquet(dataset.file(which)) for which in ("train", "eval"))
    categories = ["aspect", "qualifier", "evidence_code"]
    features = [*MEASURED, *COUNTED, *FLAGS, *categories]
    for c in categories:
        kinds = pd.CategoricalDtype(sorted({*train[c].dropna(), *test[c].dropna()}))
        train[c], test[c] = train[c].astype(kinds), test[c].astype(kinds)
    for c in (*COUNTED, *FLAGS):
        train[c], test[c] = train[c].astype(np.float32), test[c].astype(np.float32)
    data = lightgbm.Dataset(train[features], train["label"], categorical_feature=categories)
    options = {"objective": "binary", "verbose": -1, "num_threads": 2, "min_data_in_leaf": 5, "seed": 1}
    booster = lightgbm.train(options, data, num_boost_round=20)
    predicted = np.asarray(booster.predict(test[features]))
    assert len(predicted) == len(test) > 100
    assert np.isfinite(predicted).all()
    assert predicted.std() > 0
    own = np.asarray(booster.predict(train[features]))
    label = train["label"].to_numpy() == 1
    assert own[label].mean() > own[~label].mean()
