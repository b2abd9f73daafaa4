"""Everything that can change a byte is in the keys; a setting, an input or a dataclass field that is new fails here."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from protea.core import keys
from protea.core.annotation_set import AnnotationSource
from protea.core.config import TABLES, ExportConfig, parse
from protea.core.keys import NOT_IN_CUT_KEY, ExportInputs, InputRef, cut_key, cuts, export_key, fingerprint
from protea.core.staging import changes, digest

BASE: dict[str, Any] = {
    "name": "d",
    "embedding_config": "vectors",
    "annotation_source": "goa",
    "train_versions": [1, 2, 3],
    "test_versions": [4, 5],
    "ontology": "go",
    "proteins": "proteins",
}
OTHER: dict[str, Any] = {
    "name": "e",
    "embedding_config": "others",
    "annotation_source": "yeast",
    "train_versions": [1, 2],
    "test_versions": [4],
    "ontology": "go2",
    "proteins": "proteins2",
    "k": 6,
    "metric": "l2",
    "search_backend": "faiss",
    "distance_threshold": 0.5,
    "donor_evidence": ["IDA"],
    "experimental_codes": "cafa",
    "label_mode": "direct",
    "keep_known": True,
    "exclude_binding_only": False,
    "exclude_identical_sequences": True,
    "expand_votes_to_ancestors": True,
    "use_embedding_pca": True,
    "compute_alignments": True,
    "compute_taxonomy": True,
    "compute_self_prior": True,
    "compute_association": True,
    "interpro_candidates": True,
    "taxonomy": "tax",
    "term_vectors": "terms",
    "interpro": "ipr",
    "external_scores": "scores",
    "information_accretion": "ia",
    "max_alignment_cells": 10,
}
"""Another value of every setting. A new setting needs one here."""

INPUT_OF = {
    "ontology": "ontology",
    "proteins": "proteins",
    "embedding_config": "embedding_config",
    "annotation_source": "annotation_sets",
    **{name: name for name in TABLES},
}
"""Settings that name an input, and the entry of `ExportInputs.identities` that holds what they name."""


def config(**values: Any) -> ExportConfig:
    """Unchecked, so that the settings of later families can be given."""
    return parse(BASE).model_copy(update=values)


def inputs(**values: Any) -> ExportInputs:
    made = ExportInputs(
        InputRef("go", "ontology-1", Path("a")),
        InputRef("proteins", "proteins-1", Path("b")),
        InputRef("vectors", "vectors-1", Path("c")),
        {v: AnnotationSource(v, Path(f"s{v}"), f"set-{v}") for v in (1, 2, 3, 4, 5)},
        tables={name: InputRef(name, f"{name}-1", Path("t")) for name in TABLES},
    )
    return replace(made, **values)


def key_of(c: ExportConfig, i: ExportInputs, pair: str = "v1-v2") -> str:
    return digest(cut_key(c, i, next(cut for cut in cuts(c, i) if cut.pair == pair)))


# -------------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize("setting", ExportConfig.model_fields)
def test_every_setting(setting: str) -> None:
    """Another value gives another fingerprint (but for the name) and another cut, or there is a reason why not."""
    assert setting in OTHER, f"{setting}: give another value in OTHER"
    assert getattr(config(), setting) != OTHER[setting]
    changed = config(**{setting: OTHER[setting]})
    assert (fingerprint(changed, inputs()) == fingerprint(config(), inputs())) == (setting == "name")
    same_cut = key_of(changed, inputs()) == key_of(config(), inputs())
    assert same_cut == (setting in NOT_IN_CUT_KEY)
    assert len(NOT_IN_CUT_KEY.get(setting, "a long enough reason")) > 15


def test_no_stale_reason() -> None:
    assert set(NOT_IN_CUT_KEY) <= set(ExportConfig.model_fields)
    assert set(OTHER) == set(ExportConfig.model_fields)


def test_single_changes_are_all_different() -> None:
    marks = [fingerprint(config(), inputs())]
    marks += [fingerprint(config(**{s: v}), inputs()) for s, v in OTHER.items() if s != "name"]
    assert len(set(marks)) == len(marks)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"train_versions": ["1", 2, "3"]}, {}),
        ({"search_backend": "numpy"}, {"search_backend": "exact"}),
        ({"distance_threshold": 2}, {"distance_threshold": 2.0}),
        ({"donor_evidence": ["IEA", "IDA", "IEA"]}, {"donor_evidence": ["IDA", "IEA"]}),
        ({"k": 5, "metric": "cosine", "keep_known": False, "taxonomy": None}, {}),
        (
            {"train_versions": [date(2010, 1, 1), "2011-01-01"], "test_versions": ["2012-01-01"]},
            {"train_versions": ["2010-01-01", date(2011, 1, 1)], "test_versions": [date(2012, 1, 1)]},
        ),
    ],
)
def test_the_same_said_otherwise(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert parse({**BASE, **one}) == parse({**BASE, **two})
    assert fingerprint(parse({**BASE, **one}), inputs()) == fingerprint(parse({**BASE, **two}), inputs())


# ---------------------------------------------------------------------------------------------------------------- inputs


@pytest.mark.parametrize("setting", INPUT_OF)
def test_a_named_input_is_keyed_by_what_it_is(setting: str) -> None:
    assert setting in NOT_IN_CUT_KEY
    assert INPUT_OF[setting] in inputs().identities()


@pytest.mark.parametrize("table", TABLES)
def test_an_optional_input_of_other_content(table: str) -> None:
    other = inputs(tables={**inputs().tables, table: InputRef(table, "another", Path("t"))})
    none = inputs(tables={name: ref for name, ref in inputs().tables.items() if name != table})
    for changed in (other, none):
        assert fingerprint(config(), changed) != fingerprint(config(), inputs())
        assert key_of(config(), changed) != key_of(config(), inputs())


def test_every_field_of_the_inputs_is_known() -> None:
    """`derived` is no key of its own: a set's identity covers its cut date (`protea.ingest`). Paths and stats follow it."""
    assert {f.name for f in fields(ExportInputs)} == {"ontology", "proteins", "embeddings", "sets", "derived", "tables"}
    assert {f.name for f in fields(AnnotationSource)} == {"version", "path", "identity", "cut_date", "stats"}
    assert {f.name for f in fields(InputRef)} == {"name", "identity", "path", "stats"}


