"""Family `annotation_meta`: the term's aspect, and the donor's best row for the term (contract section 6)."""

import numpy as np
import pyarrow as pa

from .block import Block


def columns(block: Block) -> dict[str, pa.Array]:
    best, n = block.candidates.best, block.cut.donors.n_qualifiers
    return {
        "aspect": pa.array(block.cut.onto.aspect[block.candidates.term].astype(np.int32)),
        "qualifier": block.of_donor((best % n).astype(np.int32)),
        "evidence_code": block.of_donor((best // n).astype(np.int32)),
    }
