"""Future-blindness (contract section 3): the new set decides labels, categories and membership, and nothing else.

A cut is exported twice, the second time with a new set made afresh: other novel terms for the same members, other codes,
dates and qualifiers, and rows that make nobody a member. Every column but the label, and the set of rows, must come
out bit for bit; `train.parquet` and `known.parquet`, which the new set of the eval cut has no part in, byte for byte.
"""

import json
import random
from collections.abc import Iterable
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as budget
from hypothesis import strategies as st
from test_families import EVERYTHING

import reference
from product import Product, product
from worlds import BINDING, PROTEIN_BINDING, Row, World, gaf_row, random_settings, random_world, settings, worlds

QUALIFIERS = ("", "enables", "contributes_to", "acts_upstream_of_or_within", "involved_in|contributes_to")


class Cut:
    """The reference's view of the cut (old, new) of a world."""

    def __init__(self, world: World, cfg: dict[str, Any], old: str, new: str) -> None:
        self.ont = reference.Ontology(world.terms)
        self.old = reference._load(world, old, self.ont)
        self.new = reference._load(world, new, self.ont)
        self.truth = reference.Truth(self.old, self.new, self.ont, cfg)


def single_test(world: World, drawn: dict[str, Any]) -> dict[str, Any]:
    """The settings with one eval cut: what is changed then is seen by that cut alone."""
    return {**drawn, "test_versions": [world.test_versions[-1]]}


def renewed(world: World, cfg: dict[str, Any], old: str, new: str, seed: int) -> World:
    """The world with another set `new`, of the same members and categories in the cut (old, new)."""
    rng = random.Random(seed)
    cut = Cut(world, cfg, old, new)
    codes = reference.experimental_codes(cfg)
    first, last = date(2001, 1, 1), date(2024, 1, 1)
    if new in world.cut_dates:
        first, last = date.fromisoformat(old) + timedelta(days=1), date.fromisoformat(new)

    def row(accession: str, term: str, evidence: str, **more: Any) -> Row:
        when = first + timedelta(days=rng.randint(0, (last - first).days))
        qualifier = more.pop("qualifier", rng.choice(QUALIFIERS))
        taxon = rng.choice(("taxon:9606", "taxon:1", "taxon:10090|taxon:1"))
        return gaf_row(accession, term, evidence, qualifier, when=f"{when:%Y%m%d}", taxon=taxon, **more)

    rows: list[Row] = []
    terms = {a: [t for t in cut.ont.live if cut.ont.aspect(t) == a] for a in reference.ASPECTS}
    stuck: set[str] = set()
    members: dict[str, list[str]] = {}
    for p, a in cut.truth.members:
        members.setdefault(p, []).append(a)
    for p, aspects in members.items():
        negated = cut.old.negated(p, cut.ont, codes)
        mine: list[Row] = []
        for a in aspects:
            known = cut.truth.known[p][a]
            free = [t for t in terms[a] if t not in known and t not in negated and t not in reference.ROOTS]
            telling = [t for t in free if t not in (BINDING, PROTEIN_BINDING)]
            if not telling:
                stuck.add(p)  # it has to keep its rows
                break
            chosen = [rng.choice(telling), *rng.sample(free, rng.randint(0, min(3, len(free))))]
            chosen += rng.sample(sorted(known), min(len(known), rng.randint(0, 2)))
            mine += [row(p, t, rng.choice(codes), form=rng.choice(("", f"UniProtKB:{p}-2"))) for t in chosen]
        rows += [] if p in stuck else mine
    everyone = [*world.proteins, "NEW001", "NEW002"]
    other = [c for c in reference.CODES if c not in codes]
    anything = [t for pool in terms.values() for t in pool]
    for p in everyone:
        for _ in range(rng.randint(0, 4)):
            rows.append(row(p, rng.choice(anything), rng.choice([*other, "ND"])))
        if rng.random() < 0.3:  # a denial that is not experimental denies nothing
            rows.append(row(p, rng.choice(anything), rng.choice(other), qualifier="NOT"))
        if p not in members and rng.random() < 0.3:
            rows.append(row(p, rng.choice(anything), rng.choice(codes), qualifier="NOT|enables"))
        if rng.random() < 0.3:
            rows.append(row(p, rng.choice(anything), rng.choice(codes), database="ComplexPortal"))
        if rng.random() < 0.3:
            rows.append(row(p, rng.choice(sorted(reference.ROOTS)), rng.choice(codes)))
        if rng.random() < 0.2:
            rows.append(row(p, "GO:7654321", rng.choice(codes)))
        known = [t for found in cut.truth.known.get(p, {}).values() for t in found]
        if known and rng.random() < 0.5:
            rows.append(row(p, rng.choice(known), rng.choice(codes)))
        if cfg["exclude_binding_only"] and "mfo" not in members.get(p, []) and rng.random() < 0.3:
            rows.append(row(p, PROTEIN_BINDING, rng.choice(codes), qualifier=""))
    rng.shuffle(rows)
    return replaced(world, old, new, rows, stuck)


