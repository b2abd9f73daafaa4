"""The reference against examples that are worked out by hand, and the random worlds against what they promise.

The ontology of the examples (all edges point up; 4 is_a 2 and is part_of 3):

    F: root ── 1 ── 2 ── 4          P: root ── 11 ── 12          C: root ── 21
               └─── 3 ──┘
       root ── 5488 ── 5515
"""

from __future__ import annotations

import gzip
import math
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits

sys.path.insert(0, str(Path(__file__).parents[1]))

import reference
import worlds
from reference import CATEGORIES, Ontology, export, f32
from worlds import Protein, Row, Term, World, gaf_row


def go(number: int) -> str:
    return f"GO:{number:07d}"


def term(number: int, aspect: str, *is_a: int, **more: Any) -> Term:
    return Term(go(number), worlds.NAMESPACES[aspect], tuple(go(n) for n in is_a), **more)


TERMS = [
    *(term(3674, "F"), term(8150, "P"), term(5575, "C")),
    *(term(1, "F", 3674), term(2, "F", 1), term(3, "F", 1), term(4, "F", 2, part_of=(go(3),))),
    *(term(5488, "F", 3674), term(5515, "F", 5488)),
    *(term(11, "P", 8150), term(12, "P", 11), term(21, "C", 5575)),
]
LINE = {"A": 0.0, "B": 1.0, "C": 3.0, "D": 6.0}
"""Four proteins on a line: with `l2` the distances are the squares of the differences."""


def row(accession: str, number: int, evidence: str, qualifier: str = "", **more: Any) -> Row:
    return gaf_row(accession, go(number), evidence, qualifier, **more)


def world(old: list[Row], new: list[Row], last: list[Row] | None = None, **more: Any) -> World:
    """Versions 1, 2 and 3; the third has the rows of the second unless told otherwise."""
    made = World(
        terms=TERMS,
        releases={"1": old, "2": new, "3": new if last is None else last},
        proteins={acc: Protein(9606, "M" * (i + 1)) for i, acc in enumerate("ABCD")},
        embeddings={acc: np.array([x], np.float32) for acc, x in LINE.items()},
        train_versions=[1, 2],
        test_versions=[3],
    )
    return replace(made, **more)


def run(w: World, **settings: Any) -> dict[str, Any]:
    return export(w, {**w.names(), "metric": "l2", **settings})


def rows_of(out: dict[str, Any], accession: str, split: str = "train") -> dict[str, dict[str, Any]]:
    return {r["go_term_id"]: r for r in out[split] if r["protein_accession"] == accession}


OLD = [row("A", 2, "IEA"), row("B", 11, "IDA"), row("C", 1, "IDA"), row("D", 2, "IDA"), row("D", 12, "IEA")]
NEW = [*OLD, row("A", 2, "IDA"), row("B", 3, "IDA"), row("C", 2, "IMP")]


def test_one_cut_with_all_categories():
    """A had nothing experimental (nk); B had a process, gains a function (lk); C gains a second function (pk)."""
    out = run(world(OLD, NEW))
    truth = [(t["category"], t["protein_accession"], t["go_term_id"], t["reached"]) for t in out["truth"]]
    assert truth == [
        ("nk", "A", go(1), True),
        ("nk", "A", go(2), True),
        ("lk", "B", go(1), True),
        ("lk", "B", go(3), False),  # nobody has 3 in the old set
        ("pk", "C", go(2), True),
    ]
    # Donors in F: A {2}, C {1}, D {2}. A sees C and D; B all three; C sees A and D, both for 2 (1 is known to it).
    keys = [(r["category"], r["protein_accession"], r["go_term_id"], r["label"]) for r in out["train"]]
    assert keys == [
        ("nk", "A", go(1), 1),
        ("nk", "A", go(2), 1),
        ("lk", "B", go(1), 1),
        ("lk", "B", go(2), 0),
        ("pk", "C", go(2), 1),
    ]
    assert out["eval"] == []
    known = [(t["protein_accession"], t["aspect"], t["go_term_id"]) for t in out["known"]]
    assert known == [("B", "bpo", go(11)), ("C", "mfo", go(1))]
    assert out["counts"]["v1-v2"]["lk"]["mfo"] == {
        "members": 1,
        "queried": 1,
        "absent_from_old": 0,
        "novel_terms": 2,
        "reached": 1,
        "rows": 2,
        "positives": 1,
        "proteins": 1,
        "without_candidate": 0,
    }
    assert reference.nonzero(out["counts"]["v2-v3"]) == {}


