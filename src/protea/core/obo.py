"""The text of an OBO file: its [Term] stanzas with the eight tags that decide a GO graph, checked, with line numbers.

Called by core.ontology; calls textio. The lines are tokenised here rather than by fastobo, which takes twice as
long, gives no line of a stanza, and refuses a file for what does not concern us (an unescaped brace in a name).
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from protea.core.textio import HashingReader, blocks, open_text
from protea.errors import InputError

NAMESPACES = ("molecular_function", "biological_process", "cellular_component")

_GO = re.compile(r"GO:([0-9]{7})")
_LINE = re.compile(
    rb"^[ \t]*(?:\[([^]\r\n]*)\]|(id|name|namespace|alt_id|is_a|relationship|is_obsolete|replaced_by|data-version"
    rb"|default-namespace)[ \t]*:[ \t]*([^\r\n]*))",
    re.MULTILINE,
)
# An id ends at a blank, a trailing modifier or a comment; nothing else may follow it.
_VALUE = re.compile(r"([^\s!{]+)\s*(?:[{!].*)?")
_RELATION = re.compile(r"([^\s!{]+)\s+([^\s!{]+)\s*(?:[{!].*)?")
# What may follow a free text: a trailing modifier, a comment.
# (Three patterns, each one pass over the text: one for all of it takes quadratic time on blanks and braces.)
_COMMENT = re.compile(r"(?<!\s)\s+!")
_MODIFIER = re.compile(r'(?<!\s)\s+\{[^{}"]*="')
_MODIFIER_END = re.compile(r'"\s*\}(?=\s+!|$)')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "W": " ", "t": "\t"}

MAX_LINES = 1_000_000
"""Lines of one stanza that are read; the longest of a GO release has some hundreds."""

Clause = tuple[str, str, int]  # tag, value as it stands, line


def go_number(text: str) -> int | None:
    """The number of `GO:0005515`; None for anything that is not GO: and seven digits."""
    m = _GO.fullmatch(text)
    return int(m[1]) if m else None


class Term(NamedTuple):
    """A [Term] stanza with a GO id."""

    number: int
    line: int
    name: str
    namespace: str
    obsolete: bool
    alt_ids: list[int]  # GO ids only
    replaced_by: list[str]  # distinct, of any id space
    edges: list[tuple[str, str]]  # (relation, target), distinct, of any id space


@dataclass
class OboFile:
    """What is read of an OBO file; `foreign` are the ids of the [Term] stanzas that are no GO ids."""

    sha256: str
    version: str | None
    terms: dict[int, Term]
    foreign: set[str]


def parse_obo(path: str | Path, progress: Callable[[int], None] | None = None) -> OboFile:
    """Read the stanzas of an OBO file, plain or gzipped; `progress` is given the compressed bytes read so far.

    Errors (InputError, with the line where there is one): no [Term] with a GO id, an id with two stanzas, a live term
    outside the three namespaces, a malformed line of a tag that is read; and those of textio.
    """
    header: dict[str, str] = {}
    terms: dict[int, Term] = {}
    foreign: set[str] = set()
    head = bytearray()
    with open_text(path) as reader:
        for kind, line, clauses in _stanzas(reader, head, progress):
            if kind is None:
                header = {tag: _text(value) for tag, value, _ in reversed(clauses)}  # the first of equals
            if kind != "Term":
                continue
            ids = [_value(path, c) for c in clauses if c[0] == "id"]
            if len(ids) != 1:
                raise InputError(f"{path}, line {line}: a [Term] with {len(ids) or 'no'} id lines")
            if (number := go_number(ids[0])) is None:
                foreign.add(ids[0])
            elif first := terms.get(number):
                raise InputError(f"{path}, line {line}: a second [Term] {ids[0]} (the first: line {first.line})")
            else:
                terms[number] = _term(path, number, line, clauses, header.get("default-namespace", ""))
        sha256 = reader.sha256
    if not terms:
        raise InputError(
            f"{path}: no [Term] with a GO id; {_guess(bytes(head))}", hint="give a GO release in OBO format"
        )
    return OboFile(sha256, header.get("data-version") or None, terms, foreign)


def _guess(head: bytes) -> str:
    head = head.lstrip()
    first = head.split(b"\n")[0]
    if head.startswith(b"<"):
        return "it looks like an HTML or XML page"
    if head.startswith(b"!gaf") or first.count(b"\t") >= 14:
        return "it looks like an annotation file (GAF)"
    return f"it begins with {first[:40].decode('latin-1').strip()!r}" if first else "it is empty"


def _stanzas(
    reader: HashingReader, head: bytearray, progress: Callable[[int], None] | None
) -> Iterator[tuple[str | None, int, list[Clause]]]:
    """(kind, line, clauses) of each stanza; kind None is the header. `head` gets the first bytes of the file."""
    kind: str | None = None
    start, line = 1, 1
    clauses: list[Clause] = []
    for block in blocks(reader):
        data, last = bytes(block), 0
        if not head:
            head += data[:4096]
        for m in _LINE.finditer(data):
            line += data.count(b"\n", last, m.start())
            last = m.start()
            stanza, tag, value = m.groups()
            if tag is not None:
                clauses.append((tag.decode(), _decode(value), line))
                if len(clauses) > MAX_LINES:
                    raise InputError(
                        f"{reader.name}, line {start}: a stanza with over {MAX_LINES:,} lines of its graph"
                    )
            else:
                yield kind, start, clauses
                kind, start, clauses = _decode(stanza).strip(), line, []
        line += data.count(b"\n", last)
        if progress:
            progress(reader.consumed)
    yield kind, start, clauses


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _text(raw: str) -> str:
    """A free text without modifier and comment, its escapes undone."""
    if "!" in raw or "{" in raw:
        raw = raw[: _trailer(raw)]
    if "\\" in raw:
        raw = _ESCAPE.sub(lambda m: _ESCAPES.get(m[1], m[1]), raw)
    return raw.strip()


def _trailer(raw: str) -> int:
    """Where a modifier or comment begins that goes on to the end of the text."""
    comment = m.start() if (m := _COMMENT.search(raw)) else len(raw)
    end = max((m.start() for m in _MODIFIER_END.finditer(raw)), default=-1)
    return min(comment, next((m.start() for m in _MODIFIER.finditer(raw, 0, end)), len(raw)))


def _value(path: str | Path, clause: Clause) -> str:
    tag, value, line = clause
    m = _VALUE.fullmatch(value)
    if m is None:
        raise InputError(f"{path}, line {line}: malformed {tag}: {value[:80]!r}")
    return m[1]


def _term(path: str | Path, number: int, line: int, clauses: list[Clause], namespace: str) -> Term:
    name, obsolete = "", False
    alt_ids: list[int] = []
    replaced: dict[str, None] = {}
    edges: dict[tuple[str, str], None] = {}
    for clause in clauses:
        tag, raw, at = clause
        if tag == "name":
            name = _text(raw)
        elif tag == "relationship":
            m = _RELATION.fullmatch(raw)
            if m is None:
                raise InputError(f"{path}, line {at}: malformed relationship: {raw[:80]!r}")
            edges[m[1], m[2]] = None
        elif tag == "is_a":
            edges["is_a", _value(path, clause)] = None
        elif tag == "namespace":
            namespace = _value(path, clause)
        elif tag == "is_obsolete":
            value = _value(path, clause).lower()
            if value not in ("true", "false"):
                raise InputError(f"{path}, line {at}: is_obsolete is neither true nor false: {raw[:80]!r}")
            obsolete |= value == "true"
        elif tag == "replaced_by":
            replaced[_value(path, clause)] = None
        elif tag == "alt_id" and (alt := go_number(_value(path, clause))) is not None:
            alt_ids.append(alt)
    if not obsolete and namespace not in NAMESPACES:
        what = f"the namespace {namespace!r}" if namespace else "no namespace"
        raise InputError(
            f"{path}, line {line}: the live term GO:{number:07d} has {what}",
            hint=f"it must be one of {', '.join(NAMESPACES)}",
        )
    return Term(number, line, name, namespace, obsolete, alt_ids, list(replaced), list(edges))
