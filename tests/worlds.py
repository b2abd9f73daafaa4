"""Small random worlds: an ontology, annotation releases, proteins, vectors and the inputs of the later families (a
taxonomy, term vectors, an InterPro table, scores, an IA file), as plain Python data and as real files.

`random_world(seed, size)` is deterministic and fast; `worlds()` wraps it for hypothesis, `settings(world)` and
`random_settings(seed, world)` draw the settings that go with one, and `minimize(world, fails)` cuts a failing world
down to what still fails. The reference (`reference.py`) reads the plain data, the product's loaders read the files of
`World.write`.

The inputs of the later families come from a random stream of their own. `families=True` lets them reach into the rest:
taxa from all over the taxonomy, sequences that are related and hold odd letters, and settings of those families.

The malformed rows that a world may hold are more than 1 % of its rows: load with a higher limit, or leave the corner
`malformed` out.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

NAMESPACES = {"F": "molecular_function", "P": "biological_process", "C": "cellular_component"}
ROOT = {"F": "GO:0003674", "P": "GO:0008150", "C": "GO:0005575"}
BINDING, PROTEIN_BINDING = "GO:0005488", "GO:0005515"
CORNERS = (
    *("negated", "ids", "roots", "no_data", "other_database", "malformed", "unknown", "qualifiers", "orphans"),
    *("cross_aspect", "ties", "identical", "binding", "new_only", "missing", "derived", "evidence", "chain"),
)
TABLES = {
    "taxonomy": "tax",
    "term_vectors": "vec",
    "interpro": "ipr",
    "external_scores": "ext",
    "information_accretion": "ia",
}
"""The settings that name an input of a later family, and the names that `settings` and `random_settings` give them."""
_EXPERIMENTAL = ("EXP", "IDA", "IPI", "IMP", "IGI", "IEP", "HTP", "HDA", "HMP", "HGI", "HEP")
_OTHER = ("TAS", "IC", "IBA", "IBD", "IKR", "ISS", "ISO", "RCA", "NAS", "IGC", "IEA", "IEA", "IEA", "IEA", "IEA")

Row = tuple[str, ...]
"""The raw fields of one GAF row (15 to 17 when it is well-formed)."""


@dataclass(frozen=True)
class Term:
    """One OBO stanza; `is_a` and `part_of` hold the edges within an aspect and across aspects alike."""

    id: str
    namespace: str
    is_a: tuple[str, ...] = ()
    part_of: tuple[str, ...] = ()
    alt_ids: tuple[str, ...] = ()
    obsolete: bool = False
    replaced_by: tuple[str, ...] = ()
    consider: tuple[str, ...] = ()
    other: tuple[tuple[str, str], ...] = ()
    """Relations that never propagate: (relation, target)."""


@dataclass(frozen=True)
class Protein:
    taxon: int | None
    sequence: str


@dataclass(frozen=True)
class Taxdump:
    """NCBI's tables. The root is its own parent; what a merged id leads to need not be a node."""

    nodes: dict[int, int]
    """Node -> parent."""
    merged: dict[int, int] = field(default_factory=dict)
    deleted: tuple[int, ...] = ()


@dataclass(frozen=True)
class World:
    """Everything that an export reads. Versions are labels: integers or ISO dates, as text."""

    terms: list[Term]
    releases: dict[str, list[Row]]
    proteins: dict[str, Protein]
    embeddings: dict[str, Any]
    """Accession -> a float16 or float32 vector; some proteins have none."""
    train_versions: list[int | str]
    test_versions: list[int | str]
    derived_rows: list[Row] = field(default_factory=list)
    """The one GAF from which the sets of `cut_dates` are derived."""
    cut_dates: list[str] = field(default_factory=list)
    databases: tuple[str, ...] = ("UniProtKB",)
    source: str = "goa"
    seed: int | None = None
    taxonomy: Taxdump | None = None
    term_vectors: dict[str, Any] = field(default_factory=dict)
    """GO id -> a float32 or float64 vector; some ids are other names of a term."""
    interpro: list[tuple[str, str, float, str, int]] = field(default_factory=list)
    """(accession, GO id, score, member databases separated by |, signature count)."""
    scores: list[tuple[str, str, float]] = field(default_factory=list)
    """(accession, GO id, score)."""
    ia: dict[str, float] = field(default_factory=dict)
    """GO id -> information accretion."""

    def names(self) -> dict[str, Any]:
        """The required settings."""
        return {
            "name": "world",
            "annotation_source": self.source,
            "embedding_config": "vectors",
            "train_versions": list(self.train_versions),
            "test_versions": list(self.test_versions),
        }

    def write(self, directory: Path) -> dict[str, Any]:
        """Write real files; returns their paths.

        `ontology`, `proteins`: a path; `annotations`: version -> path; `derived`: a path or None (its cut dates are
        `cut_dates`); `embeddings`: `npz`, `parquet` and `h5` -> path, all of the same vectors; `taxonomy` (a
        directory), `term_vectors` (NPZ: `ids`, `vectors`), `interpro`, `external_scores` and `information_accretion`
        (TSV): a path, or None where the world has none.
        """
        directory.mkdir(parents=True, exist_ok=True)
        paths: dict[str, Any] = {"ontology": directory / "go.obo", "proteins": directory / "proteins.fasta"}
        paths["ontology"].write_text(obo_text(self.terms))
        paths["proteins"].write_text(fasta_text(self.proteins))
        paths["annotations"] = {}
        for i, (version, rows) in enumerate(self.releases.items()):
            path = directory / (f"{version}.gaf.gz" if i % 2 else f"{version}.gaf")
            paths["annotations"][version] = _write_gaf(path, rows, version, header=i % 4 != 2)
        paths["derived"] = None
        if self.cut_dates:
            paths["derived"] = _write_gaf(directory / "derived.gaf.gz", self.derived_rows, "derived", header=True)
        paths["embeddings"] = write_embeddings(self.embeddings, directory)
        return {**paths, **_write_families(self, directory)}


