"""A small made-up proteome as real files: an ontology, four annotation releases and sequences.

Called by `protea.demo`; calls nothing of PROTEA. The same seed gives the same bytes. What is made up follows what real
releases look like: families of homologous proteins share most of their functions, so that neighbours tell something;
electronic rows are there early and re-dated at every release; experiments find the rest bit by bit, first a general
term, later an exact one; paralogs that lost a function have NOT rows; old releases use ids that were merged since.
Term ids from GO:9900001 on are of no real term; the roots, binding and protein binding are the real ones.
"""

import datetime as dt
import gzip
import itertools
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

RELEASES = {156: "2016-06-01", 178: "2018-06-01", 197: "2020-06-01", 209: "2022-06-01"}
"""Version -> day of the annotation releases."""
PROTEINS, FAMILIES = 600, 60
_DAYS = [dt.date.fromisoformat(day) for day in RELEASES.values()]
_LAST = len(RELEASES) - 1
_ROOTS = {"F": "GO:0003674", "P": "GO:0008150", "C": "GO:0005575"}
_NAMESPACES = {"F": "molecular_function", "P": "biological_process", "C": "cellular_component"}
_DEFAULT = {"F": "enables", "P": "involved_in", "C": "located_in"}
_SPECIAL = {"F": "contributes_to", "P": "acts_upstream_of", "C": "colocalizes_with"}
_BINDING, _PROTEIN_BINDING = "GO:0005488", "GO:0005515"
_SIZES = {"F": 110, "P": 190, "C": 70}
_WORDS = {
    "F": "calcium nucleotide lipid sugar peptide steroid zinc heme RNA DNA protein sulfate/"
    "kinase transporter hydrolase ligase isomerase reductase receptor channel phosphatase methyltransferase/activity",
    "P": "membrane ribosome spindle cilium axon vesicle nuclear mitotic meiotic larval embryonic muscle neuron cuticle/"
    "assembly transport localization organization development differentiation signaling repair biogenesis disassembly "
    "maintenance remodeling homeostasis migration/process",
    "C": "outer inner apical basal cortical perinuclear ribosomal synaptic endosomal/"
    "membrane complex granule body filament vesicle lumen junction/part",
}
_SPECIES = (
    ("CAEEL", "Caenorhabditis elegans", 6239),
    ("YEAST", "Saccharomyces cerevisiae (strain ATCC 204508 / S288c)", 559292),
    ("ECOLI", "Escherichia coli (strain K12)", 83333),
)
_RESIDUES = "LLLLLLLLLLAAAAAAAAGGGGGGGVVVVVVVEEEEEEESSSSSSSIIIIIIKKKKKKRRRRRRDDDDDTTTTTPPPPPNNNNQQQQFFFFYYYMMHHCW"
"""Residues, each as often as it occurs in a hundred or so."""


@dataclass(frozen=True)
class Files:
    """Where the files of the proteome are."""

    ontology: Path
    proteins: Path
    annotations: dict[int, Path]


@dataclass
class _Term:
    id: str
    aspect: str
    name: str
    depth: int = 0
    parents: list[tuple[str, str]] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    alt_id: str | None = None


@dataclass
class _Protein:
    accession: str
    family: int
    species: tuple[str, str, int]
    sequence: str
    functions: list[str]
    lost: list[str]


@dataclass(frozen=True)
class _Row:
    """An annotation, in the releases `first` to `last`."""

    protein: _Protein
    term: str
    code: str
    first: int
    last: int = _LAST
    negated: bool = False
    special: bool = False
    days: int = 0
    """How long before its first release it was made."""


