"""The OBO reader against plain dicts and recursion written from contract section 1, and against faults of files."""

import gzip
import hashlib
import itertools
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protea.core.obo import NAMESPACES
from protea.core.ontology import ROOTS, Ontology, read_obo
from protea.errors import InputError, NotFoundError, StorageError

HEADER = "format-version: 1.2\ndata-version: releases/2019-01-01\nontology: go\n"


def go(n):
    return f"GO:{n:07d}"


def stanza(n, *lines, aspect=0):
    return "\n".join(["", "[Term]", f"id: {go(n)}", f"name: t{n}", f"namespace: {NAMESPACES[aspect]}", *lines, ""])


ROOT_STANZAS = "".join(stanza(n, aspect=a) for a, n in enumerate(ROOTS))


def write(tmp_path, *stanzas, header=HEADER, roots=ROOT_STANZAS):
    path = tmp_path / "x.obo"
    path.write_text(header + roots + "".join(stanzas))
    return path


def read(tmp_path, *stanzas, **kw):
    return read_obo(write(tmp_path, *stanzas, **kw))


def refused(path) -> str:
    with pytest.raises(InputError) as e:
        read_obo(path)
    assert "\n" not in str(e.value)
    assert str(path) in str(e.value)
    return str(e.value)


# ---- the plain computation -------------------------------------------------------------------------------------


def plain_resolve(world, start):
    """`world`: number -> (aspect, obsolete, alt ids, successors, edges). A number, 'obsolete' or 'unknown'."""
    owners = {}
    for n, (_, _, alts, _, _) in world.items():
        for a in alts:
            owners.setdefault(a, set()).add(n)
    if start not in world and start not in owners:
        return "unknown"
    path, hops, now = [], 0, start
    while True:
        if now in world and not world[now][1]:
            return now
        if now in path:
            return "obsolete"
        path.append(now)
        if now in owners:
            alive = [o for o in owners[now] if not world[o][1]]
            if len(alive) == 1:
                return alive[0]
            if len(alive) > 1 or len(owners[now]) > 1:
                return "obsolete"
            now = next(iter(owners[now]))
            continue
        if now not in world:
            return "obsolete"
        successors = set(world[now][3])
        if len(successors) != 1:
            return "obsolete"
        hops += 1
        if hops > 10:
            return "obsolete"
        now = successors.pop()


def plain_parents(world):
    alive = {n for n, w in world.items() if not w[1]}
    return {
        n: {
            t
            for relation, t in world[n][4]
            if relation in ("is_a", "part_of") and t in alive and world[t][0] == world[n][0]
        }
        for n in alive
    }


def plain_closures(parents):
    """number -> set, or None where the graph has a cycle."""
    done = {}

    def closure(n, above):
        if n in above:
            raise RecursionError
        if n not in done:
            done[n] = {n}.union(*(closure(p, above | {n}) for p in parents[n]))
        return done[n]

    try:
        return {n: closure(n, frozenset()) for n in parents}
    except RecursionError:
        return None


def check(ontology: Ontology, world, closures, parents, ids):
    assert ontology.ids.tolist() == sorted(closures)
    for code, n in enumerate(ontology.ids.tolist()):
        assert ontology.aspect[code] == world[n][0]
        got = ontology.closure[ontology.closure_ptr[code] : ontology.closure_ptr[code + 1]]
        assert ontology.ids[got].tolist() == sorted(closures[n])
        got = ontology.parents[ontology.parent_ptr[code] : ontology.parent_ptr[code + 1]]
        assert ontology.ids[got].tolist() == sorted(parents[n])
        assert ontology.is_root[code] == (n in ROOTS)
    codes = ontology.resolve(np.array(ids, np.int32))
    for n, code in zip(ids, codes.tolist(), strict=True):
        want = plain_resolve(world, n)
        assert {-1: "obsolete", -2: "unknown"}.get(code, ontology.ids[code] if code >= 0 else None) == want


POOL = st.integers(1, 14)


@st.composite
def worlds(draw):
    numbers = draw(st.sets(POOL, min_size=1, max_size=12))
    acyclic = draw(st.booleans())
    world = {n: (a, False, [], [], []) for a, n in enumerate(ROOTS)}
    for n in numbers:
        targets = st.one_of(POOL if not acyclic else st.integers(0, n - 1), st.sampled_from(ROOTS))
        edges = draw(st.lists(st.tuples(st.sampled_from(["is_a", "part_of", "regulates"]), targets), max_size=4))
        world[n] = (
            draw(st.sampled_from([0, 0, 0, 1, 2])),
            draw(st.booleans()),
            draw(st.lists(POOL, max_size=2)),
            draw(st.lists(POOL, max_size=2)),
            edges,
        )
    return world


