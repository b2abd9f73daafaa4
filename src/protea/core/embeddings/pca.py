"""Principal components of an embedding config (contract section 12), and the values they give.

Called by `store` (fit, once, when a config is loaded) and by the `emb_pca` feature family (project).
"""

import numpy as np
from numba import njit
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

COMPONENTS = 16
BLOCK_VALUES = 1 << 22  # part of the result: it fixes the order of the sums


def component_count(vectors: int, dim: int) -> int:
    return max(0, min(COMPONENTS, dim, vectors - 1))


def fit(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(mean [d], components [c, d]) of `matrix` [n, d] in float64, c = min(16, d, n - 1), by decreasing variance.

    Eigenvectors of the covariance, summed in blocks of fixed size on one thread, so that the same matrix gives the same
    bytes whatever the number of threads. Each component's entry of largest magnitude (the first of equals) is positive.
    A direction without variance (constant columns, fewer distinct vectors than components) is no component: it is
    stored as zeros, so its values are exactly 0 and not rounding noise.
    """
    n, d = matrix.shape
    count = component_count(n, d)
    step = max(1, BLOCK_VALUES // max(1, d))
    with threadpool_limits(1):
        mean = np.zeros(d)
        for start in range(0, n, step):
            mean += matrix[start : start + step].sum(axis=0, dtype=np.float64)
        mean /= max(1, n)
        if count == 0:
            return mean, np.zeros((0, d))
        scatter = np.zeros((d, d))
        for start in range(0, n, step):
            block = matrix[start : start + step].astype(np.float64)
            block -= mean
            scatter += block.T @ block
        variance, vectors = np.linalg.eigh(scatter)
    order = np.arange(d - 1, d - 1 - count, -1)  # eigh sorts ascending
    components = np.ascontiguousarray(vectors[:, order].T)
    largest = np.abs(components).argmax(axis=1)
    components[components[np.arange(count), largest] < 0] *= -1
    components[variance[order] <= d * np.finfo(np.float64).eps * variance[-1]] = 0.0
    return mean, components


def project(vectors: np.ndarray, mean: np.ndarray, components: np.ndarray) -> np.ndarray:
    """(vector - mean) . component, float64 [m, c], summed in index order: a row's values never depend on the others."""
    columns = np.ascontiguousarray(components.T)
    return _project(vectors.astype(np.float64), mean, columns)


@njit(cache=True, nogil=True)
def _project(vectors, mean, columns):
    m, d = vectors.shape
    c = columns.shape[1]
    out = np.zeros((m, c))
    for i in range(m):
        for j in range(d):
            x = vectors[i, j] - mean[j]
            for k in range(c):
                out[i, k] += x * columns[j, k]
    return out
