"""The product against the plain reference of the contract (`tests/reference.py`), on random small worlds."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as budget
from hypothesis import strategies as st

import reference
from farm import ALL
from product import Product, product, read
from worlds import World, random_settings, random_world, settings, worlds


def compare(p: Product, drawn: dict[str, Any], where: str = "run") -> int:
    """Export, and require that every row, count and table equals the reference's; the number of rows."""
    axes = (p.store.pca_mean.tolist(), p.store.pca_components.tolist())
    want = reference.export(p.world, drawn, pca_of=axes)
    dataset = p.export(drawn, where)
    for split in ("train", "eval", "truth", "known"):
        assert read(dataset / f"{split}.parquet") == want[split], split
    manifest = json.loads((dataset / "manifest.json").read_text())
    assert manifest["counts"] == want["counts"]
    assert reference.nonzero(manifest["dropped"]["annotation_sets"]) == reference.nonzero(
        want["dropped"]["annotation_sets"]
    )
    assert manifest["dropped"]["cuts"] == want["dropped"]["cuts"]
    return len(want["train"]) + len(want["eval"])


@pytest.mark.parametrize("start", range(0, 200, 10 if ALL else 20))
def test_seeded_worlds(start: int) -> None:
    """Ten worlds each of growing size, with settings drawn from the same seed."""
    rows = 0
    for seed in range(start, start + 10):
        world = random_world(seed, size=8 + seed % 17)
        with product(world, embeddings=("npz", "parquet", "h5")[seed % 3]) as p:
            rows += compare(p, random_settings(seed, world))
    assert rows > 50


@given(st.data())
@budget(
    max_examples=40 if ALL else 20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_any_world(data: st.DataObject) -> None:
    world = data.draw(worlds())
    drawn = data.draw(settings(world))
    with product(world) as p:
        compare(p, drawn)


def test_a_larger_world() -> None:
    """Three hundred proteins: several tiles of the search, more terms, longer lists."""
    world: World = random_world(7, size=300)
    with product(world) as p:
        assert compare(p, world.names(), "plain") > 1000
        more = {"k": 17, "expand_votes_to_ancestors": True, "exclude_identical_sequences": True}
        assert compare(p, {**world.names(), **more}, "expanded") > 1000
