"""GO terms of proteins from InterPro matches, three formats, as rows of (protein, GO id) with what supports them.

Called by `ingest` and `protea inspect`; calls `delimited`. Contract section 16. The formats are told by content:

table        accession, GO id, score, member databases separated by `|`, number of signatures. Stored as it comes.
interproscan InterProScan 5 or 6, TSV with GO terms. A row a (protein, GO id): the distinct signatures (column 5) whose
             rows give the id (column 14) are counted, their member databases (column 4) united; the score is the best
             -log10(e-value) (column 9, held to 0..300), 1 when none has one: ProSite and HAMAP have none there, but a
             score of their own. Rows without a GO id are counted as `no_go`.
protein2ipr  UniProt's protein2ipr.dat with `interpro2go`: the same, where a signature gives the GO ids of its InterPro
             entry. The database is known by the signature's name; the score is 1.

Memory: a block of the file, and about 40 bytes a distinct (protein, GO id, signature); `proteins` keeps that small.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from protea.core import delimited, spans
from protea.core.arrays import csr_gather, csr_pointers
from protea.core.delimited import Block, TableReport
from protea.core.gafscan import go_number, trim
from protea.core.schema import INTERPRO_DATABASES
from protea.core.textio import BLOCK_SIZE, open_text
from protea.errors import ConfigError, InputError

SCHEMA = pa.schema(
    [
        pa.field("accession", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("go", pa.int32(), nullable=False),  # the number of the id as the file gives it
        pa.field("score", pa.float64(), nullable=False),  # finite
        pa.field("databases", pa.uint8(), nullable=False),  # bit i: INTERPRO_DATABASES[i]
        pa.field("signatures", pa.int32(), nullable=False),
    ]
)
LIMIT = 200_000_000
"""Distinct (protein, GO id, signature) that are held in memory at most."""

_WITHOUT_E_VALUE = ("prosite", "hamap")
_BEST = 300.0
_SIGNATURE = re.compile(r"(PF[0-9])|(PTHR)|(SSF[0-9])|(SM[0-9])|(cd[0-9])|(PS[0-9])")
_ENTRY = re.compile(r"IPR[0-9]{6}")
_MAPPING = re.compile(r"InterPro:IPR([0-9]{6})\b.*;\s*GO:([0-9]{7})\s*")


@dataclass
class InterProReport(TableReport):
    """What an InterPro table holds. `kept` counts rows of the file, `stored` those of the table made of them."""

    stored: int = 0
    proteins: int = 0
    databases: dict[str, int] = field(default_factory=dict)  # stored rows that each of INTERPRO_DATABASES supports
    entries: int | None = None  # of interpro2go: InterPro entries, and (entry, GO id) pairs
    mappings: int | None = None
    files: dict[str, str] = field(default_factory=dict)  # protein2ipr: sha256 of each; `sha256` is over both


def read_interpro(
    path: str | Path,
    out_dir: Path | None,
    progress: Callable[[int], None] | None = None,
    *,
    interpro2go: str | Path | None = None,
    proteins: pa.Array | pa.ChunkedArray | None = None,
    block_size: int = BLOCK_SIZE,
) -> InterProReport:
    """Read a file of one of the formats above into `out_dir`/rows.parquet (SCHEMA); without a directory only report.

    `proteins`: the only accessions to store (strings). Malformed rows are counted by reason (`columns`, `accession`,
    `go_id`, `score`, `signatures` or `signature`, `entry`); see `delimited.check_rejected`.
    Errors: InputError for a format that is not known, InterProScan's without GO terms, a score that is not finite (with
    the line), too many rows for memory, no row, and textio's; ConfigError for a missing or needless `interpro2go`.
    """
    report = InterProReport(str(path))
    head = delimited.peek(path)
    report.format = _format(path, head)
    if (report.format == "protein2ipr") != (interpro2go is not None):
        if interpro2go is None:
            raise ConfigError(f"{path} is protein2ipr, which has no GO ids", hint="give --interpro2go FILE too")
        raise ConfigError(f"{path} is {report.format}, which has GO ids of its own", hint="leave out --interpro2go")
    entry_ptr, entry_go = _mapping(interpro2go, report) if interpro2go is not None else (None, None)
    width, columns = {"table": (5, (5, 5)), "interproscan": (14, (11, 15)), "protein2ipr": (4, (6, 6))}[report.format]
    groups, seen = _Groups(str(path)), spans.Distinct()
    with delimited.rows_writer(out_dir, SCHEMA) as write, open_text(path) as reader:

        def store(batch: pa.RecordBatch) -> None:
            seen.add(spans.used(batch.column(0)).dictionary)
            report.stored += len(batch)
            bits = batch.column(3).to_numpy()
            for i, name in enumerate(INTERPRO_DATABASES):
                report.databases[name] = report.databases.get(name, 0) + int(np.count_nonzero(bits >> i & 1))
            write(batch)

        header = report.format == "table" and delimited.is_header(head[0], 1, 2)
        for block in delimited.read_blocks(
            reader, report, width, columns, proteins=proteins, header=header, progress=progress, block_size=block_size
        ):
            if not len(block):
                continue
            if report.format == "table":
                _table(block, report, store)
            elif report.format == "interproscan":
                _interproscan(block, report, groups)
            else:
                _protein2ipr(block, report, groups, entry_ptr, entry_go)
        for batch in groups.finish():
            store(batch)
    if report.files:
        report.files = {"protein2ipr": report.sha256, **report.files}
        report.sha256 = hashlib.sha256("\n".join(report.files.values()).encode()).hexdigest()
    report.proteins = len(seen)
    return report


def _format(path: str | Path, head: Sequence[str]) -> str:
    """What most of the first lines look like."""
    votes = {"table": 0, "interproscan": 0, "protein2ipr": 0}
    longest = 0
    for line in head:
        fields = line.split("\t")
        if len(fields) >= 11 and fields[2].isdigit() and fields[6].isdigit():
            votes["interproscan"] += 1
            longest = max(longest, len(fields))
        elif len(fields) == 6 and _ENTRY.fullmatch(fields[1]):
            votes["protein2ipr"] += 1
        elif len(fields) == 5 and fields[1].startswith("GO:"):
            votes["table"] += 1
    found = max(votes, key=lambda f: votes[f])
    if not votes[found]:
        raise InputError(
            f"{path} is no InterPro table of a known format",
            hint="give accession, GO id, score, databases, signatures; InterProScan's TSV; or protein2ipr",
        )
    if found == "interproscan" and len(head) < 1000 and longest < 14:
        raise InputError(f"{path} has no GO terms (column 14)", hint="run InterProScan with -goterms")
    return found


def _mapping(path: str | Path, report: InterProReport) -> tuple[np.ndarray, np.ndarray]:
    """interpro2go as (ptr int64[largest entry + 2], GO numbers int32), those of entry i from ptr[i] on."""
    pairs, malformed, n, at = set(), 0, 0, ""
    with open_text(path) as reader:
        data = reader.read()
        report.files = {"interpro2go": reader.sha256}
    for at_line, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        if not line.strip() or line.startswith("!"):
            continue
        n += 1
        if match := _MAPPING.fullmatch(line):
            pairs.add((int(match[1]), int(match[2])))
        else:
            malformed += 1
            at = at or f"line {at_line}: {line[:80]!r}"
    if malformed > delimited.MAX_REJECTED * n or not pairs:
        raise InputError(
            f"{path}: {malformed} of {n} lines are not `InterPro:IPR... > GO:... ; GO:...`" + (f"; {at}" if at else ""),
            hint="give InterPro's interpro2go",
        )
    rows = np.array(sorted(pairs), np.int64)
    report.entries, report.mappings = len(np.unique(rows[:, 0])), len(rows)
    return csr_pointers(rows[:, 0], int(rows[-1, 0]) + 1), rows[:, 1].astype(np.int32)


def _table(block: Block, report: InterProReport, store: Callable[[pa.RecordBatch], None]) -> None:
    go, signatures = block.go(1), block.integers(4)
    score, number = block.floats(2)
    good = block.keep(
        report,
        ("accession", block.empty(0)),
        ("go_id", go < 0),
        ("score", ~number),
        ("signatures", signatures < 0),
    )
    block.refuse("the score is not finite", good & ~np.isfinite(score))
    report.kept += int(np.count_nonzero(good))
    cells = block.strings(3)
    bits = np.array([_bits(cell.split("|")) for cell in cells.dictionary.to_pylist()], np.uint8)
    columns = [
        block.keys().filter(pa.array(good)),
        pa.array(go[good]),
        pa.array(score[good]),
        pa.array(bits[cells.indices.to_numpy()][good]),
        pa.array(signatures[good].astype(np.int32)),
    ]
    store(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))


def _bits(names: Sequence[str]) -> int:
    """The mask of member databases, known without case by how their names begin."""
    lower = [name.strip().lower() for name in names]
    return sum(
        1 << i for i, database in enumerate(INTERPRO_DATABASES) if any(name.startswith(database) for name in lower)
    )


def _interproscan(block: Block, report: InterProReport, groups: "_Groups") -> None:
    row, go, malformed = _go_cells(block.data, block.spans(13))
    analysis = block.strings(3)
    names = analysis.dictionary.to_pylist()
    bits = np.array([_bits([name]) for name in names], np.uint8)[analysis.indices.to_numpy()]
    graded = np.array([not name.lower().startswith(_WITHOUT_E_VALUE) for name in names])[analysis.indices.to_numpy()]
    graded &= ~_dash(block, 8)
    e_value, number = block.floats(8)
    good = block.keep(
        report,
        ("accession", block.empty(0)),
        ("signature", block.empty(4)),
        ("go_id", malformed),
        ("score", graded & ~(number & (e_value >= 0) | np.isnan(e_value))),
    )
    block.refuse("the e-value is not finite", good & graded & ~np.isfinite(e_value))
    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.where(graded, np.clip(-np.log10(np.where(graded, e_value, 1.0)), 0.0, _BEST), -1.0)
    _count(report, good, row)
    row, go = row[good[row]], go[good[row]]
    groups.add(block.keys(), block.strings(4), row, go, bits[row], score[row])


def _dash(block: Block, column: int) -> np.ndarray:
    """Whether there is nothing, or a `-` that stands for nothing."""
    a, b = block.cut.spans[:, column].T
    return (b == a) | ((b == a + 1) & (block.data[np.minimum(a, len(block.data) - 1)] == ord("-")))


def _protein2ipr(block: Block, report: InterProReport, groups: "_Groups", ptr: Any, mapped: Any) -> None:
    entry = _entries(block.data, block.spans(1))
    good = block.keep(report, ("accession", block.empty(0)), ("entry", entry < 0), ("signature", block.empty(3)))
    row, go = csr_gather(ptr, mapped, np.where(good & (entry < len(ptr) - 1), entry, 0))  # no entry has the number 0
    _count(report, good, row)
    signature = block.strings(3)
    bits = np.array([_bits_of_signature(name) for name in signature.dictionary.to_pylist()], np.uint8)
    row_bits = bits[signature.indices.to_numpy()[row]]
    groups.add(block.keys(), signature, row, go, row_bits, np.full(len(row), -1.0))


def _bits_of_signature(name: str) -> int:
    match = _SIGNATURE.match(name)
    return 1 << match.lastindex - 1 if match and match.lastindex else 0


def _count(report: InterProReport, good: np.ndarray, row: np.ndarray) -> None:
    """Count the good rows: those with a GO id (`row` has them, once an id) as kept."""
    with_go = np.zeros(len(good), np.bool_)
    with_go[row] = True
    report.kept += int(np.count_nonzero(good & with_go))
    if n := int(np.count_nonzero(good & ~with_go)):
        report.filtered["no_go"] = report.filtered.get("no_go", 0) + n


class _Groups:
    """Collects (protein, GO id, signature) and makes rows of (protein, GO id), by first appearance and GO id."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.size = 0
        self.parts: list[tuple[pa.DictionaryArray, np.ndarray, pa.DictionaryArray, np.ndarray, np.ndarray]] = []

    def add(
        self,
        accession: pa.DictionaryArray,
        signature: pa.DictionaryArray,
        row: np.ndarray,
        go: np.ndarray,
        bits: np.ndarray,
        score: np.ndarray,
    ) -> None:
        """`accession` and `signature` of all rows of a block; its row, GO id, databases and score (-1: none) of each
        pair. Domains that a protein has several times are one already here."""
        if not len(row):
            return
        codes = (accession.indices.to_numpy()[row], go, signature.indices.to_numpy()[row])
        (proteins, terms, signatures), bits, score = _fold(codes, bits, score)
        self.size += len(terms)
        if self.size > LIMIT:
            raise InputError(
                f"{self.where} gives more than {LIMIT:,} GO ids by signature and protein, too many to hold",
                hint="restrict it to the proteins of a loaded set: --proteins NAME",
            )
        columns = (
            spans.used(pa.DictionaryArray.from_arrays(pa.array(codes), words.dictionary))
            for codes, words in ((proteins, accession), (signatures, signature))
        )
        first, second = columns
        self.parts.append((first, terms.astype(np.int32), second, bits, score.astype(np.float64)))

    def finish(self) -> list[pa.RecordBatch]:
        """The rows, in batches of SCHEMA; at most one is without any."""
        if not self.parts:
            return []
        proteins = pa.chunked_array([p[0] for p in self.parts]).unify_dictionaries()
        signatures = pa.chunked_array([p[2] for p in self.parts]).unify_dictionaries()
        keys = (
            np.concatenate([c.indices.to_numpy() for c in proteins.chunks]),
            np.concatenate([p[1] for p in self.parts]),
            np.concatenate([c.indices.to_numpy() for c in signatures.chunks]),
        )
        bits, score = (np.concatenate([p[i] for p in self.parts]) for i in (3, 4))
        names = proteins.chunk(0).dictionary
        self.parts = []
        (protein, go, _), bits, score = _fold(keys, bits, score)
        starts = _starts(protein, go)
        score = np.maximum.reduceat(score, starts)
        columns = [
            pa.DictionaryArray.from_arrays(pa.array(protein[starts]), names),
            pa.array(go[starts]),
            pa.array(np.where(score < 0, 1.0, score)),
            pa.array(np.bitwise_or.reduceat(bits, starts)),
            pa.array(np.diff(np.append(starts, len(go))).astype(np.int32)),
        ]
        return pa.Table.from_arrays(columns, schema=SCHEMA).to_batches(1 << 20)