def test_every_filled_column_of_one_row():
    """C's candidate 2: the voters are A at (3−0)² = 9 and D at (6−3)² = 9, a tie that A wins by its name."""
    got = rows_of(run(world(OLD, NEW)), "C")[go(2)]
    # Lists of C: F [A 9, D 9]; P [B 4, D 9]; C none. Mean 31/4 = 7.75; squares 1.5625·3 + 14.0625 = 18.75; /4 = 4.6875.
    expected = {
        "protein_accession": "C",
        "go_term_id": go(2),
        "aspect": "mfo",
        "category": "pk",
        "label": 1,
        "ref_protein_accession": "A",
        "distance": 9.0,
        "vote_count": 2,
        "k_position": 1,
        "neighbor_vote_fraction": f32(0.4),
        "neighbor_min_distance": 9.0,
        "neighbor_mean_distance": 9.0,
        "neighbor_distance_std": f32(math.sqrt(4.6875)),
        "qualifier": "enables",
        "evidence_code": "IEA",
        "go_term_frequency": 2,
        "ref_annotation_density": 1,
        # E_old in F: C {1}, D {1, 2}. With 2: one; with its parent 1: two.
        "information_accretion": f32(-math.log2(2 / 3)),
        "length_query": 3,
        "length_ref": 1,
        "anc2vec_query_known_count": 1,
        "lineage_is_ancestor_of_known": False,
        "lineage_is_descendant_of_known": True,
        "lineage_ancestor_of_count": 0,
        "lineage_descendant_of_count": 1,
        "knn_present": True,
        "snapshot_pair": "v1-v2",
    }
    assert {k: v for k, v in got.items() if v is not None} == expected
    assert tuple(got) == reference.COLUMNS


def test_std_runs_over_the_lists_of_all_aspects():
    """A: F [C 9, D 36], P [B 1, D 36], C none, whatever is queried: mean 20.5, sum of squares 993."""
    got = rows_of(run(world(OLD, NEW)), "A")
    assert {r["neighbor_distance_std"] for r in got.values()} == {f32(math.sqrt(993 / 4))}
    # With k = 1: 9 and 1, mean 5, deviation 4.
    assert rows_of(run(world(OLD, NEW), k=1), "A")[go(1)]["neighbor_distance_std"] == 4.0


def test_not_removes_the_term_and_its_descendants():
    """D has 4, 2 and 3 electronically; NOT 2 takes 2 and its descendant 4 away and leaves 3."""
    rows = [row("D", 4, "IEA"), row("D", 2, "IEA"), row("D", 3, "IEA")]
    new = [row("A", 1, "IDA")]
    denial = row("D", 2, "IEA", "enables| Not ")
    assert set(rows_of(run(world(rows, rows + new)), "A")) == {go(2), go(3), go(4)}
    out = run(world([*rows, denial], rows + new))
    assert set(rows_of(out, "A")) == {go(3)}
    assert rows_of(out, "A")[go(3)]["ref_annotation_density"] == 1
    # About an isoform it denies nothing; on the root it is dropped as `root`.
    isoform = row("D", 2, "IEA", "NOT", form="UniProtKB:D-2")
    out = run(world([*rows, isoform, row("D", 3674, "IDA", "NOT")], rows + new))
    assert set(rows_of(out, "A")) == {go(2), go(3), go(4)}
    assert reference.nonzero(out["dropped"]["annotation_sets"]["1"]) == {"not_isoform": 1, "root": 1}


