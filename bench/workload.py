"""Seeded workloads: what PROTEA has stored after loading a proteome, made directly at a chosen size.

`make(size, directory)` writes the stored objects (ontology, proteins, vectors, annotation sets, optional tables) as the
loaders would, since reading text is not what most stages measure; `write_gaf` and `write_hdf5` write the files that the
loading stages read. Proteins come in families: relatives lie close in the embedding and share most of their terms.
Terms are used with Zipf-like frequencies over a graph of 40,000 terms whose closures hold 12 to 20. Called by the
stages; calls the core's own formats.
"""

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from protea.core import annotations, config, evidence, ontology, proteins
from protea.core.annotation_set import AnnotationSource
from protea.core.embeddings import pca
from protea.core.keys import ExportInputs, InputRef
from protea.core.taxonomy import Taxonomy

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Size:
    """`donors` proteins with vectors and terms; about `queries` of them gain terms in each cut."""

    name: str
    donors: int
    queries: int
    dim: int
    cuts: int = 1
    dtype: str = "float32"


SIZES = {
    s.name: s
    for s in (
        Size("S", 5_000, 500, 480),
        Size("M", 60_000, 3_000, 1024),
        Size("L", 150_000, 6_000, 1024, 12),
        Size("XL", 500_000, 6_000, 1280, 1, "float16"),
    )
}
TERMS = (11_000, 26_000, 4_000)
"""Terms of F, P and C."""
POOL = (6, 9, 6)
"""Terms that a family shares, by aspect."""
EXPERIMENTAL = [evidence.CODES.index(c) for c in ("EXP", "IDA", "IPI", "IMP", "IGI", "IEP", "HDA")]
CURATED = [evidence.CODES.index(c) for c in ("IBA", "ISS", "TAS", "NAS", "IC", "RCA")]
ELECTRONIC = evidence.CODES.index("IEA")


@dataclass(frozen=True)
class Workload:
    """A generated proteome, ready to be exported."""

    size: Size
    directory: Path

    @property
    def versions(self) -> list[int]:
        """Releases of an export: all but the last cut are train cuts. Where one cut is asked for, the first is taken."""
        return list(range(1, max(2, self.size.cuts) + 2))

    def inputs(self, tables: tuple[str, ...] = ()) -> ExportInputs:
        def ref(name: str) -> InputRef:
            return InputRef(name, f"{name}-{self.size.name}", self.directory / name)

        sets = {v: AnnotationSource(v, self.directory / f"set{v}", f"set{v}-{self.size.name}") for v in self.versions}
        named = {name: ref(name) for name in tables}
        return ExportInputs(ref("ontology"), ref("proteins"), ref("vectors"), sets, frozenset(), named)

    def config(self, **settings: Any) -> config.ExportConfig:
        given = {
            "name": "bench", "embedding_config": "vectors", "annotation_source": "goa", "ontology": "ontology",
            "proteins": "proteins", "train_versions": self.versions[:-1], "test_versions": self.versions[-1:],
        }  # fmt: skip
        return config.parse(given | settings)


ALL_FAMILIES: dict[str, Any] = {
    "use_embedding_pca": True, "compute_taxonomy": True, "compute_self_prior": True, "compute_association": True,
    "taxonomy": "taxonomy", "term_vectors": "term_vectors", "interpro": "interpro", "external_scores": "external_scores",
}  # fmt: skip
"""Settings that switch on every family but the alignments."""
TABLES = ("taxonomy", "term_vectors", "interpro", "external_scores")


