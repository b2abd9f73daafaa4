"""GAF files (Gene Ontology annotation, 2.0 to 2.2) as Arrow batches and an account of what they hold.

Called by `ingest` and by `protea inspect`; calls `core.textio` for the bytes, `core.gafscan` for the
rows and `core.spans` for strings. Memory
does not grow with the file, but for the distinct accessions that are kept.
"""

import datetime
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from protea.core import gafscan, textio
from protea.core.evidence import CODES, ND, group
from protea.core.spans import Distinct, bytes_of, strings
from protea.errors import InputError

SCHEMA = pa.schema(
    [
        pa.field("accession", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("go", pa.int32(), nullable=False),  # the number of the id as the file gives it: 5515 for GO:0005515
        pa.field("evidence", pa.int8(), nullable=False),  # index in evidence.CODES; evidence.ND for ND
        pa.field("qualifier", pa.dictionary(pa.int32(), pa.string()), nullable=False),  # "": the aspect's default
        pa.field("negated", pa.bool_(), nullable=False),
        pa.field("isoform", pa.bool_(), nullable=False),  # column 17 names an isoform or a chain
        pa.field("date", pa.date32(), nullable=False),
        pa.field("taxon", pa.int32()),
    ]
)

_GROUPS = ("experimental", "curated", "electronic")
_CODES_OF_GROUP = {g: [i for i, code in enumerate(CODES) if group(code) == g] for g in _GROUPS}
_HEADERS = {
    "gaf_version": re.compile(rb"!\s*gaf[-_ ]?version\s*:\s*(.*\S)", re.I),
    "go_version": re.compile(rb"!\s*go[-_ ]?version\s*:\s*(.*\S)", re.I),
}
_SURE = 1 << 20  # bytes of rows without one that looks like GAF, after which the rest of the file is not looked at


@dataclass
class GafReport:
    """What a GAF holds. Counts are rows unless said otherwise. `rows` = the malformed (`rejected`) + the well-formed
    that are not for us (`filtered` and `not_in_proteins`) + `kept`; the stored rows are `kept` and the `no_data`."""

    file: str
    rows: int = 0
    kept: int = 0
    negated: int = 0  # of the kept
    proteins: int = 0  # distinct accessions of stored rows
    rejected: dict[str, int] = field(default_factory=dict)
    filtered: dict[str, int] = field(default_factory=dict)
    not_in_proteins: int = 0
    other_database_by_date: dict[str, int] = field(default_factory=dict)
    not_in_proteins_by_date: dict[str, int] = field(default_factory=dict)
    evidence_groups: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_GROUPS, 0))  # of the kept
    gaf_version: str | None = None
    go_version: str | None = None
    first_date: str | None = None  # of the kept
    last_date: str | None = None
    sha256: str = ""  # of the uncompressed bytes
    problems: list[tuple[int, str, str]] = field(default_factory=list)  # line, reason, text: the first 100 malformed
    taxa: dict[str, int | None] | None = None  # accession to its first taxon; only with `detail`

    @property
    def stored(self) -> int:
        """Rows given to the sink: those kept, and the ND rows."""
        return self.kept + self.filtered.get("no_data", 0)

    @property
    def malformed(self) -> int:
        return sum(self.rejected.values())

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values, without the file's name; `taxa` only when it was asked for."""
        out = asdict(self)
        out["problem_lines"] = [line for line, _, _ in self.problems]
        del out["file"]
        if self.taxa is None:
            del out["taxa"]
        return out


def read_gaf(
    path: str | Path,
    *,
    databases: Sequence[str] = ("UniProtKB",),
    proteins: pa.Array | None = None,
    sink: Callable[[pa.RecordBatch], None] | None = None,
    progress: Callable[[int], None] | None = None,
    detail: bool = False,
    block_size: int = textio.BLOCK_SIZE,
) -> GafReport:
    """Read a GAF, plain or gzipped, and report on it; `inspect` and loading read alike.

    `databases`: the accepted values of column 1. `proteins`: the only accessions to store (strings). `sink` gets one
    batch of SCHEMA per block, with the well-formed rows of accepted databases (and proteins), ND and NOT included, in
    file order. `progress` gets the compressed bytes read so far. `detail` fills `taxa`, which costs memory.
    Errors: NotFoundError, and InputError as textio's or when the file is not a GAF or has no row at all; malformed
    rows are only counted (see `check_rejected`).
    """
    report = GafReport(str(path), taxa={} if detail else None)
    accepted = [d.encode(errors="surrogateescape") for d in databases]  # the shell's bytes
    names = np.frombuffer(b"".join(accepted), np.uint8)
    ends = np.cumsum([len(d) for d in accepted], dtype=np.int64)
    offsets, words = bytes_of(proteins if proteins is not None else pa.array([], pa.string()))
    slots = gafscan.build_table(offsets, words)
    counts = np.zeros(gafscan.N_COUNTS, np.int64)
    distinct, dropped = Distinct(), (Counter[int](), Counter[int]())
    lines = seen = 0
    with textio.open_text(path) as reader:
        for block in textio.blocks(reader, block_size, reuse=True):
            data = np.frombuffer(block, np.uint8)
            found = gafscan.scan(data, names, ends, proteins is not None, slots, offsets, words)
            counts += found.counts
            _note(report, block, found, lines)
            lines += found.lines
            for why, by_day in zip((gafscan.OTHER_DATABASE, gafscan.NOT_IN_PROTEINS), dropped, strict=True):
                days, n = np.unique(found.dropped_date[found.dropped_why == why], return_counts=True)
                by_day.update(dict(zip(days.tolist(), n.tolist(), strict=True)))
            if len(found.go):
                batch = _batch(data, found)
                distinct.add(batch.column("accession").dictionary)
                _count(report, found)
                if report.taxa is not None:
                    _add_taxa(report.taxa, batch)
                if sink is not None:
                    sink(batch)
            if progress is not None:
                progress(reader.consumed)
            seen += len(data)
            if seen >= _SURE and counts[gafscan.ROWS] and not counts[gafscan.SHAPED]:
                break
        report.sha256 = reader.sha256
    if not counts[gafscan.ROWS]:
        raise InputError(f"{path}: no annotation in it, not one row", hint="is it the right file, and whole?")
    if not counts[gafscan.SHAPED]:
        raise InputError(f"{path} is not a GAF: no row has 15 to 17 columns with a GO id in the fifth")
    report.rows = int(counts[gafscan.ROWS])
    report.proteins = len(distinct)
    report.rejected = {r: int(n) for r, n in zip(gafscan.REASONS, counts, strict=False) if n}
    report.not_in_proteins = int(counts[gafscan.NOT_IN_PROTEINS])
    if counts[gafscan.OTHER_DATABASE]:
        report.filtered["other_database"] = int(counts[gafscan.OTHER_DATABASE])
    report.other_database_by_date, report.not_in_proteins_by_date = (
        {_iso(day): by_day[day] for day in sorted(by_day)} for by_day in dropped
    )
    return report