def test_experimental_not_decides_the_truth():
    """Only experimental NOT rows count there; one in either set takes the novel term away."""
    new = [row("A", 4, "IDA"), row("A", 11, "IDA")]

    def novel(old: list[Row], new: list[Row]) -> set[str]:
        return {t["go_term_id"] for t in run(world(old, new))["truth"] if t["snapshot_pair"] == "v1-v2"}

    everything = {go(n) for n in (1, 2, 3, 4, 11)}
    assert novel(OLD[1:], [*OLD[1:], *new]) == everything
    assert novel([*OLD[1:], row("A", 2, "ISS", "NOT")], [*OLD[1:], *new]) == everything
    assert novel([*OLD[1:], row("A", 2, "IMP", "NOT")], [*OLD[1:], *new]) == {go(11)}
    assert novel(OLD[1:], [*OLD[1:], *new, row("A", 2, "IMP", "NOT")]) == {go(11)}
    # What the old set knew is not un-known by a NOT of the new one: A is pk in F through 2.
    out = run(world([row("A", 1, "IDA")], [row("A", 1, "IDA", "NOT"), row("A", 5515, "IDA"), row("A", 21, "IDA")]))
    assert {(t["aspect"], t["category"]) for t in out["truth"]} == {("cco", "lk")}
    assert out["dropped"]["cuts"]["v1-v2"]["binding_only"] == 1


def test_label_mode_direct():
    """A gains 4: propagated, 1 to 4 are novel; direct, only 4. The candidates are the same."""
    old = [*OLD, row("C", 4, "IEA")]
    new = [*old, row("A", 4, "IDA")]
    propagated, direct = run(world(old, new)), run(world(old, new), label_mode="direct")
    assert [r["label"] for r in propagated["train"]] == [1, 1, 1]
    assert [(r["go_term_id"], r["label"]) for r in direct["train"]] == [(go(1), 0), (go(2), 0), (go(4), 1)]
    assert [t["go_term_id"] for t in direct["truth"]] == [go(4)]
    # B knew 4, so 2 is in K: a new direct row of 2 is nothing novel in either mode.
    out = run(world([row("B", 4, "IDA")], [row("B", 4, "IDA"), row("B", 2, "IDA")]), label_mode="direct")
    assert out["truth"] == []


def test_expansion_takes_qualifier_and_evidence_from_a_descendant():
    """D: 2 by IEA, 4 (below it) by ISS twice. The best row for 2 is a row of 4, and contributes_to < enables."""
    old = [row("D", 2, "IEA"), row("D", 4, "ISS", "enables"), row("D", 4, "ISS", "Contributes_to|enables")]
    new = [*old, row("A", 1, "IDA")]
    plain = rows_of(run(world(old, new)), "A")
    assert {t: (r["evidence_code"], r["qualifier"]) for t, r in plain.items()} == {
        go(2): ("IEA", "enables"),
        go(4): ("ISS", "contributes_to"),
    }
    expanded = rows_of(run(world(old, new), expand_votes_to_ancestors=True), "A")
    assert set(expanded) == {go(n) for n in (1, 2, 3, 4)}
    assert {(r["evidence_code"], r["qualifier"]) for r in expanded.values()} == {("ISS", "contributes_to")}
    assert {r["ref_annotation_density"] for r in expanded.values()} == {2}  # D, not A
    assert expanded[go(1)]["go_term_frequency"] == 1


def test_qualifiers_are_normalised():
    normal = reference.normalise_qualifier
    assert normal("", "mfo") == "enables"
    assert normal("is_active_in", "cco") == "located_in"
    assert normal("acts_upstream_of_or_within|colocalizes_with", "bpo") == "acts_upstream_of_or_within"
    assert normal("Contributes_To | colocalizes_with", "mfo") == "colocalizes_with"
    assert normal("involved_in", "bpo") == "involved_in"


def test_information_accretion_with_several_parents():
    """Of 4 (parents 2 and 3). B has 4; C has 2 and 3; D has 2. With both parents: B, C; with 4: B. −log2(2/3).

    Of 2: B, C, D of B, C, D (parent 1): 0. Of 12 (parent 11): B of B. Of 1 (a root parent): all three: 0. Of 3: B, C of
    three: −log2(3/4). Of 11: B of the proteins with a process: 0.
    """
    old = [row("B", 4, "IDA"), row("C", 2, "IDA"), row("C", 3, "IDA"), row("D", 2, "IDA"), row("B", 12, "IDA")]
    out = run(world(old, [*old, row("A", 1, "IDA"), row("A", 11, "IDA")]), expand_votes_to_ancestors=True)
    got = {t: r["information_accretion"] for t, r in rows_of(out, "A").items()}
    assert got == {
        go(1): 0.0,
        go(2): 0.0,
        go(3): f32(-math.log2(3 / 4)),
        go(4): f32(-math.log2(2 / 3)),
        go(11): 0.0,
        go(12): 0.0,
    }
    # A term below the root that not every protein of the aspect has: 5488 here, none of three: −log2(1/4) = 2.
    old.append(row("D", 5488, "IEA"))
    out = run(world(old, [*old, row("A", 1, "IDA")]))
    assert rows_of(out, "A")[go(5488)]["information_accretion"] == 2.0


