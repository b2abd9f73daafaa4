"""What is counted of a cut while its rows go by (contract section 8), and its truth and known tables.

Called by the shards, which write both; calls the cut's arrays only.
"""

from collections import Counter as Tally
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from .arrays import I64, contains, distinct
from .cut import Prepared, Rows
from .ontology import ASPECT_NAMES
from .schema import CATEGORIES


def truth_tables(p: Prepared, reached: I64) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Coded rows of `truth.parquet` and `known.parquet` for the cut; `reached`: ascending keys of the positive rows."""
    t, n = p.truth, len(p.arrays.onto.ids)
    key, member = t.novel, t.novel_member
    order = np.lexsort((key % n, t.aspect[member], t.protein[member], t.category[member]))
    key, member = key[order], member[order]
    zero = np.zeros(len(key), dtype=np.int32)
    truth = pa.record_batch(
        {
            "snapshot_pair": zero,
            "protein_accession": t.protein[member],
            "aspect": t.aspect[member].astype(np.int32),
            "category": t.category[member].astype(np.int32),
            "go_term_id": (key % n).astype(np.int32),
            "reached": contains(reached, key),
        }
    )
    key = t.known[contains(distinct(t.protein.astype(np.int64)), t.known // n)]
    aspect = p.arrays.onto.aspect[key % n]
    key = key[np.lexsort((key % n, aspect, key // n))]
    known = pa.record_batch(
        {
            "snapshot_pair": np.zeros(len(key), dtype=np.int32),
            "protein_accession": (key // n).astype(np.int32),
            "aspect": p.arrays.onto.aspect[key % n].astype(np.int32),
            "go_term_id": (key % n).astype(np.int32),
        }
    )
    return truth, known


class Counter:
    """The counts of contract section 8 for one cut, gathered as its rows go by."""

    def __init__(self, p: Prepared) -> None:
        self.p = p
        self.rows = np.zeros(len(p.truth.protein), dtype=np.int64)
        self.positives = np.zeros(len(p.truth.protein), dtype=np.int64)
        self.reached: list[I64] = []
        for what in ("alignments", "alignment_skipped"):  # of rows that were made before
            p.arrays.memo.pop(what, None)

    def add(self, r: Rows) -> None:
        n = len(self.rows)
        self.rows += np.bincount(r.member, minlength=n)
        self.positives += np.bincount(r.member[r.label], minlength=n)
        self.reached.append(r.key[r.label])

    def arrays(self) -> dict[str, I64]:
        """What has been counted: `members` int64[m,3] (member, rows, positives), `reached` keys, `skipped` int64[s,2]."""
        member = np.flatnonzero(self.rows)
        skipped = sorted(self.p.arrays.memo.get("alignment_skipped", ()))
        return {
            "members": np.stack([member, self.rows[member], self.positives[member]], axis=1),
            "reached": self.reached_keys(),
            "skipped": np.array(skipped, dtype=np.int64).reshape(-1, 2),
        }

    def merge(self, counted: Mapping[str, I64], alignments: Mapping[str, int]) -> None:
        """Add what was counted of other queries of the cut."""
        member, rows, positives = counted["members"].T
        self.rows[member] += rows
        self.positives[member] += positives
        self.reached.append(counted["reached"])
        memo = self.p.arrays.memo
        if self.p.arrays.config.compute_alignments:
            memo.setdefault("alignment_skipped", set()).update(map(tuple, counted["skipped"].tolist()))
            memo.setdefault("alignments", Tally()).update(alignments)

    def alignments(self) -> dict[str, int]:
        """How many pairs of sequences were aligned, found in the cache, computed; empty without alignments."""
        return dict(self.p.arrays.memo.get("alignments", {}))

    def reached_keys(self) -> I64:
        return distinct(np.concatenate(self.reached)) if self.reached else np.zeros(0, dtype=np.int64)

    def counts(self) -> dict[str, dict[str, dict[str, int]]]:
        """category -> aspect -> count -> number."""
        p, t = self.p, self.p.truth
        novel = np.bincount(t.novel_member, minlength=len(t.protein))
        reached = np.bincount(t.novel_member[contains(self.reached_keys(), t.novel)], minlength=len(t.protein))
        out: dict[str, dict[str, dict[str, int]]] = {}
        for c, category in enumerate(CATEGORIES):
            for a, aspect in enumerate(ASPECT_NAMES):
                m = (t.category == c) & (t.aspect == a)
                q = m & p.queried
                out.setdefault(category, {})[aspect] = {
                    "members": int(m.sum()),
                    "queried": int(q.sum()),
                    "absent_from_old": int((m & t.absent).sum()),
                    "novel_terms": int(novel[m].sum()),
                    "reached": int(reached[m].sum()),
                    "rows": int(self.rows[m].sum()),
                    "positives": int(self.positives[m].sum()),
                    "proteins": int((self.rows[m] > 0).sum()),
                    "without_candidate": int((self.rows[q] == 0).sum()),
                }
        return out

    def dropped(self) -> dict[str, int]:
        """Members and proteins that could not be queried, and members that only gained binding."""
        t, missing = self.p.truth, ~self.p.queried
        out = {
            "no_embedding_members": int(missing.sum()),
            "no_embedding_proteins": len(np.unique(t.protein[missing])),
            "binding_only": t.binding_only,
        }
        if self.p.arrays.config.compute_alignments:
            out["alignments_above_max_cells"] = len(self.p.arrays.memo.get("alignment_skipped", ()))
        return out


def describe(p: Prepared) -> dict[str, Any]:
    """What the marker of a cut records of its two releases: dropped rows and rows per evidence group."""
    return {
        "dropped_sets": {str(p.cut.old.version): p.dropped_old, str(p.cut.new.version): p.dropped_new},
        "evidence_groups": {str(p.cut.old.version): p.groups_old, str(p.cut.new.version): p.groups_new},
        "dropped_tables": {name: dict(reasons) for name, reasons in p.arrays.side.dropped.items()},
    }