def check_rejected(report: GafReport, max_rejected: float = 0.01) -> None:
    """What loading asks beyond reading. Errors: InputError when more than the share `max_rejected` (0 to 1) of the
    rows is malformed, naming the first, or when no row is left to store."""
    if report.malformed / report.rows > max_rejected:
        line, reason, text = report.problems[0]
        raise InputError(
            f"{report.file}: {report.malformed} of {report.rows} rows are malformed, more than {max_rejected:.4g} of "
            f"them; the first is line {line} ({reason}): {text!r}",
            hint="repair the file, or allow more with --max-rejected",
        )
    if not report.stored:
        dropped = {**report.rejected, **report.filtered, "not_in_proteins": report.not_in_proteins}
        why = ", ".join(f"{n} {reason}" for reason, n in dropped.items() if n)
        raise InputError(
            f"{report.file}: no annotation is left of {report.rows} rows ({why})", hint="see --databases and --proteins"
        )


def _batch(data: NDArray[np.uint8], found: gafscan.Scan) -> pa.RecordBatch:
    """The stored rows of a block as a batch of SCHEMA."""
    runs = strings(data, found.accession)
    accession = pa.DictionaryArray.from_arrays(pa.array(runs.indices.to_numpy()[found.run]), runs.dictionary)
    # Nearly all rows have the default: only the others are made into strings.
    other = np.flatnonzero(found.qualifier[:, 1] > found.qualifier[:, 0])
    words = strings(data, found.qualifier[other])
    lower = pc.ascii_lower(words.dictionary).dictionary_encode()
    codes = np.zeros(len(found.go), np.int32)
    codes[other] = 1 + lower.indices.to_numpy()[words.indices.to_numpy()]
    values = pa.concat_arrays([pa.array([""]), lower.dictionary])
    columns = [
        accession,
        pa.array(found.go),
        pa.array(found.evidence),
        pa.DictionaryArray.from_arrays(pa.array(codes), values),
        pa.array(found.negated),
        pa.array(found.isoform),
        pa.array(found.date).cast(pa.date32()),
        pa.array(found.taxon, mask=found.taxon == 0),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _note(report: GafReport, block: memoryview, found: gafscan.Scan, lines: int) -> None:
    """Take the versions from the header lines, and the first malformed rows with their line numbers."""
    for a, b in found.comments:
        for key, pattern in _HEADERS.items():
            if getattr(report, key) is None and (match := pattern.match(bytes(block[a:b]))):
                setattr(report, key, match[1].decode("utf-8", "replace"))
    for line, reason, a, b in found.problems[: gafscan.MAX_PROBLEMS - len(report.problems)].tolist():
        text = bytes(block[a : min(b, a + 320)]).decode("utf-8", "replace")[:80]
        report.problems.append((lines + line + 1, gafscan.REASONS[reason], text))


def _count(report: GafReport, found: gafscan.Scan) -> None:
    usable = found.evidence != ND
    kept = int(np.count_nonzero(usable))
    if no_data := len(usable) - kept:
        report.filtered["no_data"] = report.filtered.get("no_data", 0) + no_data
    if not kept:
        return
    report.kept += kept
    report.negated += int(np.count_nonzero(found.negated & usable))
    by_code = np.bincount(found.evidence[usable], minlength=ND)
    for name, codes in _CODES_OF_GROUP.items():
        report.evidence_groups[name] += int(by_code[codes].sum())
    dates = found.date[usable]
    first, last = _iso(dates.min()), _iso(dates.max())
    report.first_date = min(report.first_date or first, first)
    report.last_date = max(report.last_date or last, last)


def _add_taxa(taxa: dict[str, int | None], batch: pa.RecordBatch) -> None:
    codes, taxon = batch.column("accession").indices.to_numpy(), batch.column("taxon").fill_null(0).to_numpy()
    rows = np.flatnonzero(taxon)
    first = np.zeros(len(batch.column("accession").dictionary), np.int32)
    named, where = np.unique(codes[rows], return_index=True)
    first[named] = taxon[rows[where]]
    for accession, value in zip(batch.column("accession").dictionary.to_pylist(), first.tolist(), strict=True):
        taxa[accession] = taxa.get(accession) or value or None


def _iso(day: int) -> str:
    return datetime.date.fromordinal(int(day) + 719163).isoformat()