def make(size: Size, directory: Path, *, tables: bool = True, seed: int = 1) -> Workload:
    """Write the workload into `directory`, unless it is there."""
    out = Workload(size, directory)
    if (directory / "size.json").exists():
        return out
    rng = np.random.default_rng([seed, size.donors, size.dim])
    for name in ("ontology", "proteins", "vectors", *TABLES, *(f"set{v}" for v in out.versions)):
        (directory / name).mkdir(parents=True, exist_ok=True)
    onto = graph(rng)
    onto.save(directory / "ontology")
    accessions = accession_names(size.donors)
    family = rng.integers(0, max(1, size.donors // 8), size.donors) ** 2 // max(
        1, size.donors // 8
    )  # few large, many small
    _proteins(rng, accessions, directory / "proteins" / "proteins.parquet")
    _vectors(rng, size, family, accessions, directory / "vectors")
    pools = _annotations(rng, onto, family, accessions, out)
    if tables:
        _tables(rng, onto, family, pools, accessions, directory)
    (directory / "size.json").write_text(json.dumps(asdict(size)))
    return out


def graph(rng: np.random.Generator) -> ontology.Ontology:
    """A GO-like graph: three aspects of TERMS terms, most of them 4 to 9 levels deep, 1.3 parents each."""
    edges, aspect, top = [], np.repeat(np.arange(3, dtype=np.int8), TERMS), 0
    for n in TERMS:
        share = np.array([0.004, 0.02, 0.07, 0.15, 0.21, 0.21, 0.16, 0.1, 0.05, 0.026])
        ends = top + 1 + np.cumsum(share / share.sum() * (n - 1)).astype(int)
        above, start = np.array([top]), top + 1
        wide = above
        for end in ends:
            level = np.arange(start, end)
            first = above[(len(above) * rng.random(len(level)) ** 2).astype(int)]  # some parents have many children
            more = rng.random(len(level)) < 0.3
            second = wide[(len(wide) * rng.random(more.sum())).astype(int)]
            edges += [np.stack([level, first], 1), np.stack([level[more], second], 1)]
            wide, above, start = np.concatenate([above, level]), level, end
        top += n
    # ids are drawn at random, so that codes (their order) say nothing of depth; roots and binding have their own
    total = sum(TERMS)
    fixed = {0: 3674, TERMS[0]: 8150, TERMS[0] + TERMS[1]: 5575, 1: 5488, 60: 5515}
    free = rng.permutation(np.setdiff1d(np.arange(1, 160_000), list(fixed.values())))[:total].astype(np.int32)
    for place, number in fixed.items():
        free[place] = number
    order = np.argsort(free)
    code = np.empty(total, np.int64)
    code[order] = np.arange(total)
    parents = ontology._csr(code[np.concatenate(edges)], total)
    _, sizes = ontology._closure_sizes(*parents)
    closure = ontology._csr(ontology._closure_pairs(*parents, sizes), total)
    ids = free[order]
    names = pa.array([f"term {i}" for i in range(total)])
    resolve = (ids, np.arange(total, dtype=np.int32))
    return ontology._build("bench", ids, aspect[order], names, parents, closure, resolve)


def accession_names(n: int) -> pa.Array:
    """n accessions like P0A1B2, ascending by bytes."""
    letters = np.frombuffer(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", np.uint8)
    number = np.arange(n, dtype=np.int64) * (36**4 * 10 * 10 // (n + 1))
    text = np.empty((n, 6), np.uint8)
    for i, base in ((5, 36), (4, 36), (3, 36), (2, 36), (1, 10)):
        text[:, i] = letters[number % base]
        number //= base
    text[:, 0] = letters[14 + number]
    offsets = np.arange(n + 1, dtype=np.int32) * 6
    return pa.Array.from_buffers(pa.string(), n, [None, pa.py_buffer(offsets), pa.py_buffer(text.tobytes())])


def _proteins(rng: np.random.Generator, accessions: pa.Array, path: Path) -> None:
    length = np.clip(rng.lognormal(5.61, 0.7, len(accessions)), 30, 30_000).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    letters = np.frombuffer(b"ALGVESIKRDTPNQFYMHCW", np.uint8)[rng.integers(0, 20, offsets[-1], dtype=np.uint8)]
    sequences = pa.Array.from_buffers(
        pa.large_string(), len(length), [None, pa.py_buffer(offsets), pa.py_buffer(letters.tobytes())]
    )
    taxon = (18_000 - rng.zipf(1.3, len(length)) % 15_000).astype(np.int32)
    columns = [accessions, pa.array(taxon), pa.array(length.astype(np.int32)), sequences]
    pq.write_table(pa.table(columns, schema=proteins.SCHEMA), path, compression="zstd")


def _vectors(rng: np.random.Generator, size: Size, family: Array, accessions: pa.Array, out: Path) -> None:
    """Relatives have cosines around 0.9, strangers around 0.5, as protein language models give them."""
    n, d = size.donors, size.dim
    basis = rng.standard_normal((64, d), dtype=np.float32) / np.sqrt(64 * d)
    centre = rng.standard_normal((family.max() + 1, 64), dtype=np.float32)
    common = rng.standard_normal(d, dtype=np.float32) / np.sqrt(d)
    matrix = np.lib.format.open_memmap(out / "matrix.npy", mode="w+", dtype=size.dtype, shape=(n, d))
    for a in range(0, n, 20_000):
        b = min(n, a + 20_000)
        noise = rng.standard_normal((b - a, d), dtype=np.float32)
        noise *= (0.15 + 0.5 * rng.random((b - a, 1), dtype=np.float32)) / np.sqrt(d)
        matrix[a:b] = (noise + centre[family[a:b]] @ basis + common) * rng.uniform(5, 15, (b - a, 1)).astype(np.float32)
    matrix.flush()
    mean, components = pca.fit(np.asarray(matrix[: min(n, 20_000)], np.float32))
    np.save(out / "pca_mean.npy", mean)
    np.save(out / "pca_components.npy", components)
    pq.write_table(pa.table({"accession": accessions}), out / "ids.parquet", compression="zstd")
    meta = {"format": 1, "vectors": n, "dim": d, "dtype": size.dtype, "identity": f"bench-{size.name}"}
    (out / "store.json").write_text(json.dumps(meta))


def _popular(rng: np.random.Generator, onto: ontology.Ontology, aspect: int, n: int) -> Array:
    """n term codes of an aspect with Zipf-like frequencies; the ranking is the same for every call."""
    terms = np.flatnonzero((onto.aspect == aspect) & ~onto.is_root & (np.diff(onto.closure_ptr) > 4))
    terms = np.random.default_rng(aspect).permutation(terms)
    weight = np.cumsum(1.0 / (np.arange(len(terms)) + 8.0))
    return terms[np.searchsorted(weight, rng.random(n) * weight[-1])]


def _annotations(
    rng: np.random.Generator, onto: ontology.Ontology, family: Array, accessions: pa.Array, out: Workload
) -> list[Array]:
    """Write set1..setn: the first release, and in each next one the terms that its queries gained."""
    n, families = len(family), int(family.max()) + 1
    pools = [_popular(rng, onto, a, families * POOL[a]).reshape(families, POOL[a]) for a in range(3)]
    studied = rng.random(n) < 0.4
    chance = np.where(studied, 1.0, 0.4)  # what is studied is studied again
    chance /= chance.sum()
    protein, term, since, code = [], [], [], []

    def add(who: Array, what: Array, version: int, codes: Array) -> None:
        protein.append(who)
        term.append(what)
        since.append(np.full(len(who), version, np.int32))
        code.append(codes)

    for a in range(3):
        who, which = np.nonzero(rng.random((n, POOL[a])) < 0.45)
        what = pools[a][family[who], which]
        own = rng.integers(0, n, n)
        who, what = np.concatenate([who, own]), np.concatenate([what, _popular(rng, onto, a, n)])
        draw = rng.random(len(who))
        known = studied[who] & (draw < 0.25)
        codes = np.where(draw > 0.4, ELECTRONIC, rng.choice(CURATED, len(who)))
        add(who, what, 1, np.where(known, rng.choice(EXPERIMENTAL, len(who)), codes))
    for version in out.versions[1:]:
        asked = rng.choice(n, int(out.size.queries * 1.02), replace=False, p=chance)
        who = np.repeat(asked, 4)
        kind = rng.choice(3, len(who), p=(0.3, 0.4, 0.3))
        what = np.empty(len(who), np.int64)
        for a in range(3):
            mine = np.flatnonzero(kind == a)
            shared = pools[a][family[who[mine]], rng.integers(0, POOL[a], len(mine))]
            what[mine] = np.where(rng.random(len(mine)) < 0.6, shared, _popular(rng, onto, a, len(mine)))
        add(who, what, version, rng.choice(EXPERIMENTAL, len(who)))
    columns = [np.concatenate(x) for x in (protein, term, since, code)]
    order = np.lexsort((columns[2], columns[0]))
    who, what, first, codes = (x[order] for x in columns)
    table = pa.table(
        [
            pa.DictionaryArray.from_arrays(pa.array(who.astype(np.int32)), accessions),
            pa.array(onto.ids[what]),
            pa.array(codes.astype(np.int8)),
            pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(who), np.int32)), pa.array([""])),
            pa.array(rng.random(len(who)) < 0.002),
            pa.array(np.zeros(len(who), bool)),
            pa.array((16_000 + 180 * first).astype(np.int32)).cast(pa.date32()),
            pa.array(np.full(len(who), 9606, np.int32)),
        ],
        schema=annotations.SCHEMA,
    )
    for version in out.versions:
        path = out.directory / f"set{version}" / "rows.parquet"
        pq.write_table(table.filter(pa.array(first <= version)), path, compression="zstd")
    return pools