def test_ties_go_by_the_bytes_of_the_accession():
    """P10, P9 and p1 are equally far from A; by bytes P10 < P9 < p1, by number or by case they are not."""
    old = [row("p1", 2, "IEA"), row("P9", 3, "IEA"), row("P10", 4, "IEA")]
    vectors = {acc: np.array([1.0, x], np.float16) for acc, x in (("A", 0), ("P9", 1), ("p1", 1), ("P10", -1))}
    w = world(old, [*old, row("A", 1, "IDA")], embeddings=vectors)
    assert [r["go_term_id"] for r in run(w, k=1)["train"]] == [go(4)]
    got = rows_of(run(w, k=3), "A")
    assert {t: r["k_position"] for t, r in got.items()} == {go(4): 1, go(3): 2, go(2): 3}
    assert got[go(2)]["length_ref"] is None  # no sequence
    # 45 degrees: a threshold that float32 rounds to the distance itself lets all three in; a smaller one none.
    limit = 1 - 1 / math.sqrt(2)
    assert len(run(w, metric="cosine", distance_threshold=limit)["train"]) == 3
    assert run(w, metric="cosine", distance_threshold=0.29)["train"] == []
    assert got[go(4)]["distance"] == 1.0
    assert run(w, metric="cosine")["train"][0]["distance"] == f32(limit)


def test_keep_known():
    """C knows 1: as a candidate it is kept with label 0, and lies above what C knows only when that is another term."""
    old = [row("C", 2, "IDA"), row("D", 1, "IEA"), row("D", 2, "IEA"), row("D", 3, "IEA")]
    new = [*old, row("C", 3, "IDA")]
    assert [(r["go_term_id"], r["label"]) for r in run(world(old, new))["train"]] == [(go(3), 1)]
    kept = rows_of(run(world(old, new), keep_known=True), "C")
    assert {t: r["label"] for t, r in kept.items()} == {go(1): 0, go(2): 0, go(3): 1}
    assert {t: r["lineage_ancestor_of_count"] for t, r in kept.items()} == {go(1): 1, go(2): 0, go(3): 0}
    assert {t: r["lineage_descendant_of_count"] for t, r in kept.items()} == {go(1): 0, go(2): 0, go(3): 0}


def test_truth_reached_and_members_without_a_vector():
    """A has no vector: its novel terms are in the truth, not reached. E is not in the old set at all."""
    new = [*NEW, row("E", 12, "IDA")]
    vectors = {acc: np.array([x], np.float32) for acc, x in {**LINE, "E": 9.0}.items() if acc != "A"}
    out = run(world(OLD, new, embeddings=vectors))
    assert [(t["protein_accession"], t["go_term_id"], t["reached"]) for t in out["truth"]] == [
        ("A", go(1), False),
        ("A", go(2), False),
        ("E", go(11), True),
        ("E", go(12), True),
        ("B", go(1), True),
        ("B", go(3), False),
        ("C", go(2), True),
    ]
    assert rows_of(out, "A") == {}
    dropped = {"no_embedding_members": 1, "no_embedding_proteins": 1, "binding_only": 0}
    assert out["dropped"]["cuts"]["v1-v2"] == dropped
    counts = out["counts"]["v1-v2"]["nk"]
    assert reference.nonzero(counts["mfo"]) == {"members": 1, "novel_terms": 2}
    assert reference.nonzero(counts["bpo"]) == {
        "members": 1,
        "queried": 1,
        "absent_from_old": 1,
        "novel_terms": 2,
        "reached": 2,
        "rows": 2,
        "positives": 2,
        "proteins": 1,
    }


