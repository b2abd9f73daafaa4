"""The later feature families of the plain reference: sections 9 to 11 and 14 to 18 of the contract.

Written from the contract's text alone, like `reference.py`, whose `export` makes a `Families` when one of these
settings is on. Loops, dicts and sets again; the alignments are Gotoh's three tables in plain Python, with every
optimal path followed.

How to compare a product with it (`differences` does):

- every column is exact: counts, flags, and fractions, maxima and scores rounded once to float32;
- but for the four term-vector cosines (`TOLERANT`), whose last bits depend on the order of sums: absolute 1e-6;
- and for the alignments, where any optimal one is right: `alignment_score_*` is exact, and (identity, similarity,
  gaps_pct, alignment_length) together must be those of one optimal alignment, for two sequences always the same one,
  in either order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from reference import (
    ASPECTS,
    COLUMNS,
    ROOTS,
    AnnotationSet,
    Donors,
    Ontology,
    Truth,
    by_bytes,
    dot,
    experimental_codes,
    f32,
)

if TYPE_CHECKING:
    from worlds import Taxdump, World

TOLERANT = (
    *("anc2vec_neighbor_cos", "anc2vec_neighbor_maxcos"),
    *("anc2vec_query_known_cos", "anc2vec_query_known_maxcos"),
)
TOLERANCE = 1e-6
STATISTICS = ("identity", "similarity", "gaps_pct", "alignment_length")
DATABASES = ("pfam", "panther", "superfamily", "smart", "cdd", "prosite")

# ------------------------------------------------------------------------------------------- section 9: alignments

_BLOSUM62 = """
   A  R  N  D  C  Q  E  G  H  I  L  K  M  F  P  S  T  W  Y  V  B  Z  X
A  4 -1 -2 -2  0 -1 -1  0 -2 -1 -1 -1 -1 -2 -1  1  0 -3 -2  0 -2 -1  0
R -1  5  0 -2 -3  1  0 -2  0 -3 -2  2 -1 -3 -2 -1 -1 -3 -2 -3 -1  0 -1
N -2  0  6  1 -3  0  0  0  1 -3 -3  0 -2 -3 -2  1  0 -4 -2 -3  3  0 -1
D -2 -2  1  6 -3  0  2 -1 -1 -3 -4 -1 -3 -3 -1  0 -1 -4 -3 -3  4  1 -1
C  0 -3 -3 -3  9 -3 -4 -3 -3 -1 -1 -3 -1 -2 -3 -1 -1 -2 -2 -1 -3 -3 -2
Q -1  1  0  0 -3  5  2 -2  0 -3 -2  1  0 -3 -1  0 -1 -2 -1 -2  0  3 -1
E -1  0  0  2 -4  2  5 -2  0 -3 -3  1 -2 -3 -1  0 -1 -3 -2 -2  1  4 -1
G  0 -2  0 -1 -3 -2 -2  6 -2 -4 -4 -2 -3 -3 -2  0 -2 -2 -3 -3 -1 -2 -1
H -2  0  1 -1 -3  0  0 -2  8 -3 -3 -1 -2 -1 -2 -1 -2 -2  2 -3  0  0 -1
I -1 -3 -3 -3 -1 -3 -3 -4 -3  4  2 -3  1  0 -3 -2 -1 -3 -1  3 -3 -3 -1
L -1 -2 -3 -4 -1 -2 -3 -4 -3  2  4 -2  2  0 -3 -2 -1 -2 -1  1 -4 -3 -1
K -1  2  0 -1 -3  1  1 -2 -1 -3 -2  5 -1 -3 -1  0 -1 -3 -2 -2  0  1 -1
M -1 -1 -2 -3 -1  0 -2 -3 -2  1  2 -1  5  0 -2 -1 -1 -1 -1  1 -3 -1 -1
F -2 -3 -3 -3 -2 -3 -3 -3 -1  0  0 -3  0  6 -4 -2 -2  1  3 -1 -3 -3 -1
P -1 -2 -2 -1 -3 -1 -1 -2 -2 -3 -3 -1 -2 -4  7 -1 -1 -4 -3 -2 -2 -1 -2
S  1 -1  1  0 -1  0  0  0 -1 -2 -2  0 -1 -2 -1  4  1 -3 -2 -2  0  0  0
T  0 -1  0 -1 -1 -1 -1 -2 -2 -1 -1 -1 -1 -2 -1  1  5 -2 -2  0 -1 -1  0
W -3 -3 -4 -4 -2 -2 -3 -2 -2 -3 -2 -3 -1  1 -4 -3 -2 11  2 -3 -4 -3 -2
Y -2 -2 -2 -3 -2 -1 -2 -3  2 -1 -1 -2 -1  3 -3 -2 -2  2  7 -1 -3 -2 -1
V  0 -3 -3 -3 -1 -2 -2 -3 -3  3  1 -2  1 -1 -2 -2  0 -3 -1  4 -3 -2 -1
B -2 -1  3  4 -3  0  1 -1  0 -3 -4  0 -3 -3 -2  0 -1 -4 -3 -3  4  1 -1
Z -1  0  0  1 -3  3  4 -2  0 -3 -3  1 -1 -3 -1  0 -1 -3 -2 -2  1  4 -1
X  0 -1 -1 -1 -2 -1 -1 -1 -1 -1 -1 -1 -1 -1 -2  0  0 -2 -1 -1 -1 -1 -1
"""


def _blosum62() -> dict[tuple[str, str], int]:
    lines = _BLOSUM62.strip().splitlines()
    letters = lines[0].split()
    return {(row[0], letters[j]): int(v) for row in lines[1:] for j, v in enumerate(row.split()[1:])}


BLOSUM62 = _blosum62()
OPEN, EXTEND = 10, 1
_NEVER = -(10**9)
_START = ("start", 0, 0)


class Stats(NamedTuple):
    """Of one alignment: its columns, the identical ones, those with a positive score, those with a gap."""

    length: int
    identical: int
    similar: int
    gaps: int


EMPTY = Stats(0, 0, 0, 0)


def residues(sequence: str) -> str:
    """Upper case is the caller's (`clean_sequence`); U, O, J and an inner * count as X."""
    return "".join("X" if c in "UOJ*" else c for c in sequence)


