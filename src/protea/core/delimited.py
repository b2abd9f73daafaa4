"""Delimited text tables, a block at a time: fields as spans, columns as arrays, a count for every row that is dropped.

Called by the readers of tables (`scores`, `interpro`, `accretion`, `term_vectors`); calls `textio` for the bytes,
`gafscan` for its primitives and `spans` for columns. Memory does not grow with the file.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numba import njit
from numpy.typing import NDArray

from protea.core import fs, gafscan
from protea.core.gafscan import decimal, go_number, in_table, same, trim
from protea.core.proteins import bare_accession
from protea.core.spans import bytes_of, floats, strings
from protea.core.textio import BLOCK_SIZE, HashingReader, blocks
from protea.errors import InputError

TAB, BLANKS, CAFA = 0, 1, 2
"""How fields are separated: one tab; any blanks and tabs; likewise, in the CAFA format (its keyword lines skipped)."""
MAX_PROBLEMS = 100
MAX_REJECTED = 0.01

_COLUMNS, _OTHER = -1, -2
_KEYWORDS = tuple(np.frombuffer(w, np.uint8) for w in (b"AUTHOR", b"MODEL", b"KEYWORDS", b"ACCURACY", b"END"))


@dataclass
class TableReport:
    """What a table holds. Counts are rows: `rows` = the malformed (`rejected`) + the well-formed of no use to us
    (`filtered`, `not_in_proteins`) + `kept`. A header line and comments are no rows."""

    file: str
    format: str = ""
    rows: int = 0
    kept: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    filtered: dict[str, int] = field(default_factory=dict)
    not_in_proteins: int = 0
    sha256: str = ""  # of the uncompressed bytes
    problems: list[tuple[int, str, str]] = field(default_factory=list)  # line, reason, text: the first 100 malformed

    @property
    def malformed(self) -> int:
        return sum(self.rejected.values())

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values, without the file's name."""
        out = asdict(self) | {"problem_lines": [line for line, _, _ in self.problems]}
        del out["file"]
        return out

    def reject(self, reason: str, n: int, problems: Sequence[tuple[int, str]] = ()) -> None:
        """Count malformed rows of a block; `problems`: line and text of the first ones of this reason."""
        self.rejected[reason] = self.rejected.get(reason, 0) + n
        new = ((line, reason, text) for line, text in problems)
        self.problems = sorted([*self.problems, *new])[:MAX_PROBLEMS]  # by line, so that no block size shows


def check_rejected(report: TableReport, max_rejected: float = MAX_REJECTED) -> None:
    """What loading asks beyond reading. Errors: InputError when more than the share `max_rejected` (0 to 1) of the
    rows is malformed, naming the first, or when no row is left."""
    if report.malformed > max_rejected * report.rows:
        line, reason, text = min(report.problems)
        raise InputError(
            f"{report.file}: {report.malformed} of {report.rows} rows are malformed, more than {max_rejected:.4g} of "
            f"them; the first is line {line} ({reason}): {text!r}",
            hint="repair the file, or allow more with --max-rejected",
        )
    if not report.kept:
        dropped = {**report.rejected, **report.filtered, "not_in_proteins": report.not_in_proteins}
        why = ", ".join(f"{n} {reason}" for reason, n in dropped.items() if n)
        raise InputError(f"{report.file}: nothing is left of {report.rows} rows" + (f" ({why})" if why else ""))


class Cut(NamedTuple):
    """A block in fields. N rows with the right number of columns that are wanted, in A runs of one first field."""

    spans: NDArray[np.int64]  # [N, width, 2] from, to of the first fields, blanks around them left out
    extent: NDArray[np.int64]  # [N, 2] of the line
    line: NDArray[np.int64]  # [N] from 0 within the block
    run: NDArray[np.int32]  # [N]
    key: NDArray[np.int64]  # [A, 2] from, to of the first field; the ACC of sp|ACC|NAME
    bad: NDArray[np.int64]  # [B, 3] line, from, to of the first rows with a wrong number of columns
    rows: int  # all of them
    wrong: int  # those with a wrong number of columns
    other: int  # those whose first field is not in the table of wanted ones
    lines: int
    skip: bool  # whether the header line is still to come
    ended: bool  # CAFA: whether END was the last line that is not blank