# ------------------------------------------------------------------------------------------------------------- files


def obo_text(terms: Iterable[Term]) -> str:
    lines = ["format-version: 1.2", "data-version: releases/2020-01-01", "ontology: go", ""]
    for t in terms:
        lines += ["[Term]", f"id: {t.id}", f"name: term {t.id[3:]}", f"namespace: {t.namespace}"]
        lines += [f"alt_id: {alt}" for alt in t.alt_ids]
        lines += [f"is_a: {parent} ! a parent" for parent in t.is_a]
        lines += [f"relationship: part_of {parent} ! a whole" for parent in t.part_of]
        lines += [f"relationship: {relation} {target} ! another" for relation, target in t.other]
        if t.obsolete:
            lines.append("is_obsolete: true")
        lines += [f"replaced_by: {successor}" for successor in t.replaced_by]
        lines += [f"consider: {other}" for other in t.consider]
        lines.append("")
    for relation in ("part_of", "has_part", "regulates"):
        lines += ["[Typedef]", f"id: {relation}", f"name: {relation}", ""]
    return "\n".join(lines)


def fasta_text(proteins: dict[str, Protein]) -> str:
    lines = []
    for i, (accession, p) in enumerate(proteins.items()):
        header = f">sp|{accession}|NAME{i} A protein OS=Some species"
        lines.append(f"{header} OX={p.taxon} PE=1" if p.taxon is not None else f">{accession}")
        lines += [p.sequence[start : start + 60] for start in range(0, len(p.sequence), 60)]
    return "\n".join(lines) + "\n"


def _write_gaf(path: Path, rows: list[Row], label: str, *, header: bool) -> Path:
    # The label keeps two releases of the same rows two different files.
    lines = ["!gaf-version: 2.2"] if header else []
    lines += [f"!Release: {label}", *("\t".join(row) for row in rows)]
    data = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def write_embeddings(embeddings: dict[str, Any], directory: Path) -> dict[str, Path]:
    import h5py
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths = {kind: directory / f"vectors.{kind}" for kind in ("npz", "parquet", "h5")}
    ids = list(embeddings)
    matrix = np.stack([embeddings[acc] for acc in ids])
    np.savez(paths["npz"], ids=np.array(ids), embeddings=matrix)
    kind = pa.list_(pa.float16() if matrix.dtype == np.float16 else pa.float32())
    flat = pa.ListArray.from_arrays(
        pa.array(np.arange(len(ids) + 1) * matrix.shape[1], pa.int32()), pa.array(matrix.ravel())
    )
    pq.write_table(pa.table({"accession": pa.array(ids), "embedding": flat.cast(kind)}), paths["parquet"])
    with h5py.File(paths["h5"], "w") as file:
        for acc in ids:
            file.create_dataset(acc, data=embeddings[acc])
    return paths


def _write_families(world: World, directory: Path) -> dict[str, Path | None]:
    paths: dict[str, Path | None] = dict.fromkeys(TABLES)
    if world.taxonomy is not None:
        paths["taxonomy"] = directory / "taxdump"
        write_taxdump(world.taxonomy, directory / "taxdump")
    if world.term_vectors:
        paths["term_vectors"] = directory / "terms.npz"
        ids = list(world.term_vectors)
        np.savez(directory / "terms.npz", ids=np.array(ids), vectors=np.stack([world.term_vectors[t] for t in ids]))
    # A header, a comment or neither, so that readers meet all.
    lines = {
        "interpro": [f"{a}\t{t}\t{score!r}\t{dbs}\t{n}" for a, t, score, dbs, n in world.interpro],
        "external_scores": [f"{a}\t{t}\t{score!r}" for a, t, score in world.scores],
        "information_accretion": [f"{t}\t{value!r}" for t, value in world.ia.items()],
    }
    heads = {
        "interpro": "# a comment",
        "external_scores": "accession\tgo_id\tscore",
        "information_accretion": "term\tia",
    }
    for name, rows in lines.items():
        if rows:
            paths[name] = path = directory / f"{name}.tsv"
            path.write_text("\n".join(([heads[name]] if len(rows) % 2 else []) + rows) + "\n")
    return paths


def write_taxdump(dump: Taxdump, directory: Path) -> None:
    """nodes.dmp, merged.dmp and delnodes.dmp as NCBI writes them."""
    directory.mkdir(parents=True, exist_ok=True)
    tables: dict[str, list[tuple[Any, ...]]] = {
        "nodes": [(node, parent, "no rank", "", 8, 0, 1, 0, 0, 0, 0, 0, "") for node, parent in dump.nodes.items()],
        "merged": list(dump.merged.items()),
        "delnodes": [(taxon,) for taxon in dump.deleted],
    }
    for name, rows in tables.items():
        text = "".join("\t|\t".join(str(x) for x in row) + "\t|\n" for row in rows)
        (directory / f"{name}.dmp").write_text(text)


