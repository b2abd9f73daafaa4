"""Family `emb_pca`: the query's vector on the first principal components of its embedding config (contract section 12)."""

import numpy as np
import pyarrow as pa

from ..embeddings.pca import COMPONENTS
from .block import Block


def columns(block: Block) -> dict[str, pa.Array]:
    cut = block.cut
    asked, where = np.unique(block.query, return_inverse=True)
    values = cut.store.project(cut.vector_row[block.queries[asked]]).astype(np.float32)
    missing = pa.nulls(len(block.query), pa.float32())
    return {
        f"emb_pca_query_{i}": pa.array(values[:, i][where]) if i < values.shape[1] else missing
        for i in range(COMPONENTS)
    }
