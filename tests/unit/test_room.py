"""The room that an export needs on the disk: never less than it takes, and not many times as much."""

from pathlib import Path
from typing import Any

import pytest
from test_families import EVERYTHING

from product import Product, product
from protea.core import room
from protea.core.cut import prepare
from protea.core.room import CutSize, needs
from protea.core.runner import CutRunner
from worlds import random_world


def bytes_below(directory: Path) -> int:
    return sum(p.stat().st_size for p in directory.rglob("*") if p.is_file())


def taken(p: Product, settings: dict[str, Any]) -> tuple[int, int]:
    """Bytes in staging when all cuts are finished, and of the dataset."""
    staging = 0

    def report(kind: str, **what: Any) -> None:
        nonlocal staging
        if kind == "assembly.started":
            staging = bytes_below(p.directory / "run" / "resume")

    dataset = bytes_below(p.export(settings, report=report))
    return staging, dataset


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("families", [False, True])
def test_an_estimate_holds(seed: int, families: bool) -> None:
    world = random_world(seed, size=(6, 24, 60)[seed % 3], families=True)
    settings = {**world.names(), **(EVERYTHING if families else {}), "k": 1 + seed}
    with product(world) as p:
        config = p.config(settings)
        runner = CutRunner(config, p.used(config))
        prepared = [prepare(cut, runner.shared) for cut in runner.cuts]
        found = [room.size_of(config, room.expected_rows(q), q) for q in prepared]
        real = taken(p, settings)
        for estimate, bytes_ in zip(needs(found), real, strict=True):
            assert bytes_ <= estimate <= 4 * bytes_ + 100_000
        for size in found:
            assert size.shards <= room.at_most(runner).shards


def test_large_cuts_are_counted_by_what_their_columns_take() -> None:
    """As measured on a generated proteome with expansion: 139,796 rows in 4.3 MB, 2.0 MB without tables."""
    world = random_world(1, size=6, families=True)
    with product(world) as p:
        plain = p.config(world.names())
        every = p.config({**world.names(), **EVERYTHING, "compute_alignments": False})
        for config, bytes_ in ((every, 4_319_905), (plain, 1_956_868)):
            assert bytes_ <= room._row_files(config, 139_796) <= 2 * bytes_
            assert room._row_files(config, 100 * 139_796) > 99 * bytes_


def test_what_is_finished_is_needed_for_the_dataset_alone() -> None:
    cuts = [CutSize(100, 7), CutSize(30, 2), CutSize(50, there=True)]
    assert needs(cuts) == (100 + 7 + 30 + 2 + 100, 180)  # the blocks of the largest cut are there while it is finished
    assert needs([CutSize(100, 7, there=True)]) == (0, 100)
    assert needs([]) == (0, 0)
