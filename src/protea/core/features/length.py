"""Family `length`: residues of query and donor (contract section 6); null without a sequence."""

import pyarrow as pa

from .block import Block


def columns(block: Block) -> dict[str, pa.Array]:
    query = block.cut.length[block.queries[block.query]]
    donor = block.cut.length[block.donor]
    return {"length_query": pa.array(query, mask=query < 0), "length_ref": block.of_donor(donor, donor < 0)}