def _tables(
    rng: np.random.Generator,
    onto: ontology.Ontology,
    family: Array,
    pools: list[Array],
    accessions: pa.Array,
    out: Path,
) -> None:
    """The optional inputs: taxonomy, term vectors (200-d), InterPro rows and external scores."""
    nodes = np.arange(1, 20_001, dtype=np.int64)
    parent = np.maximum(1, (nodes * rng.uniform(0.3, 0.9, len(nodes))).astype(np.int64))
    none = pa.array([], pa.int32())
    Taxonomy(
        pa.table({"tax_id": nodes.astype(np.int32), "parent": parent.astype(np.int32)}),
        pa.table({"old": none, "new": none}),
        pa.table({"tax_id": none}),
    ).save(out / "taxonomy")
    have = np.sort(rng.permutation(len(onto.ids))[: int(len(onto.ids) * 0.95)])
    pq.write_table(pa.table({"go": onto.ids[have]}), out / "term_vectors" / "ids.parquet")
    np.save(out / "term_vectors" / "matrix.npy", rng.standard_normal((len(have), 200), dtype=np.float32))
    for name, per_aspect in (("interpro", 1), ("external_scores", 5)):
        who = np.repeat(np.arange(len(family)), 3 * per_aspect)
        aspect = np.tile(np.arange(3), len(family) * per_aspect)
        what = np.empty(len(who), np.int64)
        for a in range(3):
            mine = aspect == a
            what[mine] = pools[a][family[who[mine]], rng.integers(0, POOL[a], mine.sum())]
        columns = {
            "accession": pa.DictionaryArray.from_arrays(pa.array(who.astype(np.int32)), accessions),
            "go": onto.ids[what],
            "score": rng.random(len(who)),
        }
        if name == "interpro":
            columns |= {"databases": rng.integers(1, 64, len(who)).astype(np.uint8)}
            columns |= {"signatures": rng.integers(1, 6, len(who)).astype(np.int32)}
        pq.write_table(pa.table(columns), out / name / "rows.parquet", compression="zstd")


