"""Family `knn`: distances and votes of the neighbours (contract section 6), and `knn_present` (section 16)."""

import numpy as np
import pyarrow as pa

from .block import Block


def columns(block: Block) -> dict[str, pa.Array]:
    c = block.candidates
    distance = block.of_donor(c.distance)
    return {
        "distance": distance,
        "vote_count": pa.array(c.votes),
        "k_position": block.of_donor(c.rank),
        "neighbor_vote_fraction": pa.array((c.votes / float(block.cut.config.k)).astype(np.float32)),
        "neighbor_min_distance": distance,
        "neighbor_mean_distance": block.of_donor(c.mean),
        "neighbor_distance_std": block.of_donor(block.of.std[block.query]),
        "knn_present": pa.array(block.voted),
    }
