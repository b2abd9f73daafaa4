"""Family `knn`: distances and votes of the neighbours (contract section 6), and `knn_present` (section 16)."""

import numpy as np
import pyarrow as pa

from .block import Block


def columns(block: Block) -> dict[str, pa.Array]:
    c = block.candidates
    distance = pa.array(c.distance)
    return {
        "distance": distance,
        "vote_count": pa.array(c.votes),
        "k_position": pa.array(c.rank),
        "neighbor_vote_fraction": pa.array((c.votes / float(block.cut.config.k)).astype(np.float32)),
        "neighbor_min_distance": distance,
        "neighbor_mean_distance": pa.array(c.mean),
        "neighbor_distance_std": pa.array(block.std[block.query]),
        "knn_present": pa.array(np.ones(len(c), dtype=bool)),
    }