def gaf_row(
    accession: str,
    go_id: str,
    evidence: str,
    qualifier: str = "",
    *,
    when: str = "20100101",
    database: str = "UniProtKB",
    taxon: str = "taxon:9606",
    form: str = "",
    fields: int = 17,
) -> Row:
    """The fields of one GAF row; `form` is column 17, `fields` how many there are (a short row has no column 17)."""
    row = [database, accession, "GENE", qualifier, go_id, "PMID:1", evidence, "", "F", "A protein", "", "protein"]
    row += [taxon, when, "UniProt", "", form]
    return tuple(row[:fields]) if fields <= 17 else (*row, *[""] * (fields - 17))


# ------------------------------------------------------------------------------------------------------- random worlds


def random_world(seed: int, size: int = 12, corners: Iterable[str] = CORNERS, *, families: bool = False) -> World:
    """A world of `size` proteins (4 or more), the same for the same arguments whatever the process.

    `families` redraws the taxa of proteins and rows and edits the sequences; everything else stays what it was.
    """
    builder = _Builder(seed, max(4, size), frozenset(corners))
    return _Families(builder, builder.world()).world(families)


class _Builder:
    def __init__(self, seed: int, size: int, corners: frozenset[str]) -> None:
        self.rng = random.Random(f"{seed}/{size}/{','.join(sorted(corners))}")
        self.seed, self.size, self.corners = seed, size, corners
        self.terms: dict[str, Term] = {}
        self.pool: dict[str, list[str]] = {"F": [], "P": [], "C": []}
        self.aliases: dict[str, list[str]] = {}
        self.lost: list[str] = []

    def on(self, corner: str, chance: float = 1.0) -> bool:
        return corner in self.corners and self.rng.random() < chance

    # ------------------------------------------------------------------------------------------------- ontology

    def ontology(self) -> None:
        rng = self.rng
        for a, root in ROOT.items():
            self.terms[root] = Term(root, NAMESPACES[a])
        self.terms[BINDING] = Term(BINDING, NAMESPACES["F"], is_a=(ROOT["F"],))
        self.terms[PROTEIN_BINDING] = Term(PROTEIN_BINDING, NAMESPACES["F"], is_a=(BINDING,))
        self.pool["F"] += [BINDING, PROTEIN_BINDING]
        self.free = [f"GO:{n:07d}" for n in rng.sample(range(10, 10000), 1200)]
        self.free = [t for t in self.free if t not in self.terms]
        per_aspect = max(5, min(60, 4 + self.size // 2))
        for a in "FCP":  # edges across aspects run one way (F to C to P), so that no ring arises
            for _ in range(per_aspect):
                self._term(a)
        if "ids" in self.corners:
            self._aliases()
        if "chain" in self.corners:
            self._chain()

    def _term(self, a: str) -> None:
        rng = self.rng
        above = [ROOT[a], *self.pool[a]]
        parents = [] if self.on("orphans", 0.08) else rng.sample(above, min(len(above), rng.choice((1, 1, 2, 2, 3))))
        is_a = [p for p in parents if rng.random() < 0.7]
        part_of = [p for p in parents if p not in is_a or rng.random() < 0.2]
        other: list[tuple[str, str]] = []
        if self.on("cross_aspect", 0.2) and a != "F":
            (is_a if rng.random() < 0.3 else part_of).append(rng.choice(self.pool["F" if a == "C" else "C"]))
        if self.on("cross_aspect", 0.2):
            other.append((rng.choice(("has_part", "regulates")), rng.choice(above)))
        term = self.free.pop()
        rng.shuffle(part_of)
        self.terms[term] = Term(term, NAMESPACES[a], tuple(is_a), tuple(part_of), other=tuple(other))
        self.pool[a].append(term)

    def _dead(self, *successors: str, alt: str | None = None) -> str:
        term = self.free.pop()
        namespace = NAMESPACES[self.rng.choice("FPC")]
        alts = (alt,) if alt else ()
        self.terms[term] = Term(term, namespace, alt_ids=alts, obsolete=True, replaced_by=successors)
        return term

    def _alt(self, owner: str, alt: str | None = None) -> str:
        alt = alt or self.free.pop()
        self.terms[owner] = replace(self.terms[owner], alt_ids=(*self.terms[owner].alt_ids, alt))
        return alt

    def _aliases(self) -> None:
        rng = self.rng
        live = [t for pool in self.pool.values() for t in pool]
        for term in rng.sample(live, max(2, len(live) // 4)):
            names = self.aliases.setdefault(term, [])
            way = rng.randrange(6)
            alt = self._alt(term)
            if way == 0:
                names.append(alt)
            elif way == 1:
                names.append(self._dead(term))
            elif way == 2:  # obsolete -> alt -> live
                names.append(self._dead(alt, alt))
            elif way == 3:  # obsolete -> obsolete -> live
                names.append(self._dead(self._dead(term)))
            elif way == 4:  # an alt of an obsolete term goes on
                loose = self.free.pop()
                self._dead(term, alt=loose)
                names.append(loose)
            else:  # an obsolete stanza that is also an alt: the owner comes before the successor
                dead = self._dead(rng.choice(live))
                names.append(self._alt(term, dead))
        one, two = rng.sample(live, 2)
        shared = self._alt(one)
        self._alt(two, shared)
        dead_shared = self.free.pop()
        self._dead(one, alt=dead_shared)
        self._dead(one, alt=dead_shared)
        self._alt(one, two)  # a live stanza stays itself, whoever calls it an alt
        ring, other = self.free.pop(), self.free.pop()
        self.terms[ring] = Term(ring, NAMESPACES["F"], obsolete=True, replaced_by=(other,))
        self.terms[other] = Term(other, NAMESPACES["F"], obsolete=True, replaced_by=(ring,))
        nothing = self._dead()
        self.terms[nothing] = replace(self.terms[nothing], consider=(one,))
        self.lost = [shared, dead_shared, ring, nothing, self._dead(one, two), self._dead(self.free.pop())]
        self.aliases.setdefault(two, []).append(two)
        # A root's other names are roots too.
        self.root_names = [self._alt(ROOT["P"]), self._dead(ROOT["F"])]

    def _chain(self) -> None:
        """Ten replaced_by hops are followed, the eleventh is not."""
        target = self.rng.choice(self.pool["P"])
        here = target
        for _ in range(10):
            here = self._dead(here)
        self.aliases.setdefault(target, []).append(here)
        self.lost.append(self._dead(here))

    # ---------------------------------------------------------------------------------------- proteins and vectors

    def people(self) -> None:
        rng = self.rng
        forms = ("P{:05d}", "Q{:d}", "A0A{:07d}", "O{:05d}-2", "q{:d}", "P{:d}")
        self.accessions: list[str] = []
        for n in rng.sample(range(1, 90000), self.size):
            self.accessions.append(rng.choice(forms).format(n))
        self.accessions = list(dict.fromkeys(self.accessions))
        self.proteins: dict[str, Protein] = {}
        for acc in self.accessions:
            text = "".join(rng.choice("ACDEFGHIKLMNPQRSTVWYXUacd") for _ in range(rng.randint(1, 70)))
            if self.on("identical", 0.3) and self.proteins:
                text = rng.choice(list(self.proteins.values())).sequence
                text = text.lower() if rng.random() < 0.3 else text
            if self.on("identical", 0.1) and not text.endswith("*"):
                text += "*"
            taxon = rng.choice((9606, 6239, None))
            if not self.on("missing", 0.1):
                self.proteins[acc] = Protein(taxon, text)
        if not self.proteins:
            self.proteins[self.accessions[0]] = Protein(9606, "MKV")
        self.embeddings = self.vectors()

    def vectors(self) -> dict[str, Any]:
        rng = self.rng
        dim = rng.choice((1, 2, 3, 4, 7, 20, 20))
        dtype = rng.choice((np.float16, np.float32))
        whole = self.on("ties", 0.5)
        made: list[Any] = []
        out: dict[str, Any] = {}
        for acc in [*self.accessions, "Z99999"]:
            if self.on("missing", 0.12) and out:
                continue
            values = [float(rng.randint(-2, 2)) if whole else rng.gauss(0, 1) for _ in range(dim)]
            vector = np.array(values, dtype)
            if self.on("ties", 0.3) and made:
                vector = rng.choice(made) * dtype(rng.choice((1, 1, 2, 3, 7)))
            if not vector.any():
                vector = np.ones(dim, dtype)
            made.append(vector)
            out[acc] = vector
        return out

    # ------------------------------------------------------------------------------------------------- annotations

    def versions(self) -> None:
        rng = self.rng
        n_train, n_test = rng.choice((3, 3, 4)), rng.choice((1, 1, 2))
        n = n_train + n_test
        self.n_derived = 0
        if self.on("derived", 0.35):
            self.n_derived = rng.choice((n, n, n_train, n - 1))
        whole = not self.n_derived and rng.random() < 0.5
        first = date(rng.randint(2005, 2012), rng.randint(1, 12), rng.randint(1, 28))
        self.days = [first + timedelta(days=400 * i + rng.randint(0, 300)) for i in range(n)]
        # 9, 10, 11 and 99, 100: numbers, not text.
        number = rng.choice((1, 9, 98, 180))
        labels: list[int | str] = [number + i for i in range(n)] if whole else [d.isoformat() for d in self.days]
        self.train, self.test = labels[:n_train], labels[n_train:]
        self.labels = [str(v) for v in labels]

    def row(self, acc: str, term: str, evidence: str, start: int, **more: Any) -> tuple[int, int, Row]:
        """(first release, the release that no longer has it, the row), dated between the releases start−1 and start."""
        rng = self.rng
        names = self.aliases.get(term, [])
        go_id = rng.choice(names) if names and rng.random() < 0.4 else term
        last = self.days[start]
        before = self.days[start - 1] + timedelta(days=1) if start else last - timedelta(days=500)
        day = last if rng.random() < 0.2 else before + timedelta(days=rng.randint(0, (last - before).days))
        n = len(self.labels)
        end = rng.randint(start + 1, n) if rng.random() < 0.12 else n
        if "qualifier" not in more:
            more["qualifier"] = self.qualifier()
        more.setdefault("fields", 17 if more.get("form") else rng.choice((15, 16, 17, 17, 18)))
        more.setdefault("taxon", rng.choice(("taxon:9606", "taxon:6239|taxon:9606", "6239", "taxon:9606|")))
        return start, end, gaf_row(acc, go_id, evidence, when=f"{day:%Y%m%d}", **more)

    def qualifier(self) -> str:
        rng = self.rng
        if not self.on("qualifiers", 0.6):
            return rng.choice(("", "enables", "involved_in", "located_in"))
        forms = (
            *("contributes_to", "Contributes_to", "contributes_to|enables", " colocalizes_with", "COLOCALIZES_WITH"),
            *("acts_upstream_of", "acts_upstream_of_or_within", "Acts_Upstream_Of_Or_Within_positive_effect"),
            *("contributes_to|colocalizes_with", "is_active_in", "part_of", "contributes_to|acts_upstream_of", "|"),
        )
        return rng.choice(forms)

    def evidence(self, experimental: bool) -> str:
        if "evidence" not in self.corners:
            return "IDA" if experimental else "IEA"
        return self.rng.choice(_EXPERIMENTAL if experimental else _OTHER)

    def story(self, i: int, acc: str) -> list[tuple[int, int, Row]]:
        """All rows of one protein. Proteins 0, 1, 2 are nk, lk and pk members of some cut for sure."""
        rng, n = self.rng, len(self.labels)
        rows: list[tuple[int, int, Row]] = []
        plot = i if i < 3 else rng.randrange(6)
        gain = rng.randint(1, n - 1)
        first, second = rng.sample("FPC", 2)
        base = 0 if i < 3 or not self.on("new_only", 0.25) else gain

        def add(a: str, start: int, experimental: bool, times: int = 1) -> None:
            for term in rng.sample(self.pool[a], min(times, len(self.pool[a]))):
                rows.append(self.row(acc, term, self.evidence(experimental), start))
                while self.on("evidence", 0.25):  # one term, several codes and qualifiers
                    rows.append(self.row(acc, term, self.evidence(experimental), start))

        for a in "FPC":
            if rng.random() < 0.6:
                add(a, base, False, rng.randint(1, 3))
        if plot == 0:  # nk: nothing experimental, then something
            add(first, max(gain, base), True, rng.randint(1, 2))
        elif plot == 1:  # lk: one aspect, then another
            add(first, base, True, rng.randint(1, 2))
            add(second, max(gain, base), True, rng.randint(1, 2))
        elif plot == 2:  # pk: more in the same aspect
            add(first, base, True, 1)
            add(first, max(gain, base), True, rng.randint(2, 4))
        elif plot == 3:  # a well-known donor
            for a in "FPC":
                add(a, base, True, rng.randint(1, 3))
        elif plot == 4:  # a trickle
            for start in range(base, n):
                if rng.random() < 0.6:
                    add(rng.choice("FPC"), start, True, 1)
        if i >= 3:
            self._corner_rows(acc, rows, max(gain, base))
        return rows

    def _corner_rows(self, acc: str, rows: list[tuple[int, int, Row]], gain: int) -> None:
        rng = self.rng
        some = rng.choice("FPC")
        start = rng.choice((0, gain))
        if self.on("binding", 0.25):
            rows.append(self.row(acc, rng.choice((BINDING, PROTEIN_BINDING)), "IPI", gain))
        if self.on("negated", 0.35):
            forms = ("NOT", "not|enables", "contributes_to| Not ", "NOT|acts_upstream_of", "enables|NOT")
            for _ in range(rng.randint(1, 2)):
                own = [row[4] for _, _, row in rows if row[4] in self.terms and not self.terms[row[4]].obsolete]
                term = rng.choice(own) if own and rng.random() < 0.6 else rng.choice(self.pool[some][:4])
                above = [p for p in (*self.terms[term].is_a, *self.terms[term].part_of) if p not in ROOT.values()]
                if above and rng.random() < 0.5:
                    term = rng.choice(above)
                form = f"UniProtKB:{acc}-2" if rng.random() < 0.3 else ""
                code = self.evidence(rng.random() < 0.6)
                rows.append(self.row(acc, term, code, start, qualifier=rng.choice(forms), form=form))
        if self.on("negated", 0.2):  # denied by the release before the one that asserts it
            term = rng.choice(self.pool[some])
            denial = self.row(acc, term, "IDA", gain - 1 if gain else 0, qualifier="NOT")
            rows += [(denial[0], max(gain, 1), denial[2]), self.row(acc, term, "IMP", gain)]
        if self.on("negated", 0.1):  # a positive row of an isoform counts
            term = rng.choice(self.pool[some])
            rows.append(self.row(acc, term, "IDA", start, form=f"UniProtKB:{acc}-2"))
        if self.on("roots", 0.2):
            names = [ROOT[some], *getattr(self, "root_names", [])]
            qualifier = rng.choice(("", "NOT"))
            rows.append(self.row(acc, rng.choice(names), rng.choice(("IDA", "IEA")), start, qualifier=qualifier))
        if self.on("no_data", 0.25):
            rows.append(self.row(acc, rng.choice((ROOT[some], self.pool[some][0])), "ND", 0))
        if self.on("other_database", 0.15):
            database = rng.choice(("ComplexPortal", "RNAcentral", "uniprotkb"))
            rows.append(self.row(acc, rng.choice(self.pool[some]), "IDA", start, database=database))
        if self.on("unknown", 0.15):
            rows.append(self.row(acc, "GO:7654321", "IDA", start))
        if self.lost and self.on("ids", 0.3):
            rows.append(self.row(acc, rng.choice(self.lost), "IDA", start))
        if self.on("malformed", 0.15):
            rows.append((start, len(self.labels), self._malformed(self.row(acc, self.pool[some][0], "IDA", start)[2])))

    def _malformed(self, row: Row) -> Row:
        row = (*row, "", "")[:17]
        at, text = self.rng.choice(
            (
                (0, ""),
                (1, ""),
                (4, "GO:123"),
                (4, "go:0005515"),
                (6, "XYZ"),
                (6, "ida"),
                (13, "20191342"),
                (13, "2019-01-02"),
                (13, ""),
            )
        )
        broken = (*row[:at], text, *row[at + 1 :])
        way = self.rng.randrange(4)
        if way == 0:
            return row[:14]
        if way == 1:
            return (*row, "surplus")
        return (*broken, "") if way == 2 else broken

    # ------------------------------------------------------------------------------------------------------- world

    def world(self) -> World:
        self.ontology()
        self.people()
        self.versions()
        stories = [row for i, acc in enumerate(self.accessions) for row in self.story(i, acc)]
        self.rng.shuffle(stories)
        releases: dict[str, list[Row]] = {}
        for i, label in enumerate(self.labels):
            if i >= self.n_derived:
                releases[label] = [row for start, end, row in stories if start <= i < end]
        live = [t for t in self.terms.values() if not t.obsolete]
        dead = [t for t in self.terms.values() if t.obsolete]
        terms = [*live, *dead]
        self.rng.shuffle(terms)
        return World(
            terms=terms,
            releases=releases,
            proteins=self.proteins,
            embeddings=self.embeddings,
            train_versions=self.train,
            test_versions=self.test,
            derived_rows=[row for _, _, row in stories] if self.n_derived else [],
            cut_dates=self.labels[: self.n_derived],
            seed=self.seed,
        )


class _Families:
    """Gives a world the inputs of the later families, from a random stream of its own."""

    def __init__(self, builder: _Builder, world: World) -> None:
        self.rng = random.Random(f"families/{builder.seed}/{builder.size}/{','.join(sorted(builder.corners))}")
        self.aliases, self.lost, self.before = builder.aliases, builder.lost, world
        self.live = [t for pool in builder.pool.values() for t in pool]
        self.root_names = [*ROOT.values(), *getattr(builder, "root_names", [])]
        # Z99999 has a vector and nothing else; the two last are nowhere else.
        self.accessions = [*builder.accessions, "Z99999", "OUTSIDE", "P00000-9"]

    def world(self, families: bool) -> World:
        taxdump = self.taxdump()
        made = replace(
            self.before,
            taxonomy=taxdump,
            term_vectors=self.term_vectors(),
            interpro=self.interpro(),
            scores=self.scores(),
            ia=self.ia(),
        )
        return replace(made, **self.related(taxdump)) if families else made

    def other_id(self) -> str:
        """An id that stands for no candidate: lost, unknown, a root."""
        return self.rng.choice([*self.lost, "GO:7654321", *self.root_names])

    def any_id(self, term: str, chance: float = 0.4) -> str:
        """The term's own id or another name of it."""
        names = self.aliases.get(term)
        return self.rng.choice(names) if names and self.rng.random() < chance else term

    # ------------------------------------------------------------------------------------------------- taxonomy

    def taxdump(self) -> Taxdump:
        """A deep trunk below the root with short branches, a second kingdom, and retired ids of every kind."""
        rng = self.rng
        free = [n for n in rng.sample(range(10, 3000000), 60) if n not in (9606, 6239)]
        nodes = {1: 1}
        trunk = [1]
        for _ in range(rng.randint(18, 24)):
            nodes[free[-1]] = trunk[-1]
            trunk.append(free.pop())
        twigs = []
        for base in [1, trunk[1], *rng.sample(trunk, 4), trunk[-1]]:
            for _ in range(rng.randint(1, 3)):
                nodes[free[-1]] = base
                base = free.pop()
                twigs.append(base)
        merged, deleted = {}, [free.pop(), free.pop()]
        for known in (9606, 6239):
            way = rng.randrange(8)
            if way < 6:
                nodes[known] = rng.choice([*trunk[1:], *twigs])
            elif way == 6:
                merged[known] = rng.choice([*trunk, *twigs])
            else:
                deleted.append(known)
        once = free.pop()
        merged[once] = rng.choice(twigs)
        retired = [once]
        for target in (once, retired[-1], deleted[0], free.pop(), rng.choice(trunk[15:])):
            merged[free[-1]] = target
            retired.append(free.pop())
        self.pool = [*trunk[-6:], *twigs, *twigs, *retired, *trunk[:4], deleted[1], free.pop(), 9606, 9606, 6239]
        order = list(nodes.items())
        rng.shuffle(order)
        return Taxdump(dict(order), merged, tuple(deleted))

    def related(self, dump: Taxdump) -> dict[str, Any]:
        """Proteins and rows with taxa from a handful of the pool, and sequences that are edits of each other."""
        rng = self.rng
        few = rng.sample(self.pool, 6)
        by_sequence: dict[str, str] = {}
        proteins = {}
        for acc, p in self.before.proteins.items():
            key = p.sequence.upper().removesuffix("*")
            if key not in by_sequence:
                by_sequence[key] = self.edited(list(by_sequence.values()), key)
            text = by_sequence[key].lower() if p.sequence.islower() else by_sequence[key]
            text += "*" if p.sequence.endswith("*") else ""
            proteins[acc] = Protein(rng.choice((None, *few)), text)
        forms = ("taxon:{0}", "taxon:{0}", "{0}", "taxon:{0}|taxon:{1}", "{0}|{1}", "", "taxon:")
        drawn: dict[Row, Row] = {}

        def moved(row: Row) -> Row:
            if row not in drawn:
                text = rng.choice(forms).format(rng.choice(few), rng.choice(few))
                drawn[row] = (*row[:12], text, *row[13:])
            return drawn[row]

        releases = {version: [moved(row) for row in rows] for version, rows in self.before.releases.items()}
        derived = [moved(row) for row in self.before.derived_rows]
        return {"proteins": proteins, "releases": releases, "derived_rows": derived}

    def edited(self, others: list[str], text: str) -> str:
        """An edit of another sequence or of this one, with letters that count as X now and then."""
        rng = self.rng
        letters = list(rng.choice(others)[:60] if others and rng.random() < 0.6 else text)
        for _ in range(rng.randint(0, 5)):
            at = rng.randrange(len(letters))
            way = rng.randrange(4)
            if way == 0:
                letters[at] = rng.choice("ACDEFGHIKLMNPQRSTVWYBZ")
            elif way == 1:
                letters[at] = rng.choice("XUOJ*")
            elif way == 2:
                letters[at:at] = [rng.choice("WCPGLX") for _ in range(rng.randint(1, 12))]
            elif len(letters) > 12:
                del letters[at : at + rng.randint(1, 10)]
        out = "".join(letters or "M").strip("*") or "M"
        while out in others:
            out += rng.choice("ACDEFGHIKLMNPQRSTVWY")
        return out

    # ------------------------------------------------------------------------------------------ tables about terms

    def named(self, share: float) -> list[str]:
        """Ids of about this share of the terms: the own one, another name, several names."""
        rng = self.rng
        ids: list[str] = []
        for term in self.live:
            if rng.random() < share:
                names = self.aliases.get(term, [])
                ids += rng.choice(([term], [term], names or [term], [term, *names]))
        ids += [self.other_id() for _ in range(rng.randint(0, 3))]
        ids = list(dict.fromkeys(ids))
        rng.shuffle(ids)
        return ids

    def term_vectors(self) -> dict[str, Any]:
        """Many on the axes, many opposite to another one, so that means vanish; the others anywhere."""
        rng = self.rng
        dim, dtype = rng.choice((1, 2, 3, 6)), rng.choice((np.float32, np.float64))
        axes = rng.random() < 0.5
        out: dict[str, Any] = {}
        for go_id in self.named(0.75):
            if out and rng.random() < 0.25:
                vector = rng.choice(list(out.values())) * dtype(rng.choice((1, -1, -1, -3)))
            elif axes and rng.random() < 0.8:
                vector = np.zeros(dim, dtype)
                vector[rng.randrange(dim)] = rng.choice((-3, -1, 1, 0.3))
            else:
                vector = np.array([rng.gauss(0, 1) for _ in range(dim)], dtype)
            out[go_id] = vector
        return out or {self.live[0]: np.ones(dim, dtype)}

    def ia(self) -> dict[str, float]:
        return {go_id: _number(self.rng, 0, 12) for go_id in self.named(0.85)} or {self.live[0]: 1.0}

    # --------------------------------------------------------------------------------------- tables about proteins

    def interpro(self) -> list[tuple[str, str, float, str, int]]:
        rng = self.rng
        names: tuple[str, ...] = ("PFAM", "Pfam", "PANTHER", "panther", "SUPERFAMILY", "SMART", "smart", "CDD", "Cdd")
        names += ("ProSiteProfiles", "PROSITE_PATTERNS", "prosite", "Gene3D", "NCBIfam", "Hamap")
        rows = []
        for acc in self.accessions:
            for _ in range(rng.choice((0, 0, 1, 2, 5))):
                go_id = self.any_id(rng.choice(self.live)) if rng.random() < 0.85 else self.other_id()
                databases = "|".join(rng.sample(names, rng.choice((1, 1, 2, 3))))
                rows.append((acc, go_id, _number(rng, 0, 1), databases, rng.randint(1, 6)))
                if rng.random() < 0.1:
                    rows.append(rows[-1])
        rng.shuffle(rows)
        return rows or [(self.accessions[0], self.live[0], 0.5, "PFAM", 1)]

    def scores(self) -> list[tuple[str, str, float]]:
        rng = self.rng
        rows = []
        for acc in self.accessions:
            share = rng.choice((0.0, 0.1, 0.5))
            for term in self.live:
                while rng.random() < share:
                    rows.append((acc, self.any_id(term), _number(rng, 0, 1)))
            if rng.random() < 0.3:
                rows.append((acc, self.other_id(), 0.25))
        rng.shuffle(rows)
        return rows or [(self.accessions[0], self.live[0], 0.5)]


def _number(rng: random.Random, low: float, high: float) -> float:
    """Anything between, an end, or a value that many share."""
    return rng.choice((rng.uniform(low, high), rng.uniform(low, high), float(low), float(high), 0.1))


# ---------------------------------------------------------------------------------------------------------- settings

_CHOICES: dict[str, tuple[Any, ...]] = {
    "k": (5, 1, 2, 3, 8, 1000),
    "metric": ("cosine", "l2"),
    # 0.29289321881345254 (45 degrees) and whole numbers meet distances of whole vectors exactly, after rounding.
    "distance_threshold": (None, None, None, 0.0, 0.29289321881345254, 0.29289321881345254, 0.5, 1.0, 2.0, 5.0),
    "donor_evidence": ("all", "experimental", "non_electronic", ("IDA", "IEA"), ("IBA", "ISS", "IEA", "TAS")),
    "experimental_codes": ("experimental", "cafa", ("IDA", "IMP", "EXP", "IPI", "TAS", "HDA")),
    "label_mode": ("propagated", "direct"),
    "keep_known": (False, True),
    "exclude_binding_only": (True, False),
    "exclude_identical_sequences": (False, True),
    "expand_votes_to_ancestors": (False, True),
    "use_embedding_pca": (False, True),
}
_FAMILY_CHOICES: dict[str, tuple[Any, ...]] = {
    "compute_alignments": (True, False),
    "max_alignment_cells": (None, None, 100, 900, 2500),
    "compute_taxonomy": (True, True, False),
    "taxonomy": ("tax", None),
    "term_vectors": ("vec", "vec", None),
    "compute_self_prior": (True, False),
    "compute_association": (True, False),
    "interpro": ("ipr", "ipr", None),
    "interpro_candidates": (True, False),
    "external_scores": ("ext", "ext", None),
    "information_accretion": (None, "ia"),
}


def _consistent(drawn: dict[str, Any]) -> dict[str, Any]:
    """The same, with every family that is on given its input."""
    if drawn.get("compute_taxonomy"):
        drawn = {**drawn, "taxonomy": "tax"}
    if drawn.get("interpro_candidates"):
        drawn = {**drawn, "interpro": "ipr"}
    return drawn


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def settings(world: World | None = None, *, families: bool = False) -> st.SearchStrategy[dict[str, Any]]:
    """The settings of the core, defaults first; with a world also its names and versions.

    `families` adds those of the later families, all on at first; the inputs have the names of `TABLES`.
    """
    choices = {**_CHOICES, **_FAMILY_CHOICES} if families else _CHOICES
    base = st.fixed_dictionaries({key: st.sampled_from(values).map(_plain) for key, values in choices.items()})
    return base.map(lambda drawn: {**(world.names() if world else {}), **_consistent(drawn)})


def random_settings(seed: int, world: World | None = None, *, families: bool = False) -> dict[str, Any]:
    """The same, from a seed; now and then without the second train version."""
    rng = random.Random(f"settings/{seed}")
    drawn = {key: _plain(rng.choice(values)) for key, values in _CHOICES.items()}
    later: dict[str, Any] = {}
    if families:
        other = random.Random(f"settings/families/{seed}")
        later = _consistent({key: other.choice(values) for key, values in _FAMILY_CHOICES.items()})
    if world is None:
        return {**drawn, **later}
    names = world.names()
    if len(names["train_versions"]) > 3 and rng.random() < 0.3:
        del names["train_versions"][1]
    return {**names, **drawn, **later}


@st.composite
def worlds(draw: st.DrawFn, min_size: int = 6, max_size: int = 14, families: bool = False) -> World:
    """Small worlds; hypothesis shrinks the size and the corners, `minimize` the rest."""
    size = draw(st.integers(min_size, max_size))
    without = draw(st.sets(st.sampled_from(CORNERS), max_size=4))
    return random_world(draw(st.integers(0, 2**32 - 1)), size, set(CORNERS) - without, families=families)


def minimize(world: World, fails: Callable[[World], bool]) -> World:
    """A smaller world that still fails: rows, vectors, proteins and terms are taken away in ever smaller pieces."""
    before = -1
    while before != _weight(world):
        before = _weight(world)
        for version in world.releases:
            world = _fewer(world, fails, world.releases[version], _with_release(version))
        world = _fewer(world, fails, world.derived_rows, lambda w, kept: replace(w, derived_rows=kept))
        world = _fewer(world, fails, list(world.embeddings.items()), lambda w, kept: replace(w, embeddings=dict(kept)))
        world = _fewer(world, fails, list(world.proteins.items()), lambda w, kept: replace(w, proteins=dict(kept)))
        for part in ("term_vectors", "ia"):
            world = _fewer(world, fails, list(getattr(world, part).items()), _with_part(part, dict))
        for part in ("interpro", "scores"):
            world = _fewer(world, fails, getattr(world, part), _with_part(part, list))
        world = _fewer(world, fails, world.terms, lambda w, kept: replace(w, terms=kept))
    return world


def _weight(w: World) -> int:
    rows = sum(len(rows) for rows in w.releases.values()) + len(w.derived_rows)
    tables = len(w.term_vectors) + len(w.ia) + len(w.interpro) + len(w.scores)
    return rows + len(w.embeddings) + len(w.proteins) + len(w.terms) + tables


def _with_release(version: str) -> Callable[[World, list[Any]], World]:
    return lambda w, kept: replace(w, releases={**w.releases, version: kept})


def _with_part(part: str, kind: Callable[[list[Any]], Any]) -> Callable[[World, list[Any]], World]:
    def build(world: World, kept: list[Any]) -> World:
        changed: dict[str, Any] = {part: kind(kept)}
        return replace(world, **changed)

    return build


def _fewer(
    world: World, fails: Callable[[World], bool], items: list[Any], build: Callable[[World, list[Any]], World]
) -> World:
    piece = max(1, len(items) // 2)
    while True:
        start = 0
        while start < len(items):
            kept = items[:start] + items[start + piece :]
            smaller = build(world, kept)
            if kept and _sound(smaller) and fails(smaller):
                world, items = smaller, kept
            else:
                start += piece
        if piece == 1:
            return world
        piece //= 2


def _sound(w: World) -> bool:
    """The roots are there and no edge of a live term dangles."""
    ids = {t.id for t in w.terms}
    return set(ROOT.values()) <= ids and all(p in ids for t in w.terms for p in (*t.is_a, *t.part_of))