def align(a: str, b: str, local: bool) -> tuple[int, frozenset[Stats]]:
    """(the optimal score, the statistics of every optimal alignment).

    Three tables: the best score of the prefixes a[:i], b[:j] whose last column is a pair (M), a residue of a against a
    gap (X), a residue of b against a gap (Y). A gap in one sequence may follow a gap in the other directly.
    """
    n, m = len(a), len(b)
    table = {state: [[_NEVER] * (m + 1) for _ in range(n + 1)] for state in "MXY"}
    pair, up, left = table["M"], table["X"], table["Y"]
    if not local:
        pair[0][0] = 0
    for i in range(n + 1):
        for j in range(m + 1):
            if i and j:
                best = max(pair[i - 1][j - 1], up[i - 1][j - 1], left[i - 1][j - 1])
                pair[i][j] = BLOSUM62[a[i - 1], b[j - 1]] + (max(best, 0) if local else best)
            if i:
                up[i][j] = max(max(pair[i - 1][j], left[i - 1][j]) - OPEN, up[i - 1][j] - EXTEND)
            if j:
                left[i][j] = max(max(pair[i][j - 1], up[i][j - 1]) - OPEN, left[i][j - 1] - EXTEND)
    if local:
        best = max(0, max(max(row) for row in pair))
        ends = [("M", i, j) for i in range(n + 1) for j in range(m + 1) if pair[i][j] == best]
    else:
        best = max(table[s][n][m] for s in "MXY")
        ends = [(s, n, m) for s in "MXY" if table[s][n][m] == best]
    found = _all_statistics(a, b, local, table, ends)
    # AMBIGUOUS: a best local score of 0 may have columns (of score 0) or none; both are optimal.
    return best, frozenset(found | {EMPTY} if local and best == 0 else found)


_Cell = tuple[str, int, int]


def _before(a: str, b: str, local: bool, table: dict[str, list[list[int]]], cell: _Cell) -> list[_Cell]:
    """The cells that an optimal path to this one may come from."""
    state, i, j = cell
    value = table[state][i][j]
    if state == "M":
        if not local and i == j == 0:
            return [_START]
        rest = value - BLOSUM62[a[i - 1], b[j - 1]]
        cells = [(s, i - 1, j - 1) for s in "MXY" if table[s][i - 1][j - 1] == rest]
        return [*cells, _START] if local and rest == 0 else cells
    i, j = (i - 1, j) if state == "X" else (i, j - 1)
    return [(s, i, j) for s in "MXY" if table[s][i][j] - (EXTEND if s == state else OPEN) == value]


