"""A slow, plain reference of the dataset contract, written from its text alone.

Loops, dicts and sets; nothing of the product is imported, so that an agreement between the two means something. numpy
rounds to float32, widens stored vectors to float64 and finds the principal components; nothing else. Called by the
tests that compare the product with it; reads the plain worlds of `worlds.py`. The families of sections 9 to 11 and 14
to 17, and a supplied IA, are in `reference_families.py`, which `export` calls when one of their settings is on.

Floats are summed with explicit loops: from Python 3.12 on, the built-in `sum` compensates, which the contract forbids.
"""

from __future__ import annotations

import math
import re
from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from reference_families import Families, FamilyCut
    from worlds import World

EXPERIMENTAL = ("EXP", "IDA", "IPI", "IMP", "IGI", "IEP", "HTP", "HDA", "HMP", "HGI", "HEP")
CODES = (*EXPERIMENTAL, "TAS", "IC", "IBA", "IBD", "IKR", "IRD", "ISS", "ISO", "ISA", "ISM", "IGC", "RCA", "NAS", "IEA")
ROOTS = frozenset(("GO:0003674", "GO:0008150", "GO:0005575"))
BINDING = frozenset(("GO:0005515", "GO:0005488"))
ASPECT_OF = {"molecular_function": "mfo", "biological_process": "bpo", "cellular_component": "cco"}
ASPECTS = ("mfo", "bpo", "cco")
CATEGORIES = ("nk", "lk", "pk")
DEFAULT_QUALIFIER = {"mfo": "enables", "bpo": "involved_in", "cco": "located_in"}
MALFORMED = ("columns", "database", "accession", "go_id", "unknown_evidence", "date")
REASONS = (*MALFORMED, "other_database", "no_data", "unknown", "obsolete", "root", "not_isoform")
COUNTS = (
    *("members", "queried", "absent_from_old", "novel_terms", "reached"),
    *("rows", "positives", "proteins", "without_candidate"),
)

_ALIGNED = ("identity", "similarity", "alignment_score", "gaps_pct", "alignment_length")
COLUMNS: tuple[str, ...] = (
    *("protein_accession", "go_term_id", "aspect", "category", "label", "ref_protein_accession"),
    *("distance", "vote_count", "k_position", "neighbor_vote_fraction"),
    *("neighbor_min_distance", "neighbor_mean_distance", "neighbor_distance_std"),
    *("qualifier", "evidence_code", "go_term_frequency", "ref_annotation_density", "information_accretion"),
    *(f"{name}_nw" for name in _ALIGNED),
    *(f"{name}_sw" for name in _ALIGNED),
    *("length_query", "length_ref"),
    *("taxonomic_distance", "taxonomic_common_ancestors", "taxonomic_relation"),
    *("tax_voters_same_frac", "tax_voters_close_frac", "tax_voters_mean_common_ancestors"),
    *("anc2vec_neighbor_cos", "anc2vec_neighbor_maxcos", "anc2vec_has_emb"),
    *("anc2vec_query_known_cos", "anc2vec_query_known_maxcos", "anc2vec_query_known_count"),
    *(f"emb_pca_query_{i}" for i in range(16)),
    *("lineage_is_ancestor_of_known", "lineage_is_descendant_of_known"),
    *("lineage_ancestor_of_count", "lineage_descendant_of_count"),
    *("interpro_hit", "interpro_score", "interpro_n_signatures"),
    *(f"interpro_db_{db}" for db in ("pfam", "panther", "superfamily", "smart", "cdd", "prosite")),
    *("knn_present", "interpro_present", "classifier_score", "classifier_present", "self_prior_score"),
    *("association_total", "association_cross", "association_present", "snapshot_pair"),
)

