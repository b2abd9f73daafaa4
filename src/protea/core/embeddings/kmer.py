"""The baseline embedding: hashed 3-mers, TF-IDF and a random projection, from sequences alone.

Called by `protea embed --backend kmer`; feeds `store.build_store`. It needs no model and no download, and is what a
language model's vectors have to beat. For protein p of N, with its 3-mers w (L - 2 of them, overlapping, every letter
counting as itself):

    bucket(w)  = mix(seed + 1, code(w)) mod 8192        code(w): three 5-bit letters, A = 1 ... Z = 26, others 27
    tf(p, b)   = number of p's 3-mers in bucket b / (L - 2)
    idf(b)     = ln((1 + N) / (1 + df(b))) + 1          df(b): proteins with a 3-mer in bucket b
    u(p)       = tf * idf, scaled to length 1
    v(p, j)    = sum over b of u(p, b) * sign(b, j) / sqrt(512)       j = 0 ... 511
    sign(b, j) = +1 or -1 by the lowest bit of mix(seed + 2, 512 b + j)
    mix(s, x)  = the splitmix64 finaliser of x + s * 0x9E3779B97F4A7C15, modulo 2**64

A protein of fewer than three residues has one "3-mer": its residues, then blanks (code 0), so it has a vector too.
Sums run in float64 in the order of b and are rounded once to float32, so the result depends on the sequences and the
seed only: not on threads, block sizes or the CPU. idf depends on the whole set: vectors of two sets do not mix.

Sources: hashing trick, Weinberger et al. 2009 (ICML); TF-IDF with smoothing, Salton and Buckley 1988 (Inf. Process.
Manag. 24:513); projection with random signs, Achlioptas 2003 (J. Comput. Syst. Sci. 66:671); splitmix64, Steele,
Lea and Flood 2014 (OOPSLA).
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numba import njit, uint64

from protea.core.embeddings.source import Source, rows_per_block

K = 3
BUCKETS = 8192
DIM = 512


def recipe(seed: int = 0) -> dict[str, int | str]:
    """How the vectors are made, for the catalogue."""
    return {"backend": "kmer", "version": 1, "k": K, "buckets": BUCKETS, "dim": DIM, "seed": seed}


def kmer_source(proteins: pa.Table, *, seed: int = 0) -> Source:
    """Vectors (float32, 512) of a protein table (`accession`, `sequence`: core/proteins); never a zero vector."""
    offsets, text = sequence_buffers(proteins)
    buckets = _bucket_table(seed)
    idf = _inverse_frequency(offsets, text, buckets)
    signs = _signs(seed)
    step = rows_per_block(DIM, np.dtype(np.float32))

    def blocks() -> Iterator[tuple[slice, np.ndarray]]:
        for start in range(0, len(offsets) - 1, step):
            rows = slice(start, min(start + step, len(offsets) - 1))
            yield rows, _vectors(offsets[start : rows.stop + 1], text, buckets, idf, signs)

    accessions = proteins["accession"].combine_chunks().cast(pa.string())
    return Source("kmer", "kmer", accessions, DIM, np.dtype(np.float32), blocks)


def sequence_buffers(proteins: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """int64 offsets [n + 1] and the residues (ASCII) of the sequences, without a Python string for any of them."""
    chunks = proteins["sequence"].cast(pa.large_string())
    column = chunks.combine_chunks() if chunks.num_chunks != 1 else chunks.chunk(0)
    _, ends, data = column.buffers()
    offsets = np.frombuffer(ends, np.int64, len(column) + 1, column.offset * 8) if ends else np.zeros(1, np.int64)
    return offsets, np.frombuffer(data, np.uint8) if data else np.zeros(0, np.uint8)


@njit(cache=True, nogil=True)
def _mix(seed, x):
    z = uint64(x) + uint64(seed) * uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> uint64(27))) * uint64(0x94D049BB133111EB)
    return z ^ (z >> uint64(31))


@njit(cache=True, nogil=True)
def _bucket_table(seed):
    table = np.empty(1 << 15, np.int32)
    for code in range(1 << 15):
        table[code] = np.int32(_mix(seed + 1, code) % uint64(BUCKETS))
    return table


@njit(cache=True, nogil=True)
def _signs(seed):
    signs = np.empty((BUCKETS, DIM), np.float32)
    for b in range(BUCKETS):
        for j in range(DIM):
            signs[b, j] = 1.0 - 2.0 * np.float32(_mix(seed + 2, b * DIM + j) & uint64(1))
    return signs


@njit(cache=True, nogil=True)
def _count(text, start, end, buckets, counts):
    """Add the 3-mers of one sequence to `counts` [buckets]; returns how many there are."""
    n = max(1, end - start - K + 1)
    for at in range(start, start + n):
        code = 0
        for i in range(at, at + K):
            letter = 0
            if i < end:
                letter = text[i] - 64 if 65 <= text[i] <= 90 else 27
            code = code << 5 | letter
        counts[buckets[code]] += 1
    return n


@njit(cache=True, nogil=True)
def _inverse_frequency(offsets, text, buckets):
    n = len(offsets) - 1
    counts = np.zeros(BUCKETS, np.int64)
    having = np.zeros(BUCKETS, np.int64)
    for p in range(n):
        counts[:] = 0
        _count(text, offsets[p], offsets[p + 1], buckets, counts)
        having += counts > 0
    return np.log((1.0 + n) / (1.0 + having)) + 1.0


@njit(cache=True, nogil=True)
def _vectors(offsets, text, buckets, idf, signs):
    n = len(offsets) - 1
    out = np.empty((n, DIM), np.float32)
    counts = np.zeros(BUCKETS, np.int64)
    total = np.empty(DIM)
    for p in range(n):
        counts[:] = 0
        kmers = _count(text, offsets[p], offsets[p + 1], buckets, counts)
        total[:] = 0.0
        square = 0.0
        for b in range(BUCKETS):
            if counts[b] > 0:
                weight = counts[b] / kmers * idf[b]
                square += weight * weight
                for j in range(DIM):
                    total[j] += weight * signs[b, j]
        scale = np.sqrt(square) * np.sqrt(float(DIM))
        for j in range(DIM):
            out[p, j] = total[j] / scale
    return out