def _all_statistics(a: str, b: str, local: bool, table: dict[str, list[list[int]]], ends: list[_Cell]) -> set[Stats]:
    before: dict[_Cell, list[_Cell]] = {}
    todo = list(ends)
    while todo:
        cell = todo.pop()
        if cell not in before and cell != _START:
            before[cell] = _before(a, b, local, table, cell)
            todo += before[cell]
    found: dict[_Cell, set[Stats]] = {_START: {EMPTY}}
    for cell in sorted(before, key=lambda c: c[1] + c[2]):
        state, i, j = cell
        column = Stats(1, 0, 0, 1)
        if state == "M" and i:
            x, y = a[i - 1], b[j - 1]
            column = Stats(1, int(x == y != "X"), int(BLOSUM62[x, y] > 0), 0)
        elif state == "M":
            column = EMPTY  # where a global alignment begins
        found[cell] = {
            Stats(*(old + new for old, new in zip(stats, column, strict=True)))
            for earlier in before[cell]
            for stats in found[earlier]
        }
    return {stats for cell in ends for stats in found[cell]}


def fractions(stats: Stats) -> tuple[float | None, float | None, float | None, int]:
    """The published (identity, similarity, gaps_pct, alignment_length)."""
    if not stats.length:
        return None, None, None, 0
    return (*(f32(part / stats.length) for part in (stats.identical, stats.similar, stats.gaps)), stats.length)  # type: ignore[return-value]


class Alignments:
    """Each distinct pair of sequences once; `of` maps (query, donor) to what each kind of alignment may publish."""

    def __init__(self, sequences: dict[str, str], max_cells: int | None) -> None:
        self.sequences, self.max_cells = sequences, max_cells
        self.of: dict[tuple[str, str], dict[str, tuple[int, frozenset[Any]]] | None] = {}
        self.skipped: set[tuple[str, str]] = set()
        self._done: dict[tuple[str, str], dict[str, tuple[int, frozenset[Any]]]] = {}

    def columns(self, q: str, donor: str) -> dict[str, Any]:
        """The row holds one of the right answers, the first in order; `of` holds them all."""
        if (q, donor) not in self.of:
            self.of[q, donor] = self._align(q, donor)
        found = self.of[q, donor]
        out: dict[str, Any] = {}
        for kind, (score, answers) in (found or {}).items():
            out[f"alignment_score_{kind}"] = float(score)
            one = min(answers, key=lambda answer: (answer[3], [x or 0.0 for x in answer[:3]]))
            out.update({f"{name}_{kind}": value for name, value in zip(STATISTICS, one, strict=True)})
        return out

    def _align(self, q: str, donor: str) -> dict[str, tuple[int, frozenset[Any]]] | None:
        if q not in self.sequences or donor not in self.sequences:
            return None
        one, two = sorted((self.sequences[q], self.sequences[donor]))
        if self.max_cells is not None and len(one) * len(two) > self.max_cells:
            # AMBIGUOUS: what is counted; here the distinct unordered pairs of sequences of the whole export.
            self.skipped.add((one, two))
            return None
        if (one, two) not in self._done:
            done = {}
            for kind in ("nw", "sw"):
                score, stats = align(residues(one), residues(two), kind == "sw")
                done[kind] = (score, frozenset(map(fractions, stats)))
            self._done[one, two] = done
        return self._done[one, two]


# -------------------------------------------------------------------------------------------- section 10: taxonomy

RELATED = ("same", "parent", "child", "ancestor", "descendant", "close")
RELATIONS = (*RELATED, "intermediate", "distant", "root-only")


