"""The later families of the reference against examples that are worked out by hand, and the worlds that go with them.

The ontology and the four proteins on a line are those of `test_reference.py`.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from test_reference import NEW, OLD, TERMS, go, row, rows_of, run, term, world

import reference
import reference_families as families
import worlds
from reference import AnnotationSet, Ontology, f32
from reference_families import BLOSUM62, EMPTY, Stats, Taxonomy, align, differences, residues
from worlds import Protein, Row, Taxdump, World, gaf_row


def columns(found: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(found[name] for name in names)


# ------------------------------------------------------------------------------------------------------ alignments


def test_global_alignments():
    assert align("MKV", "MKV", False) == (14, {Stats(3, 3, 3, 0)})
    # Two W pairs (22) and one gap of two (11), at either end or in the middle.
    assert align("WWWW", "WW", False) == (11, {Stats(4, 2, 2, 2)})
    # B−B and B−D both score 4, one of them is identical; the other residue is a gap (10).
    assert align("B", "BD", False) == (-6, {Stats(2, 1, 1, 1), Stats(2, 0, 1, 1)})
    # I−V scores 3: similar, not identical.
    assert align("MI", "MV", False) == (8, {Stats(2, 1, 2, 0)})
    # Twelve W−P columns would cost 48; a gap of twelve in each, one after the other, costs 2 · 21.
    assert align("W" * 12, "P" * 12, False) == (-42, {Stats(24, 0, 0, 24)})


def test_local_alignments():
    assert align("WWWW", "WW", True) == (22, {Stats(2, 2, 2, 0)})
    # 8 W, a gap of one over the G (10), 8 W: better than one half alone.
    assert align("W" * 8 + "G" + "W" * 8, "W" * 16, True) == (166, {Stats(17, 16, 16, 1)})
    # Nothing scores above 0: no columns.
    assert align("A", "W", True) == (0, {EMPTY})
    # A−X scores 0: a column or none, and on top of W−W also before or after it.
    assert align("A", "X", True) == (0, {EMPTY, Stats(1, 0, 0, 0)})
    assert align("AW", "XW", True) == (11, {Stats(1, 1, 1, 0), Stats(2, 1, 1, 0)})


def test_letters_that_count_as_x():
    """U, O, J and an inner * are X; X−X scores −1 and is not identical; B and Z are letters of their own."""
    assert residues("MUOJ*XBZ") == "MXXXXXBZ"
    assert align(residues("MUM"), residues("MUM"), False) == (9, {Stats(3, 2, 2, 0)})
    assert align("BZ", "BZ", False) == (8, {Stats(2, 2, 2, 0)})


def test_alignments_against_every_alignment_there_is():
    """All ways to write two short sequences above each other, scored column by column."""
    rng = random.Random(5)
    for _ in range(150):
        a, b = ("".join(rng.choice("ABDWX") for _ in range(rng.randint(1, 4))) for _ in "ab")
        assert align(a, b, False) == _best(_paths(a, b)), (a, b)
        pieces = [
            path
            for i, j in itertools.combinations(range(len(a) + 1), 2)
            for x, y in itertools.combinations(range(len(b) + 1), 2)
            for path in _paths(a[i:j], b[x:y])
        ]
        assert align(a, b, True) == _best([*pieces, []]), (a, b)


def _paths(a: str, b: str) -> list[list[tuple[str, str]]]:
    if not a and not b:
        return [[]]
    out = []
    for x, y, rest in ((a[:1], b[:1], (a[1:], b[1:])), (a[:1], "-", (a[1:], b)), ("-", b[:1], (a, b[1:]))):
        if x and y:
            out += [[(x, y), *path] for path in _paths(*rest)]
    return out


def _best(paths: list[list[tuple[str, str]]]) -> tuple[int, set[Stats]]:
    found = defaultdict(set)
    for path in paths:
        score = sum(BLOSUM62[c] for c in path if "-" not in c)
        for gap in (0, 1):
            runs = ["".join(group) for key, group in itertools.groupby(c[gap] for c in path) if key == "-"]
            score -= sum(10 + len(r) - 1 for r in runs)
        pairs = [c for c in path if "-" not in c]
        identical = sum(x == y != "X" for x, y in pairs)
        similar = sum(BLOSUM62[c] > 0 for c in pairs)
        found[score].add(Stats(len(path), identical, similar, len(path) - len(pairs)))
    return max(found), found[max(found)]


ALIGNED = ("alignment_score", "alignment_length", "identity", "similarity", "gaps_pct")


def aligned(found: dict[str, Any], kind: str) -> tuple[Any, ...]:
    return columns(found, *(f"{name}_{kind}" for name in ALIGNED))


def test_alignment_columns():
    """A's donor for 1 is C, for 2 D, which has no sequence. M 5, U−U −1, X−X −1, V 4: 7, two of four identical."""
    proteins = {"A": Protein(None, "muxv*"), "B": Protein(None, "W"), "C": Protein(None, "MUXV")}
    out = run(world(OLD, NEW, proteins=proteins), compute_alignments=True)
    got = rows_of(out, "A")
    assert aligned(got[go(1)], "nw") == aligned(got[go(1)], "sw") == (7.0, 4, 0.5, 0.5, 0.0)
    assert columns(got[go(1)], "length_query", "length_ref") == (4, 4)
    assert aligned(got[go(2)], "nw") == aligned(got[go(2)], "sw") == (None,) * 5
    assert columns(got[go(2)], "length_query", "length_ref", "distance") == (4, None, 36.0)
    assert out["alignments"]["A", "D"] is None
    # B against C: W with X, with M and V and U (as X): W−M −1, W−X −2, W−V −3; nothing local.
    got = rows_of(out, "B")
    assert aligned(got[go(1)], "nw") == (-13.0, 4, 0.0, 0.0, 0.75)
    assert aligned(got[go(1)], "sw") == (0.0, 0, None, None, None)
    assert rows_of(run(world(OLD, NEW, proteins=proteins)), "B")[go(1)]["alignment_score_nw"] is None


