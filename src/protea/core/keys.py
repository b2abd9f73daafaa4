"""What identifies an export and each of its cuts: everything that can change a byte, and nothing else.

Called by the export operation and `export explain`.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .annotation_set import AnnotationSource
from .config import TABLES, ExportConfig
from .cut import Cut
from .schema import schema_digest
from .staging import digest

CUT_VERSION = 1
"""Bumped by hand when the rows of a cut change for the same inputs and settings, or the words of a column (evidence codes,
relations, aspects, categories) their order, since the blocks of a cut hold codes."""

ASSEMBLY_VERSION = 1

NOT_IN_CUT_KEY: Mapping[str, str] = {
    "name": "names the dataset and its staging directory; no value of a row depends on it",
    "train_versions": "a cut is its own pair, whose two sets are in the key by identity",
    "test_versions": "a cut is its own pair, whose two sets are in the key by identity",
    "ontology": "a name; the identity of what it names is in the key",
    "proteins": "a name; the identity of what it names is in the key",
    "embedding_config": "a name; the identity of what it names is in the key",
    "annotation_source": "a name; the identities of the two sets are in the key",
    **dict.fromkeys(TABLES, "a name, or none; the identity of what it names is in the key"),
}
"""Settings that are not part of a cut's key, each with its reason. A setting that is not listed is in the key."""


@dataclass(frozen=True)
class InputRef:
    """A loaded input: the name it was asked for by, its identity (contract section 1) and where it lies."""

    name: str
    identity: str
    path: Path
    stats: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ExportInputs:
    """The inputs of an export, found in the catalogue. `sets` by version, in order; `derived`: cut by date from one GAF;
    `tables`: the optional inputs by the names of their settings."""

    ontology: InputRef
    proteins: InputRef
    embeddings: InputRef
    sets: Mapping[int | str, AnnotationSource]
    derived: frozenset[int | str] = frozenset()
    tables: Mapping[str, InputRef] = field(default_factory=dict)

    def identities(self) -> dict[str, Any]:
        return {
            "ontology": self.ontology.identity,
            "proteins": self.proteins.identity,
            "embedding_config": self.embeddings.identity,
            **{name: ref.identity for name, ref in self.tables.items()},
            "annotation_sets": {str(v): s.identity for v, s in self.sets.items()},
        }


@cache
def libraries() -> dict[str, str]:
    """The libraries whose version can change a byte of the output."""
    return {name: version(name) for name in ("numpy", "numba", "llvmlite", "pyarrow")}


def cuts(config: ExportConfig, inputs: ExportInputs) -> list[Cut]:
    """The snapshot pairs: consecutive train versions, then the last train version with each test version."""
    train, test, sets = config.train_versions, config.test_versions, inputs.sets
    pairs = [("train", a, b) for a, b in itertools.pairwise(train)] + [("eval", train[-1], t) for t in test]
    return [Cut(kind, sets[a], sets[b]) for kind, a, b in pairs]


def cut_key(config: ExportConfig, inputs: ExportInputs, cut: Cut) -> dict[str, Any]:
    """The key document of a cut."""
    settings = config.model_dump(mode="json")
    shared = inputs.identities()
    del shared["annotation_sets"]
    return {
        "stage": "cut",
        "version": CUT_VERSION,
        "pair": cut.pair,
        "kind": cut.kind,
        "settings": {k: v for k, v in settings.items() if k not in NOT_IN_CUT_KEY},
        "inputs": {**shared, "old": cut.old.identity, "new": cut.new.identity},
        "schema": schema_digest(),
        "libraries": libraries(),
    }


def export_key(config: ExportConfig, inputs: ExportInputs) -> dict[str, Any]:
    """The key document of a whole export; its digest is the fingerprint."""
    settings = config.model_dump(mode="json")
    del settings["name"]  # the same data under another name
    return {
        "stage": "export",
        "versions": {"cut": CUT_VERSION, "assembly": ASSEMBLY_VERSION},
        "settings": settings,
        "inputs": inputs.identities(),
        "schema": schema_digest(),
        "libraries": libraries(),
    }


def fingerprint(config: ExportConfig, inputs: ExportInputs) -> str:
    return digest(export_key(config, inputs))
