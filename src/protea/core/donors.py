"""Who may give terms at the old release, and what (contract sections 4 and 6; information accretion, section 18).

Called by the cut; calls the annotation sets and the ontology.
"""

import math
from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt

from . import evidence
from .annotation_set import AnnotationSet, code_mask, is_negated, negated_pairs, pair_keys
from .arrays import I32, I64, Bool, csr_pointers, distinct, divided
from .ontology import Ontology


@dataclass(frozen=True)
class Donors:
    """The usable terms D(r, ·) of every protein of the universe, and who is a donor where.

    ptr      int64[U+1], term int32, best int32: per protein its distinct usable terms, ascending, and the best row of
             each as evidence * n_qualifiers + qualifier (smaller is better)
    aspects  uint8[U]: bit a is set when the protein is a donor in aspect a (it has a vector and a term there)
    n_qualifiers int
    """

    ptr: I64
    term: I32
    best: I32
    aspects: npt.NDArray[np.uint8]
    n_qualifiers: int

    @property
    def density(self) -> I32:
        """int32[U]: distinct usable terms over all aspects."""
        return np.diff(self.ptr).astype(np.int32)


def usable(old: AnnotationSet, onto: Ontology, codes: frozenset[str]) -> npt.NDArray[np.int64]:
    """The rows of the old set that may speak for a protein: not NOT, not negated by any NOT row, of evidence `codes`."""
    rows = np.flatnonzero(~old.negated & code_mask(codes)[old.evidence])
    return rows[~is_negated(old.protein[rows], old.term[rows], negated_pairs(old, onto), onto)]


def usable_pairs(old: AnnotationSet, onto: Ontology, codes: frozenset[str]) -> I64:
    """The same as ascending distinct keys protein * T + term."""
    rows = usable(old, onto, codes)
    return distinct(pair_keys(old.protein[rows], old.term[rows], len(onto.ids)))