def test_a_protein_of_20000_residues():
    """20,000 A against AAA: 3 · 4 less a gap of 19,997 (20,006). The limit counts |q| · |donor|, and is not exceeded by
    its own value; A, C and D are one sequence, so that there are two distinct pairs."""
    proteins = {acc: Protein(None, "A" * (20000 if acc == "B" else 3)) for acc in "ABCD"}
    w = world(OLD, NEW, proteins=proteins)
    out = run(w, compute_alignments=True, max_alignment_cells=60000)
    assert out["alignments_skipped"] == 0
    for found in rows_of(out, "B").values():
        assert aligned(found, "nw") == (-19994.0, 20000, f32(3 / 20000), f32(3 / 20000), f32(19997 / 20000))
        assert aligned(found, "sw") == (12.0, 3, 1.0, 1.0, 0.0)
    out = run(w, compute_alignments=True, max_alignment_cells=59999)
    assert out["alignments_skipped"] == 1
    assert {aligned(found, kind) for found in rows_of(out, "B").values() for kind in ("nw", "sw")} == {(None,) * 5}
    assert aligned(rows_of(out, "A")[go(1)], "nw") == (12.0, 3, 1.0, 1.0, 0.0)
    assert rows_of(out, "B")[go(1)]["length_query"] == 20000


def test_differences_take_any_one_optimal_alignment_but_one_only():
    proteins = {acc: Protein(None, text) for acc, text in (("A", "B"), ("B", "W"), ("C", "BD"), ("D", "BD"))}
    out = run(world(OLD, NEW, proteins=proteins), compute_alignments=True)
    want, alignments = out["train"], out["alignments"]
    assert differences(want, want, alignments) == []
    # B−B or B−D between A on one side, C and D on the other: see above. B's own alignments have no choice.
    flipped = [{**r, "identity_nw": 0.5 - r["identity_nw"]} if r["protein_accession"] != "B" else r for r in want]
    assert flipped != want
    assert differences(flipped, want, alignments) == []
    # One of the two in one row and the other in another row is not the same alignment.
    more = [{**want[0], "go_term_id": go(3)}, {**flipped[0], "go_term_id": go(4)}]
    assert len(differences(more, [{**want[0], "go_term_id": go(n)} for n in (3, 4)], alignments)) == 1
    for name, value in (("identity_nw", 0.25), ("alignment_score_nw", 0.0), ("distance", 1.0), ("label", True)):
        assert len(differences([{**want[0], name: value}, *want[1:]], want, alignments)) == 1
    assert len(differences(want[1:], want[:-1] + want[:1], alignments)) > 1


# -------------------------------------------------------------------------------------------------------- taxonomy

DEEP = {100 + i: 99 + i if i else 1 for i in range(17)}
"""1 ── 100 ── 101 ── … ── 116: node 100 + i has i + 2 nodes in its lineage."""
DUMP = Taxdump(
    nodes={1: 1, 2: 1, 3: 1, 4: 2, 5: 4, 6: 4, 7: 2, **DEEP, 201: 114, 202: 114, 203: 113, 204: 113},
    merged={50: 5, 51: 50, 52: 60, 53: 61},
    deleted=(60,),
)


def test_relations():
    """2 ── 4 ── 5, 6 and 2 ── 7 below the root 1; 3 and the deep line on their own."""
    tax = Taxonomy(DUMP)
    expected = {  # (q, donor): relation, common, distance
        (5, 5): ("same", 4, 0),
        (4, 5): ("parent", 3, 1),
        (5, 4): ("child", 3, 1),
        (1, 3): ("parent", 1, 1),
        (2, 5): ("ancestor", 2, 2),
        (5, 2): ("descendant", 2, 2),
        (5, 1): ("descendant", 1, 3),
        (5, 6): ("intermediate", 3, 2),
        (5, 7): ("distant", 2, 3),
        (5, 3): ("root-only", 1, 4),
        (201, 202): ("close", 16, 2),
        (203, 204): ("intermediate", 15, 2),
        (203, 201): ("intermediate", 15, 3),
        (116, 3): ("root-only", 1, 18),
    }
    got = {(q, d): (tax.relation(q, d), tax.common(q, d), tax.distance(q, d)) for q, d in expected}
    assert got == expected


