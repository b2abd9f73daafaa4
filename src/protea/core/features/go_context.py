"""Family `go_context`: how common the term is, how annotated the donor (contract sections 6 and 18)."""

import numpy as np
import pyarrow as pa

from .block import Block


def columns(block: Block) -> dict[str, pa.Array]:
    cut, term = block.cut, block.candidates.term
    accretion = cut.accretion[term]
    return {
        "go_term_frequency": pa.array(cut.frequency[term]),
        "ref_annotation_density": block.of_donor(cut.donors.density[block.donor]),
        "information_accretion": pa.array(accretion, mask=np.isnan(accretion)),
    }
