"""Information accretion (IA) of GO terms from a file, such as the CAFA organisers': GO id and value.

Called by `ingest` and `protea inspect`; calls `delimited`. Contract section 18: a supplied IA replaces the computed one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from protea.core import delimited
from protea.core.delimited import TableReport
from protea.core.textio import BLOCK_SIZE, open_text
from protea.errors import InputError

SCHEMA = pa.schema(
    [
        pa.field("go", pa.int32(), nullable=False),  # the number of the id as the file gives it; ascending, distinct
        pa.field("ia", pa.float64(), nullable=False),  # bits; finite, not negative
    ]
)


@dataclass
class IAReport(TableReport):
    """What an IA file holds; `filtered` has the `repeated` rows (the same id with the same value)."""

    highest: float | None = None


def read_ia(
    path: str | Path,
    out_dir: Path | None,
    progress: Callable[[int], None] | None = None,
    *,
    block_size: int = BLOCK_SIZE,
) -> IAReport:
    """Read GO id and IA into `out_dir`/rows.parquet (SCHEMA); without a directory only report.

    Two columns, separated by a tab, or by blanks where there is no tab, with or without a header line. Malformed rows
    are counted by reason (`columns`, `go_id`, `ia`); see `delimited.check_rejected`.
    Errors (InputError, with the line): a value that is NaN, infinite or negative; one id with two values; no row; and
    those of textio.
    """
    report = IAReport(str(path), "text")
    head = delimited.peek(path)
    ids, values, lines = [np.empty(0, np.int32)], [np.empty(0)], [np.empty(0, np.int64)]
    with open_text(path) as reader:
        blocks = delimited.read_blocks(
            reader,
            report,
            2,
            (2, 2),
            separator=delimited.TAB if any("\t" in line for line in head) else delimited.BLANKS,
            header=bool(head) and delimited.is_header(head[0], 0, 1),
            progress=progress,
            block_size=block_size,
        )
        for block in blocks:
            go = block.go(0)
            ia, number = block.floats(1)
            good = block.keep(report, ("go_id", go < 0), ("ia", ~number))
            block.refuse("the IA is not finite", good & ~np.isfinite(ia))
            block.refuse("the IA is negative", good & (ia < 0))
            ids.append(go[good])
            values.append(ia[good] + 0.0)  # -0 is 0
            lines.append(block.first_line + block.cut.line[good])
    go, ia, line = np.concatenate(ids), np.concatenate(values), np.concatenate(lines)
    order = np.argsort(go, kind="stable")
    go, ia, line = go[order], ia[order], line[order]
    again = np.append(False, go[1:] == go[:-1])[: len(go)]
    differs = np.flatnonzero(again[1:] & (ia[1:] != ia[:-1]))
    if len(differs):
        i = differs[0]
        raise InputError(
            f"{path}, line {line[i + 1]}: GO:{go[i]:07} has the IA {ia[i + 1]!s}, but at line {line[i]} {ia[i]!s}",
            hint="keep one of them",
        )
    go, ia = go[~again], ia[~again]
    if again.any():
        report.filtered["repeated"] = int(np.count_nonzero(again))
    report.kept = len(go)
    report.highest = float(ia.max()) if len(ia) else None
    with delimited.rows_writer(out_dir, SCHEMA) as write:
        write(pa.RecordBatch.from_arrays([pa.array(go), pa.array(ia)], schema=SCHEMA))
    return report