def test_merged_deleted_and_unknown_taxa():
    tax = Taxonomy(DUMP)
    assert [tax.current(t) for t in (5, 50, 51)] == [5, 5, 5]
    assert [tax.current(t) for t in (52, 53, 60, 61, None)] == [None] * 5


TAXONOMIC = ("taxonomic_relation", "taxonomic_distance", "taxonomic_common_ancestors")
VOTERS = ("tax_voters_same_frac", "tax_voters_close_frac", "tax_voters_mean_common_ancestors")
ON = {"compute_taxonomy": True, "taxonomy": "tax"}


def test_taxonomy_columns():
    """A (5 by way of 51 and 50) against B, C and D, in this order of nearness, which all have 2."""
    old = [row(acc, 2, "IEA") for acc in "BCD"]
    new = [*old, row("A", 2, "IDA")]

    def got(*taxa: int, **settings: Any) -> tuple[Any, ...]:
        proteins = {acc: Protein(taxon, "MKV") for acc, taxon in zip("ABCD", taxa, strict=True)}
        found = rows_of(run(world(old, new, proteins=proteins, taxonomy=DUMP), **ON, **settings), "A")[go(2)]
        return columns(found, *TAXONOMIC, *VOTERS)

    third = f32(1 / 3)
    assert got(51, 5, 60, 7) == ("same", 0, 4, third, third, 3.0)
    assert got(51, 4, 2, 3) == ("child", 1, 3, 0.0, f32(2 / 3), 2.0)
    # The donor's taxon is unknown: it is a voter all the same.
    assert got(5, 61, 5, 5) == (None, None, None, f32(2 / 3), f32(2 / 3), 4.0)
    assert got(5, 60, 61, 52) == (None, None, None, 0.0, 0.0, None)
    assert got(60, 5, 5, 5) == got(61, 5, 5, 5) == (None,) * 6
    assert got(5, 3, 5, 5, k=1) == ("root-only", 4, 1, 0.0, 0.0, 1.0)
    proteins = {acc: Protein(5, "MKV") for acc in "ABCD"}
    off = rows_of(run(world(old, new, proteins=proteins, taxonomy=DUMP), taxonomy="tax"), "A")[go(2)]
    assert columns(off, *TAXONOMIC, *VOTERS) == (None,) * 6


def test_the_taxon_of_a_protein_without_one_in_its_header():
    """The first row of the old set that has one: not of another database, not malformed, not too late."""
    rows = [
        row("A", 2, "IEA", taxon="taxon:3", database="Other"),
        row("A", 2, "XXX", taxon="taxon:3"),
        row("A", 2, "IEA", taxon="taxon:3", when="20150101"),
        row("A", 2, "IEA", taxon=""),
        row("A", 3674, "ND", taxon="taxon:7|taxon:5"),
        row("A", 2, "IEA", taxon="5"),
        gaf_row("B", "GO:9999999", "IDA", taxon="6|taxon:5"),
    ]
    ont = Ontology(TERMS)
    assert AnnotationSet(rows, ("UniProtKB",), ont, date(2014, 1, 1)).taxa == {"A": 7, "B": 6}
    assert AnnotationSet(rows, ("UniProtKB",), ont, None).taxa == {"A": 3, "B": 6}
    # In an export: A from its rows (7, not the header's), B from its header though that one is deleted.
    old = [row("A", 11, "IEA", taxon="7"), row("B", 2, "IEA", taxon="7"), row("C", 2, "IEA", taxon="taxon:5")]
    new = [*old, row("A", 2, "IDA", taxon="5")]
    proteins = {"A": Protein(None, "M"), "B": Protein(60, "M")}
    found = rows_of(run(world(old, new, proteins=proteins, taxonomy=DUMP), **ON), "A")[go(2)]
    assert columns(found, *TAXONOMIC, *VOTERS) == (None, None, None, 0.0, 0.0, 2.0)


# ---------------------------------------------------------------------------------------------------- term vectors

NEIGHBOR = ("anc2vec_neighbor_cos", "anc2vec_neighbor_maxcos", "anc2vec_has_emb")
KNOWN = ("anc2vec_query_known_cos", "anc2vec_query_known_maxcos", "anc2vec_query_known_count")
FLAT = {1: (2, 0), 2: (0, 3), 3: (-1, 0), 4: (3, 4), 11: (0, -5)}


def with_vectors(old: list[Row], new: list[Row], of: dict[int, tuple[float, ...]] = FLAT, **more: Any) -> World:
    return world(old, [*old, *new], term_vectors={go(n): np.array(v, np.float32) for n, v in of.items()}, **more)