def write_world(directory: Path, seed: int = 0) -> Files:
    """Write the files of a proteome into `directory`, which is made if it is not there."""
    rng = random.Random(seed)
    terms = _terms(rng)
    proteins = _proteins(rng, terms)
    rows = _rows(rng, terms, proteins)
    directory.mkdir(parents=True, exist_ok=True)
    files = Files(
        directory / "demo.obo",
        directory / "demo.fasta",
        {version: directory / f"demo_{version}.gaf.gz" for version in RELEASES},
    )
    _put(files.ontology, _obo(terms).encode())
    _put(files.proteins, "".join(map(_fasta, proteins)).encode())
    for release, path in enumerate(files.annotations.values()):
        _put(path, gzip.compress(_gaf(release, terms, rows).encode(), mtime=0))
    return files


def _put(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all."""
    tmp = path.with_name(f"{path.name}.{os.getpid()}")
    tmp.write_bytes(data)
    tmp.replace(path)


def _terms(rng: random.Random) -> dict[str, _Term]:
    """The live terms by id: in each aspect a graph in which most terms have one parent and a quarter two."""
    terms: dict[str, _Term] = {}
    ids = (f"GO:{n:07d}" for n in itertools.count(9_900_001))
    for aspect, root in _ROOTS.items():
        terms[root] = _Term(root, aspect, _NAMESPACES[aspect])
        members = [terms[root]]
        if aspect == "F":
            binding = _Term(_BINDING, aspect, "binding", 1, [("is_a", root)])
            protein_binding = _Term(_PROTEIN_BINDING, aspect, "protein binding", 2, [("is_a", _BINDING)])
            terms |= {_BINDING: binding, _PROTEIN_BINDING: protein_binding}
        first, second, last = (part.split() for part in _WORDS[aspect].split("/"))
        names = [" ".join(words) for words in itertools.product(first, second, last)]
        rng.shuffle(names)
        for name in names[: _SIZES[aspect]]:
            above = max(rng.choices([t for t in members if t.depth < 7], k=2), key=lambda t: t.depth)
            term = _Term(next(ids), aspect, name, above.depth + 1, [("is_a", above.id)])
            another = rng.choice(members)
            if rng.random() < 0.25 and another.id not in (above.id, root):
                term.parents.append((rng.choice(("is_a", "part_of")), another.id))
            if rng.random() < 0.1 and aspect != "F":  # edges that carry nothing: another aspect's, another relation's
                end = rng.choice([t for t in terms.values() if t.depth])
                term.other.append(f"{'regulates' if aspect == 'P' else 'part_of'} {end.id}")
            if rng.random() < 0.12:
                term.alt_id = next(ids)
            terms[term.id] = term
            members.append(term)
    return terms


def _proteins(rng: random.Random, terms: dict[str, _Term]) -> list[_Protein]:
    """Families: mutated copies of an ancestor, with most of the family's functions and some of their own."""
    inner = {p for t in terms.values() for _, p in t.parents}
    exact = {a: [t.id for t in terms.values() if t.aspect == a and t.depth > 1 and t.id not in inner] for a in _ROOTS}
    anything = [t.id for t in terms.values() if t.depth > 2]
    ancestors, functions = [], []
    for _ in range(FAMILIES):
        length = min(max(int(rng.lognormvariate(5.5, 0.4)), 70), 700)
        ancestors.append("M" + "".join(rng.choices(_RESIDUES, k=length - 1)))
        chosen = (rng.sample(exact[a], rng.randint(*n)) for a, n in (("F", (1, 3)), ("P", (2, 4)), ("C", (1, 2))))
        functions.append(list(itertools.chain.from_iterable(chosen)))
    common = [1 / (rank + 1) ** 0.5 for rank in range(FAMILIES)]
    families = list(range(FAMILIES)) + rng.choices(range(FAMILIES), common, k=PROTEINS - FAMILIES)
    letters = itertools.product("0123456789", "DEMO", "XYZ", "0123456789", "0123456789")
    accessions = rng.sample(["Q" + "".join(rest) for rest in letters], PROTEINS)
    proteins = []
    for accession, family in zip(accessions, families, strict=True):
        rate = rng.uniform(0.03, 0.4) if rng.random() > 0.03 else 0.0
        kept = [t for t in functions[family] if rng.random() < 0.85]
        proteins.append(
            _Protein(
                accession,
                family,
                rng.choices(_SPECIES, (5, 3, 2))[0],
                _mutated(rng, ancestors[family], rate),
                [*kept, *rng.sample(anything, rng.randrange(3))],
                [t for t in functions[family] if t not in kept],
            )
        )
    return proteins


def _mutated(rng: random.Random, sequence: str, rate: float) -> str:
    """The sequence with a share of its residues replaced, and a tenth as many lost or doubled."""
    out = []
    for residue in sequence:
        draw = rng.random()
        if draw < 0.05 * rate:
            continue
        out.append(rng.choice(_RESIDUES) if draw > 1 - rate else residue)
        if draw < 0.1 * rate:
            out.append(residue)
    return "".join(out)


def _rows(rng: random.Random, terms: dict[str, _Term], proteins: list[_Protein]) -> list[_Row]:
    """What is known, from which release on."""
    rows = []

    def add(protein: _Protein, term: str, codes: str, first: int, negated: bool = False, last: int = _LAST) -> None:
        special = rng.random() < 0.06
        rows.append(_Row(protein, term, rng.choice(codes.split()), first, last, negated, special, rng.randint(5, 600)))

    def above(term: str) -> str:
        up = rng.choice(terms[term].parents)[1]
        return up if terms[up].depth else term

    for protein in proteins:
        listed = rng.choices(range(_LAST + 1), (90, 4, 3, 3))[0]  # when anything is said of it at all
        for term in protein.functions + protein.lost:
            if rng.random() < 0.55:
                first = max(listed, rng.choices(range(_LAST + 1), (7, 1, 1, 1))[0])
                add(protein, term if rng.random() < 0.5 else above(term), "IEA", first)
        add(protein, above(protein.functions[0]) if protein.functions else _BINDING, "IEA", listed)
        studied = rng.choices(range(_LAST + 3), (35, 12, 12, 12, 14, 15))[0]
        for term in protein.functions:
            if rng.random() < 0.15:
                add(protein, term, "ISS ISS IBA IBA ISO TAS TAS NAS IC", rng.randint(listed, _LAST))
            found = max(listed, studied + rng.choices((0, 1, 2, 9), (50, 20, 15, 15))[0])
            code = "IDA IDA IDA IDA IMP IMP IMP IGI IGI EXP IEP HDA HMP"
            if found <= _LAST:
                general = rng.random() < 0.3
                withdrawn = rng.random() < 0.03
                add(protein, above(term) if general else term, code, found, last=found if withdrawn else _LAST)
                if general and found < _LAST:
                    add(protein, term, code, found + 1)
        for term in protein.lost:
            if rng.random() < 0.2:
                add(protein, term, "IDA IMP", rng.randint(listed, _LAST), negated=True)
        if rng.random() < 0.15:
            add(protein, _PROTEIN_BINDING, "IPI", rng.randint(listed, _LAST))
    return rows


def _obo(terms: dict[str, _Term]) -> str:
    """The ontology, with some obsolete terms: replaced, to be considered, or gone."""
    lines = ["format-version: 1.2", f"data-version: releases/{_DAYS[-1]}", "ontology: go"]
    for term in sorted(terms.values(), key=lambda t: t.id):
        lines += ["", "[Term]", f"id: {term.id}", f"name: {term.name}", f"namespace: {_NAMESPACES[term.aspect]}"]
        lines += [f"alt_id: {term.alt_id}"] if term.alt_id else []
        for relation, end in term.parents:
            edge = end if relation == "is_a" else f"{relation} {end}"
            lines.append(f"{'is_a' if relation == 'is_a' else 'relationship'}: {edge} ! {terms[end].name}")
        lines += [f"relationship: {other}" for other in term.other]
    for old, (fate, live) in _obsolete(terms).items():
        lines += ["", "[Term]", f"id: {old}", f"name: obsolete {live.name} of old"]
        lines += [
            f"namespace: {_NAMESPACES[live.aspect]}",
            "is_obsolete: true",
            *([f"{fate}: {live.id}"] if fate else []),
        ]
    lines += ["", "[Typedef]", "id: part_of", "name: part of", "is_transitive: true"]
    lines += ["", "[Typedef]", "id: regulates", "name: regulates", ""]
    return "\n".join(lines)


def _obsolete(terms: dict[str, _Term]) -> dict[str, tuple[str, _Term]]:
    """Obsolete id -> what it says of its fate, and the term it was about."""
    about = [t for t in terms.values() if t.depth > 1 and t.alt_id is None][::17]
    return {
        f"GO:{9_990_001 + i:07d}": (("replaced_by", "replaced_by", "consider", "")[i % 4], t)
        for i, t in enumerate(about)
    }


def _fasta(protein: _Protein) -> str:
    mnemonic, species, taxon = protein.species
    entry = f"{protein.accession}|{protein.accession}_{mnemonic}"
    lines = [
        f">sp|{entry} Demo family {protein.family + 1} protein OS={species} OX={taxon} GN={_symbol(protein)} PE=1 SV=1"
    ]
    lines += [protein.sequence[i : i + 60] for i in range(0, len(protein.sequence), 60)]
    return "\n".join(lines) + "\n"


def _symbol(protein: _Protein) -> str:
    return f"dem-{protein.family + 1}{protein.accession[-2:]}"


def _gaf(release: int, terms: dict[str, _Term], rows: list[_Row]) -> str:
    """A release: GAF 2.1 in the first two, 2.2 with its relations later."""
    new_style = release > 1
    day = _DAYS[release]
    former = {live.id: old for old, (_, live) in _obsolete(terms).items()}
    lines = []
    for row in rows:
        if not row.first <= release <= row.last:
            continue
        term, p = terms[row.term], row.protein
        said = term.id
        if release == 0:  # under the ids of the time
            said = term.alt_id or former.get(term.id, said)
        default = _DEFAULT[term.aspect] if new_style else ""
        relation = _SPECIAL[term.aspect] if row.special and (new_style or term.aspect != "P") else default
        qualifier = "|".join(filter(None, ("NOT" if row.negated else "", relation)))
        electronic = row.code == "IEA"
        made = day if electronic else _DAYS[row.first]
        date = made - dt.timedelta(days=min(row.days, 20) if electronic else row.days)
        source = "GO_REF:0000002" if electronic else f"PMID:{9_000_000 + row.days * 31 + row.first}"
        lines.append(_line("UniProtKB", p, qualifier, said, source, row.code, term.aspect, date))
    present = {row.protein.accession: row.protein for row in rows if row.first <= release <= row.last}
    for p in list(present.values())[::25]:  # nothing known yet; and what is no protein
        qualifier = _DEFAULT["P"] if new_style else ""
        lines.append(_line("UniProtKB", p, qualifier, _ROOTS["P"], "GO_REF:0000015", "ND", "P", day))
        lines.append(_line("ComplexPortal", p, "part_of" if new_style else "", _ROOTS["C"], "PMID:1", "IPI", "C", day))
    head = [f"!gaf-version: {'2.2' if new_style else '2.1'}", f"!Generated: {day}", "!made up by protea demo"]
    return "\n".join([*head, *sorted(lines)]) + "\n"


def _line(
    database: str, p: _Protein, qualifier: str, term: str, source: str, code: str, aspect: str, date: dt.date
) -> str:
    name, taxon = f"Demo family {p.family + 1} protein", f"taxon:{p.species[2]}"
    fields = (database, p.accession, _symbol(p), qualifier, term, source, code, "", aspect, name, "", "protein", taxon)
    return "\t".join((*fields, f"{date:%Y%m%d}", "UniProt", "", ""))