class Taxonomy:
    """Lineages and relations of taxa."""

    def __init__(self, dump: Taxdump) -> None:
        self.dump = dump

    def current(self, taxon: int | None) -> int | None:
        """The node that the id stands for, or None (no id, deleted, unknown)."""
        seen: set[int] = set()
        while taxon is not None and taxon not in self.dump.nodes:
            if taxon in seen:
                return None
            seen.add(taxon)
            taxon = self.dump.merged.get(taxon)  # deleted and unknown ids lead nowhere
        return taxon

    def lineage(self, node: int) -> list[int]:
        """From the root to the node, both included."""
        out = [node]
        while self.dump.nodes[out[-1]] != out[-1]:
            out.append(self.dump.nodes[out[-1]])
        return out[::-1]

    def common(self, x: int, y: int) -> int:
        return len(set(self.lineage(x)) & set(self.lineage(y)))

    def distance(self, x: int, y: int) -> int:
        return len(self.lineage(x)) + len(self.lineage(y)) - 2 * self.common(x, y)

    def relation(self, q: int, donor: int) -> str:
        if q == donor:
            return "same"
        if self.dump.nodes[donor] == q:
            return "parent"
        if self.dump.nodes[q] == donor:
            return "child"
        if q in self.lineage(donor):
            return "ancestor"
        if donor in self.lineage(q):
            return "descendant"
        common = self.common(q, donor)
        return {1: "root-only", 2: "distant"}.get(common, "close" if common > 15 else "intermediate")

    def columns(self, q: int | None, donor: int | None, voters: list[int | None]) -> dict[str, Any]:
        """Of nodes (None: unknown); `voters` holds one for each voter."""
        if q is None:
            return {}
        known = [v for v in voters if v is not None]
        relations = [self.relation(q, v) for v in known]
        out: dict[str, Any] = {
            "tax_voters_same_frac": f32(relations.count("same") / len(voters)),
            "tax_voters_close_frac": f32(sum(r in RELATED for r in relations) / len(voters)),
        }
        if known:
            out["tax_voters_mean_common_ancestors"] = f32(sum(self.common(q, v) for v in known) / len(known))
        if donor is not None:
            out["taxonomic_distance"] = self.distance(q, donor)
            out["taxonomic_common_ancestors"] = self.common(q, donor)
            out["taxonomic_relation"] = self.relation(q, donor)
        return out


# ---------------------------------------------------------------------------------------- section 11: term vectors


def by_term(ids: Iterable[str], ont: Ontology) -> dict[str, str]:
    """Live term -> the id whose entry stands for it: its own, else the smallest of those that resolve to it."""
    out: dict[str, str] = {}
    for go_id in sorted(ids, key=by_bytes):
        term = ont.resolve(go_id)
        if term not in ("unknown", "obsolete") and (go_id == term or term not in out):
            out[term] = go_id
    return out


def unit(vector: Any) -> list[float]:
    values = [float(x) for x in np.asarray(vector).astype(np.float64)]
    length = math.sqrt(dot(values, values))
    return [x / length for x in values]


def cosines(own: list[float], others: list[list[float]]) -> tuple[float | None, float | None]:
    """(cosine with the mean of the others, the largest single one).

    AMBIGUOUS: a mean is zero when it is so in exact arithmetic, here when no longer than 1e-9 (rounding alone leaves
    about 1e-16 of u + v − u − v). AMBIGUOUS: a zero mean makes the cosine with it null, not the largest single one.
    """
    if not others:
        return None, None
    mean = [0.0] * len(own)
    for other in others:
        mean = [mean[i] + other[i] / len(others) for i in range(len(own))]
    length = math.sqrt(dot(mean, mean))
    largest = f32(max(dot(own, other) for other in others))
    return (f32(dot(own, mean) / length) if length > 1e-9 else None), largest


# ------------------------------------------------------------------------------------------------ all the families


class InterProRow(NamedTuple):
    term: str
    score: float
    databases: tuple[str, ...]
    signatures: int


