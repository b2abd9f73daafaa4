"""Embeddings: one vector per accession, from a file or computed from sequences, as a memory-mapped store.

`store` is what the loaders and the export use; `readers` and `hdf5` read files, `kmer` and `unirep` compute
vectors from sequences, `pca` the components of contract section 12. Nothing here knows the catalogue.
"""

from protea.core.embeddings.source import Source
from protea.core.embeddings.store import EmbReport, VectorStore, build_store, inspect_embeddings

__all__ = ["EmbReport", "Source", "VectorStore", "build_store", "inspect_embeddings"]