def test_which_id_gives_the_vector():
    """The term's own id; else the smallest that resolves to it."""
    ont = Ontology([*TERMS[:3], term(9, "F", 3674, alt_ids=(go(3), go(2))), term(8, "F", obsolete=True)])
    assert families.by_term([go(2), go(9), go(3), go(8), go(7)], ont) == {go(9): go(9)}
    assert families.by_term([go(3), go(2)], ont) == {go(9): go(2)}


def test_a_candidate_among_the_neighbours_terms():
    """A's neighbours have 1, 2 and 4; each candidate is compared with the others, never with itself.

    unit(4) = (0.6, 0.8). Of 4: mean of (1, 0) and (0, 1), cosine 1.4 / √2. Of 2: mean of (1, 0) and (0.6, 0.8), which
    is (0.8, 0.4), cosine 1 / √5.
    """
    old = [row("C", 1, "IEA"), row("C", 4, "IEA"), row("D", 2, "IEA"), row("D", 12, "IEA")]
    got = rows_of(run(with_vectors(old, [row("A", 1, "IDA")]), term_vectors="vec"), "A")
    assert columns(got[go(4)], *NEIGHBOR) == (pytest.approx(1.4 / math.sqrt(2)), pytest.approx(0.8), True)
    assert columns(got[go(2)], *NEIGHBOR) == (pytest.approx(1 / math.sqrt(5)), pytest.approx(0.8), True)
    # Alone, nothing is left.
    old = [row("C", 2, "IEA"), row("D", 2, "IEA")]
    got = rows_of(run(with_vectors(old, [row("A", 1, "IDA")]), term_vectors="vec"), "A")
    assert columns(got[go(2)], *NEIGHBOR) == (None, None, True)
    # D(r, ·) is meant, not its expansion: of the ancestors 1, 2 and 3 of 4 none is a neighbour's term.
    w = with_vectors([row("C", 4, "IEA")], [row("A", 1, "IDA")])
    got = rows_of(run(w, term_vectors="vec", expand_votes_to_ancestors=True), "A")
    assert columns(got[go(4)], *NEIGHBOR) == (None, None, True)
    assert columns(got[go(2)], *NEIGHBOR) == (pytest.approx(0.8), pytest.approx(0.8), True)


def test_a_mean_of_zero_and_a_candidate_without_a_vector():
    """1 and 3 are opposite. 5488 has no vector, and its term counts for nobody."""
    old = [row("C", n, "IEA") for n in (1, 2, 3, 5488)]
    got = rows_of(run(with_vectors(old, [row("A", 1, "IDA")]), term_vectors="vec"), "A")
    assert columns(got[go(2)], *NEIGHBOR) == (None, 0.0, True)
    assert columns(got[go(5488)], *NEIGHBOR, *KNOWN) == (None, None, False, None, None, 0)
    off = rows_of(run(with_vectors(old, [row("A", 1, "IDA")])), "A")
    assert columns(off[go(2)], *NEIGHBOR, *KNOWN) == (None, None, None, None, None, 0)


def test_a_query_without_known_terms_and_one_with():
    """B knows 11 (0, −1) and 21 (no vector): 2 is opposite to it. A knows nothing."""
    old = [row("B", 11, "IDA"), row("B", 21, "IDA"), row("C", 2, "IEA"), row("C", 4, "IEA")]
    w = with_vectors(old, [row("A", 1, "IDA"), row("B", 1, "IDA")])
    out = run(w, term_vectors="vec")
    assert columns(rows_of(out, "A")[go(2)], *KNOWN) == (None, None, 0)
    assert columns(rows_of(out, "B")[go(2)], *KNOWN) == (-1.0, -1.0, 2)
    assert columns(rows_of(out, "B")[go(4)], *KNOWN) == (pytest.approx(-0.8), pytest.approx(-0.8), 2)
    # What it knows is not compared with itself.
    old = [row("C", 2, "IDA"), row("D", 2, "IEA"), row("D", 4, "IEA")]
    w = with_vectors(old, [row("C", 4, "IDA")])
    got = rows_of(run(w, term_vectors="vec", keep_known=True), "C")
    assert columns(got[go(2)], *KNOWN) == (None, None, 1)
    assert columns(got[go(4)], *KNOWN) == (pytest.approx(0.8), pytest.approx(0.8), 1)


def test_cancelling_in_another_order():
    """u + v − u − v is zero, whatever rounding leaves of it."""
    u, v = families.unit(np.array([1.0, 2.0, 3.0])), families.unit(np.array([0.3, -0.7, 0.1]))
    four = [u, v, [-x for x in u], [-x for x in v]]
    assert families.cosines(u, four) == (None, pytest.approx(1))
    assert families.cosines(u, []) == (None, None)


# ---------------------------------------------------------------------------------------- self-prior, association