@pytest.mark.parametrize("which", ["ontology", "proteins", "embeddings"])
def test_an_input_of_other_content(which: str) -> None:
    other = inputs(**{which: InputRef(getattr(inputs(), which).name, "another", Path("a"))})
    assert fingerprint(config(), other) != fingerprint(config(), inputs())
    assert all(key_of(config(), other, c.pair) != key_of(config(), inputs(), c.pair) for c in cuts(config(), inputs()))


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_an_annotation_set_of_other_content(version: int) -> None:
    """It changes the cuts that it is in, and no other."""
    other = inputs(sets={**inputs().sets, version: AnnotationSource(version, Path("s"), "another")})
    assert fingerprint(config(), other) != fingerprint(config(), inputs())
    for cut in cuts(config(), inputs()):
        concerned = version in (cut.old.version, cut.new.version)
        assert (key_of(config(), other, cut.pair) != key_of(config(), inputs(), cut.pair)) == concerned


def test_where_inputs_lie_and_their_names_do_not_matter() -> None:
    moved = ExportInputs(
        InputRef("x", "ontology-1", Path("elsewhere")),
        InputRef("y", "proteins-1", Path("elsewhere")),
        InputRef("z", "vectors-1", Path("elsewhere")),
        {v: replace(s, path=Path("elsewhere")) for v, s in inputs().sets.items()},
        tables={n: replace(ref, name="t", path=Path("elsewhere")) for n, ref in inputs().tables.items()},
    )
    assert fingerprint(config(), moved) == fingerprint(config(), inputs())
    assert key_of(config(), moved) == key_of(config(), inputs())


# -------------------------------------------------------------------------------------------------------- code and cuts


@pytest.mark.parametrize(
    ("what", "value"),
    [("CUT_VERSION", 99), ("schema_digest", lambda: "x"), ("libraries", lambda: {"numpy": "9"})],
)
def test_the_code_is_in_the_keys(what: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(config(), inputs()), key_of(config(), inputs())
    monkeypatch.setattr(keys, what, value)
    after = fingerprint(config(), inputs()), key_of(config(), inputs())
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_the_assembly_is_in_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(config(), inputs()), key_of(config(), inputs())
    monkeypatch.setattr(keys, "ASSEMBLY_VERSION", 99)
    assert fingerprint(config(), inputs()) != before[0]
    assert key_of(config(), inputs()) == before[1]


def test_the_pairs() -> None:
    made = cuts(config(), inputs())
    assert [(c.kind, c.pair) for c in made] == [
        ("train", "v1-v2"),
        ("train", "v2-v3"),
        ("eval", "v3-v4"),
        ("eval", "v3-v5"),
    ]
    assert len({key_of(config(), inputs(), c.pair) for c in made}) == 4
    longer = config(train_versions=[1, 2], test_versions=[3])
    assert key_of(longer, inputs(), "v1-v2") == key_of(config(), inputs(), "v1-v2")


def test_what_changed_is_told() -> None:
    old, new = export_key(config(), inputs()), export_key(config(k=7, metric="l2"), inputs())
    assert changes(old, new) == ["settings.k: 5 -> 7", "settings.metric: cosine -> l2"]
    assert changes(old, old) == []
    assert changes({"a": {"b": 1}}, {"a": {}, "c": None}) == ["a.b: 1 -> null"]
    assert changes({"x": "f" * 64}, {"x": "0" * 64}) == ["x: ffffffffffff… -> 000000000000…"]
