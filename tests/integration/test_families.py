"""Every feature family against the plain reference (`tests/reference_families.py`), on random small worlds."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as budget
from hypothesis import strategies as st

import reference
import reference_families
from farm import ALL
from product import Product, contents, product, read
from worlds import TABLES, random_settings, random_world, settings, worlds

EVERYTHING: dict[str, Any] = {
    **TABLES,
    "compute_alignments": True,
    "compute_taxonomy": True,
    "compute_self_prior": True,
    "compute_association": True,
    "interpro_candidates": True,
    "use_embedding_pca": True,
}


def compare(p: Product, drawn: dict[str, Any]) -> int:
    """Export, and require that every row, count and table equals the reference's; the number of rows."""
    axes = (p.store.pca_mean.tolist(), p.store.pca_components.tolist())
    want = reference.export(p.world, drawn, pca_of=axes)
    dataset = p.export(drawn)
    for split in ("train", "eval"):
        got = read(dataset / f"{split}.parquet")
        assert not reference_families.differences(got, want[split], want.get("alignments"))
    for table in ("truth", "known"):
        assert read(dataset / f"{table}.parquet") == want[table]
    manifest = json.loads((dataset / "manifest.json").read_text())
    assert manifest["counts"] == want["counts"]
    named = {TABLES[setting]: reasons for setting, reasons in manifest["dropped"]["tables"].items()}
    assert reference.nonzero(named) == reference.nonzero(want["dropped"].get("tables", {}))
    return len(want["train"]) + len(want["eval"])


@pytest.mark.parametrize("start", range(0, 60, 10 if ALL else 20))
def test_seeded_worlds(start: int) -> None:
    rows = 0
    for seed in range(start, start + 10):
        world = random_world(seed, size=8 + seed % 17, families=True)
        with product(world) as p:
            rows += compare(p, random_settings(seed, world, families=True))
    assert rows > 50


@given(st.data())
@budget(
    max_examples=20 if ALL else 12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_any_world(data: st.DataObject) -> None:
    world = data.draw(worlds(families=True))
    drawn = data.draw(settings(world, families=True))
    with product(world) as p:
        compare(p, drawn)


def test_everything_on_gives_the_same_bytes_on_every_path() -> None:
    """Threads and blocks change nothing, whatever families are on."""
    world = random_world(11, size=60, families=True)
    drawn = {**world.names(), **EVERYTHING}
    with product(world) as p:
        first = contents(p.export(drawn, "one", threads=1))
        second = contents(p.export(drawn, "two", threads=3, queries_per_block=1))
        assert first == second
        families = json.loads(first["manifest.json"])["families"]
        assert {f for f, s in families.items() if s["status"] == "absent"} == set()