DEFAULTS: dict[str, Any] = {
    "k": 5,
    "metric": "cosine",
    "search_backend": "exact",
    "distance_threshold": None,
    "donor_evidence": "all",
    "experimental_codes": "experimental",
    "label_mode": "propagated",
    "keep_known": False,
    "exclude_binding_only": True,
    "exclude_identical_sequences": False,
    "expand_votes_to_ancestors": False,
    "use_embedding_pca": False,
    "compute_alignments": False,
    "compute_taxonomy": False,
    "compute_self_prior": False,
    "compute_association": False,
    "interpro_candidates": False,
    "taxonomy": None,
    "term_vectors": None,
    "interpro": None,
    "external_scores": None,
    "information_accretion": None,
    "max_alignment_cells": None,
}
_NAMES = {
    *("name", "ontology", "proteins", "embedding_config", "annotation_source"),
    *("train_versions", "test_versions"),
}
_SWITCHES = {
    *("compute_alignments", "compute_taxonomy", "compute_self_prior", "compute_association"),
    *("term_vectors", "interpro", "external_scores", "information_accretion"),
}
"""The settings that turn a family of `reference_families` on."""


def f32(x: float) -> float:
    """`x` rounded once to float32, as a Python float."""
    return float(np.float32(x))


def by_bytes(text: str) -> bytes:
    return text.encode()


# ---------------------------------------------------------------------------------------------- section 1: inputs


class Ontology:
    """One GO snapshot: resolving ids, direct parents and closures within an aspect."""

    def __init__(self, terms: list) -> None:
        self.live = {t.id: t for t in terms if not t.obsolete}
        self.obsolete = {t.id: t for t in terms if t.obsolete}
        self.owners: dict[str, set[str]] = {}
        for term in terms:
            for alt in term.alt_ids:
                self.owners.setdefault(alt, set()).add(term.id)
        self._closures: dict[str, frozenset[str]] = {}
        self._descendants: dict[str, frozenset[str]] = {}

    def aspect(self, term: str) -> str:
        return ASPECT_OF[self.live[term].namespace]

    def resolve(self, go_id: str) -> str:
        """The live id, or `obsolete`, or `unknown`."""
        if go_id not in self.live and go_id not in self.obsolete and go_id not in self.owners:
            return "unknown"
        seen: set[str] = set()
        hops = 0
        here = go_id
        while True:
            if here in self.live:
                return here
            if here in seen:
                return "obsolete"  # a ring
            seen.add(here)
            if here in self.owners:
                live = [o for o in self.owners[here] if o in self.live]
                dead = [o for o in self.owners[here] if o in self.obsolete]
                # AMBIGUOUS: one live owner beside several obsolete ones; the one live owner is taken.
                if len(live) == 1:
                    return live[0]
                if len(live) > 1 or len(dead) > 1:
                    return "obsolete"
                here = dead[0]
                continue
            if here not in self.obsolete:
                return "obsolete"  # a successor that the file does not know
            successors = set(self.obsolete[here].replaced_by)
            # "at most 10 such hops" counts the replaced_by hops, not the alt_id ones.
            if len(successors) != 1 or hops == 10:
                return "obsolete"
            hops += 1
            here = successors.pop()

    def parents(self, term: str) -> set[str]:
        """Direct parents over is_a and part_of within the aspect."""
        # AMBIGUOUS: an edge that names an alt_id or an obsolete term is no edge (not resolved).
        found = self.live[term]
        return {p for p in (*found.is_a, *found.part_of) if p in self.live and self.aspect(p) == self.aspect(term)}

    def closure(self, term: str) -> frozenset[str]:
        """`term` and all its ancestors, roots included."""
        if term not in self._closures:
            out = {term}
            for parent in self.parents(term):
                out |= self.closure(parent)
            self._closures[term] = frozenset(out)
        return self._closures[term]

    def propagate(self, terms: set[str]) -> set[str]:
        """The union of the closures, without roots."""
        out: set[str] = set()
        for term in terms:
            out |= self.closure(term)
        return out - ROOTS

    def descendants(self, term: str) -> frozenset[str]:
        """`term` and all its descendants."""
        if term not in self._descendants:
            self._descendants[term] = frozenset(t for t in self.live if term in self.closure(t))
        return self._descendants[term]


