"""PROTEA: temporal hold-out datasets for training rerankers of Gene Ontology predictions.

import protea
dataset = protea.export(name="worm", embedding_config="unirep64", annotation_source="goa",
                        train_versions=["2014-09-30", "2019-01-14"], test_versions=["2020-03-03"])
dataset.train.head(5)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .exporting import Dataset, export, open_dataset

__all__ = ["Dataset", "export", "open_dataset"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from . import exporting

        return getattr(exporting, name)
    raise AttributeError(f"module 'protea' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
