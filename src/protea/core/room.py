"""How much disk an export takes, and whether it is there, before anything is computed.

Called by the export operation and the minijobs' coordinator, which refuse to begin, and by `protea export plan`, which
tells. Rows are those of a sample of each cut's queries; what a row takes follows from the columns that are on.
"""

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..errors import DiskError
from .arrays import contains
from .config import TABLES, ExportConfig
from .cut import Prepared, neighbours, prepare, rows
from .features import PRODUCERS, switched_on
from .runner import CutRunner
from .schema import COLUMNS, KNOWN, ROW_GROUP, TRUTH
from .staging import Staging, digest, read_marker

SAMPLE = 128
"""Queries of each cut whose rows are counted to estimate the rest."""
TERMS = 200
"""More than proteins have on average in the three aspects together, ancestors counted: ten terms, each with a dozen."""
PACKED = {"bool": 0.1, "int8": 0.2, "int32": 0.6, "float": 1.0, "dictionary": 1.0}
"""Type -> bytes a value in large files: as measured on generated proteomes, rounded up."""
PLAIN = {"bool": 0.2, "int8": 1.0, "int32": 4.0, "float": 4.0, "dictionary": 8.0}
"""The same for the first rows of a file, which hardly compress; a dictionary's words included."""
FIRST = 1_000
FILE, COLUMN = 8_000, 250
"""Bytes of a file and of a column in one of its row groups, beside the values."""
MARKER = 20_000
"""Bytes of what lies beside the files of a cut, and its part of the manifest."""


@dataclass(frozen=True)
class CutSize:
    """Bytes of a cut: `shards`, which come again in the dataset; `near`, its blocks' neighbours; `there`: it is finished."""

    shards: int
    near: int = 0
    there: bool = False


def without_families(config: ExportConfig) -> ExportConfig:
    """The settings without the families that only add columns (InterPro may add rows)."""
    switches = [p.switch for p in PRODUCERS if p.switch not in (None, "interpro")]
    return config.model_copy(update={s: None if s in TABLES else False for s in switches})


def expected_rows(p: Prepared) -> int:
    """The rows of a cut, from a fixed sample of its queries, whose neighbours are really searched."""
    sample = p.queries[:: max(1, -(-len(p.queries) // SAMPLE))]
    seen = sum(len(r.member) for r in rows(p, sample, neighbours(p, sample)))
    return round(seen * len(p.queries) / len(sample)) if len(sample) else 0


def size_of(config: ExportConfig, n_rows: int, p: Prepared) -> CutSize:
    """The size of a cut of `n_rows` rows."""
    t = p.truth
    known = int(contains(np.unique(t.protein).astype(np.int64), t.known // len(p.arrays.onto.ids)).sum())
    tables = _file(TRUTH.types, len(TRUTH), len(t.novel)) + _file(KNOWN.types, len(KNOWN), known)
    return CutSize(_row_files(config, n_rows) + tables + MARKER, len(p.queries) * 3 * (8 * config.k + 4))


def _row_files(config: ExportConfig, n: int) -> int:
    """The files of the three categories, of `n` rows together."""
    on = switched_on(config)
    kinds = [c.type for c in COLUMNS if c.family in on]
    # nothing says how the rows are divided: at worst, each file begins with rows that do not compress
    return _file(kinds, len(COLUMNS), n, files=3)


def _file(kinds: Iterable[object], columns: int, n: int, files: int = 1) -> int:
    """`files` files of `columns` columns with `n` rows together; `kinds` are the types of those that have values."""
    names = [str(kind).partition("<")[0] for kind in kinds]
    groups = min(n, n // ROW_GROUP + files)
    first = min(n, files * FIRST)
    values = first * sum(PLAIN[k] for k in names) + (n - first) * sum(PACKED[k] for k in names)
    return round(files * FILE + groups * columns * COLUMN + values)


def needs(cuts: Sequence[CutSize]) -> tuple[int, int]:
    """Bytes that a run has still to write, at most at one time: into staging, and for the dataset.

    While a cut is finished its blocks are there too (as large as its shards), and when the dataset is assembled all cuts
    are. Processes that finish other cuts at the same moment would need the room for theirs once more.
    """
    todo = [c for c in cuts if not c.there]
    staging = sum(c.shards + c.near for c in todo) + max((c.shards for c in todo), default=0)
    return staging, sum(c.shards for c in cuts)


def at_most(runner: CutRunner) -> CutSize:
    """More than a cut takes, from what is known at once."""
    config, vectors, terms = runner.config, len(runner.shared.store), len(runner.shared.onto.ids)
    of_protein = min(terms, TERMS)
    by_interpro = config.interpro is not None and config.interpro_candidates
    n = vectors * (terms if by_interpro else min(terms, config.k * of_protein))
    tables = sum(_file(table.types, len(table), vectors * of_protein) for table in (TRUTH, KNOWN))
    return CutSize(_row_files(config, n) + tables + MARKER, vectors * 3 * (8 * config.k + 4))


def check(runner: CutRunner, staging: Staging, datasets_dir: Path) -> None:
    """DiskError unless there is room for what the export has still to write.

    Where there is room for more than any such export takes, that is all; else each cut is looked at (see `expected_rows`).
    """
    sizes: dict[str, CutSize] = {}
    for cut in runner.cuts:
        marker = read_marker(staging.stage_dir(cut.pair))
        if marker and marker["key"] == digest(runner.key(cut)):
            sizes[cut.pair] = CutSize(sum(f["size"] for f in marker["files"].values()) + MARKER, there=True)
    todo = [cut for cut in runner.cuts if cut.pair not in sizes]
    most = [at_most(runner)] * len(todo) if todo else []  # the inputs are opened only for what is to be computed
    if not _missing(needs([*sizes.values(), *most]), staging.path, datasets_dir):
        return
    plain = without_families(runner.config)
    if todo:
        shared = replace(runner.shared, config=plain, alignments=None)
        for cut in todo:
            p = prepare(cut, shared, *runner.sets(cut))
            sizes[cut.pair] = size_of(runner.config, expected_rows(p), p)
    if missing := _missing(needs(list(sizes.values())), staging.path, datasets_dir):
        raise DiskError(missing, hint="make room, or set PROTEA_HOME or PROTEA_EXPORT_RESUME_DIR to a larger disk")


def _missing(need: tuple[int, int], staging: Path, datasets: Path) -> str:
    """What is missing where, or nothing."""
    places = [existing(staging.parent), existing(datasets)]
    if places[0].stat().st_dev == places[1].stat().st_dev:
        need, places = (sum(need),), [Path(os.path.commonpath(places))]  # type: ignore[assignment]
    for bytes_, place in zip(need, places, strict=True):
        free = shutil.disk_usage(place).free
        if bytes_ > free:
            return f"the export needs about {_size(bytes_)} under {place}, {_size(free)} are free"
    return ""


def existing(path: Path) -> Path:
    """The path, or the nearest one above it that exists."""
    return path if path.exists() else existing(path.parent)


def _size(n: int) -> str:
    for unit, bytes_ in (("GB", 1e9), ("MB", 1e6)):
        if n >= bytes_:
            return f"{n / bytes_:.3g} {unit}"
    return f"{n / 1e3:.3g} kB"