def test_self_prior():
    """A has 4 by IEA (closure 1 to 4), 3 by ISS (1, 3), 5488 by ND alone; the donor D has all five."""
    donors = [row("D", n, "IEA") for n in (1, 2, 3, 4, 5488)]
    own = [row("A", 4, "IEA"), row("A", 3, "ISS"), row("A", 5488, "ND"), row("A", 11, "TAS")]

    def got(old: list[Row], aspect_gain: int = 5515, **settings: Any) -> dict[int, float]:
        w = world(old, [*old, row("A", aspect_gain, "IDA"), row("A", 1, "IDA")])
        found = rows_of(run(w, compute_self_prior=True, **settings), "A")
        return {int(t[3:]): r["self_prior_score"] for t, r in found.items()}

    assert got(donors + own) == {1: 1.0, 2: 0.5, 3: 1.0, 4: 0.5, 5488: 0.0}
    # What donors may show does not matter: here D's rows are left out, A's own IEA row is not.
    assert got([*donors, *own, row("B", 2, "ISS")], donor_evidence=["ISS"]) == {2: 0.5}
    # A NOT of 3, whatever its evidence, takes 3 and 4 away; on 1 it takes everything.
    assert got([*donors, *own, row("A", 3, "IEA", "NOT")]) == {1: 0.0, 2: 0.0, 3: 0.0, 4: 0.0, 5488: 0.0}
    # TAS is curated, unless it counts as experimental: then 11 is known, and no prior.
    process = [*own, row("D", 11, "IEA"), row("D", 12, "IEA")]
    assert got(process, 12) == {11: 1.0, 12: 0.0}
    assert got(process, 12, experimental_codes="cafa") == {12: 0.0}
    # An experimental row is no prior: C knows 2, and 2 is kept.
    old = [row("C", 2, "IDA"), row("D", 2, "IEA")]
    out = run(world(old, [*old, row("C", 3, "IDA")]), compute_self_prior=True, keep_known=True)
    assert rows_of(out, "C")[go(2)]["self_prior_score"] == 0.0


ASSOCIATION = ("association_total", "association_cross", "association_present")


def test_association():
    """C knows 1 and 11. Other donors: A {2}, B {2, 11}, D {1, 11}, propagated A {1, 2}, B {1, 2, 11}, D {1, 11}.

    Of 2: n(1) = 3, with 2 two of them; n(11) = 2, with 2 one.
    """
    old = [row("C", 1, "IDA"), row("C", 11, "IDA"), row("A", 2, "IEA"), row("B", 2, "IEA")]
    old += [row("B", 11, "IEA"), row("D", 1, "IEA"), row("D", 11, "IEA")]
    w = world(old, [*old, row("C", 2, "IDA")])
    got = rows_of(run(w, compute_association=True), "C")
    assert columns(got[go(2)], *ASSOCIATION) == (f32(2 / 3), 0.5, True)
    # Of 1, kept: what implies it does not count; both that have 11 have it.
    kept = rows_of(run(w, compute_association=True, keep_known=True), "C")
    assert columns(kept[go(1)], *ASSOCIATION) == (1.0, 1.0, True)
    assert columns(rows_of(run(w), "C")[go(2)], *ASSOCIATION) == (None, None, None)
    # A donor without a vector is none.
    fewer = {acc: v for acc, v in w.embeddings.items() if acc != "A"}
    got = rows_of(run(replace(w, embeddings=fewer), compute_association=True), "C")
    assert columns(got[go(2)], *ASSOCIATION) == (0.5, 0.5, True)


def test_association_without_a_partner():
    """The known term implies the candidate; nobody else has the known term; nothing is known."""
    old = [row("C", 4, "IDA"), row("D", 2, "IEA"), row("D", 5488, "IEA")]
    w = world(old, [*old, row("C", 5488, "IDA"), row("C", 5515, "IDA"), row("A", 2, "IDA")])
    w = replace(w, terms=[*TERMS, term(60, "F", 3674)])
    out = run(w, compute_association=True, keep_known=True, exclude_binding_only=False)
    assert columns(rows_of(out, "C")[go(2)], *ASSOCIATION) == (0.0, 0.0, False)
    assert columns(rows_of(out, "C")[go(5488)], *ASSOCIATION) == (0.0, 0.0, True)  # n(4) = 0 without C
    assert columns(rows_of(out, "A")[go(2)], *ASSOCIATION) == (0.0, 0.0, False)


# --------------------------------------------------------------------------------- InterPro, scores, supplied IA

INTERPRO = ("interpro_present", "interpro_hit", "interpro_score", "interpro_n_signatures")
RENAMED = [replace(t, alt_ids=(go(31),)) if t.id == go(2) else t for t in TERMS]
RENAMED += [term(41, "F", obsolete=True, replaced_by=(go(31),)), term(42, "F", obsolete=True)]
TABLE = [
    ("A", go(4), 0.5, "PFAM|smart", 3),
    ("A", go(41), 0.9, "ProSiteProfiles", 2),  # 2, by way of 31
    ("A", go(42), 0.9, "CDD", 9),
    ("A", go(3674), 0.9, "CDD", 9),
    ("A", go(999), 0.9, "CDD", 9),
    ("B", go(11), 0.9, "CDD", 9),
    ("Elsewhere", go(2), 1.0, "CDD", 9),
]


def databases(found: dict[str, Any]) -> set[str]:
    return {name for name in families.DATABASES if found[f"interpro_db_{name}"]}