def malformed(fields: tuple[str, ...]) -> str | None:
    """The first reason for which a GAF row is malformed, or None."""
    if len(fields) < 15:
        return "columns"
    if len(fields) > 17:
        if any(fields[17:]) or malformed(fields[:17]):
            return "columns"
        return None
    if not fields[0]:
        return "database"
    if not fields[1]:
        return "accession"
    if not re.fullmatch(r"GO:[0-9]{7}", fields[4]):
        return "go_id"
    if fields[6] not in CODES and fields[6] != "ND":
        return "unknown_evidence"
    if not re.fullmatch(r"[0-9]{8}", fields[13]) or row_date(fields) is None:
        return "date"
    return None


def row_date(fields: tuple[str, ...]) -> date | None:
    text = fields[13]
    try:
        return date(int(text[:4]), int(text[4:6]), int(text[6:]))
    except ValueError:
        return None


def row_taxon(fields: tuple[str, ...]) -> int | None:
    found = re.fullmatch(r"(?:taxon:)?([0-9]+)", fields[12].split("|")[0].strip())
    return int(found[1]) if found else None


def qualifier_tokens(text: str) -> list[str]:
    # AMBIGUOUS: blanks around any token are ignored, as the contract says for NOT.
    return [token.strip().lower() for token in text.split("|")]


def normalise_qualifier(text: str, aspect: str) -> str:
    kept = [
        token
        for token in qualifier_tokens(text)
        if token in ("contributes_to", "colocalizes_with") or token.startswith("acts_upstream_of")
    ]
    return min(kept, key=by_bytes) if kept else DEFAULT_QUALIFIER[aspect]


class AnnotationSet:
    """One (source, version) under one ontology.

    `positive`: accession -> [(term, evidence, normalised qualifier)], roots and NOT rows left out;
    `negative`: accession -> [(term, evidence)]; `occurs`: accessions with a stored row (of the whole file, when the set
    is derived by date); `taxa`: accession -> taxon of its first row that has one; `dropped`: reason -> rows.
    """

    def __init__(
        self, rows: list[tuple[str, ...]], databases: tuple[str, ...], ont: Ontology, upto: date | None
    ) -> None:
        self.positive: dict[str, list[tuple[str, str, str]]] = {}
        self.negative: dict[str, list[tuple[str, str]]] = {}
        self.occurs: set[str] = set()
        self.taxa: dict[str, int] = {}
        self.dropped = dict.fromkeys(REASONS, 0)
        for fields in rows:
            reason = malformed(fields)
            if reason:
                self.dropped[reason] += 1
                continue
            if fields[0] in databases:
                self.occurs.add(fields[1])
            when = row_date(fields)
            if upto is not None and when is not None and when > upto:
                continue
            # AMBIGUOUS: any well-formed row of the set's databases may give the taxon, whatever becomes of its term.
            taxon = row_taxon(fields)
            if taxon is not None and fields[0] in databases:
                self.taxa.setdefault(fields[1], taxon)
            if fields[0] not in databases:
                self.dropped["other_database"] += 1
            elif fields[6] == "ND":
                self.dropped["no_data"] += 1
            else:
                self._add(fields, ont)

    def _add(self, fields: tuple[str, ...], ont: Ontology) -> None:
        accession, qualifier, evidence = fields[1], fields[3], fields[6]
        term = ont.resolve(fields[4])
        if term in ("unknown", "obsolete"):
            self.dropped[term] += 1
        elif term in ROOTS:
            self.dropped["root"] += 1  # before NOT is looked at, so a NOT on a root negates nothing
        elif "not" in qualifier_tokens(qualifier):
            # AMBIGUOUS: `not_isoform` counts the rows that come through all the other reasons.
            if len(fields) > 16 and fields[16]:
                self.dropped["not_isoform"] += 1
            else:
                self.negative.setdefault(accession, []).append((term, evidence))
        else:
            normal = normalise_qualifier(qualifier, ont.aspect(term))
            self.positive.setdefault(accession, []).append((term, evidence, normal))

    def negated(self, accession: str, ont: Ontology, codes: tuple[str, ...] | None = None) -> set[str]:
        """The terms with a NOT row (of these codes) and all their descendants."""
        out: set[str] = set()
        for term, evidence in self.negative.get(accession, ()):
            if codes is None or evidence in codes:
                out |= ont.descendants(term)
        return out


