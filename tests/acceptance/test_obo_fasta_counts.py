"""Real releases against the counts of the data folder's README, and closures against a plain reading of the file.

Needs the folder of public files: PROTEA_TEST_DATA, else ../shared/data beside the repository.
"""

import gzip
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from protea.core.obo import NAMESPACES
from protea.core.ontology import read_obo
from protea.core.proteins import read_fasta
from protea.core.taxonomy import read_taxdump

DATA = Path(os.environ.get("PROTEA_TEST_DATA") or Path(__file__).parents[2] / ".." / "shared" / "data")


def data(name: str) -> Path:
    if not (DATA / name).is_file():
        pytest.skip(f"{name} is not there: set PROTEA_TEST_DATA to the folder of public files")
    return DATA / name


@pytest.mark.parametrize(
    ("name", "version", "terms", "obsolete", "alt_ids", "replaced_by"),
    [
        ("go_2014-10-27.obo.gz", "releases/2014-10-27", 41993, 1850, 1790, 733),
        ("go_2019-01-27.obo.gz", "releases/2019-01-27", 47347, 2334, 2432, 520),
        ("go-basic_2021-12-15.obo.gz", "releases/2021-12-15", 47261, 3472, 3496, 525),
    ],
)
def test_go_releases(name, version, terms, obsolete, alt_ids, replaced_by):
    ontology, report = read_obo(data(name))
    assert report.version == version
    assert (report.terms + report.obsolete, report.obsolete) == (terms, obsolete)
    assert (report.alt_ids, report.replaced_by) == (alt_ids, replaced_by)
    assert (report.dangling, report.orphans, report.foreign) == (0, 0, 0)
    assert sum(report.terms_by_aspect.values()) == report.terms
    # go-basic is made so that no edge leaves an aspect.
    assert (report.cross_aspect_edges == 0) == name.startswith("go-basic")
    # Every term reaches its own aspect's root and no other.
    roots = ontology.is_root[ontology.closure]
    assert np.count_nonzero(roots) == report.terms
    owner = np.repeat(np.arange(report.terms), np.diff(ontology.closure_ptr))[roots]
    np.testing.assert_array_equal(ontology.aspect[ontology.closure[roots]], ontology.aspect[owner])


def plain_terms(path):
    """id -> {tag: [values]} of the [Term] stanzas, by splitting at blank lines."""
    terms = {}
    for block in gzip.decompress(path.read_bytes()).decode().split("\n\n"):
        lines = block.strip().split("\n")
        if lines[0] == "[Term]":
            tags = {}
            for line in lines[1:]:
                tag, value = line.split(": ", 1)
                tags.setdefault(tag, []).append(value.split(" ! ")[0])
            terms[tags["id"][0]] = tags
    return terms


def test_closures_and_resolution_of_go_basic_against_a_plain_reading():
    path = data("go-basic_2021-12-15.obo.gz")
    ontology, _ = read_obo(path)
    terms = plain_terms(path)
    alive = {i for i, t in terms.items() if "is_obsolete" not in t}

    def parents(i):
        named = terms[i].get("is_a", []) + [r[8:] for r in terms[i].get("relationship", []) if r[:8] == "part_of "]
        return {p for p in named if p in alive and terms[p]["namespace"] == terms[i]["namespace"]}

    def closure(i):
        return {i}.union(*map(closure, parents(i)))

    sample = random.Random(0).sample(sorted(alive), 3000)
    got = ontology.closures(sample)
    assert all(got[i] == sorted(closure(i)) for i in sample)
    for i in sample:
        code = ontology.code(i)
        direct = ontology.parents[ontology.parent_ptr[code] : ontology.parent_ptr[code + 1]]
        assert {ontology.go_id(p) for p in direct} == parents(i)
        assert NAMESPACES[ontology.aspect[code]] == terms[i]["namespace"][0]
        assert ontology.names[code].as_py() == terms[i]["name"][0].replace("\\", "")

    owners = {}
    for i, t in terms.items():
        for a in t.get("alt_id", []):
            owners.setdefault(a, []).append(i)

    def resolve(i, hops=0):
        if i in alive:
            return i
        if i in owners:  # in this file every alt_id has one owner, and a live one
            assert len(owners[i]) == 1
            return resolve(owners[i][0], hops)
        after = set(terms.get(i, {}).get("replaced_by", []))
        return resolve(after.pop(), hops + 1) if len(after) == 1 and hops < 10 else None

    ids = sorted({*terms, *owners})
    assert ontology.explain(ids) == {i: resolve(i) for i in ids}
    assert len(ids) == len(ontology.resolve_ids)


@pytest.mark.parametrize(
    ("name", "sequences", "residues", "with_taxon", "isoforms"),
    [
        ("yeast_uniprot.fasta.gz", 6077, 2949369, 6077, 28),
        ("ecoli_uniprot.fasta.gz", 4363, 1358898, 4363, None),
        ("worm_swissprot_2014-01.fasta.gz", 3034, 1572821, 0, 0),
    ],
)
def test_proteomes(name, sequences, residues, with_taxon, isoforms):
    path = data(name)
    table, report = read_fasta(path)
    assert (report.sequences, report.duplicates, report.residues) == (sequences, 0, residues)
    assert (report.with_taxon, report.gaps) == (with_taxon, 0)
    names = table["accession"].to_pylist()
    assert isoforms in (None, sum("-" in a for a in names))
    plain, now = {}, ""
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        if line.startswith(">"):
            now = line.split("|")[1] if "|" in line else line[1:].split()[0]
        else:
            plain[now] = plain.get(now, "") + line
    assert dict(zip(names, table["sequence"].to_pylist(), strict=True)) == plain
    assert names == sorted(plain)


def test_ncbi_taxonomy(tmp_path):
    for part, name in (("nodes_excerpt", "nodes.dmp"), ("merged", "merged.dmp")):
        shutil.copy(data(f"ncbi_taxonomy_{part}_2013.dmp.gz"), tmp_path / f"{name}.gz")
    taxonomy, report = read_taxdump(tmp_path)
    assert (report.nodes, report.merged, report.missing) == (985, 28609, ["delnodes.dmp"])
    parent = dict(zip(*(taxonomy.nodes[c].to_pylist() for c in ("tax_id", "parent")), strict=True))
    assert parent[1] == 1

    def lineage(x):
        return [x] if parent[x] == x else [*lineage(parent[x]), x]

    assert report.max_depth == max(len(lineage(x)) for x in parent)
    assert {2759, 33208, 6239} <= set(lineage(6239))  # the worm is an animal