def as_stanza(n, term):
    aspect, obsolete, alts, successors, edges = term
    lines = [f"alt_id: {go(a)}" for a in alts]
    lines += [f"is_a: {go(t)} ! x" if r == "is_a" else f"relationship: {r} {go(t)}" for r, t in edges]
    lines += ["is_obsolete: true"] * obsolete + [f"replaced_by: {go(s)}" for s in successors]
    return stanza(n, *lines, aspect=aspect)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(worlds())
def test_random_graphs_agree_with_plain_recursion(tmp_path, world):
    path = write(tmp_path, *(as_stanza(n, w) for n, w in world.items() if n not in ROOTS))
    parents = plain_parents(world)
    closures = plain_closures(parents)
    if closures is None:
        message = refused(path)
        ring = [int(x[3:]) for x in re.findall(r"GO:\d{7}", message.split("cycle", 1)[1])]
        assert ring[0] == ring[-1] == min(ring)
        assert len(set(ring)) == len(ring) - 1
        assert all(b in parents[a] for a, b in itertools.pairwise(ring))
        return
    ontology, report = read_obo(path)
    check(ontology, world, closures, parents, [*range(17), *ROOTS, 9999999])
    alive = {n for n in world if not world[n][1]}
    edges = {(n, r, t) for n in alive for r, t in world[n][4]}
    inner = {e for e in edges if e[2] in alive}
    assert report.terms == len(alive)
    assert report.obsolete == len(world) - len(alive)
    assert report.dangling == len(edges) - len(inner)
    assert report.edges == {r: k for r in ("is_a", "part_of", "regulates") if (k := sum(e[1] == r for e in inner))}
    assert report.cross_aspect_edges == sum(r != "regulates" and world[n][0] != world[t][0] for n, r, t in inner)
    assert report.alt_ids == len({a for w in world.values() for a in w[2]})


# ---- resolving, rule by rule ------------------------------------------------------------------------------------


def chain(length):
    """`length` obsolete terms 100, 101, ... each replaced by the next, the last by the live GO:0000001."""
    for i in range(length):
        successor = 1 if i == length - 1 else 101 + i
        yield stanza(100 + i, "is_obsolete: true", f"replaced_by: {go(successor)}")


@pytest.mark.parametrize(("length", "want"), [(1, go(1)), (10, go(1)), (11, None)])
def test_at_most_ten_hops(tmp_path, length, want):
    ontology, _ = read(tmp_path, stanza(1), *chain(length))
    assert ontology.explain([go(100)]) == {go(100): want}


OBSOLETE = "is_obsolete: true"


@pytest.mark.parametrize(
    ("why", "stanzas", "want"),
    [
        ("a live id is itself, though an alt_id of another", [stanza(9), stanza(1, "alt_id: GO:0000009")], 9),
        ("an alt_id before its obsolete stanza", [stanza(9, OBSOLETE), stanza(1, "alt_id: GO:0000009")], 1),
        (
            "an alt_id before the stanza's own successor",
            [stanza(9, OBSOLETE, "replaced_by: GO:0000002"), stanza(1, "alt_id: GO:0000009"), stanza(2)],
            1,
        ),
        ("two live owners", [stanza(1, "alt_id: GO:0000009"), stanza(2, "alt_id: GO:0000009")], None),
        (
            "one live owner among obsolete ones",
            [stanza(n, "alt_id: GO:0000009", *([OBSOLETE] if n > 1 else [])) for n in (1, 2, 3)],
            1,
        ),
        (
            "two obsolete owners",
            [stanza(n, "alt_id: GO:0000009", OBSOLETE, "replaced_by: GO:0000001") for n in (2, 3)] + [stanza(1)],
            None,
        ),
        (
            "one obsolete owner goes on",
            [stanza(2, "alt_id: GO:0000009", OBSOLETE, "replaced_by: GO:0000001"), stanza(1)],
            1,
        ),
        (
            "the same successor twice is one",
            [stanza(9, OBSOLETE, "replaced_by: GO:0000001", "replaced_by: GO:0000001"), stanza(1)],
            1,
        ),
        (
            "a successor of another ontology counts as one",
            [stanza(9, OBSOLETE, "replaced_by: GO:0000001", "replaced_by: CL:0000001"), stanza(1)],
            None,
        ),
        ("a successor that is nowhere", [stanza(9, OBSOLETE, "replaced_by: GO:0000044")], None),
        ("its own successor", [stanza(9, OBSOLETE, "replaced_by: GO:0000009")], None),
        (
            "a ring",
            [
                stanza(9, OBSOLETE, "replaced_by: GO:0000008"),
                stanza(8, OBSOLETE, "replaced_by: GO:0000009"),
            ],
            None,
        ),
        ("consider is never followed", [stanza(9, OBSOLETE, "consider: GO:0000001"), stanza(1)], None),
        ("a live term's replaced_by means nothing", [stanza(9, "replaced_by: GO:0000001"), stanza(1)], 9),
    ],
)
def test_resolving(tmp_path, why, stanzas, want):
    ontology, _ = read(tmp_path, *stanzas)
    assert ontology.explain([go(9)]) == {go(9): want and go(want)}, why
    assert ontology.code(go(9)) != -2