def donors(old: AnnotationSet, onto: Ontology, codes: frozenset[str], has_vector: Bool) -> Donors:
    """D(r, a) of the old set under the evidence codes allowed by `donor_evidence`. `has_vector`: bool[universe]."""
    rows = usable(old, onto, codes)
    protein, term = old.protein[rows], old.term[rows]
    best = old.evidence[rows].astype(np.int32) * len(old.qualifiers) + old.qualifier[rows]
    ranks = len(evidence.CODES) * len(old.qualifiers)  # one sort of one number, which stays below 2^63
    key, best = np.divmod(np.sort(pair_keys(protein, term, len(onto.ids)) * ranks + best), ranks)
    best = best.astype(np.int32)
    first = np.ones(len(key), dtype=bool)
    first[1:] = key[1:] != key[:-1]
    key, best = key[first], best[first]
    protein, term = (key // len(onto.ids)).astype(np.int32), (key % len(onto.ids)).astype(np.int32)

    aspects = np.zeros(len(has_vector), dtype=np.uint8)
    for a in range(3):
        aspects[protein[onto.aspect[term] == a]] |= 1 << a
    aspects[~has_vector] = 0
    return Donors(csr_pointers(protein, len(has_vector)), term, best, aspects, len(old.qualifiers))


@numba.njit(cache=True, nogil=True)
def _offer(proteins, ptr, term, best, closure_ptr, closure, is_root, count_only, out_ptr, out_term, out_best):
    """A(r, ·) with expansion: per protein the union of closures without roots, each with its best row."""
    n_terms = len(is_root)
    seen = np.full(n_terms, -1, dtype=np.int64)
    rank = np.zeros(n_terms, dtype=np.int32)
    touched = np.empty(n_terms, dtype=np.int32)
    for i in range(len(proteins)):
        n = 0
        for j in range(ptr[proteins[i]], ptr[proteins[i] + 1]):
            for c in range(closure_ptr[term[j]], closure_ptr[term[j] + 1]):
                t = closure[c]
                if is_root[t]:
                    continue
                if seen[t] != i:
                    seen[t] = i
                    rank[t] = best[j]
                    touched[n] = t
                    n += 1
                elif best[j] < rank[t]:
                    rank[t] = best[j]
        if count_only:
            out_ptr[i + 1] = n
        else:
            at = out_ptr[i]
            terms = np.sort(touched[:n])
            for j in range(n):
                out_term[at + j] = terms[j]
                out_best[at + j] = rank[terms[j]]


@numba.njit(cache=True, nogil=True)
def _frequency(aspects, ptr, term, aspect, closure_ptr, closure, is_root, expand):
    n_terms = len(is_root)
    out = np.zeros(n_terms, dtype=np.int32)
    seen = np.full(n_terms, -1, dtype=np.int64)
    for p in range(len(aspects)):
        if aspects[p] == 0:
            continue
        for j in range(ptr[p], ptr[p + 1]):
            if expand:
                for c in range(closure_ptr[term[j]], closure_ptr[term[j] + 1]):
                    t = closure[c]
                    if seen[t] != p and not is_root[t]:
                        seen[t] = p
                        out[t] += 1
            else:
                out[term[j]] += 1
    return out


def offered(d: Donors, onto: Ontology, proteins: I32, expand: bool, threads: int) -> tuple[I64, I32, I32]:
    """A(r, ·) of `proteins` as (ptr int64[len+1], term int32, best int32), terms ascending."""
    ptr = np.zeros(len(proteins) + 1, dtype=np.int64)
    if not expand:
        sizes = d.ptr[proteins + 1] - d.ptr[proteins]
        ptr[1:] = np.cumsum(sizes)
        take = np.arange(ptr[-1]) - np.repeat(ptr[:-1] - d.ptr[proteins], sizes)
        return ptr, d.term[take], d.best[take]
    none = np.zeros(0, dtype=np.int32)
    args = (d.ptr, d.term, d.best, onto.closure_ptr, onto.closure, onto.is_root)
    divided(lambda a, b: _offer(proteins[a:b], *args, True, ptr[a : b + 1], none, none), len(proteins), threads)
    ptr = np.cumsum(ptr)
    term, best = np.empty(ptr[-1], dtype=np.int32), np.empty(ptr[-1], dtype=np.int32)
    divided(lambda a, b: _offer(proteins[a:b], *args, False, ptr[a : b + 1], term, best), len(proteins), threads)
    return ptr, term, best


def term_frequency(d: Donors, onto: Ontology, expand: bool) -> I32:
    """int32[T]: donors of the term's aspect with the term in A."""
    return _frequency(d.aspects, d.ptr, d.term, onto.aspect, onto.closure_ptr, onto.closure, onto.is_root, expand)


def information_accretion(known: I64, closed: I64, onto: Ontology) -> npt.NDArray[np.float32]:
    """float32[T]: IA(t) = -log2((n(t)+1) / (n(parents(t))+1)), in bits (contract section 18; Clark & Radivojac 2013).

    n(t) counts the proteins with t in the closure `closed` of their experimental terms `known` (keys of E_old), n(parents)
    those with all direct parents of t; a root parent, and no parent at all, counts every protein with an
    experimental term in the aspect.
    """
    n_terms = len(onto.ids)
    in_aspect = distinct(known // n_terms * 3 + onto.aspect[known % n_terms])
    population = np.bincount(in_aspect % 3, minlength=3)
    ptr, protein = _by_term(closed, n_terms)
    both = _with_all_parents(ptr, protein, onto.parent_ptr, onto.parents, onto.is_root, onto.aspect, population)
    alone = np.where(onto.is_root, population[onto.aspect], np.diff(ptr))
    # scalar log2 of the distinct ratios: numpy's vectorised one differs between CPUs in the last bit
    ratio, where = np.unique((both + 1.0) / (alone + 1.0), return_inverse=True)
    return np.array([math.log2(r) for r in ratio], dtype=np.float64)[where].astype(np.float32)


@numba.njit(cache=True, nogil=True)
def _by_term(closed, n_terms):
    """Ascending keys (protein, term) as the proteins of each term, ascending: pointers and proteins."""
    ptr = np.zeros(n_terms + 1, dtype=np.int64)
    for key in closed:
        ptr[key % n_terms + 1] += 1
    ptr = np.cumsum(ptr)
    at = ptr[:-1].copy()
    protein = np.empty(len(closed), dtype=np.int32)
    for key in closed:
        t = key % n_terms
        protein[at[t]] = key // n_terms
        at[t] += 1
    return ptr, protein


@numba.njit(cache=True, nogil=True)
def _with_all_parents(ptr, protein, parent_ptr, parents, is_root, aspect, population):
    """Per term the proteins that carry every direct parent: an intersection of ascending lists."""
    out = np.zeros(len(is_root), dtype=np.int64)
    for t in range(len(is_root)):
        started = False
        common = protein[:0]
        for j in range(parent_ptr[t], parent_ptr[t + 1]):
            q = parents[j]
            if is_root[q]:
                continue  # everybody with a term in the aspect has the root
            mine = protein[ptr[q] : ptr[q + 1]]
            if not started:
                common, started = mine, True
                continue
            kept = np.empty(min(len(common), len(mine)), dtype=protein.dtype)
            n, a, b = 0, 0, 0
            while a < len(common) and b < len(mine):
                if common[a] == mine[b]:
                    kept[n] = common[a]
                    n, a, b = n + 1, a + 1, b + 1
                elif common[a] < mine[b]:
                    a += 1
                else:
                    b += 1
            common = kept[:n]
        out[t] = len(common) if started else population[aspect[t]]
    return out