def test_a_query_is_no_donor_and_identical_sequences_may_be_none():
    """B's nearest is A, of the same sequence. Without it the next one is taken: k = 1 still means one donor."""
    proteins = {"A": Protein(None, "MKV"), "B": Protein(None, "mkv*"), "C": Protein(None, "MKVA")}
    w = world(OLD, NEW, proteins=proteins)
    assert [r["ref_protein_accession"] for r in rows_of(run(w, k=1), "B").values()] == ["A"]
    out = rows_of(run(w, k=1, exclude_identical_sequences=True), "B")
    assert {t: r["ref_protein_accession"] for t, r in out.items()} == {go(1): "C"}
    assert [(r["length_query"], r["length_ref"]) for r in out.values()] == [(3, 4)]
    # The frequency still counts every donor in F: C has 1; A and D have 2.
    assert out[go(1)]["go_term_frequency"] == 1


def test_evidence_settings():
    """D has 2 by TAS, 3 by IEA, 4 by ISS."""
    old = [row("D", 2, "TAS"), row("D", 3, "IEA"), row("D", 4, "ISS"), row("D", 5488, "IPI")]
    w = world(old, [*old, row("A", 1, "IDA")])

    def terms(**settings: Any) -> set[int]:
        return {int(t[3:]) for t in rows_of(run(w, **settings), "A")}

    assert terms() == {2, 3, 4, 5488}
    assert terms(donor_evidence="non_electronic") == {2, 4, 5488}
    assert terms(donor_evidence="experimental") == {5488}
    assert terms(donor_evidence="experimental", experimental_codes="cafa") == {2, 5488}
    assert terms(donor_evidence=["ISS"]) == {4}
    # With `cafa` D knows 2 by TAS, so a later IDA for 2 is nothing new.
    w = world(old, [*old, row("D", 2, "IDA")])
    assert {t["go_term_id"] for t in run(w)["truth"]} == {go(1), go(2)}
    assert run(w, experimental_codes="cafa")["truth"] == []


def test_resolving():
    """Every way that a renamed, merged or retired id can go."""
    chain = [term(100 + i, "F", obsolete=True, replaced_by=(go(101 + i),)) for i in range(11)]
    ont = Ontology(
        [
            *TERMS[:3],
            term(1, "F", 3674, alt_ids=(go(31), go(2), go(32))),
            term(2, "F", 1, alt_ids=(go(32),)),
            term(41, "F", obsolete=True, replaced_by=(go(31),)),
            term(42, "F", obsolete=True, replaced_by=(go(1), go(1))),
            term(43, "F", obsolete=True, replaced_by=(go(1), go(2))),
            term(44, "F", obsolete=True, consider=(go(1),)),
            term(45, "F", obsolete=True, replaced_by=(go(46),)),
            term(46, "F", obsolete=True, replaced_by=(go(45),)),
            term(47, "F", obsolete=True, replaced_by=(go(999),)),
            term(48, "F", obsolete=True, alt_ids=(go(33), go(34)), replaced_by=(go(2),)),
            term(49, "F", obsolete=True, alt_ids=(go(34),), replaced_by=(go(2),)),
            *chain,
            term(111, "F", 1),
        ]
    )
    expected = {
        1: go(1),
        31: go(1),
        2: go(2),  # a live stanza, whoever calls it an alt
        32: "obsolete",  # two live owners
        33: go(2),  # the alt of an obsolete term goes on
        34: "obsolete",  # two obsolete owners
        41: go(1),
        42: go(1),
        43: "obsolete",
        44: "obsolete",
        45: "obsolete",
        47: "obsolete",
        999: "unknown",
        101: go(111),  # ten hops
        100: "obsolete",  # eleven
    }
    assert {n: ont.resolve(go(n)) for n in expected} == expected


def test_propagation_stays_within_the_aspect():
    ont = Ontology([*TERMS, term(50, "F", 1, part_of=(go(12),), other=(("has_part", go(3)),))])
    assert ont.closure(go(50)) == {go(50), go(1), go(3674)}
    assert ont.descendants(go(2)) == {go(2), go(4)}


