"""The columns are the contract's: names, order, types, families and null rules, and the two digests over them."""

import csv
import hashlib
from pathlib import Path

import pyarrow as pa
import pytest

from protea.core import features, schema
from protea.core.config import ExportConfig

CONTRACT = Path(__file__).resolve().parents[3] / "shared" / "design" / "columns.csv"
TYPES = {
    "dictionary<int32,string>": pa.dictionary(pa.int32(), pa.string()),
    "int8": pa.int8(),
    "int32": pa.int32(),
    "float32": pa.float32(),
    "bool": pa.bool_(),
}


@pytest.mark.skipif(not CONTRACT.is_file(), reason="the contract's columns.csv is not beside the checkout")
def test_columns_are_the_contracts() -> None:
    with CONTRACT.open(newline="") as f:
        want = [(r["name"], TYPES[r["arrow_type"]], r["family"], r["null_when"]) for r in csv.DictReader(f)]
    assert [(c.name, c.type, c.family, c.null_when) for c in schema.COLUMNS] == want


def test_the_order_is_fixed() -> None:
    """Also without the contract at hand: 80 columns, the identities first, the cut last."""
    assert len(schema.NAMES) == len(set(schema.NAMES)) == 80
    assert schema.NAMES[:6] == (
        *("protein_accession", "go_term_id", "aspect", "category", "label", "ref_protein_accession"),
    )
    assert schema.NAMES[-1] == "snapshot_pair"
    assert tuple(schema.ROWS.names) == schema.NAMES
    assert {c.type for c in schema.COLUMNS} == set(TYPES.values())
    assert [c.name for c in schema.COLUMNS if c.type == pa.int8()] == ["label"]
    assert all(c.description and c.null_when for c in schema.COLUMNS)
    measured = [c for c in schema.COLUMNS if c.type in (pa.float32(), pa.int32())]
    assert all(c.unit for c in measured)


def test_digests() -> None:
    names = [c.name for c in schema.COLUMNS if c.family != "identity"]
    assert schema.schema_sha() == hashlib.sha256("|".join(sorted(names)).encode()).hexdigest()[:12]
    assert not {"label", "category", "snapshot_pair", "go_term_id", "protein_accession"} & set(names)
    lines = [f"{f.name}:{f.type}" for f in schema.ROWS]
    assert schema.schema_digest() == hashlib.sha256("\n".join(lines).encode()).hexdigest()


def test_digests_see_what_they_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    sha, digest = schema.schema_sha(), schema.schema_digest()
    one, two, *rest = schema.COLUMNS
    monkeypatch.setattr(schema, "COLUMNS", (two, one, *rest))
    assert schema.schema_sha() == sha
    assert schema.schema_digest() != digest
    monkeypatch.setattr(schema, "COLUMNS", (one._replace(type=pa.string()), two, *rest))
    assert schema.schema_digest() != digest
    last = rest[5]._replace(name="renamed")
    monkeypatch.setattr(schema, "COLUMNS", (one, two, *rest[:5], last, *rest[6:]))
    assert schema.schema_sha() != sha


def test_truth_and_known() -> None:
    text = TYPES["dictionary<int32,string>"]
    names = ["snapshot_pair", "protein_accession", "aspect", "category", "go_term_id"]
    assert pa.schema([*((n, text) for n in names), ("reached", pa.bool_())]) == schema.TRUTH
    assert pa.schema([(n, text) for n in names if n != "category"]) == schema.KNOWN
    assert schema.ROW_GROUP == 200_000


def test_every_family_can_be_told_to_be_on_or_off() -> None:
    """The manifest gives each family a status: it is always on, or a setting switches it."""
    always = {"identity", "knn", "annotation_meta", "go_context", "length", "lineage"}
    switched = {family for p in features.PRODUCERS if p.switch for family in p.families}
    assert switched | always == set(schema.FAMILIES)
    assert not switched & always
    assert all(p.switch in ExportConfig.model_fields for p in features.PRODUCERS if p.switch)