def test_unknown_is_neither_a_stanza_nor_an_alt_id(tmp_path):
    ontology, _ = read(tmp_path, stanza(9, OBSOLETE, "replaced_by: GO:0000044"))
    assert ontology.code(go(44)) == -2
    assert [ontology.code(x) for x in ("GO:44", "go:0000009", "", "GO:00000090")] == [-2] * 4
    assert ontology.resolve(np.array([[-1, 9], [9999999, 3674]])).tolist() == [[-2, -1], [-2, 0]]


def test_closure_of_an_alternative_id_is_its_owners(tmp_path):
    ontology, _ = read(tmp_path, stanza(1, "alt_id: GO:0000009", "is_a: GO:0003674"))
    assert ontology.closures([go(9), go(44)]) == {go(9): [go(1), go(3674)], go(44): None}


# ---- reading ----------------------------------------------------------------------------------------------------


def test_what_may_stand_on_a_line(tmp_path):
    ontology, report = read(
        tmp_path,
        '\n[Term]\nname: a \\{b\\}\\, c {x} "q" ! no\nid:GO:0000001 {a="}"} ! first\n'
        "alt_id: GO:0000009 ! old\nnamespace : molecular_function\nis_obsolete: FALSE ! c\n"
        'is_a: GO:0003674{is_inferred="true", x="!"} ! p\nis_a: GO:0003674\n'
        'relationship: part_of  GO:0000002 {a="b"} ! q\nrelationship: regulates GO:0003674\n'
        'def: "is_a: GO:0000003 [Term]" []\nxref: a: b {\n',
        stanza(2, "is_a: GO:0003674"),
        "\n[Typedef]\nid: part_of\nis_a: nonsense of a kind\n",
    )
    assert report.edges == {"is_a": 2, "part_of": 1, "regulates": 1}
    assert ontology.explain([go(9)]) == {go(9): go(1)}
    assert ontology.closures([go(1)]) == {go(1): [go(1), go(2), go(3674)]}
    assert ontology.names.to_pylist()[0] == 'a {b}, c {x} "q"'


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_encodings_line_ends_and_gzip(tmp_path, encoding, end):
    text = HEADER + ROOT_STANZAS + stanza(1, "is_a: GO:0003674").replace("t1", "Sjögren")
    raw = text.replace("\n", end).encode(encoding)
    path = tmp_path / "x.obo"
    path.write_bytes(gzip.compress(raw[:100]) + gzip.compress(raw[100:]))
    seen = []
    ontology, report = read_obo(path, seen.append)
    assert report.sha256 == hashlib.sha256(raw).hexdigest()
    assert seen[-1] == path.stat().st_size
    assert ontology.names.to_pylist()[0] == "Sjögren"
    assert ontology.version == report.version == "releases/2019-01-01"


def test_stanzas_of_other_ontologies_are_counted_and_not_ours(tmp_path):
    ontology, report = read(
        tmp_path,
        stanza(1, "is_a: GO:0003674", "relationship: has_part CHEBI:1", "relationship: has_part CHEBI:2"),
        "\n[Term]\nid: CHEBI:1\nis_a: CHEBI:7 nonsense\nalt_id: GO:0000009\n",
        "\n[Term]\nid: GO:123\n",
    )
    assert (report.foreign, report.foreign_edges, report.dangling) == (2, 1, 1)
    assert report.dangling_examples == ["GO:0000001 has_part CHEBI:2"]
    assert ontology.code(go(9)) == -2


def test_default_namespace_stands_in_for_a_missing_one(tmp_path):
    header = HEADER + "default-namespace: biological_process\n"
    ontology, _ = read(tmp_path, "\n[Term]\nid: GO:0000001\n", header=header)
    assert ontology.aspect[0] == 1


def test_a_term_without_parents_is_counted(tmp_path):
    _, report = read(tmp_path, stanza(1), stanza(2, "is_a: GO:0008150"), stanza(3, "is_a: GO:0003674"))
    assert report.orphans == 2


def test_a_deep_chain(tmp_path):
    n, base = 2000, 10000
    chain = [stanza(base + i, f"is_a: {go(base + i + 1 if i < n - 1 else 3674)}") for i in range(n)]
    ontology, _ = read(tmp_path, *chain)
    assert ontology.closures([go(base)])[go(base)] == [go(3674), *(go(base + i) for i in range(n))]
    assert ontology.closures([go(base + n - 2)])[go(base + n - 2)] == [go(3674), go(base + n - 2), go(base + n - 1)]