def test_dropped_rows_are_counted_once_for_the_first_reason():
    good = row("A", 1, "IEA")
    bad = {
        "columns": [good[:14], (*good, "more"), (*row("A", 1, "XXX"), "")],
        "database": [row("", 1, "XXX", database="")],
        "accession": [row("", 1, "IDA", database="Other")],
        "go_id": [gaf_row("A", "GO:1", "XXX")],
        "unknown_evidence": [row("A", 1, "iea", when="x")],
        "date": [row("A", 1, "IEA", when="20190230", database="Other")],
        "other_database": [row("A", 1, "ND", database="Other")],
        "no_data": [row("E", 3674, "ND"), gaf_row("E", "GO:9999999", "ND")],
        "unknown": [gaf_row("A", "GO:9999999", "IDA", "NOT", form="x")],
        "root": [row("A", 3674, "IDA", "NOT", form="x")],
        "not_isoform": [row("A", 1, "IDA", "NOT", form="x")],
    }
    rows = [good, row("A", 1, "IEA", fields=18), *(r for some in bad.values() for r in some)]
    out = run(world(rows, [*rows, row("E", 1, "IDA")]))
    assert reference.nonzero(out["dropped"]["annotation_sets"]["1"]) == {k: len(v) for k, v in bad.items()}
    # The row without data makes E occur in the old set.
    assert out["counts"]["v1-v2"]["nk"]["mfo"]["absent_from_old"] == 0


def test_sets_derived_by_date():
    """set(d) = rows dated ≤ d. The malformed row has no date and counts in both sets; F occurs, if late."""
    rows = [
        row("C", 1, "IEA", when="20090101"),
        row("A", 1, "IDA", when="20110101"),
        row("A", 2, "IDA", when="20110102"),
        row("F", 3674, "IDA", when="20200101"),
        row("C", 1, "IEA", when="2009"),
    ]
    dates = ["2010-01-01", "2011-01-01"]
    late = [*rows[:4], row("F", 2, "IDA"), row("G", 2, "IDA")]
    w = world([], [], embeddings={}, derived_rows=rows, cut_dates=dates)
    w = replace(w, releases={"2012-01-01": late}, train_versions=dates, test_versions=["2012-01-01"])
    out = run(w)
    got = [(t["snapshot_pair"], t["protein_accession"], t["category"], t["go_term_id"]) for t in out["truth"]]
    assert got == [
        ("v2010-01-01-v2011-01-01", "A", "nk", go(1)),
        ("v2011-01-01-v2012-01-01", "F", "nk", go(1)),
        ("v2011-01-01-v2012-01-01", "F", "nk", go(2)),
        ("v2011-01-01-v2012-01-01", "G", "nk", go(1)),
        ("v2011-01-01-v2012-01-01", "G", "nk", go(2)),
        ("v2011-01-01-v2012-01-01", "A", "pk", go(2)),
    ]
    assert out["counts"]["v2011-01-01-v2012-01-01"]["nk"]["mfo"]["absent_from_old"] == 1  # G, at no date
    sets = out["dropped"]["annotation_sets"]
    assert [reference.nonzero(sets[v]) for v in (*dates, "2012-01-01")] == [{"date": 1}, {"date": 1}, {"root": 1}]


def test_pca_columns():
    """(1,1), (2,2), (3,3): mean (2,2), direction (1,1)/√2; n − 1 = 2 components, the second without variance."""
    vectors = {acc: np.array([x, x], np.float32) for acc, x in (("A", 1), ("C", 2), ("D", 3))}
    out = run(world(OLD, NEW, embeddings=vectors), use_embedding_pca=True)
    got = rows_of(out, "A")[go(1)]
    assert got["emb_pca_query_0"] == pytest.approx(-math.sqrt(2), rel=1e-6)
    assert got["emb_pca_query_1"] == pytest.approx(0, abs=1e-6)
    assert got["emb_pca_query_2"] is None
    assert run(world(OLD, NEW))["train"][0]["emb_pca_query_0"] is None


# ------------------------------------------------------------------------------------------------ the random worlds


def test_random_worlds_are_reproducible_and_rich():
    """The same seed, the same world; most worlds have members of all three categories, and every reason is met."""
    assert worlds.random_world(7, 10).releases == worlds.random_world(7, 10).releases
    full = 0
    reasons: set[str] = set()
    for seed in range(80):
        w = worlds.random_world(seed, 12)
        out = export(w, w.names())
        members = {c: sum(x["members"] for x in _counts(out, c)) for c in CATEGORIES}
        full += all(members.values())
        for dropped in out["dropped"]["annotation_sets"].values():
            reasons |= set(reference.nonzero(dropped))
    assert full >= 60
    assert reasons == set(reference.REASONS)