def _fold(
    keys: tuple[np.ndarray, ...], bits: np.ndarray, score: np.ndarray
) -> tuple[tuple[np.ndarray, ...], np.ndarray, np.ndarray]:
    """Sorted by the keys, each once, with all its databases and its best score."""
    order = np.lexsort(keys[::-1])
    keys = tuple(key[order] for key in keys)
    starts = _starts(*keys)
    folded = np.bitwise_or.reduceat(bits[order], starts), np.maximum.reduceat(score[order], starts)
    return tuple(key[starts] for key in keys), *folded


def _starts(*keys: np.ndarray) -> np.ndarray:
    """Where runs of equal keys begin."""
    new = np.zeros(len(keys[0]), np.bool_)
    new[:1] = True
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(new)


@njit(cache=True, nogil=True)
def _entries(data, cells):
    """The N of IPRN, six digits, else -1."""
    out = np.full(len(cells), -1, np.int64)
    for i in range(len(cells)):
        a, b = cells[i]
        if b - a == 9 and data[a] == 73 and data[a + 1] == 80 and data[a + 2] == 82:
            n = np.int64(0)
            for j in range(a + 3, b):
                digit = np.int64(data[j]) - 48
                if digit < 0 or digit > 9:
                    n = np.int64(0)
                    break
                n = n * 10 + digit
            out[i] = n if n else -1
    return out


@njit(cache=True, nogil=True)
def _go_cells(data, cells):
    """Cells like GO:0003677(InterPro)|GO:0005634(PANTHER) as (row int64, GO number int32) of each id, and which cells
    are malformed bool; blank and `-` hold none."""
    room = 0
    for i in range(len(cells)):
        room += (cells[i, 1] - cells[i, 0]) // 10
    row, go, malformed = np.empty(room, np.int64), np.empty(room, np.int32), np.zeros(len(cells), np.bool_)
    n = 0
    for i in range(len(cells)):
        a, stop = cells[i]
        if _is_dash(data, a, stop):
            continue
        while a < stop:
            end = a
            while end < stop and data[end] != 124:
                end += 1
            x, y = trim(data, a, end)
            a = end + 1
            if y - x > 10 and data[x + 10] == 40 and data[y - 1] == 41:
                y = x + 10
            number = go_number(data, x, y)
            if number < 0:
                malformed[i] = True
            else:
                row[n], go[n] = i, number
                n += 1
    return row[:n], go[:n], malformed


@njit(cache=True, nogil=True)
def _is_dash(data, a, b):
    return b == a + 1 and data[a] == 45