def write_gaf(path: Path, rows: int, accessions: pa.Array, *, kept: float = 0.3, seed: int = 1) -> int:
    """A gzipped GAF 2.2 of `rows` rows, a share `kept` of them of `accessions`; returns its uncompressed size.

    Written in blocks by two threads with zlib's default level, one gzip member each: what curl fetches inflates alike.
    """
    ids = graph(np.random.default_rng(seed)).ids
    step = 100_000

    def block(start: int) -> tuple[bytes, int]:
        rng = np.random.default_rng([seed, start])
        n = min(step, rows - start)
        runs = np.sort(rng.integers(0, max(1, n // 8), n))  # rows of a protein lie together
        mine = rng.random(runs.max() + 1) < kept
        names = np.where(mine, rng.integers(0, len(accessions), len(mine)), rng.integers(0, 10**7, len(mine)))
        loaded = accessions.take(pa.array(np.where(mine, names, 0)))
        other = pc.binary_join_element_wise("A0A", pc.utf8_lpad(pa.array(names).cast(pa.string()), 7, "0"), "")
        protein = pc.if_else(pa.array(mine), loaded, other).take(pa.array(runs))

        def pick(*words: str) -> pa.Array:
            return pa.array(words).take(pa.array(rng.integers(0, len(words), n)))

        def digits(width: int, high: int) -> pa.Array:
            return pc.utf8_lpad(pa.array(rng.integers(0, high, n)).cast(pa.string()), width, "0")

        rank = np.minimum(rng.zipf(1.15, n), len(ids)) - 1
        go = pc.utf8_lpad(pa.array(ids[rank]).cast(pa.string()), 7, "0")
        symbol = pc.binary_join_element_wise("gene", digits(5, 60_000), "")
        text = pc.binary_join_element_wise(
            pc.binary_join_element_wise("UniProtKB", protein, symbol, "\t"),
            pick("enables", "involved_in", "located_in", "is_active_in", "NOT|enables"),
            pc.binary_join_element_wise("GO:", go, ""),
            pc.binary_join_element_wise(pick("GO_REF:", "PMID:"), digits(7, 300), ""),
            pick(*["IEA"] * 12, "IBA", "IBA", "ISS", "IDA", "IPI", "IMP", "ND"),
            pc.binary_join_element_wise(pick("InterPro:IPR", "UniRule:UR", "UniProtKB-KW:KW-"), digits(6, 40_000), ""),
            pick("F", "P", "C"),
            pick("Uncharacterized protein", "ATP synthase subunit alpha", "Putative methyltransferase"),
            pc.binary_join_element_wise("ORF", digits(4, 9_000), ""),
            "protein",
            pc.binary_join_element_wise("taxon:", digits(5, 3_000), ""),
            pc.binary_join_element_wise("20", digits(2, 24), pick("0103", "0517", "0928", "1111"), ""),
            pick("UniProt", "InterPro", "GOC"),
            pa.nulls(n, pa.string()).fill_null(""),
            pa.array(["\n"] * n),
            "\t",
        )
        raw = "".join(text.to_pylist()).replace("\t\n", "\n").encode()
        return gzip.compress(raw, 6, mtime=0), len(raw)

    size = 0
    with path.open("wb") as f, ThreadPoolExecutor(2) as pool:
        f.write(gzip.compress(b"!gaf-version: 2.2\n", mtime=0))
        for packed, n in pool.map(block, range(0, rows, step)):
            f.write(packed)
            size += n
    return size


def write_hdf5(path: Path, n: int, dim: int, *, seed: int = 1) -> None:
    """One float16 dataset for each protein, as UniProt publishes its embeddings."""
    import h5py

    values = np.random.default_rng(seed).standard_normal((n, dim), dtype=np.float32).astype(np.float16)
    with h5py.File(path, "w") as f:
        for name, value in zip(accession_names(n).to_pylist(), values, strict=True):
            f.create_dataset(name, data=value)