def _counts(out: dict[str, Any], category: str) -> list[dict[str, int]]:
    return [count for pair in out["counts"].values() for count in pair[category].values()]


def test_files_hold_what_the_world_holds(tmp_path: Path):
    import h5py
    import pyarrow.parquet as pq

    w = next(w for w in map(worlds.random_world, range(50)) if w.cut_dates and len(w.releases) > 1)
    paths = w.write(tmp_path / "files")
    assert set(paths["annotations"]) == set(w.releases)
    for path, rows in [(paths["annotations"][v], w.releases[v]) for v in w.releases] + [
        (paths["derived"], w.derived_rows)
    ]:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        assert [tuple(line.split("\t")) for line in text.splitlines() if not line.startswith("!")] == rows
    with np.load(paths["embeddings"]["npz"]) as npz, h5py.File(paths["embeddings"]["h5"]) as h5:
        table = pq.read_table(paths["embeddings"]["parquet"])
        for i, acc in enumerate(npz["ids"]):
            for vector in (npz["embeddings"][i], h5[str(acc)][:], table["embedding"][i].values.to_numpy()):
                assert vector.dtype == w.embeddings[str(acc)].dtype
                assert (vector == w.embeddings[str(acc)]).all()


def test_minimize_keeps_what_fails():
    w = worlds.random_world(3, 10)
    small = worlds.minimize(w, lambda x: any("NOT" in r[3] for rows in x.releases.values() for r in rows))
    assert sum(len(rows) for rows in small.releases.values()) <= len(small.releases)
    assert len(small.terms) == 3


@limits(max_examples=25, deadline=None)
@given(w=worlds.worlds(), drawn=worlds.settings())
def test_consistency(w: World, drawn: dict[str, Any]):
    """Facts that hold for any world: order, counts, labels, nulls."""
    out = export(w, {**w.names(), **drawn})
    rows = out["train"] + out["eval"]
    cuts = [f"v{old}-v{new}" for _, old, new in reference.cuts_of(w.names())]
    keys = [
        (
            cuts.index(r["snapshot_pair"]),
            CATEGORIES.index(r["category"]),
            r["protein_accession"].encode(),
            reference.ASPECTS.index(r["aspect"]),
            r["go_term_id"],
        )
        for r in rows
    ]
    assert keys == sorted(set(keys))
    assert sum(t["reached"] for t in out["truth"]) == sum(r["label"] for r in rows)
    assert sum(c["rows"] for category in CATEGORIES for c in _counts(out, category)) == len(rows)
    for r in rows:
        assert r["neighbor_min_distance"] == r["distance"]
        assert r["information_accretion"] >= 0
        assert r["ref_protein_accession"] != r["protein_accession"]
        assert drawn["keep_known"] or r["lineage_ancestor_of_count"] == 0
        assert not any(isinstance(x, float) and math.isnan(x) for x in r.values())


def test_the_reference_is_blind_to_the_future():
    """Members that gain more, and no others: nothing but the labels and the truth changes."""

    def members(out: dict[str, Any], pair: str) -> dict[tuple[str, str], str]:
        here = [t for t in out["truth"] if t["snapshot_pair"] == pair]
        return {(t["protein_accession"], t["aspect"]): t["category"] for t in here}

    changed = 0
    for seed in range(40):
        w = worlds.random_world(seed, 16)
        last = str(w.test_versions[-1])
        if last in w.cut_dates:
            continue
        pair = f"v{w.train_versions[-1]}-v{last}"
        before = export(w, w.names())
        rng = random.Random(seed)
        rows = list(w.releases[last])
        for accession, aspect in members(before, pair):
            terms = [t.id for t in w.terms if not t.obsolete and reference.ASPECT_OF[t.namespace] == aspect]
            rows.append(gaf_row(accession, rng.choice(sorted(terms)), "IDA"))
        after = export(replace(w, releases={**w.releases, last: rows}), w.names())
        assert members(after, pair) == members(before, pair)
        assert [{**r, "label": 0} for r in after["eval"]] == [{**r, "label": 0} for r in before["eval"]]
        changed += after["eval"] != before["eval"]
    assert changed >= 5