def test_interpro_columns():
    """Rows of 4 count for 1 to 4, rows of 2 for 1 and 2."""
    old = [row("D", n, "IEA") for n in (1, 2, 3, 5488)]
    w = world(old, [*old, row("A", 1, "IDA")], terms=RENAMED, interpro=TABLE)
    out = run(w, interpro="ipr")
    got = rows_of(out, "A")
    assert set(got) == {go(n) for n in (1, 2, 3, 5488)}
    assert columns(got[go(1)], *INTERPRO) == (True, False, f32(0.9), 5)
    assert columns(got[go(2)], *INTERPRO) == (True, True, f32(0.9), 5)
    assert databases(got[go(2)]) == {"pfam", "smart", "prosite"}
    assert columns(got[go(3)], *INTERPRO) == (True, False, 0.5, 3)
    assert databases(got[go(3)]) == {"pfam", "smart"}
    assert columns(got[go(5488)], *INTERPRO) == (False, False, None, 0)
    assert databases(got[go(5488)]) == set()
    assert out["dropped"]["tables"] == {"ipr": {"unknown": 1, "obsolete": 1, "root": 1}}
    off = rows_of(run(w), "A")[go(2)]
    assert columns(off, *INTERPRO, "interpro_db_pfam", "knn_present") == (None, None, None, None, None, True)


def test_interpro_candidates():
    """1 has a voter; 2, 3 and 4 come from the table alone. D has 4 but is not among the nearest (k = 1)."""
    old = [row("C", 1, "IEA"), row("D", 4, "IEA"), row("A", 11, "IDA")]
    everything = {
        "compute_alignments": True,
        **ON,
        "term_vectors": "vec",
        "compute_self_prior": True,
        "compute_association": True,
        "external_scores": "ext",
        "use_embedding_pca": True,
    }
    parts = {"taxonomy": DUMP, "scores": [("A", go(4), 0.25)], "terms": RENAMED, "interpro": TABLE}
    proteins = {acc: Protein(5, "MKV") for acc in "ACD"}
    w = with_vectors(old, [row("A", 4, "IDA")], proteins=proteins, **parts)
    without = run(w, k=1, interpro="ipr", **everything)
    out = run(w, k=1, interpro="ipr", interpro_candidates=True, **everything)
    got = rows_of(out, "A")
    assert set(rows_of(without, "A")) == {go(1)}
    assert set(got) == {go(n) for n in (1, 2, 3, 4)}
    assert got[go(1)] == rows_of(without, "A")[go(1)]
    filled = {name: value for name, value in got[go(4)].items() if value is not None}
    pca = filled.pop("emb_pca_query_0")
    assert pca == got[go(1)]["emb_pca_query_0"]
    assert filled == {
        "protein_accession": "A",
        "go_term_id": go(4),
        "aspect": "mfo",
        "category": "lk",
        "label": 1,
        "vote_count": 0,
        "neighbor_vote_fraction": 0.0,
        "go_term_frequency": 1,
        "information_accretion": 0.0,  # no function is known of anybody
        "length_query": 3,
        "anc2vec_neighbor_cos": f32(0.6),  # against 1, which the neighbour has
        "anc2vec_neighbor_maxcos": f32(0.6),
        "anc2vec_has_emb": True,
        "anc2vec_query_known_cos": f32(-0.8),
        "anc2vec_query_known_maxcos": f32(-0.8),
        "anc2vec_query_known_count": 1,
        "lineage_is_ancestor_of_known": False,
        "lineage_is_descendant_of_known": False,
        "lineage_ancestor_of_count": 0,
        "lineage_descendant_of_count": 0,
        "interpro_hit": True,
        "interpro_score": 0.5,
        "interpro_n_signatures": 3,
        **{f"interpro_db_{name}": name in ("pfam", "smart") for name in families.DATABASES},
        "knn_present": False,
        "interpro_present": True,
        "classifier_score": 0.25,
        "classifier_present": True,
        "self_prior_score": 0.0,
        "association_total": 0.0,
        "association_cross": 0.0,
        "association_present": True,
        "snapshot_pair": "v1-v2",
    }
    count = out["counts"]["v1-v2"]["lk"]["mfo"]
    assert (count["rows"], count["positives"], count["reached"], count["without_candidate"]) == (4, 4, 4, 0)
    assert all(t["reached"] for t in out["truth"])