# ------------------------------------------------------------------------------------------------------- settings


def experimental_codes(settings: dict[str, Any]) -> tuple[str, ...]:
    value = settings["experimental_codes"]
    if value == "experimental":
        return EXPERIMENTAL
    if value == "cafa":
        return (*EXPERIMENTAL, "TAS", "IC")
    return tuple(value)


def donor_codes(settings: dict[str, Any]) -> tuple[str, ...]:
    value = settings["donor_evidence"]
    if value == "all":
        return CODES
    if value == "experimental":
        # AMBIGUOUS: donors of "experimental" evidence have the evidence that makes labels: `experimental_codes`.
        return experimental_codes(settings)
    if value == "non_electronic":
        return tuple(code for code in CODES if code != "IEA")
    return tuple(value)


def complete(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with the defaults filled in; refuses unknown ones and a family that is on without its input."""
    for key in settings:
        if key not in DEFAULTS and key not in _NAMES:
            raise ValueError(f"unknown setting {key}")
    out = {**DEFAULTS, **settings}
    for key, needed in (("compute_taxonomy", "taxonomy"), ("interpro_candidates", "interpro")):
        if out[key] and not out[needed]:
            raise ValueError(f"{key} is on without {needed}")
    return out


def version_label(version: int | str | date) -> str:
    return version.isoformat() if isinstance(version, date) else str(version)


def cuts_of(settings: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(kind, old, new) of each cut: train cuts in order, then eval."""
    train = [version_label(v) for v in settings["train_versions"]]
    test = [version_label(v) for v in settings["test_versions"]]
    cuts = [("train", train[i], train[i + 1]) for i in range(len(train) - 1)]
    return cuts + [("eval", train[-1], t) for t in test]


def clean_sequence(sequence: str) -> str:
    text = sequence.upper()
    return text[:-1] if text.endswith("*") else text


# ----------------------------------------------------------------------------------------- section 3: ground truth


class Truth:
    """Who knew what in the old set, what is novel in the new one, and who is a member."""

    def __init__(self, old: AnnotationSet, new: AnnotationSet, ont: Ontology, settings: dict[str, Any]) -> None:
        codes = experimental_codes(settings)
        self.e_old: dict[str, dict[str, set[str]]] = {}
        self.known: dict[str, dict[str, set[str]]] = {}
        self.members: dict[tuple[str, str], str] = {}
        self.novel: dict[tuple[str, str], set[str]] = {}
        self.accretion: dict[str, float] = {}
        self.binding_only = 0
        for p in sorted(set(old.positive) | set(new.positive)):
            not_old = old.negated(p, ont, codes)
            not_both = not_old | new.negated(p, ont, codes)
            e_old: dict[str, set[str]] = {a: set() for a in ASPECTS}
            e_new: dict[str, set[str]] = {a: set() for a in ASPECTS}
            for release, out, negated in ((old, e_old, not_old), (new, e_new, not_both)):
                for term, evidence, _ in release.positive.get(p, ()):
                    if evidence in codes and term not in negated:
                        out[ont.aspect(term)].add(term)
            self.e_old[p] = e_old
            self.known[p] = {a: ont.propagate(e_old[a]) for a in ASPECTS}
            for a in ASPECTS:
                reached = e_new[a] if settings["label_mode"] == "direct" else ont.propagate(e_new[a])
                novel = reached - self.known[p][a]
                if not novel:
                    continue
                if settings["exclude_binding_only"] and a == "mfo" and novel <= BINDING:
                    self.binding_only += 1
                    continue
                if not any(e_old[b] for b in ASPECTS):
                    category = "nk"
                elif not e_old[a]:
                    category = "lk"
                else:
                    category = "pk"
                self.members[p, a] = category
                self.novel[p, a] = novel

    def terms_known(self, p: str) -> set[str]:
        """E_old(p, ·) over all aspects."""
        found: set[str] = set()
        for terms in self.e_old.get(p, {}).values():
            found |= terms
        return found


def accretion(truth: Truth, ont: Ontology, term: str) -> float:
    """Section 18, over the old set of the cut."""
    if term not in truth.accretion:
        truth.accretion[term] = _accretion(truth, ont, term)
    return truth.accretion[term]


def _accretion(truth: Truth, ont: Ontology, term: str) -> float:
    a = ont.aspect(term)
    with_term = with_parents = 0
    parents = ont.parents(term) - ROOTS
    for p, e_old in truth.e_old.items():
        if not e_old[a]:
            continue
        with_term += term in truth.known[p][a]
        with_parents += parents <= truth.known[p][a]  # a root parent, or none: every protein with a term in a
    if with_term == with_parents:
        return 0.0
    return f32(-math.log2((with_term + 1) / (with_parents + 1)))


# ---------------------------------------------------------------------------------- sections 4 and 5: donors, distances


class Vectors:
    """The embedding config: exact distances, each pair once."""

    def __init__(self, embeddings: dict[str, Any], metric: str) -> None:
        self.values = {acc: [float(x) for x in np.asarray(v).astype(np.float64)] for acc, v in embeddings.items()}
        self.metric = metric
        self._cache: dict[tuple[str, str], float] = {}

    def distance(self, q: str, r: str) -> float:
        if (q, r) not in self._cache:
            x, y = self.values[q], self.values[r]
            self._cache[q, r] = f32(cosine(x, y) if self.metric == "cosine" else l2(x, y))
        return self._cache[q, r]


def dot(x: list[float], y: list[float]) -> float:
    total = 0.0
    for i in range(len(x)):
        total += x[i] * y[i]
    return total


def cosine(x: list[float], y: list[float]) -> float:
    return max(0.0, 1.0 - dot(x, y) / math.sqrt(dot(x, x) * dot(y, y)))


def l2(x: list[float], y: list[float]) -> float:
    total = 0.0
    for i in range(len(x)):
        total += (x[i] - y[i]) * (x[i] - y[i])
    return total


class Donors:
    """The usable rows of the old set: D, A and each donor's rows for a term."""

    def __init__(self, old: AnnotationSet, ont: Ontology, settings: dict[str, Any], vectors: Vectors) -> None:
        codes = donor_codes(settings)
        self.ont = ont
        self.expand = settings["expand_votes_to_ancestors"]
        self.rows: dict[str, list[tuple[str, str, str]]] = {}
        self.d: dict[str, dict[str, set[str]]] = {}
        for r in old.positive:
            negated = old.negated(r, ont)
            usable = [row for row in old.positive[r] if row[1] in codes and row[0] not in negated]
            self.rows[r] = usable
            self.d[r] = {a: {row[0] for row in usable if ont.aspect(row[0]) == a} for a in ASPECTS}
        self.a = {
            r: {a: ont.propagate(terms) if self.expand else set(terms) for a, terms in by_aspect.items()}
            for r, by_aspect in self.d.items()
        }
        self.of = {
            a: [r for r in sorted(self.d, key=by_bytes) if self.d[r][a] and r in vectors.values] for a in ASPECTS
        }
        self.frequency = {a: self._frequency(a) for a in ASPECTS}

    def _frequency(self, a: str) -> dict[str, int]:
        out: dict[str, int] = {}
        for r in self.of[a]:
            for term in self.a[r][a]:
                out[term] = out.get(term, 0) + 1
        return out

    def best_row(self, r: str, term: str) -> tuple[str, str]:
        """(qualifier, evidence) of the donor's best usable row for the term."""
        found = [
            (CODES.index(evidence), by_bytes(qualifier), by_bytes(own), qualifier, evidence)
            for own, evidence, qualifier in self.rows[r]
            if own == term or (self.expand and term in self.ont.closure(own))
        ]
        best = min(found)
        return best[3], best[4]


def neighbours(
    q: str, a: str, donors: Donors, vectors: Vectors, settings: dict[str, Any], sequences: dict[str, str]
) -> list[tuple[float, str]]:
    """The first k donors of the aspect by (float32 distance, accession bytes)."""
    found = []
    for r in donors.of[a]:
        if r == q:
            continue
        if settings["exclude_identical_sequences"] and q in sequences and sequences.get(r) == sequences[q]:
            continue
        found.append((vectors.distance(q, r), by_bytes(r), r))
    found.sort()
    limit = settings["distance_threshold"]
    return [(dist, r) for dist, _, r in found[: settings["k"]] if limit is None or dist <= f32(limit)]


# ------------------------------------------------------------------------------------------ section 12: PCA columns


def pca(world: World) -> tuple[list[float], list[list[float]]]:
    """(mean, components) of the embedding config; see `pca_determined` for how far they are fixed at all."""
    order = sorted(world.embeddings, key=by_bytes)
    matrix = np.array([np.asarray(world.embeddings[acc]).astype(np.float64) for acc in order])
    n, dim = matrix.shape
    mean = matrix.mean(axis=0)
    axes = np.linalg.svd(matrix - mean, full_matrices=False)[2][: min(16, dim, n - 1)]
    components = []
    for axis in axes:
        values = [float(x) for x in axis]
        largest = max(abs(x) for x in values)
        first = next(x for x in values if abs(x) == largest)
        components.append([-x for x in values] if first < 0 else values)
    return [float(x) for x in mean], components


def pca_determined(world: World) -> list[bool]:
    """Per component: are its direction and sign fixed by the data (a variance of its own, one largest entry)?

    Where not, any direction of the shared variance is right; compare such a component by the product's own stored
    PCA (`export(..., pca=...)`) instead of by value.
    """
    order = sorted(world.embeddings, key=by_bytes)
    matrix = np.array([np.asarray(world.embeddings[acc]).astype(np.float64) for acc in order])
    values = [float(s) for s in np.linalg.svd(matrix - matrix.mean(axis=0), compute_uv=False)]
    top = values[0] or 1.0
    out = []
    for i, axis in enumerate(pca(world)[1]):
        sizes = sorted((abs(x) for x in axis), reverse=True)
        others = [s for j, s in enumerate(values) if j != i]
        alone = all(abs(values[i] - s) > 1e-5 * top for s in others)
        out.append(alone and values[i] > 1e-5 * top and (len(sizes) == 1 or sizes[0] - sizes[1] > 1e-6))
    return out


# --------------------------------------------------------------------------------------- sections 6 to 8: the export


def export(
    world: World, settings: dict[str, Any], pca_of: tuple[list[float], list[list[float]]] | None = None
) -> dict[str, Any]:
    """The whole dataset: `train`, `eval`, `truth`, `known` (lists of row dicts), `counts` and `dropped`.

    With a later family on also `dropped["tables"]`; with alignments also `alignments` ((query, donor) -> kind -> (score,
    every right answer), None where there is none) and `alignments_skipped`. `reference_families.differences` compares.
    `pca_of`: (mean, components) to use instead of this module's own PCA.
    """
    cfg = complete(settings)
    ont = Ontology(world.terms)
    vectors = Vectors(world.embeddings, cfg["metric"])
    sequences = {acc: clean_sequence(p.sequence) for acc, p in world.proteins.items()}
    axes = (pca_of or pca(world)) if cfg["use_embedding_pca"] else None
    families: Families | None = None
    if any(cfg[key] for key in _SWITCHES):
        from reference_families import Families

        families = Families(world, cfg, ont, sequences)
    cuts = cuts_of(cfg)
    sets: dict[str, AnnotationSet] = {}
    for _, old, new in cuts:
        for version in (old, new):
            if version not in sets:
                sets[version] = _load(world, version, ont)
    out: dict[str, Any] = {"train": [], "eval": [], "truth": [], "known": [], "counts": {}}
    # AMBIGUOUS: every reason is written, zeros included (`nonzero` takes them out of a comparison).
    dropped_sets = {version: release.dropped for version, release in sets.items()}
    out["dropped"] = {"annotation_sets": dropped_sets, "cuts": {}}
    for kind, old, new in cuts:
        pair = f"v{old}-v{new}"
        cut = _cut(pair, sets[old], sets[new], ont, cfg, vectors, sequences, axes, families)
        out[kind] += cut["rows"]
        out["truth"] += cut["truth"]
        out["known"] += cut["known"]
        out["counts"][pair] = cut["counts"]
        out["dropped"]["cuts"][pair] = cut["dropped"]
    if families is not None:
        out["dropped"]["tables"] = families.dropped
        if families.alignments is not None:
            out["alignments"] = families.alignments.of
            out["alignments_skipped"] = len(families.alignments.skipped)
    return out


def nonzero(tree: Any) -> Any:
    """A tree of counts without its zeros and the branches that they leave empty."""
    if not isinstance(tree, dict):
        return tree
    pruned = {key: nonzero(value) for key, value in tree.items()}
    return {key: value for key, value in pruned.items() if value not in (0, {})}


def _load(world: World, version: str, ont: Ontology) -> AnnotationSet:
    if version in world.cut_dates:
        return AnnotationSet(world.derived_rows, world.databases, ont, date.fromisoformat(version))
    return AnnotationSet(world.releases[version], world.databases, ont, None)


def _cut(
    pair: str,
    old: AnnotationSet,
    new: AnnotationSet,
    ont: Ontology,
    cfg: dict[str, Any],
    vectors: Vectors,
    sequences: dict[str, str],
    axes: tuple[list[float], list[list[float]]] | None,
    families: Families | None,
) -> dict[str, Any]:
    truth = Truth(old, new, ont, cfg)
    donors = Donors(old, ont, cfg, vectors)
    extra = families.in_cut(old, truth, donors) if families is not None else None
    counts = {c: {a: dict.fromkeys(COUNTS, 0) for a in ASPECTS} for c in CATEGORIES}
    rows: list[dict[str, Any]] = []
    truth_rows: list[dict[str, Any]] = []
    lists: dict[str, dict[str, list[tuple[float, str]]]] = {}
    without: list[str] = []
    # Sorted by category, accession bytes, aspect; within a member by GO id bytes.
    order = sorted(
        truth.members, key=lambda m: (CATEGORIES.index(truth.members[m]), by_bytes(m[0]), ASPECTS.index(m[1]))
    )
    for q, a in order:
        category = truth.members[q, a]
        count = counts[category][a]
        novel = truth.novel[q, a]
        count["members"] += 1
        count["absent_from_old"] += q not in old.occurs
        count["novel_terms"] += len(novel)
        found: list[dict[str, Any]] = []
        if q in vectors.values:
            count["queried"] += 1
            if q not in lists:
                lists[q] = {b: neighbours(q, b, donors, vectors, cfg, sequences) for b in ASPECTS}
            found = _rows(q, a, lists[q], truth, donors, ont, cfg, sequences, extra)
            # AMBIGUOUS: `without_candidate` counts the queried members without a row, not those without a vector.
            count["without_candidate"] += not found
        else:
            without.append(q)
        for row in found:
            row.update(category=category, snapshot_pair=pair)
            if axes is not None:
                row.update(_pca_columns(vectors.values[q], axes))
        rows += found
        labelled = {row["go_term_id"] for row in found if row["label"] == 1}
        count["rows"] += len(found)
        count["positives"] += len(labelled)
        count["reached"] += len(labelled)
        count["proteins"] += bool(found)  # a protein is at most one member of a category and aspect
        for term in sorted(novel, key=by_bytes):
            truth_rows.append(
                {
                    "snapshot_pair": pair,
                    "protein_accession": q,
                    "aspect": a,
                    "category": category,
                    "go_term_id": term,
                    "reached": term in labelled,
                }
            )
    known_rows = [
        {"snapshot_pair": pair, "protein_accession": p, "aspect": a, "go_term_id": term}
        for p in sorted({p for p, _ in truth.members}, key=by_bytes)
        for a in ASPECTS
        for term in sorted(truth.e_old[p][a], key=by_bytes)
    ]
    dropped = {
        "no_embedding_members": len(without),
        "no_embedding_proteins": len(set(without)),
        "binding_only": truth.binding_only,
    }
    return {"rows": rows, "truth": truth_rows, "known": known_rows, "counts": counts, "dropped": dropped}


def _rows(
    q: str,
    a: str,
    lists: dict[str, list[tuple[float, str]]],
    truth: Truth,
    donors: Donors,
    ont: Ontology,
    cfg: dict[str, Any],
    sequences: dict[str, str],
    extra: FamilyCut | None,
) -> list[dict[str, Any]]:
    """The candidates of one member, by GO id, with every column."""
    near = lists[a]
    candidates: set[str] = set()
    for _, r in near:
        candidates |= donors.a[r][a]
    if extra is not None:
        # Members without a vector are no queries and get no InterPro-only rows either.
        candidates |= extra.families.interpro_terms(q, a)
    if not cfg["keep_known"]:
        candidates -= truth.known[q][a]
    known = truth.terms_known(q)
    spread = _std([dist for b in ASPECTS for dist, _ in lists[b]])
    rows = []
    for term in sorted(candidates, key=by_bytes):
        voters = [(rank + 1, dist, r) for rank, (dist, r) in enumerate(near) if term in donors.a[r][a]]
        above = [k for k in known if k != term and term in ont.closure(k)]
        below = [k for k in known if k != term and k in ont.closure(term)]
        row: dict[str, Any] = dict.fromkeys(COLUMNS)
        row.update(
            protein_accession=q,
            go_term_id=term,
            aspect=a,
            label=int(term in truth.novel[q, a]),
            vote_count=len(voters),
            neighbor_vote_fraction=f32(len(voters) / cfg["k"]),
            go_term_frequency=donors.frequency[a].get(term, 0),
            information_accretion=accretion(truth, ont, term),
            length_query=len(sequences[q]) if q in sequences else None,
            anc2vec_query_known_count=len(known),
            lineage_is_ancestor_of_known=bool(above),
            lineage_is_descendant_of_known=bool(below),
            lineage_ancestor_of_count=len(above),
            lineage_descendant_of_count=len(below),
            knn_present=bool(voters),
        )
        if voters:
            rank, distance, donor = voters[0]
            qualifier, evidence = donors.best_row(donor, term)
            row.update(
                ref_protein_accession=donor,
                distance=distance,
                k_position=rank,
                neighbor_min_distance=min(dist for _, dist, _ in voters),
                neighbor_mean_distance=f32(_mean([dist for _, dist, _ in voters])),
                neighbor_distance_std=f32(spread),
                qualifier=qualifier,
                evidence_code=evidence,
                ref_annotation_density=sum(len(donors.d[donor][b]) for b in ASPECTS),
                length_ref=len(sequences[donor]) if donor in sequences else None,
            )
        if extra is not None:
            row.update(extra.columns(q, a, term, [r for _, r in near], [r for _, _, r in voters]))
        rows.append(row)
    return rows


def _mean(values: list[float]) -> float:
    # AMBIGUOUS: the order of this float64 sum; nearest voter first.
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def _std(values: list[float]) -> float:
    """Population standard deviation, two-pass; 0 below two values."""
    if len(values) < 2:
        return 0.0
    mean = _mean(values)
    total = 0.0
    for value in values:
        total += (value - mean) * (value - mean)
    return math.sqrt(total / len(values))


def _pca_columns(vector: list[float], axes: tuple[list[float], list[list[float]]]) -> dict[str, float]:
    mean, components = axes
    centred = [vector[i] - mean[i] for i in range(len(vector))]
    return {f"emb_pca_query_{i}": f32(dot(centred, component)) for i, component in enumerate(components)}
