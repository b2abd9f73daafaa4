"""What computes the cuts of one export in this process, and what it keeps in memory between them.

Called by the export operation, cut after cut, and by the minijobs, block after block; calls the cut, its blocks and its
shards. Inputs are opened when they are first needed, and the sets and arrays of the last cut are kept: blocks of the same
cut are cheaper one after the other.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from typing import Any

import pyarrow.parquet as pq

from ..errors import CancelledError
from . import annotation_set, fs, side_tables
from .alignment_cache import AlignmentCache
from .annotation_set import AnnotationSet
from .arrays import nothing
from .blocks import Blocks
from .config import ExportConfig
from .cut import NEIGHBOURS_PER_BLOCK, QUERIES_PER_BLOCK, Cut, CutInputs, Prepared, count_queries, prepare
from .embeddings.store import VectorStore
from .keys import ExportInputs, cut_key, cuts
from .ontology import Ontology
from .schema import CATEGORIES
from .shards import write_shards
from .staging import Stage, Staging, digest

Report = Callable[..., None]
"""Called as report(kind, **what) for every event: `cut.restored`, `cut.progress`, `export.published`, ..."""


def silent(kind: str, **what: Any) -> None:
    """A report that nobody reads."""


def never() -> bool:
    """Nobody cancels."""
    return False


def load_inputs(
    config: ExportConfig,
    inputs: ExportInputs,
    threads: int = 0,
    alignments: AlignmentCache | None = None,
    checkpoint: Callable[[], None] = nothing,
) -> CutInputs:
    """Open what every cut shares."""
    onto = Ontology.load(inputs.ontology.path)
    return CutInputs(
        config,
        onto,
        VectorStore.open(inputs.embeddings.path),
        pq.read_table(inputs.proteins.path / "proteins.parquet"),
        side_tables.load({name: ref.path for name, ref in inputs.tables.items()}, onto),
        threads,
        alignments,
        checkpoint,
    )


@dataclass
class CutRunner:
    """The cuts of one export. `cancelled` is asked several times a second while anything is computed."""

    config: ExportConfig
    inputs: ExportInputs
    report: Report = silent
    threads: int = 0
    queries_per_block: int = QUERIES_PER_BLOCK
    alignments: AlignmentCache | None = None
    cancelled: Callable[[], bool] = never
    timing: dict[str, Any] = field(default_factory=dict)
    """What `run.json` says of each cut."""
    _sets: dict[Any, AnnotationSet] = field(default_factory=dict)
    _prepared: Prepared | None = None

    @cached_property
    def cuts(self) -> list[Cut]:
        return cuts(self.config, self.inputs)

    @property
    def block_size(self) -> int:
        """Queries of a block: those asked for, or as many as memory has room for the neighbours of."""
        return max(1, min(self.queries_per_block, NEIGHBOURS_PER_BLOCK // (3 * self.config.k)))

    @cached_property
    def shared(self) -> CutInputs:
        return load_inputs(self.config, self.inputs, self.threads, self.alignments, self.checkpoint)

    def checkpoint(self) -> None:
        """Raise CancelledError when somebody wants this to stop."""
        if self.cancelled():
            raise CancelledError("cancelled", hint="what was finished is kept; run it again to go on")

    def where(self, cut: Cut) -> dict[str, Any]:
        """How events name a cut."""
        return {"cut": cut.pair, "label": cut.label, "number": self.cuts.index(cut) + 1, "of": len(self.cuts)}

    def key(self, cut: Cut) -> dict[str, Any]:
        return cut_key(self.config, self.inputs, cut)

    def artefact(self, cut: Cut) -> str:
        """What identifies a finished cut: the digest of its key."""
        return digest(self.key(cut))

    def blocks(self, cut: Cut, staging: Staging) -> Blocks:
        def discarded(stage: str, block: int, reason: str) -> None:
            self.report("block.discarded", stage=stage, block=block, reason=reason, **self.where(cut))

        return Blocks(staging, cut.pair, self.key(cut), self.block_size, discarded)

    def sets(self, cut: Cut) -> tuple[AnnotationSet, AnnotationSet]:
        """The two releases of a cut; those of the cut before are kept when it shares them."""
        if self._prepared is not None and self._prepared.cut != cut:
            self._prepared = None
        held = {s.version: self._sets.get(s.version) for s in (cut.old, cut.new)}
        self._sets = {}
        for s in (cut.old, cut.new):
            self.checkpoint()
            self._sets[s.version] = held[s.version] or annotation_set.load(s, self.shared.onto)
        return self._sets[cut.old.version], self._sets[cut.new.version]

    def forget(self) -> None:
        """Let go of the last cut's sets and arrays."""
        self._prepared, self._sets = None, {}

    def prepared(self, cut: Cut) -> Prepared:
        """The cut's members, donors and queries."""
        old, new = self.sets(cut)
        if self._prepared is None:
            self._prepared = prepare(cut, self.shared, old, new)
            p = self._prepared
            self.report("cut.prepared", members=len(p.truth.protein), queries=len(p.queries),
                        donors=len(p.search.donors), **self.where(cut))  # fmt: skip
        return self._prepared

    def queries(self, cut: Cut, staging: Staging) -> int:
        """How many queries the cut has; remembered in `staging`."""
        blocks = self.blocks(cut, staging)
        n = blocks.queries()
        if n is None:
            n = count_queries(self.shared, *self.sets(cut))
            blocks.save_queries(n)
        return n

    def finished(self, cut: Cut, staging: Staging) -> bool:
        """Whether the cut is finished; nothing is reported."""
        return staging.restore(cut.pair, self.key(cut))[0] is not None

    def restore(self, cut: Cut, staging: Staging) -> Stage | None:
        """The finished cut, or None; `cut.discarded` says why it cannot be used."""
        stage, why = staging.restore(cut.pair, self.key(cut))
        if why:
            self.report("cut.discarded", reason=why, **self.where(cut))
        return stage

    def finish(self, cut: Cut, staging: Staging) -> Stage:
        """The finished cut: restored, or computed from those of its blocks that are finished."""
        self.checkpoint()
        where = self.where(cut)
        if stage := self.restore(cut, staging):
            self.timing[cut.pair] = {"restored": True}
            self.report("cut.restored", rows=rows_of(stage), **where)
            return stage
        start = time.monotonic()
        self.report("cut.started", **where)
        with fs.one_line_errors(staging.stage_dir(cut.pair)):
            stage, aligned = self._compute(cut, staging, where)
            staging.discard_blocks(cut.pair)
        seconds = round(time.monotonic() - start, 3)
        self.timing[cut.pair] = {"seconds": seconds} | ({"alignments": aligned} if aligned else {})
        self.report("cut.finished", rows=rows_of(stage), seconds=seconds, **where)
        return stage

    def _compute(self, cut: Cut, staging: Staging, where: Mapping[str, Any]) -> tuple[Stage, dict[str, int]]:
        """The finished stage, and how many pairs of sequences were aligned, and found in the cache."""
        directory, attempt = staging.begin(cut.pair)
        p = self.prepared(cut)
        files, result = write_shards(
            p,
            directory,
            lambda done, of, rows: self.report("cut.progress", done=done, queries=of, rows=rows, **where),
            blocks=self.blocks(cut, staging),
        )
        aligned = dict(p.arrays.memo.get("alignments", {}))
        if aligned:
            self.report("cut.aligned", **aligned, **where)
        return staging.finish(cut.pair, self.key(cut), files, result, attempt, version("protea")), aligned


def rows_of(stage: Stage) -> int:
    """The rows of a finished cut."""
    return sum(stage.files[c].rows for c in CATEGORIES)