def replaced(world: World, old: str, new: str, rows: list[Row], keep: Iterable[str]) -> World:
    """The world with `rows` for those of the set `new` that the set `old` does not share; `keep`: whose stay."""
    if new not in world.cut_dates:
        rows = rows + [r for r in world.releases[new] if r[1:2] and r[1] in keep]
        return replace(world, releases={**world.releases, new: rows})

    def shared(r: Row) -> bool:
        """Rows up to the old date, and those whose date cannot be told."""
        day = reference.row_date(r) if not reference.malformed(r) else None
        return day is None or not date.fromisoformat(old) < day <= date.fromisoformat(new) or r[1] in keep

    return replace(world, derived_rows=[r for r in world.derived_rows if shared(r)] + rows)


def bits(column: pa.ChunkedArray) -> pa.Array:
    """The values of a column, floats by their bits."""
    array = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        return array.cast(pa.string())
    return array.view(pa.int32()) if pa.types.is_floating(column.type) else array


def same_but_labels(a: Path, b: Path) -> int:
    """Require all columns but the label to be identical; how many labels differ."""
    one, two = pq.read_table(a), pq.read_table(b)
    assert one.num_rows == two.num_rows
    for name in one.column_names:
        if name != "label":
            assert bits(one[name]).equals(bits(two[name])), name
    labels = zip(one["label"].to_pylist(), two["label"].to_pylist(), strict=True)
    return sum(x != y for x, y in labels)


def blind(world: World, drawn: dict[str, Any], seed: int) -> int:
    """Export the world and one with another last set, compare; how many labels changed."""
    cfg = reference.complete(drawn)
    _, old, new = reference.cuts_of(cfg)[-1]
    other = renewed(world, cfg, old, new, seed)
    assert Cut(other, cfg, old, new).truth.members == Cut(world, cfg, old, new).truth.members
    with product(world) as p, product(other) as q:
        one, two = p.export(drawn), q.export(drawn)
        for name in ("train.parquet", "known.parquet"):
            assert (one / name).read_bytes() == (two / name).read_bytes(), name
        changed = same_but_labels(one / "eval.parquet", two / "eval.parquet")
        counts = [json.loads((d / "manifest.json").read_text())["counts"][f"v{old}-v{new}"] for d in (one, two)]
    for what in ("members", "queried", "rows", "proteins", "without_candidate"):
        told = [{(c, a): n[what] for c, by in found.items() for a, n in by.items()} for found in counts]
        assert told[0] == told[1], what
    return changed


@pytest.mark.parametrize("start", range(0, 30, 6))
def test_seeded_worlds(start: int) -> None:
    changed = 0
    for seed in range(start, start + 6):
        world = random_world(seed, size=10 + seed % 20)
        changed += blind(world, single_test(world, random_settings(seed, world)), seed)
    assert changed > 5  # the new sets did say other things


@pytest.mark.parametrize("start", range(0, 24, 6))
def test_seeded_worlds_with_every_family(start: int) -> None:
    """The later families read the old release and inputs without a date, and no more."""
    changed = 0
    for seed in range(start, start + 6):
        world = random_world(seed, size=10 + seed % 20, families=True)
        drawn = random_settings(seed, world, families=True) | EVERYTHING
        changed += blind(world, single_test(world, drawn), seed)
    assert changed > 5


@given(st.data())
@budget(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_world(data: st.DataObject) -> None:
    world = data.draw(worlds())
    blind(world, single_test(world, data.draw(settings(world))), data.draw(st.integers(0, 2**32 - 1)))


def test_train_cuts_too() -> None:
    """The new set of a train cut, which is the old set of the next one: that one may change, the train cut may not."""
    changed = rows = 0
    for seed in range(8):
        world = random_world(seed, size=20, corners={"negated", "evidence", "ties", "qualifiers", "binding", "missing"})
        drawn = {**single_test(world, random_settings(seed, world)), "train_versions": world.train_versions[:2]}
        cfg = reference.complete(drawn)
        old, new = (str(v) for v in world.train_versions[:2])
        other = renewed(world, cfg, old, new, seed)
        assert Cut(other, cfg, old, new).truth.members == Cut(world, cfg, old, new).truth.members
        with product(world) as p, product(other) as q:
            one, two = p.export(drawn), q.export(drawn)
            changed += same_but_labels(one / "train.parquet", two / "train.parquet")
            rows += pq.read_metadata(one / "train.parquet").num_rows
            assert (one / "eval.parquet").read_bytes() != (two / "eval.parquet").read_bytes()
    assert changed > 20
    assert rows > 200


def test_the_comparison_sees_another_old_set(tmp_path: Path) -> None:
    """Negative control: one electronic row fewer in the old set, members as before, and the comparison fails."""
    world = random_world(3, size=30, corners={"evidence", "ties", "qualifiers"})
    drawn = single_test(world, world.names())
    cfg = reference.complete(drawn)
    _, old, new = reference.cuts_of(cfg)[-1]
    p = Product(world, _made(tmp_path / "one"))
    one = p.export(drawn)
    donor = pq.read_table(one / "eval.parquet")["ref_protein_accession"][0].as_py()
    electronic = [r for r in world.releases[old] if r[1] == donor and r[6] not in reference.EXPERIMENTAL]
    assert electronic
    kept = [r for r in world.releases[old] if r not in electronic]
    other = replace(world, releases={**world.releases, old: kept})
    assert Cut(other, cfg, old, new).truth.members == Cut(world, cfg, old, new).truth.members
    two = Product(other, _made(tmp_path / "two")).export(drawn)
    with pytest.raises(AssertionError):
        same_but_labels(one / "eval.parquet", two / "eval.parquet")


def _made(path: Path) -> Path:
    path.mkdir()
    return path
