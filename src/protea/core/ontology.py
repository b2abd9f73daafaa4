"""A GO release as arrays: live terms, propagation edges, closures, and where every id resolves to (contract section 1).

Called by ingest, inspect and everything of the export that walks the graph; calls core.obo for the text.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numba import njit

from protea.core import fs
from protea.core.obo import NAMESPACES, Term, go_number, parse_obo
from protea.errors import InputError, StorageError

ASPECTS = ("F", "P", "C")
ASPECT_NAMES = ("mfo", "bpo", "cco")
ROOTS = (3674, 8150, 5575)
"""The numeric ids of the three roots, in the order of ASPECTS."""
PROPAGATING = ("is_a", "part_of")
OBSOLETE, UNKNOWN = -1, -2
MAX_HOPS = 10
"""How many `replaced_by` steps are followed (contract section 1)."""


def go_ids(numbers: Iterable[int]) -> list[str]:
    """The ids of some numbers."""
    return [f"GO:{n:07d}" for n in numbers]


@dataclass(frozen=True, eq=False)
class Ontology:
    """One GO release: T live terms in ascending order of their ids; a term's code is its index.

    Propagation edges are is_a and part_of whose two ends lie in one aspect. Term t's direct parents over them are
    parents[parent_ptr[t]:parent_ptr[t + 1]], distinct and ascending; `closure` likewise holds t and all its ancestors.
    """

    version: str | None
    ids: np.ndarray  # int32[T], the numbers of the live terms' ids, ascending
    aspect: np.ndarray  # int8[T], index into ASPECTS
    names: pa.Array  # string[T]
    parent_ptr: np.ndarray  # int64[T + 1]
    parents: np.ndarray  # int32, term codes
    closure_ptr: np.ndarray  # int64[T + 1]
    closure: np.ndarray  # int32, term codes
    is_root: np.ndarray  # bool[T]
    resolve_ids: np.ndarray  # int32[M], every id of a stanza or an alt_id, ascending
    resolve_to: np.ndarray  # int32[M], term code or -1

    @cached_property
    def _table(self) -> np.ndarray:
        # The last entry stands for every number beyond the known ones.
        table = np.full(int(self.resolve_ids[-1]) + 2, UNKNOWN, np.int32)
        table[self.resolve_ids] = self.resolve_to
        return table

    def resolve(self, go: np.ndarray) -> np.ndarray:
        """int32 term codes of numeric GO ids (any shape); -1 where obsolete, -2 where the id is unknown."""
        table, go = self._table, np.asarray(go)
        return table[np.where((go < 0) | (go >= len(table)), len(table) - 1, go)]

    def code(self, go_id: str) -> int:
        """The same for one id as text; -2 also for what is no GO id."""
        number = go_number(go_id)
        return UNKNOWN if number is None else int(self.resolve(np.array([number], np.int32))[0])

    def go_id(self, code: int) -> str:
        """`GO:0005515` of a term code."""
        return f"GO:{self.ids[code]:07d}"

    def explain(self, go_ids: Sequence[str]) -> dict[str, str | None]:
        """What each id resolves to; None for an obsolete or unknown one."""
        return {i: self.go_id(c) if (c := self.code(i)) >= 0 else None for i in go_ids}

    def closures(self, ids: Sequence[str]) -> dict[str, list[str] | None]:
        """The ids in the closure of what each id resolves to, ascending; None for an obsolete or unknown one."""
        spans = {i: slice(*self.closure_ptr[c : c + 2]) if (c := self.code(i)) >= 0 else None for i in ids}
        return {i: None if s is None else go_ids(self.ids[self.closure[s]]) for i, s in spans.items()}

    def save(self, directory: Path) -> None:
        """Write terms.parquet and resolve.parquet; the same ontology gives the same bytes."""
        terms = {
            "id": self.ids,
            "aspect": self.aspect,
            "name": self.names,
            "parents": pa.LargeListArray.from_arrays(self.parent_ptr, self.parents),
            "closure": pa.LargeListArray.from_arrays(self.closure_ptr, self.closure),
        }
        meta = {} if self.version is None else {"version": self.version}
        ids = pa.table({"id": self.resolve_ids, "code": self.resolve_to})
        for name, table in (("terms", pa.table(terms).replace_schema_metadata(meta)), ("resolve", ids)):
            with fs.create(directory / f"{name}.parquet") as f:
                pq.write_table(table, f, compression="zstd")

    @classmethod
    def load(cls, directory: Path) -> "Ontology":
        """Read what `save` wrote. Errors: StorageError when a file is missing or damaged."""
        try:
            terms, ids = (pq.read_table(directory / f"{n}.parquet").combine_chunks() for n in ("terms", "resolve"))
            meta = terms.schema.metadata or {}
            parents, closure = (terms[c].combine_chunks() for c in ("parents", "closure"))
            return _build(
                meta[b"version"].decode() if b"version" in meta else None,
                _own(terms["id"]),
                _own(terms["aspect"]),
                terms["name"].combine_chunks(),
                (_own(parents.offsets), _own(parents.values)),
                (_own(closure.offsets), _own(closure.values)),
                (_own(ids["id"]), _own(ids["code"])),
            )
        except (OSError, KeyError, pa.ArrowException) as e:
            raise StorageError(f"{directory}: the stored ontology cannot be read: {e}", hint="load it again") from e


_Pair = tuple[np.ndarray, np.ndarray]


def _build(
    version: str | None,
    ids: np.ndarray,
    aspect: np.ndarray,
    names: pa.Array,
    parents: _Pair,
    closure: _Pair,
    resolve: _Pair,
) -> Ontology:
    is_root = np.isin(ids, ROOTS)
    return Ontology(version, ids, aspect, names, *parents, *closure, is_root, *resolve)


def _own(column) -> np.ndarray:
    """A writable array of our own: numba compiles read-only ones a second time."""
    return np.array(column.to_numpy())


@dataclass
class OboReport:
    """What an OBO file holds (keys of `inspect ontology`)."""

    sha256: str
    version: str | None
    terms: int  # live GO terms
    terms_by_aspect: dict[str, int]
    obsolete: int  # obsolete GO stanzas
    alt_ids: int  # distinct
    replaced_by: int  # distinct (obsolete term, successor)
    edges: dict[str, int]  # relation -> distinct edges among live terms
    cross_aspect_edges: int  # is_a and part_of
    dangling: int  # edges of live terms to what is no live term of the file
    dangling_examples: list[str]  # the first ten
    foreign_edges: int  # edges of live terms to foreign ones
    orphans: int  # live terms other than the roots without a parent over propagation edges
    foreign: int  # [Term] stanzas with other than GO ids

    def to_json(self) -> dict:
        return asdict(self)


def read_obo(path: str | Path, progress: Callable[[int], None] | None = None) -> tuple[Ontology, OboReport]:
    """Read an OBO file, plain or gzipped; `progress` is given the compressed bytes read so far.

    Errors (InputError): those of parse_obo; a root that is missing, obsolete or in the wrong aspect; a cycle over
    propagation edges, every id of it named in order from child to parent.
    """
    file = parse_obo(path, progress)
    terms = file.terms
    live = sorted((t for t in terms.values() if not t.obsolete), key=lambda t: t.number)
    code = {t.number: i for i, t in enumerate(live)}
    aspect = np.array([NAMESPACES.index(t.namespace) for t in live], np.int8)
    for a, root in enumerate(ROOTS):
        if root not in code:
            why = "is obsolete" if root in terms else "is missing"
            raise InputError(f"{path}: the root GO:{root:07d} ({NAMESPACES[a]}) {why}", hint="is the file complete?")
        if aspect[code[root]] != a:
            raise InputError(f"{path}, line {terms[root].line}: the root GO:{root:07d} is not in {NAMESPACES[a]}")
    edges, counts = _edges(live, code, aspect, file.foreign)
    parents = _csr(edges, len(live))
    cyclic, sizes = _closure_sizes(*parents)
    if cyclic >= 0:
        raise _cycle(path, live, *parents)
    closure = _csr(_closure_pairs(*parents, sizes), len(live))
    alt = {a for t in terms.values() for a in t.alt_ids}
    known = np.array(sorted(alt | terms.keys()), np.int32)
    to = _resolver(terms, code)
    resolve = (known, np.array([to(n) for n in known.tolist()], np.int32))
    ids = np.array([t.number for t in live], np.int32)
    names = pa.array([t.name for t in live], pa.string())
    ontology = _build(file.version, ids, aspect, names, parents, closure, resolve)
    report = OboReport(
        sha256=file.sha256,
        version=file.version,
        terms=len(live),
        terms_by_aspect=dict(zip(ASPECT_NAMES, np.bincount(aspect, minlength=3).tolist(), strict=True)),
        obsolete=len(terms) - len(live),
        alt_ids=len(alt),
        replaced_by=sum(len(t.replaced_by) for t in terms.values() if t.obsolete),
        **counts,
        orphans=int(np.count_nonzero((np.diff(parents[0]) == 0) & ~ontology.is_root)),
        foreign=len(file.foreign),
    )
    return ontology, report


def _edges(live: list[Term], code: dict[int, int], aspect: np.ndarray, foreign: set[str]) -> tuple[np.ndarray, dict]:
    """Propagation edges int64[E, 2] (child, parent) as term codes, and what the report says of all edges."""
    relations: dict[str, int] = {}
    pairs: list[tuple[int, int]] = []
    dangling: list[str] = []
    to_foreign = cross = 0
    space = aspect.tolist()
    for child, term in enumerate(live):
        for relation, target in term.edges:
            number = go_number(target)
            parent = None if number is None else code.get(number)
            if parent is None:
                if target in foreign:
                    to_foreign += 1
                else:
                    dangling.append(f"GO:{term.number:07d} {relation} {target}")
                continue
            relations[relation] = relations.get(relation, 0) + 1
            if relation in PROPAGATING:
                if space[child] == space[parent]:
                    pairs.append((child, parent))
                else:
                    cross += 1
    counts = {
        "edges": dict(sorted(relations.items())),
        "cross_aspect_edges": cross,
        "dangling": len(dangling),
        "dangling_examples": dangling[:10],
        "foreign_edges": to_foreign,
    }
    return np.array(pairs, np.int64).reshape(-1, 2), counts


def _resolver(terms: dict[int, Term], code: dict[int, int]) -> Callable[[int], int]:
    """Contract section 1, "Resolving a GO id", from one number to a term code or -1."""
    owners: dict[int, set[int]] = {}
    for term in terms.values():
        for alt in term.alt_ids:
            owners.setdefault(alt, set()).add(term.number)

    def to(number: int) -> int:
        seen: set[int] = set()
        hops = 0
        while number not in code:
            if number in seen:
                return OBSOLETE  # a ring
            seen.add(number)
            if number in owners:
                live = owners[number] & code.keys()
                candidates = live or owners[number]
                if len(candidates) > 1:
                    return OBSOLETE
                (number,) = candidates
                continue
            successors = terms[number].replaced_by if number in terms else []
            after = go_number(successors[0]) if len(successors) == 1 else None
            if after is None or hops == MAX_HOPS:
                return OBSOLETE
            number, hops = after, hops + 1
        return code[number]

    return to


def _csr(pairs: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """(ptr int64[n + 1], values int32) of (row, value) pairs below n: rows in order, values distinct and ascending."""
    keys = np.sort(pairs[:, 0] * n + pairs[:, 1])  # np.unique hashes, which is ten times slower here
    keys = keys[np.diff(keys, prepend=-1) > 0]
    ptr = np.searchsorted(keys, np.arange(n + 1, dtype=np.int64) * n)
    return ptr.astype(np.int64), (keys % n).astype(np.int32)


@njit(cache=True, nogil=True)
def _walk(t, ptr, parents, stamp, stack):
    """Put t and its ancestors into `stack`, each once; returns how many, or -1 when t is its own ancestor."""
    stamp[t] = t
    stack[0] = t
    size = 1
    done = 0
    while done < size:
        x = stack[done]
        done += 1
        for j in range(ptr[x], ptr[x + 1]):
            p = parents[j]
            if p == t:
                return -1
            if stamp[p] != t:
                stamp[p] = t
                stack[size] = p
                size += 1
    return size


@njit(cache=True, nogil=True)
def _closure_sizes(ptr, parents):
    """(a term on a cycle or -1, closure sizes int64[T])."""
    n = len(ptr) - 1
    sizes = np.zeros(n, np.int64)
    stamp = np.full(n, -1, np.int64)
    stack = np.empty(n, np.int64)
    for t in range(n):
        size = _walk(t, ptr, parents, stamp, stack)
        if size < 0:
            return t, sizes
        sizes[t] = size
    return -1, sizes


@njit(cache=True, nogil=True)
def _closure_pairs(ptr, parents, sizes):
    """(term, member of its closure) int64[sum of sizes, 2], unordered within a term."""
    n = len(ptr) - 1
    pairs = np.empty((sizes.sum(), 2), np.int64)
    stamp = np.full(n, -1, np.int64)
    stack = np.empty(n, np.int64)
    out = 0
    for t in range(n):
        for i in range(_walk(t, ptr, parents, stamp, stack)):
            pairs[out, 0] = t
            pairs[out, 1] = stack[i]
            out += 1
    return pairs


def _cycle(path: str | Path, live: list[Term], ptr: np.ndarray, parents: np.ndarray) -> InputError:
    """The error that names one cycle, from its smallest id up through the parents and back."""
    graph = {t: parents[ptr[t] : ptr[t + 1]].tolist() for t in range(len(live))}
    ring: list[int] = []
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        ring = e.args[1][:0:-1]  # from child to parent, without the repeated first
    least = ring.index(min(ring))
    ring = [*ring[least:], *ring[: least + 1]]
    return InputError(
        f"{path}, line {live[ring[0]].line}: a cycle over is_a and part_of: "
        + " -> ".join(f"GO:{live[t].number:07d}" for t in ring),
        hint="use an acyclic release such as go-basic.obo",
    )