class Block:
    """The rows of a block, as columns. `where`: the file, for messages."""

    def __init__(self, where: str, data: NDArray[np.uint8], cut: Cut, lines: int) -> None:
        self.where, self.data, self.cut = where, data, cut
        self.first_line = lines + 1

    def __len__(self) -> int:
        return len(self.cut.run)

    def keys(self) -> pa.DictionaryArray:
        """The first field of each row (accessions)."""
        runs = strings(self.data, self.cut.key)
        return pa.DictionaryArray.from_arrays(pa.array(runs.indices.to_numpy()[self.cut.run]), runs.dictionary)

    def spans(self, column: int) -> NDArray[np.int64]:
        return np.ascontiguousarray(self.cut.spans[:, column])

    def empty(self, column: int) -> NDArray[np.bool_]:
        return self.cut.spans[:, column, 0] == self.cut.spans[:, column, 1]

    def strings(self, column: int) -> pa.DictionaryArray:
        return strings(self.data, self.spans(column))

    def go(self, column: int) -> NDArray[np.int32]:
        """The numbers of GO ids, -1 for what is none."""
        return _go_ids(self.data, self.spans(column))

    def integers(self, column: int) -> NDArray[np.int64]:
        """Decimal numbers from 0 to 2,147,483,647, -1 for anything else."""
        return _integers(self.data, self.spans(column))

    def floats(self, column: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """(values, whether it is a number at all; NaN and infinities are)."""
        return floats(self.data, self.spans(column))

    def text(self, row: int) -> str:
        a, b = self.cut.extent[row]
        return _text(self.data, a, b)

    def at(self, row: int) -> str:
        """`FILE, line N`, for a message about a row."""
        return f"{self.where}, line {self.first_line + int(self.cut.line[row])}"

    def keep(self, report: TableReport, *reasons: tuple[str, NDArray[np.bool_]]) -> NDArray[np.bool_]:
        """The rows without a reason to reject them; the others are counted, each for its first reason."""
        left = np.ones(len(self), np.bool_)
        for reason, bad in reasons:
            now = np.flatnonzero(bad & left)
            if len(now):
                some = [(self.first_line + int(self.cut.line[i]), self.text(i)) for i in now[:MAX_PROBLEMS]]
                report.reject(reason, len(now), some)
                left[now] = False
        return left

    def refuse(self, what: str, bad: NDArray[np.bool_]) -> None:
        """InputError that names the first of the bad rows, if there is one."""
        if bad.any():
            row = int(np.argmax(bad))
            raise InputError(f"{self.at(row)}: {what}: {self.text(row)!r}")


def read_blocks(
    reader: HashingReader,
    report: TableReport,
    width: int,
    columns: tuple[int, int],
    *,
    separator: int = TAB,
    proteins: pa.Array | pa.ChunkedArray | None = None,
    header: bool = False,
    progress: Callable[[int], None] | None = None,
    block_size: int = BLOCK_SIZE,
) -> Iterator[Block]:
    """The blocks of a table whose rows have `columns` (fewest, most) columns, of which the first `width` are looked at.

    Lines that begin with # or ! are comments, blank ones nothing. Rows with another number of columns are rejected
    (`columns`) and, with `proteins` (strings), those whose first field is not among them counted and left out; of these
    nothing else is checked. `header`: the first line that is no comment is no
    row. At the end `report` has the rows and the sha256. InputError for a CAFA file without its END, and textio's.
    """
    offsets, words = bytes_of(proteins if proteins is not None else pa.array([], pa.string()))
    slots = gafscan.build_table(offsets, words)
    lines, skip, ended = 0, header, True
    for raw in blocks(reader, block_size):
        data = np.frombuffer(raw, np.uint8)
        cut = Cut(*_cut(data, width, *columns, separator, skip, proteins is not None, slots, offsets, words))
        ended = cut.ended if cut.rows or cut.ended else ended
        skip = cut.skip
        report.rows += cut.rows
        report.not_in_proteins += cut.other
        if cut.wrong:
            report.reject("columns", cut.wrong, [(lines + 1 + int(i), _text(data, a, b)) for i, a, b in cut.bad])
        yield Block(reader.name, data, cut, lines)
        lines += cut.lines
        if progress is not None:
            progress(reader.consumed)
    if separator == CAFA and not ended:
        raise InputError(f"{reader.name}: the last line is not END: the file is cut off", hint="fetch it again")
    report.sha256 = reader.sha256
    if not report.rows:
        raise InputError(f"{reader.name}: there is no row in it", hint="is it the right file, and whole?")


def peek(path: str | Path, n: int = 1000) -> list[str]:
    """The first lines of a text file, blank ones and comments left out; at most `n` of the first block."""
    from protea.core.textio import open_text

    with open_text(path) as reader:
        head = bytearray(1 << 18)
        size = reader.readinto(head)
    lines = bytes(head[:size]).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if size == len(head) and len(lines) > 1:
        lines.pop()
    if b"\0" in head[:size]:
        raise InputError(f"{path} is not a text file", hint="give one of the formats of the documentation")
    found = [line.decode("utf-8", "replace").rstrip("\r") for line in lines if line.strip() and line[:1] not in b"#!"]
    return found[:n]


def is_header(line: str, go: int, value: int) -> bool:
    """Whether a line names the columns: neither a GO id nor a number where they should be."""
    fields = line.split("\t") if "\t" in line else line.split()
    if len(fields) <= max(go, value) or fields[go].strip().startswith("GO:"):
        return False
    try:
        float(fields[value])
    except ValueError:
        return True
    return False


@contextlib.contextmanager
def rows_writer(out_dir: Path | None, schema: pa.Schema) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Gives what writes batches to `out_dir`/rows.parquet; without a directory nothing is written."""
    if out_dir is None:
        yield lambda batch: None
        return
    with fs.create(out_dir / "rows.parquet") as f:
        writer = pq.ParquetWriter(f, schema, compression="zstd")
        try:
            yield writer.write_batch
            writer.close()
        finally:
            writer.is_open = False  # else one that failed tries once more when it is freed, and says so


def _text(data: NDArray[np.uint8], a: int, b: int) -> str:
    return data[a : min(b, a + 320)].tobytes().decode("utf-8", "replace")[:80]


@njit(cache=True, nogil=True)
def _go_ids(data, spans):
    out = np.empty(len(spans), np.int32)
    for i in range(len(spans)):
        out[i] = go_number(data, spans[i, 0], spans[i, 1])
    return out


@njit(cache=True, nogil=True)
def _integers(data, spans):
    out = np.empty(len(spans), np.int64)
    for i in range(len(spans)):
        out[i] = decimal(data, spans[i, 0], spans[i, 1])
    return out


@njit(cache=True, nogil=True)
def _cut(data, width, low, high, separator, skip, restrict, slots, offsets, words):
    """One pass over a block of whole lines; see Cut, whose fields it returns."""
    room = 1
    for i in range(len(data)):
        room += data[i] == 10
    spans, extent = np.empty((room, width, 2), np.int64), np.empty((room, 2), np.int64)
    line, run, key = np.empty(room, np.int64), np.empty(room, np.int32), np.empty((room, 2), np.int64)
    bad = np.empty((MAX_PROBLEMS, 3), np.int64)
    n = n_runs = rows = wrong = other = lines = pos = 0
    last_a = last_b = 0  # the first field of the last row
    last_in, last_run, ended = not restrict, -1, False
    while pos < len(data):
        start = pos
        while pos < len(data) and data[pos] != 10:
            if data[pos] == 9 and separator == TAB:
                break
            pos += 1
        # `pos`: the end of the line, or of its first field
        fields, a, stop = 0, start, pos
        if data[start] == 35 or data[start] == 33:
            while pos < len(data) and data[pos] != 10:
                pos += 1
            stop = start
        elif separator == TAB:
            while True:
                if fields < width:
                    b = pos
                    if b > a and data[b - 1] == 13 and (pos == len(data) or data[pos] == 10):
                        b -= 1
                    spans[n, fields, 0], spans[n, fields, 1] = trim(data, a, b)
                fields += 1
                if pos == len(data) or data[pos] == 10:
                    break
                pos += 1
                a = pos
                while pos < len(data) and data[pos] != 9 and data[pos] != 10:
                    pos += 1
            stop = pos
        else:
            while a < stop:
                while a < stop and data[a] <= 32:
                    a += 1
                b = a
                while b < stop and data[b] > 32:
                    b += 1
                if b > a:
                    if fields < width:
                        spans[n, fields, 0], spans[n, fields, 1] = a, b
                    fields += 1
                a = b
        at = lines
        pos += 1
        lines += 1
        if stop > start and data[stop - 1] == 13:
            stop -= 1
        blank = True
        for i in range(start, stop):
            if data[i] > 32:
                blank = False
                break
        if blank:
            continue
        if separator == CAFA:
            keyword = False
            for w in _KEYWORDS:
                if same(data, spans[n, 0, 0], spans[n, 0, 1], w, 0, len(w)):
                    keyword = True
                    ended = w[1] == 78  # only END has an N there
            if keyword:
                continue
            ended = False
        if skip:
            skip = False
            continue
        rows += 1
        if fields < low or fields > high:
            if wrong < MAX_PROBLEMS:
                bad[wrong, 0], bad[wrong, 1], bad[wrong, 2] = at, start, stop
            wrong += 1
            continue
        for i in range(fields, width):
            spans[n, i, 0] = spans[n, i, 1] = stop
        a, b = bare_accession(data, spans[n, 0, 0], spans[n, 0, 1])
        if (n_runs == 0 and last_run < 0) or not same(data, a, b, data, last_a, last_b):
            last_a, last_b, last_run = a, b, -1
            last_in = not restrict or in_table(slots, offsets, words, data, a, b)
        if not last_in:
            other += 1
            continue
        if last_run < 0:
            last_run = n_runs
            key[n_runs, 0], key[n_runs, 1] = a, b
            n_runs += 1
        extent[n, 0], extent[n, 1], line[n], run[n] = start, stop, at, last_run
        n += 1
    return (
        spans[:n],
        extent[:n],
        line[:n],
        run[:n],
        key[:n_runs],
        bad[: min(wrong, MAX_PROBLEMS)],
        rows,
        wrong,
        other,
        lines,
        skip,
        ended,
    )
