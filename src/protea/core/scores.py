"""Scores of another predictor for (protein, GO id) pairs: Parquet, a table of text, or the CAFA prediction format.

Called by `ingest` and `protea inspect`; calls `delimited`. Memory does not grow with the file, but for the distinct
accessions. The file's rows are stored as they come; several for one pair are for the export to reduce.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from protea.core import delimited, fs, spans
from protea.core.delimited import TableReport
from protea.core.embeddings.readers import MAX_ID, PARQUET_DAMAGE, first_line, open_parquet, parquet_texts
from protea.core.textio import BLOCK_SIZE, open_text
from protea.errors import InputError

SCHEMA = pa.schema(
    [
        pa.field("accession", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("go", pa.int32(), nullable=False),  # the number of the id as the file gives it
        pa.field("score", pa.float64(), nullable=False),  # finite
    ]
)
_NAMES = {
    "accession": ("accession", "protein_accession", "protein", "protein_id", "target", "target_id", "entryid", "id"),
    "go_id": ("go_id", "go_term_id", "go", "go_term", "term", "term_id"),
    "score": ("score", "prediction", "probability", "confidence"),
}
_KEYWORDS = ("AUTHOR", "MODEL", "KEYWORDS", "ACCURACY")
_BATCH = 1 << 18


@dataclass
class ScoresReport(TableReport):
    """What a file of scores holds."""

    proteins: int = 0
    lowest: float | None = None
    highest: float | None = None
    about: dict[str, str] = field(default_factory=dict)  # CAFA: what AUTHOR, MODEL and KEYWORDS say


def read_scores(
    path: str | Path,
    out_dir: Path | None,
    progress: Callable[[int], None] | None = None,
    *,
    proteins: pa.Array | pa.ChunkedArray | None = None,
    block_size: int = BLOCK_SIZE,
) -> ScoresReport:
    """Read accession, GO id and score into `out_dir`/rows.parquet (SCHEMA); without a directory only report.

    The format is told by content: Parquet (columns `accession`, `go_id`, `score`, or common names for them); lines
    `AUTHOR` or `MODEL` first: CAFA; else three columns separated by tabs, or by blanks where there is no tab, with or
    without a header line. `proteins`: the only accessions to store (strings). Malformed rows are counted by reason
    (`columns`, `accession`, `go_id`, `score`); see `delimited.check_rejected`.
    Errors (InputError): a score that is NaN or infinite, by line (Parquet: row); no row; a CAFA file without its END;
    and those of textio.
    """
    report = ScoresReport(str(path))
    seen = spans.Distinct()
    with delimited.rows_writer(out_dir, SCHEMA) as write:

        def store(accession: pa.DictionaryArray, go: NDArray[np.int32], score: NDArray[np.float64]) -> None:
            if not len(go):
                return
            accession = spans.used(accession)
            seen.add(accession.dictionary)
            report.kept += len(go)
            low, high = float(score.min()), float(score.max())
            report.lowest = low if report.lowest is None else min(report.lowest, low)
            report.highest = high if report.highest is None else max(report.highest, high)
            write(pa.RecordBatch.from_arrays([accession, pa.array(go), pa.array(score)], schema=SCHEMA))

        if _is_parquet(path):
            _parquet(Path(path), report, proteins, store, progress)
        else:
            _text(path, report, proteins, store, progress, block_size)
    report.proteins = len(seen)
    return report


_Store = Callable[[pa.DictionaryArray, NDArray[np.int32], NDArray[np.float64]], None]


def _is_parquet(path: str | Path) -> bool:
    try:
        with open(path, "rb") as f:
            return f.read(4) == b"PAR1"
    except OSError:
        return False  # open_text says what is wrong


def _text(
    path: str | Path,
    report: ScoresReport,
    proteins: pa.Array | None,
    store: _Store,
    progress: Callable[[int], None] | None,
    block_size: int,
) -> None:
    head = delimited.peek(path)
    cafa = bool(head) and head[0].split()[0] in _KEYWORDS
    separator = delimited.CAFA if cafa else delimited.TAB if any("\t" in h for h in head) else delimited.BLANKS
    report.format = "cafa" if cafa else "text"
    if cafa:
        pairs = [line.split(None, 1) for line in head]
        report.about = {p[0].lower(): p[1].strip() for p in pairs[::-1] if p[0] in _KEYWORDS and len(p) > 1}
    with open_text(path) as reader:
        blocks = delimited.read_blocks(
            reader,
            report,
            3,
            (3, 3),
            separator=separator,
            proteins=proteins,
            header=bool(head) and not cafa and delimited.is_header(head[0], 1, 2),
            progress=progress,
            block_size=block_size,
        )
        for block in blocks:
            go = block.go(1)
            score, number = block.floats(2)
            good = block.keep(report, ("accession", block.empty(0)), ("go_id", go < 0), ("score", ~number))
            block.refuse("the score is not finite", good & ~np.isfinite(score))
            store(block.keys().filter(pa.array(good)), go[good], score[good])


def _parquet(
    path: Path,
    report: ScoresReport,
    proteins: pa.Array | None,
    store: _Store,
    progress: Callable[[int], None] | None,
) -> None:
    report.format = "parquet"
    wanted = proteins.cast(pa.string()) if proteins is not None else None
    size = path.stat().st_size
    with _readable(path):
        file = open_parquet(path)
        names = [_column(path, file.schema_arrow, key) for key in _NAMES]
    batches = parquet_texts(path, *names[:2], also=names[2:], rows=_BATCH)
    while True:
        with _readable(path):
            columns = next(batches, None)
            if columns is None:
                break
            columns[:2] = [_encoded(path, column) for column in columns[:2]]
        _batch(path, report, wanted, store, columns)
        if progress is not None:
            progress(size * report.rows // max(file.metadata.num_rows, 1))
    if not report.rows:
        raise InputError(f"{path}: there is no row in it", hint="is it the right file?")
    report.sha256 = fs.sha256_file(path)


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except PARQUET_DAMAGE as e:
        raise InputError(f"{path}: not a readable Parquet file, truncated or damaged: {first_line(e)}") from e


def _batch(path: Path, report: ScoresReport, wanted: pa.Array | None, store: _Store, columns: list[pa.Array]) -> None:
    """Check and store a batch of a Parquet file; its rows count from 1."""
    first = report.rows + 1
    report.rows += len(columns[0])
    names, ids = columns[:2]
    words = pc.replace_substring_regex(names.dictionary, r"^(?:sp|tr)\|([^|]*).*$", r"\1")
    accession = pa.DictionaryArray.from_arrays(names.indices, words)
    no_name = pc.fill_null(pc.equal(words.take(names.indices), ""), True).to_numpy(zero_copy_only=False)
    numbers = np.append(spans.go_numbers(ids.dictionary), np.int32(-1))
    go = numbers[pc.fill_null(ids.indices, len(numbers) - 1).to_numpy()]
    score = columns[2].cast(pa.float64())
    unknown = score.is_null().to_numpy(zero_copy_only=False)
    values = pc.fill_null(score, 0.0).to_numpy()
    good = np.ones(len(go), np.bool_)
    for reason, bad in (("accession", no_name), ("go_id", go < 0), ("score", unknown)):
        now = np.flatnonzero(good & bad)
        if len(now):
            some = [
                (first + int(i), "\t".join(str(c[int(i)].as_py()) for c in columns)[:80])
                for i in now[: delimited.MAX_PROBLEMS]
            ]
            report.reject(reason, len(now), some)
            good[now] = False
    if wanted is not None:
        ours = pc.is_in(words, value_set=wanted).to_numpy(zero_copy_only=False)
        other = good & ~np.append(ours, False)[pc.fill_null(names.indices, len(ours)).to_numpy()]
        report.not_in_proteins += int(np.count_nonzero(other))
        good &= ~other
    bad = np.flatnonzero(good & ~np.isfinite(values))
    if len(bad):
        i = int(bad[0])
        raise InputError(f"{path}, row {first + i}: the score of {columns[0][i]} for {columns[1][i]} is {values[i]}")
    store(accession.filter(pa.array(good)), go[good], values[good])


def _encoded(path: Path, column: pa.DictionaryArray) -> pa.DictionaryArray:
    """The same text, whose dictionary has strings without repeats."""
    if (longest := pc.max(pc.binary_length(column.dictionary)).as_py() or 0) > MAX_ID:
        raise InputError(f"{path}: an accession or a GO id of {longest:,} bytes")
    words = column.dictionary.cast(pa.binary()).cast(pa.string()).dictionary_encode()
    return pa.DictionaryArray.from_arrays(words.indices.take(column.indices), words.dictionary)


def _column(path: Path, schema: pa.Schema, key: str) -> str:
    """The name of the column that holds `key`."""
    for known in _NAMES[key]:
        found = [name for name in schema.names if name.lower() == known]
        if len(found) == 1:
            kind = schema.field(found[0]).type
            value = kind.value_type if pa.types.is_dictionary(kind) else kind
            number = pa.types.is_floating(value) or pa.types.is_integer(value)
            text = pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_string_view(value)
            if number if key == "score" else text:
                return found[0]
            what = "a number" if key == "score" else "text"
            raise InputError(f"{path}: the column {found[0]} is {kind}, not {what}")
    raise InputError(f"{path}: no column {key} (there is: {', '.join(schema.names[:20])})", hint=f"name it {key!r}")