class Families:
    """What an export with some of the later settings on reads besides the rest, and its columns."""

    def __init__(self, world: World, cfg: dict[str, Any], ont: Ontology, sequences: dict[str, str]) -> None:
        self.cfg, self.ont = cfg, ont
        self.fasta_taxon = {acc: p.taxon for acc, p in world.proteins.items()}
        self.alignments = Alignments(sequences, cfg["max_alignment_cells"]) if cfg["compute_alignments"] else None
        self.taxonomy: Taxonomy | None = None
        if cfg["compute_taxonomy"]:
            if world.taxonomy is None:
                raise ValueError("the world has no taxonomy")
            self.taxonomy = Taxonomy(world.taxonomy)
        # AMBIGUOUS: `dropped.tables` counts every row of the file whose id does not resolve, whoever's it is; a root
        # is dropped from the InterPro and score tables only. Under the loaded name, zeros included.
        self.dropped: dict[str, dict[str, int]] = {}
        self.units: dict[str, list[float]] | None = None
        if cfg["term_vectors"]:
            self._count("term_vectors", world.term_vectors, ("unknown", "obsolete"))
            found = by_term(world.term_vectors, ont)
            self.units = {term: unit(world.term_vectors[go_id]) for term, go_id in found.items()}
        self.ia: dict[str, float] | None = None
        if cfg["information_accretion"]:
            self._count("information_accretion", world.ia, ("unknown", "obsolete"))
            self.ia = {term: f32(world.ia[go_id]) for term, go_id in by_term(world.ia, ont).items()}
        self.interpro: dict[str, list[InterProRow]] | None = None
        if cfg["interpro"]:
            self._count("interpro", [go_id for _, go_id, *_ in world.interpro])
            self.interpro = {}
            for acc, go_id, score, databases, signatures in world.interpro:
                term = ont.resolve(go_id)
                if term in ont.live and term not in ROOTS:
                    # AMBIGUOUS: two lines that are equal are two rows.
                    row = InterProRow(term, score, tuple(databases.lower().split("|")), signatures)
                    self.interpro.setdefault(acc, []).append(row)
        self.scores: dict[tuple[str, str], float] | None = None
        if cfg["external_scores"]:
            self._count("external_scores", [go_id for _, go_id, _ in world.scores])
            self.scores = {}
            for acc, go_id, score in world.scores:
                key = acc, ont.resolve(go_id)
                self.scores[key] = max(score, self.scores.get(key, score))

    def _count(
        self, setting: str, ids: Iterable[str], reasons: tuple[str, ...] = ("unknown", "obsolete", "root")
    ) -> None:
        counts = dict.fromkeys(reasons, 0)
        for go_id in ids:
            term = self.ont.resolve(go_id)
            reason = "root" if term in ROOTS else term
            if reason in counts:
                counts[reason] += 1
        self.dropped[self.cfg[setting]] = counts

    def interpro_terms(self, q: str, a: str) -> set[str]:
        """The terms of the aspect that join q's candidates."""
        if not self.cfg["interpro_candidates"] or self.interpro is None:
            return set()
        return {
            t for t in self.ont.propagate({row.term for row in self.interpro.get(q, ())}) if self.ont.aspect(t) == a
        }

    def in_cut(self, old: AnnotationSet, truth: Truth, donors: Donors) -> FamilyCut:
        return FamilyCut(self, old, truth, donors)


class FamilyCut:
    """The families' columns in one cut."""

    def __init__(self, families: Families, old: AnnotationSet, truth: Truth, donors: Donors) -> None:
        self.families, self.ont, self.cfg = families, families.ont, families.cfg
        self.old, self.truth, self.donors = old, truth, donors
        # Donors of any aspect, with all their usable terms fully propagated, whatever the votes expand to.
        self.full = {
            r: self.ont.propagate({t for a in ASPECTS for t in donors.d[r][a]})
            for r in {r for a in ASPECTS for r in donors.of[a]}
        }

    def columns(self, q: str, a: str, term: str, near: list[str], voters: list[str]) -> dict[str, Any]:
        """Of one candidate; `near`: q's neighbours in the aspect, `voters`: those with the term, nearest first."""
        out: dict[str, Any] = {}
        f = self.families
        if f.alignments is not None and voters:
            out.update(f.alignments.columns(q, voters[0]))
        if f.taxonomy is not None and voters:
            nodes = [self.taxon(v) for v in voters]
            out.update(f.taxonomy.columns(self.taxon(q), nodes[0], nodes))
        if f.units is not None:
            out.update(self.term_vectors(q, a, term, near, f.units))
        if f.ia is not None:
            out["information_accretion"] = f.ia.get(term)
        if f.interpro is not None:
            out.update(self.interpro(f.interpro.get(q, []), term))
        if f.scores is not None:
            score = f.scores.get((q, term))
            out["classifier_score"] = None if score is None else f32(score)
            out["classifier_present"] = score is not None
        if self.cfg["compute_self_prior"]:
            out["self_prior_score"] = self.self_prior(q, term)
        if self.cfg["compute_association"]:
            out.update(self.association(q, a, term))
        return out

    def taxon(self, p: str) -> int | None:
        """The node of the protein's taxon."""
        # A header's taxon that is deleted or unknown stays so: the rows of the old set are for headers without one.
        written = self.families.fasta_taxon.get(p)
        assert self.families.taxonomy is not None
        return self.families.taxonomy.current(self.old.taxa.get(p) if written is None else written)

    def term_vectors(self, q: str, a: str, term: str, near: list[str], units: dict[str, list[float]]) -> dict[str, Any]:
        out: dict[str, Any] = {"anc2vec_has_emb": term in units}
        if term in units:
            theirs = {t for r in near for t in self.donors.d[r][a]}
            for name, terms in (("neighbor", theirs), ("query_known", self.truth.terms_known(q))):
                others = [units[t] for t in sorted(terms) if t in units and t != term]
                cosine, largest = cosines(units[term], others)
                out[f"anc2vec_{name}_cos"], out[f"anc2vec_{name}_maxcos"] = cosine, largest
        return out

    def interpro(self, rows: list[InterProRow], term: str) -> dict[str, Any]:
        support = [row for row in rows if term in self.ont.closure(row.term)]
        out: dict[str, Any] = {
            "interpro_present": bool(support),
            "interpro_hit": any(row.term == term for row in support),
            "interpro_score": f32(max(row.score for row in support)) if support else None,
            "interpro_n_signatures": sum(row.signatures for row in support),
        }
        for name in DATABASES:
            out[f"interpro_db_{name}"] = any(db.startswith(name) for row in support for db in row.databases)
        return out

    def self_prior(self, q: str, term: str) -> float:
        # AMBIGUOUS: experimental here is what `experimental_codes` says (so none of these rows can be in E_old).
        codes = experimental_codes(self.cfg)
        negated = self.old.negated(q, self.ont)
        best = 0.0
        for own, evidence, _ in self.old.positive.get(q, ()):
            if evidence not in codes and own not in negated and term in self.ont.closure(own):
                best = max(best, 0.5 if evidence == "IEA" else 1.0)
        return best

    def association(self, q: str, a: str, term: str) -> dict[str, Any]:
        # AMBIGUOUS: `exclude_identical_sequences` takes no donor away here; only q itself is left out.
        known = [k for k in self.truth.terms_known(q) if term not in self.ont.closure(k)]
        total = cross = 0.0
        for k in known:
            with_k = [r for r in self.full if r != q and k in self.full[r]]
            both = sum(term in self.full[r] for r in with_k)
            share = both / len(with_k) if with_k else 0.0
            total = max(total, share)
            if self.ont.aspect(k) != a:
                cross = max(cross, share)
        return {"association_total": f32(total), "association_cross": f32(cross), "association_present": bool(known)}


