"""The examples that were worked out by hand for the reference, run against the product.

Each test of `tests/unit/test_reference.py` and `test_reference_families.py` that exports a world is run again with
the reference's `export` replaced by an export of the product; its assertions hold the values.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import test_reference
import test_reference_families

import reference
from product import product, read
from worlds import World

plain = reference.export
NO_EXPORT = {"test_a_family_without_its_input_is_refused"}
"""Examples that end before an export; the product's own refusals are in `test_exporting.py`."""
exported: list[str] = []


def by_the_product(world: World, settings: dict[str, Any], pca_of: Any = None) -> dict[str, Any]:
    """What the product makes of the world, in the form of the reference's answer."""
    want = plain(world, settings, pca_of)
    if settings.get("metric") == "l2":
        # the examples stand on a line with one protein at 0, a vector that loading refuses; moving all changes no distance
        world = replace(world, embeddings={a: v + np.float32(1) for a, v in world.embeddings.items()})
    if not world.embeddings:
        # a file without vectors cannot be loaded; a vector of nobody's is as good
        world = replace(world, embeddings={"NOBODY": np.ones(1, dtype=np.float32)})
    with product(world) as p:
        dataset = p.export(settings)
        exported.append(str(dataset))
        made = {name: read(dataset / f"{name}.parquet") for name in ("train", "eval", "truth", "known")}
    return {**want, **made}


def examples() -> list[Callable[..., None]]:
    """The tests that call `run` (an export of the reference) and need no fixture but monkeypatch."""
    found = []
    for module in (test_reference, test_reference_families):
        for name, test in vars(module).items():
            plain_test = (
                name.startswith("test_") and inspect.isfunction(test) and not inspect.signature(test).parameters
            )
            if plain_test and name not in NO_EXPORT and "run(" in inspect.getsource(test):
                found.append(test)
    return found


@pytest.mark.parametrize("example", examples(), ids=lambda test: test.__name__)
def test_by_hand(example: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_reference, "export", by_the_product)
    before = len(exported)
    example()
    assert len(exported) > before


def test_there_are_examples() -> None:
    names = {test.__name__ for test in examples()}
    assert len(names) > 20
    assert {
        "test_interpro_candidates",
        "test_a_protein_of_20000_residues",
        "test_association",
        "test_self_prior",
    } <= names