@pytest.mark.parametrize(
    ("stanzas", "line", "words"),
    [
        ([stanza(1), stanza(2), stanza(1)], 30, ["second", go(1), "line 20"]),
        (["\n[Term]\nid: GO:0000001\nname: x\n"], 20, [go(1), "no namespace"]),
        (["\n[Term]\nid: GO:0000001\nnamespace: external\n"], 20, [go(1), "external"]),
        (["\n[Term]\nname: x\n"], 20, ["no id"]),
        (["\n[Term]\nid: GO:0000001\nid: GO:0000002\n"], 20, ["2 id"]),
        ([stanza(1, "is_a:")], 24, ["is_a"]),
        ([stanza(1, "is_a: GO:0003674 GO:0000002")], 24, ["is_a", "GO:0003674 GO:0000002"]),
        ([stanza(1, "relationship: part_of")], 24, ["relationship"]),
        ([stanza(1, "is_obsolete: maybe")], 24, ["is_obsolete", "maybe"]),
        ([stanza(1, "is_a: GO:0000001")], 20, ["cycle", "GO:0000001 -> GO:0000001"]),
        (
            [
                stanza(3, "is_a: GO:0000001"),
                stanza(1, "relationship: part_of GO:0000002"),
                stanza(2, "is_a: GO:0000003"),
            ],
            26,
            ["cycle", "GO:0000001 -> GO:0000002 -> GO:0000003 -> GO:0000001"],
        ),
    ],
)
def test_faults_are_named_with_their_line(tmp_path, stanzas, line, words):
    message = refused(write(tmp_path, *stanzas))
    assert f"line {line}:" in message
    assert all(w in message for w in words)


def test_a_cycle_across_aspects_or_other_relations_is_none(tmp_path):
    stanzas = [
        stanza(1, "relationship: part_of GO:0000002"),
        stanza(2, "is_a: GO:0000001", aspect=1),
        stanza(3, "is_a: GO:0000004"),
        stanza(4, "relationship: has_part GO:0000003"),
        stanza(5, "is_a: GO:0000006", OBSOLETE),
        stanza(6, "is_a: GO:0000005", OBSOLETE),
    ]
    _, report = read(tmp_path, *stanzas)
    assert report.cross_aspect_edges == 2


@pytest.mark.parametrize(
    ("roots", "words"),
    [
        (ROOT_STANZAS.replace("GO:0008150", "GO:0000002"), ["GO:0008150", "missing"]),
        (ROOT_STANZAS.replace("name: t8150", OBSOLETE), ["GO:0008150", "obsolete"]),
        (ROOT_STANZAS.replace("cellular_component", "biological_process"), ["GO:0005575", "cellular_component"]),
    ],
)
def test_the_three_roots_must_be_there(tmp_path, roots, words):
    message = refused(write(tmp_path, stanza(1), roots=roots))
    assert all(w in message for w in words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "empty"),
        (HEADER, "no [Term]"),
        ("<!DOCTYPE html>\n<html><body>404</body></html>\n", "HTML"),
        ("!gaf-version: 2.1\n" + "x\t" * 16 + "\n", "GAF"),
        ("UniProtKB" + "\t" * 16 + "\n", "GAF"),
        (">P1\nMKV\n", "'>P1'"),
        (HEADER + "\n[Term]\nid: CHEBI:1\n", "no [Term] with a GO id"),
    ],
)
def test_what_is_no_go_release(tmp_path, content, words):
    path = tmp_path / "x.obo"
    path.write_text(content)
    assert words in refused(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(NotFoundError):
        read_obo(tmp_path / "none.obo")


# ---- storing ----------------------------------------------------------------------------------------------------


def test_store_and_read_back(tmp_path):
    ontology, _ = read(
        tmp_path, *(stanza(n, f"is_a: {go(n - 1 or 3674)}", f"alt_id: {go(50 + n)}") for n in range(1, 9))
    )
    files = []
    for d in ("a", "b"):
        (tmp_path / d).mkdir()
        ontology.save(tmp_path / d)
        files.append({p.name: p.read_bytes() for p in (tmp_path / d).iterdir()})
    assert files[0] == files[1]
    again = Ontology.load(tmp_path / "a")
    assert again.version == ontology.version
    assert again.names.equals(ontology.names)
    for name, value in vars(ontology).items():
        if isinstance(value, np.ndarray) and not name.startswith("_"):
            np.testing.assert_array_equal(getattr(again, name), value, strict=True)
    assert again.resolve(np.array([51, 1, 99])).tolist() == [0, 0, -2]
    (tmp_path / "a" / "resolve.parquet").write_bytes(b"PAR1")
    with pytest.raises(StorageError):
        Ontology.load(tmp_path / "a")