# ------------------------------------------------------------------------------------------------------ comparing


def differences(
    got: list[dict[str, Any]],
    want: list[dict[str, Any]],
    alignments: dict[tuple[str, str], dict[str, tuple[int, frozenset[Any]]] | None] | None = None,
    most: int = 20,
) -> list[str]:
    """What is wrong with the rows of a split, at most so many lines; empty when they are right.

    `want` and `alignments` are the reference's (`out["train"]`, `out.get("alignments")`).
    """
    wrong: list[str] = []
    if len(got) != len(want):
        wrong.append(f"{len(got)} rows instead of {len(want)}")
    keys = ("snapshot_pair", "category", "protein_accession", "aspect", "go_term_id")
    special = {f"{name}_{kind}" for name in STATISTICS for kind in ("nw", "sw")} if alignments else set()
    # One object stands for a pair of sequences, whoever has them and whichever is the query's.
    chosen: dict[tuple[int, str], Any] = {}
    for g, w in zip(got, want, strict=False):
        if len(wrong) >= most:
            break
        here = " ".join(str(w[key]) for key in keys)
        if set(g) != set(COLUMNS):
            wrong.append(f"{here}: the columns differ: {sorted(set(g) ^ set(COLUMNS))}")
            continue
        for name in COLUMNS:
            if name not in special and not _same(name, g[name], w[name]):
                wrong.append(f"{here}: {name} is {g[name]!r}, not {w[name]!r}")
        if not alignments:
            continue
        pair = (w["protein_accession"], w["ref_protein_accession"])
        for kind in ("nw", "sw"):
            value = tuple(g[f"{name}_{kind}"] for name in STATISTICS)
            found = alignments.get(pair)
            right = found[kind][1] if found else frozenset({(None,) * 4})
            if value not in right:
                wrong.append(f"{here}: {kind} with {pair[1]} gives {value}, not one of {sorted(right, key=str)}")
            elif found and chosen.setdefault((id(found), kind), value) != value:
                wrong.append(f"{here}: {kind} with {pair[1]} gives {value} here and another alignment elsewhere")
    return wrong[:most]


def _same(name: str, got: Any, want: Any) -> bool:
    if name in TOLERANT and got is not None and want is not None:
        return abs(got - want) <= TOLERANCE
    return type(got) is type(want) and got == want