def test_interpro_candidates_of_members_only_and_less_what_is_known():
    """C knows 2 and gains 3: of the closure of 4 only 3 and 4 are left, and with `keep_known` all. No donor at all."""
    table = [("C", go(4), 0.5, "CDD", 1), ("C", go(12), 0.5, "CDD", 1), ("B", go(4), 0.5, "CDD", 1)]
    old = [row("C", 2, "IDA")]
    w = world(old, [*old, row("C", 3, "IDA")], interpro=table)
    out = run(w, interpro="ipr", interpro_candidates=True)
    assert [(r["protein_accession"], r["go_term_id"], r["label"]) for r in out["train"]] == [
        ("C", go(3), 1),
        ("C", go(4), 0),
    ]
    assert {r["go_term_frequency"] for r in out["train"]} == {0}
    kept = run(w, interpro="ipr", interpro_candidates=True, keep_known=True)
    assert [r["go_term_id"] for r in kept["train"]] == [go(n) for n in (1, 2, 3, 4)]
    assert [r["go_term_frequency"] for r in kept["train"]] == [0, 1, 0, 0]  # C is a donor, if not its own
    # Without a vector C is no query.
    vectors = {"A": np.array([1], np.float32)}
    assert run(replace(w, embeddings=vectors), interpro="ipr", interpro_candidates=True)["train"] == []


def test_external_scores():
    """The largest of several rows, under whatever name; not propagated."""
    old = [row("D", n, "IEA") for n in (1, 2, 4)]
    scores = [("A", go(2), 0.1), ("A", go(31), 0.7), ("A", go(41), 0.4), ("A", go(42), 1.0), ("A", go(3674), 1.0)]
    scores += [("A", go(1), 0.0), ("D", go(4), 0.9)]
    w = world(old, [*old, row("A", 1, "IDA")], terms=RENAMED, scores=scores)
    out = run(w, external_scores="ext")
    got = {int(t[3:]): columns(r, "classifier_score", "classifier_present") for t, r in rows_of(out, "A").items()}
    assert got == {1: (0.0, True), 2: (f32(0.7), True), 4: (None, False)}
    assert out["dropped"]["tables"] == {"ext": {"unknown": 0, "obsolete": 1, "root": 1}}
    assert columns(rows_of(run(w), "A")[go(2)], "classifier_score", "classifier_present") == (None, None)


def test_a_supplied_information_accretion():
    """2 by its own id, 1 by none, 4 by none; 2's other names do not matter while its own is there."""
    old = [row("D", n, "IEA") for n in (1, 2, 4)]
    w = world(old, [*old, row("A", 1, "IDA")], terms=RENAMED, ia={go(31): 7.0, go(2): 3.3, go(42): 1.0})
    got = {int(t[3:]): r["information_accretion"] for t, r in rows_of(run(w, information_accretion="ia"), "A").items()}
    assert got == {1: None, 2: f32(3.3), 4: None}
    w = replace(w, ia={go(41): 8.0, go(31): 7.0})
    assert rows_of(run(w, information_accretion="ia"), "A")[go(2)]["information_accretion"] == 7.0
    assert rows_of(run(w), "A")[go(2)]["information_accretion"] == 0.0


def test_a_family_without_its_input_is_refused():
    for settings in ({"compute_taxonomy": True}, {"interpro_candidates": True}):
        with pytest.raises(ValueError, match="without"):
            run(world(OLD, NEW), **settings)
    with pytest.raises(ValueError, match="no taxonomy"):
        run(world(OLD, NEW), **ON)


# ------------------------------------------------------------------------------------------------ the random worlds


def everything_on(w: World) -> dict[str, Any]:
    switches = ("compute_alignments", "compute_taxonomy", "compute_self_prior", "compute_association")
    return {**w.names(), **dict.fromkeys((*switches, "interpro_candidates"), True), **worlds.TABLES}


def test_random_worlds_leave_the_rest_alone():
    """The inputs of the families change nothing of the rest; reaching into it changes just taxa and sequences."""
    for seed in range(12):
        plain, rich = worlds.random_world(seed), worlds.random_world(seed, families=True)
        assert (plain.terms, plain.interpro, plain.scores, plain.ia) == (
            rich.terms,
            rich.interpro,
            rich.scores,
            rich.ia,
        )
        for version, rows in plain.releases.items():
            assert [(*r[:12], *r[13:]) for r in rows] == [(*r[:12], *r[13:]) for r in rich.releases[version]]
        same = [reference.clean_sequence(p.sequence) for p in plain.proteins.values()]
        new = [reference.clean_sequence(p.sequence) for p in rich.proteins.values()]
        assert [same.index(s) for s in same] == [new.index(s) for s in new]
        before, after = reference.export(plain, plain.names()), reference.export(rich, rich.names())
        lengths = ("length_query", "length_ref")
        for split in ("train", "eval"):
            for b, a in zip(before[split], after[split], strict=True):
                assert {**b, **dict.fromkeys(lengths)} == {**a, **dict.fromkeys(lengths)}
        drawn = worlds.random_settings(seed, plain)
        assert drawn.items() <= worlds.random_settings(seed, plain, families=True).items()


def test_random_worlds_are_rich():
    """Every relation, null rule and flag is met; no column that can vary is constant; some alignments are not unique."""
    values: dict[str, set[Any]] = defaultdict(set)
    several = 0
    for seed in range(30):
        w = worlds.random_world(seed, 12, families=True)
        out = reference.export(w, everything_on(w))
        for r in out["train"] + out["eval"]:
            for name, value in r.items():
                values[name].add(value)
        several += sum(len(x["nw"][1]) > 1 for x in out["alignments"].values() if x)
    assert values["taxonomic_relation"] == {*families.RELATIONS, None}
    assert values["self_prior_score"] == {0.0, 0.5, 1.0}
    assert several > 5
    later = [c for c in reference.COLUMNS if not c.startswith(("emb_pca", "lineage_"))]
    assert [c for c in later if len(values[c]) < 2] == []


