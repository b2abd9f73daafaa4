"""Protein sequences (FASTA) as an Arrow table sorted by accession.

Called by ingest and inspect; calls textio. Records are parsed in bulk, by one compiled pass over blocks of whole
records: the FASTA libraries make Python objects of every record, hash nothing, and let empty sequences and any
character pass, so that each record would be checked a second time.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from protea.core import limits
from protea.core.textio import HashingReader, blocks, open_text
from protea.errors import InputError

SCHEMA = pa.schema(
    [
        pa.field("accession", pa.string(), nullable=False),
        pa.field("taxon", pa.int32()),
        pa.field("length", pa.int32(), nullable=False),
        pa.field("sequence", pa.large_string(), nullable=False),
    ]
)
"""Sorted by the bytes of the accession. Sequences are upper case, without gaps and final stops; length in residues."""

# What becomes of a byte of a sequence line: one of these, or the residue it stands for.
_BAD, _SKIP, _GAP = 0, 1, 2
_LETTER = np.zeros(256, np.uint8)
_LETTER[list(b" \t\r\n\v\f")] = _SKIP
_LETTER[ord("-")] = _GAP
_LETTER[ord("*")] = ord("*")
for _upper in range(ord("A"), ord("Z") + 1):
    _LETTER[[_upper, _upper + 32]] = _upper

_NO_HEADER, _NO_ACCESSION, _BAD_ACCESSION, _BAD_LETTER = 1, 2, 3, 4
_NL, _SPACE, _HEADER, _PIPE, _STAR = 10, 32, ord(">"), ord("|"), ord("*")


@dataclass
class FastaReport:
    """What a FASTA file holds (keys of `inspect proteins`)."""

    sha256: str
    sequences: int  # distinct accessions
    duplicates: int  # records of an accession that was there already, with the same sequence
    residues: int  # over the distinct accessions
    with_taxon: int
    gaps: int  # '-' dropped: a gap is no residue

    def to_json(self, detail: pa.Table | None = None) -> dict:
        """The report; with the table also `accessions` and, by accession, `taxa` and `lengths`."""
        report = asdict(self)
        if detail is not None:
            names = detail["accession"].to_pylist()
            report |= {
                "accessions": names,
                "taxa": dict(zip(names, detail["taxon"].to_pylist(), strict=True)),
                "lengths": dict(zip(names, detail["length"].to_pylist(), strict=True)),
            }
        return report


def read_fasta(path: str | Path, progress: Callable[[int], None] | None = None) -> tuple[pa.Table, FastaReport]:
    """Read a FASTA file, plain or gzipped, into a table of SCHEMA; `progress` is given the compressed bytes read.

    The accession is ACC of `>sp|ACC|NAME` and `>tr|ACC|NAME`, else the first word of the header; the taxon is the
    header's `OX=`. The same accession with the same sequence counts once (with the first taxon that one of them gives).
    Memory: about twice the result. Errors (InputError with accession and line): no header, an empty accession or
    sequence, a character that is no residue, one accession with two sequences; and those of textio.
    """
    chunks: list[_Chunk] = []
    with open_text(path) as reader:
        for data, line in _whole_records(reader, progress):
            chunks.append(_parse(path, data, line))
        sha256 = reader.sha256
    gaps, records = sum(c.gaps for c in chunks), sum(len(c.taxon) for c in chunks)
    if not records:
        raise InputError(f"{path}: no sequence in it", hint="give a FASTA file")
    table = _sorted(path, chunks)
    report = FastaReport(
        sha256=sha256,
        sequences=len(table),
        duplicates=records - len(table),
        residues=int(pc.sum(pc.cast(table["length"], pa.int64())).as_py()),
        with_taxon=len(table) - table["taxon"].null_count,
        gaps=gaps,
    )
    return table, report


class _Chunk(NamedTuple):
    """The n records of some blocks, in file order."""

    residues: np.ndarray  # uint8
    starts: np.ndarray  # int64[n + 1] into residues
    names: pa.Array  # string[n]
    taxon: np.ndarray  # int32[n], -1 where the header gives none
    lines: np.ndarray  # int64[n], of the headers
    gaps: int


def _whole_records(reader: HashingReader, progress: Callable[[int], None] | None) -> Iterator[tuple[np.ndarray, int]]:
    """(bytes uint8 that hold whole records, number of their first line)."""
    parts: list[memoryview] = []
    line = 1
    for block in blocks(reader):
        fasta = parts or bytes(block[:4096]).lstrip()[:1] in (b">", b"")
        cut = _last_header(block) if fasta else len(block)  # what is no FASTA file is found out at once
        if cut > 0 or (cut == 0 and parts):
            whole = np.frombuffer(b"".join([*parts, block[:cut]]), np.uint8)
            parts = [block[cut:]]
            yield whole, line
            line += int(np.count_nonzero(whole == 10))
        else:
            parts.append(block)
            if sum(map(len, parts)) > limits.MAX_RECORD:
                raise InputError(
                    f"{reader.name}, line {line}: a record longer than {limits.MAX_RECORD:,} bytes",
                    hint="is it a protein?",
                )
        if progress:
            progress(reader.consumed)
    yield np.frombuffer(b"".join(parts), np.uint8), line


def _last_header(block: memoryview) -> int:
    """Where the last line of a block that begins with `>` begins; -1 when there is none."""
    for size in (1 << 16, len(block)):  # it is nearly always close to the end
        tail = max(0, len(block) - size)
        at = bytes(block[tail:]).rfind(b"\n>")
        if at >= 0:
            return tail + at + 1
    return 0 if block[0] == ord(">") else -1


def _parse(path: str | Path, data: np.ndarray, line: int) -> _Chunk:
    n = int(np.count_nonzero(data == _HEADER))
    error, where, at, residues, starts, names, name_starts, taxon, lines, gaps = _kernel(data, n, line, _LETTER)
    n = len(taxon)

    def name(record: int) -> str:
        return names[name_starts[record] : name_starts[record + 1]].tobytes().decode("latin-1")

    def line_of(position: int) -> str:
        return data[position : position + 40].tobytes().decode("latin-1").split("\n")[0].rstrip()

    if error == _NO_HEADER:
        raise InputError(f"{path}, line {where}: {line_of(at)!r} comes before any header", hint="give a FASTA file")
    if error == _NO_ACCESSION:
        raise InputError(f"{path}, line {where}: {line_of(at)!r} has no accession")
    if error == _BAD_ACCESSION:
        raise InputError(f"{path}, line {where}: the accession {name(n - 1)!r} is not printable ASCII")
    if error == _BAD_LETTER:
        raise InputError(f"{path}, line {where}: the sequence of {name(n - 1)} holds {chr(data[at])!r}: no residue")
    if len(empty := np.flatnonzero(np.diff(starts) == 0)):
        more = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
        raise InputError(f"{path}, line {lines[empty[0]]}: {name(empty[0])} has no sequence{more}")
    buffers = [None, pa.py_buffer(name_starts.astype(np.int32)), pa.py_buffer(names)]
    return _Chunk(residues, starts, pa.Array.from_buffers(pa.string(), n, buffers), taxon, lines, gaps)


def _sorted(path: str | Path, chunks: list[_Chunk]) -> pa.Table:
    """The table of all records; the chunks are given up one by one, so that sequences are held once."""
    names = pa.chunked_array([c.names for c in chunks])
    order = pc.sort_indices(names).to_numpy()  # stable
    names = names.take(pa.array(order)).combine_chunks()
    lines = np.concatenate([c.lines for c in chunks])[order]
    taxon = np.concatenate([c.taxon for c in chunks])[order]
    length = np.concatenate([np.diff(c.starts) for c in chunks])[order]
    starts = np.append(0, np.cumsum(length))
    target = np.empty(len(order), np.int64)
    target[order] = starts[:-1]
    residues = np.empty(starts[-1], np.uint8)
    done = len(order)
    while chunks:
        chunk = chunks.pop()
        done -= len(chunk.taxon)
        _scatter(chunk.residues, chunk.starts, target[done:], residues)
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(residues)]
    sequences = pa.Array.from_buffers(pa.large_string(), len(length), buffers)
    new = np.append(True, pc.not_equal(names[1:], names[:-1]).to_numpy(zero_copy_only=False))
    if not new.all():
        other = np.append(True, pc.not_equal(sequences[1:], sequences[:-1]).to_numpy(zero_copy_only=False))
        _refuse_conflicts(path, names, lines, np.flatnonzero(other & ~new))
        # Of the same accession the first record stands, with the first taxon that one of them gives.
        first = np.flatnonzero(new)
        given = np.flatnonzero(taxon >= 0)
        owner, at = np.unique((np.cumsum(new) - 1)[given], return_index=True)
        taxa = np.full(len(first), -1, np.int32)
        taxa[owner] = taxon[given[at]]
        taxon = taxa
        names, sequences, length = names.take(pa.array(first)), sequences.take(pa.array(first)), length[first]
    columns = [names, pa.array(taxon, mask=taxon < 0), pa.array(length.astype(np.int32)), sequences]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _refuse_conflicts(path: str | Path, names: pa.Array, lines: np.ndarray, rows: np.ndarray) -> None:
    """`rows` repeat the accession of the row before with another sequence."""
    if len(rows):
        i, others = rows[0], len(names.take(pa.array(rows)).unique()) - 1
        raise InputError(
            f"{path}, line {lines[i]}: {names[i]} has another sequence than at line {lines[i - 1]}"
            + (f" ({others} other accessions have several too)" if others else ""),
            hint="keep one of them",
        )


@njit(cache=True, nogil=True)
def _kernel(data, n, line, letter):
    """One pass over whole records, at most n of them, that begin at `line`.

    Returns (error or 0, its line, its position, residues uint8, starts int64[r + 1], names uint8, name starts
    int64[r + 1], taxon int32[r] or -1, header lines int64[r], gaps dropped) of the r records, up to the error's.
    """
    residues = np.empty(len(data), np.uint8)
    names = np.empty(len(data), np.uint8)
    starts = np.zeros(n + 1, np.int64)
    name_starts = np.zeros(n + 1, np.int64)
    taxon = np.full(n, -1, np.int32)
    lines = np.zeros(n, np.int64)
    end = len(data)
    error, at, gaps, size, name_size, r, i = 0, 0, 0, 0, 0, 0, 0
    while i < end:
        begin = i
        if data[i] == _HEADER:
            lines[r] = line
            i += 1
            while i < end and (data[i] == _SPACE or data[i] == 9):
                i += 1
            start = i
            while i < end and data[i] > _SPACE:
                i += 1
            start, stop = bare_accession(data, start, i)
            for j in range(start, stop):
                names[name_size] = data[j]
                name_size += 1
                if data[j] > 126:
                    error = _BAD_ACCESSION
            if start == stop:
                error, at = _NO_ACCESSION, begin
            start = i
            while i < end and data[i] != _NL:
                i += 1
            taxon[r] = _taxon(data, start, i)
            r += 1
            name_starts[r] = name_size
        else:
            while i < end and data[i] != _NL:
                c = letter[data[i]]
                if c > _GAP:
                    residues[size] = c
                    size += 1
                elif c == _GAP:
                    gaps += 1
                elif c == _BAD:
                    error, at = _BAD_LETTER, i
                    break
                i += 1
            if r == 0 and (size or gaps or error):
                error, at = _NO_HEADER, begin
            if r:
                starts[r] = size
        if error:
            break
        i += 1
        line += 1
    # Final stops are no residues; closed up after the pass, as only then the ends of all records are known.
    kept = 0
    first = 0
    for k in range(r):
        last = max(first, starts[k + 1])
        stop = last
        while stop > first and residues[stop - 1] == _STAR:
            stop -= 1
        if kept != first:
            for j in range(first, stop):
                residues[kept + j - first] = residues[j]
        kept += stop - first
        starts[k + 1] = kept
        first = last
    return (
        error,
        line,
        at,
        residues[:kept].copy(),
        starts[: r + 1].copy(),
        names[:name_size].copy(),
        name_starts[: r + 1].copy(),
        taxon[:r].copy(),
        lines[:r].copy(),
        gaps,
    )


@njit(cache=True, nogil=True)
def bare_accession(data, start, stop):
    """Where the accession of a header's first word is: ACC of sp|ACC|NAME and tr|ACC|NAME, else all of it."""
    if stop - start >= 3 and data[start + 2] == _PIPE:
        a, b = data[start], data[start + 1]
        if (a == 115 and b == 112) or (a == 116 and b == 114):
            start += 3
            for j in range(start, stop):
                if data[j] == _PIPE:
                    return start, j
    return start, stop


@njit(cache=True, nogil=True)
def _taxon(data, i, end):
    """The N of the first word OX=N, else -1."""
    while i + 4 < end:
        if data[i] <= _SPACE and data[i + 1] == 79 and data[i + 2] == 88 and data[i + 3] == 61:
            i += 4
            value = 0
            while i < end and 48 <= data[i] <= 57 and value < 1 << 31:
                value = value * 10 + (data[i] - 48)
                i += 1
            return value if 0 < value < 1 << 31 and (i == end or data[i] <= _SPACE) else -1
        i += 1
    return -1


@njit(cache=True, nogil=True)
def _scatter(residues, starts, target, out):
    """Copy record k to out[target[k]:]."""
    for k in range(len(starts) - 1):
        source = residues[starts[k] : starts[k + 1]]
        place = out[target[k] : target[k] + len(source)]
        for j in range(len(source)):
            place[j] = source[j]
