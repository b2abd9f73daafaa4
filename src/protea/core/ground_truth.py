"""What a cut asks: known and novel terms, members and their categories (contract section 3).

Called by the cut and the plan; calls the annotation sets. Proteins are codes of the cut's universe: every
accession of the two sets and of the embeddings, ascending by bytes.
"""

from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt

from .annotation_set import AnnotationSet, is_negated, negated_pairs, pair_keys
from .annotation_set import code_mask as _mask
from .arrays import I32, I64, Bool, contains, distinct
from .ontology import Ontology

BINDING_ONLY = (5515, 5488)
"""GO:0005515 protein binding and GO:0005488 binding: alone they say next to nothing of a function."""


@dataclass(frozen=True)
class GroundTruth:
    """Keys are `protein * n_terms + term`, ascending.

    known        int64: E_old of every protein of the old set
    known_closed int64: K, the closure of E_old without roots
    novel        int64: Novel of the members
    protein, aspect, category   int32[m], int8[m], int8[m]: the members, ascending by (protein, aspect)
    novel_member int64[len(novel)]: the member of each novel term
    absent       bool[m]: the accession does not occur in the old set
    binding_only int: (protein, F) that only gained (protein) binding
    """

    known: I64
    known_closed: I64
    novel: I64
    novel_member: I64
    protein: I32
    aspect: npt.NDArray[np.int8]
    category: npt.NDArray[np.int8]
    absent: Bool
    binding_only: int


def experimental_pairs(s: AnnotationSet, onto: Ontology, codes: frozenset[str], not_pairs: I64) -> I64:
    """E: ascending distinct keys of the experimental, non-NOT terms of `s`, minus the negated ones."""
    rows = ~s.negated & _mask(codes)[s.evidence]
    protein, term = s.protein[rows], s.term[rows]
    live = ~is_negated(protein, term, not_pairs, onto)
    return distinct(pair_keys(protein[live], term[live], len(onto.ids)))


def close_pairs(pairs: I64, onto: Ontology) -> I64:
    """The union of closure(t) without roots over the pairs of each protein, ascending and distinct like `pairs`."""
    ends = np.flatnonzero(np.diff(pairs // len(onto.ids), append=-1)) + 1
    args = (pairs, ends, onto.closure_ptr, onto.closure, onto.is_root)
    out = np.empty(_close(*args, np.zeros(0, dtype=np.int64)), dtype=np.int64)
    _close(*args, out)
    return out


@numba.njit(cache=True, nogil=True)
def _close(pairs, ends, ptr, closure, is_root, out):
    """Fill `out` with the closed pairs, protein after protein (each ends before one of `ends`); how many there are."""
    n_terms = len(is_root)
    seen = np.full(n_terms, -1, dtype=np.int64)
    touched = np.empty(n_terms, dtype=np.int64)
    total = first = 0
    for i in range(len(ends)):
        n = 0
        for j in range(first, ends[i]):
            t = pairs[j] % n_terms
            for c in range(ptr[t], ptr[t + 1]):
                above = closure[c]
                if seen[above] != i and not is_root[above]:
                    seen[above] = i
                    touched[n] = above
                    n += 1
        if len(out):
            base = pairs[first] - pairs[first] % n_terms
            for j, t in enumerate(np.sort(touched[:n])):
                out[total + j] = base + t
        total += n
        first = ends[i]
    return total


def ground_truth(
    old: AnnotationSet,
    new: AnnotationSet,
    onto: Ontology,
    *,
    experimental: frozenset[str],
    occurs_old: Bool,
    direct: bool,
    exclude_binding_only: bool,
) -> GroundTruth:
    """Members, categories and novel terms of the cut (old, new).

    `old` and `new` carry universe codes; `occurs_old` is bool[universe]; `direct` is `label_mode: direct`.
    """
    n = len(onto.ids)
    not_old = negated_pairs(old, onto, experimental)
    not_both = distinct(np.concatenate([not_old, negated_pairs(new, onto, experimental)]))
    known = experimental_pairs(old, onto, experimental, not_old)
    found = experimental_pairs(new, onto, experimental, not_both)
    known_closed = close_pairs(known, onto)
    novel = found[~contains(known_closed, found)]
    if not direct:  # what a known term would add is known
        novel = close_pairs(novel, onto)
        novel = novel[~contains(known_closed, novel)]

    # one slot a (protein, aspect): ascending, so members come out in published order
    slot = novel // n * 3 + onto.aspect[novel % n]
    order = np.argsort(slot, kind="stable")
    novel, slot = novel[order], slot[order]
    members, member_of = np.unique(slot, return_inverse=True)
    binding_only = 0
    if exclude_binding_only:
        trivial = np.isin(onto.ids, BINDING_ONLY)
        telling = np.bincount(member_of[~trivial[novel % n]], minlength=len(members)) > 0
        drop = ~telling & (members % 3 == 0)
        binding_only = int(np.count_nonzero(drop))
        kept = ~drop[member_of]
        novel, slot = novel[kept], slot[kept]
        members, member_of = np.unique(slot, return_inverse=True)

    protein, aspect = (members // 3).astype(np.int32), (members % 3).astype(np.int8)
    knows = distinct(known // n)
    knows_here = distinct(known // n * 3 + onto.aspect[known % n])
    category = np.where(contains(knows_here, members), 2, np.where(contains(knows, protein.astype(np.int64)), 1, 0))
    return GroundTruth(
        known,
        known_closed,
        novel,
        member_of.astype(np.int64),
        protein,
        aspect,
        category.astype(np.int8),
        ~occurs_old[protein],
        binding_only,
    )