def test_minimize_cuts_the_tables_too():
    w = worlds.random_world(3, 6, families=True)
    small = worlds.minimize(w, lambda x: any("Gene3D" in r[3] for r in x.interpro))
    assert [len(part) for part in (small.interpro, small.scores, small.ia, small.term_vectors)] == [1, 1, 1, 1]


def test_files_of_the_families(tmp_path: Path):
    w = worlds.random_world(4, families=True)
    paths = w.write(tmp_path / "files")
    text = {name: (paths["taxonomy"] / f"{name}.dmp").read_text() for name in ("nodes", "merged", "delnodes")}
    tables = {name: [line.removesuffix("\t|").split("\t|\t") for line in t.splitlines()] for name, t in text.items()}
    assert w.taxonomy is not None
    assert {int(r[0]): int(r[1]) for r in tables["nodes"]} == w.taxonomy.nodes
    assert {int(r[0]): int(r[1]) for r in tables["merged"]} == w.taxonomy.merged
    assert tuple(int(r[0]) for r in tables["delnodes"]) == w.taxonomy.deleted
    with np.load(paths["term_vectors"]) as npz:
        assert list(npz["ids"]) == list(w.term_vectors)
        assert all((v == w.term_vectors[i]).all() for i, v in zip(npz["ids"], npz["vectors"], strict=True))

    def lines(name: str, head: str) -> list[list[str]]:
        return [line.split("\t") for line in paths[name].read_text().splitlines() if not line.startswith(head)]

    assert [(a, t, float(s), d, int(n)) for a, t, s, d, n in lines("interpro", "#")] == w.interpro
    assert [(a, t, float(s)) for a, t, s in lines("external_scores", "accession")] == w.scores
    assert {t: float(v) for t, v in lines("information_accretion", "term")} == w.ia
    bare = replace(w, taxonomy=None, term_vectors={}, interpro=[], scores=[], ia={}).write(tmp_path / "bare")
    assert [bare[name] for name in worlds.TABLES] == [None] * 5


@limits(max_examples=15, deadline=None)
@given(w=worlds.worlds(max_size=10, families=True), drawn=worlds.settings(families=True))
def test_consistency(w: World, drawn: dict[str, Any]):
    """Facts that hold for any world: what is null together, what lies between what."""
    out = reference.export(w, {**w.names(), **drawn})
    assert differences(out["train"], out["train"], out.get("alignments")) == []
    for r in out["train"] + out["eval"]:
        assert r["knn_present"] == (r["ref_protein_accession"] is not None) == (r["vote_count"] > 0)
        assert r["knn_present"] or r["interpro_present"]
        assert (r["interpro_score"] is None) == (not r["interpro_present"])
        assert (r["classifier_score"] is None) == (not r["classifier_present"])
        if r["anc2vec_neighbor_cos"] is not None:
            assert r["anc2vec_neighbor_maxcos"] is not None
        if r["tax_voters_same_frac"] is not None:
            assert r["tax_voters_same_frac"] <= r["tax_voters_close_frac"] <= 1
        if r["association_present"] is not None:
            assert 0 <= r["association_cross"] <= r["association_total"] <= 1
        if r["alignment_score_nw"] is not None:
            assert r["alignment_score_sw"] >= max(0, r["alignment_score_nw"])
            assert r["alignment_length_nw"] >= max(r["length_query"], r["length_ref"])
            assert r["identity_nw"] <= r["similarity_nw"]
        assert not any(isinstance(x, float) and math.isnan(x) for x in r.values())


def test_the_families_are_blind_to_the_future():
    """Members that gain more, and no others: nothing but the labels changes."""
    changed = 0
    for seed in range(25):
        w = worlds.random_world(seed, 12, families=True)
        last = str(w.test_versions[-1])
        if last in w.cut_dates:
            continue
        before = reference.export(w, everything_on(w))
        pair = f"v{w.train_versions[-1]}-v{last}"
        members = sorted({(t["protein_accession"], t["aspect"]) for t in before["truth"] if t["snapshot_pair"] == pair})
        rng = random.Random(seed)
        rows = list(w.releases[last])
        for accession, aspect in members:
            terms = [t.id for t in w.terms if not t.obsolete and reference.ASPECT_OF[t.namespace] == aspect]
            rows.insert(0, gaf_row(accession, rng.choice(sorted(terms)), "IDA", taxon="taxon:6239"))
        after = reference.export(replace(w, releases={**w.releases, last: rows}), everything_on(w))
        assert [{**r, "label": 0} for r in after["eval"]] == [{**r, "label": 0} for r in before["eval"]]
        changed += after["eval"] != before["eval"]
    assert changed >= 3
