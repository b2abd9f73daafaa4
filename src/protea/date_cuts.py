"""The reports of annotation sets derived from one GAF by date: what `inspect` would say of its rows up to a day.

Called by `protea.ingest` with the stored rows of the whole file; calls Arrow. One pass, whatever the number of dates.
"""

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from protea.core.evidence import CODES, ND, group
from protea.errors import InputError


def reports(
    path: str | Path, whole: dict[str, Any], rows_file: Path, cuts: list[dt.date | None]
) -> list[dict[str, Any]]:
    """The report of each set: `whole` (a GafReport as JSON), with the counts of the rows up to the cut date if any.

    InputError (naming `path`) for a date before the first row. Memory: the distinct accessions and dates.
    """
    if not any(cuts):
        return [whole for _ in cuts]
    counts: list[pa.Table] = []  # rows by date, evidence and negation
    firsts: list[pa.Table] = []  # the first date of each accession
    for batch in pq.ParquetFile(rows_file).iter_batches(1 << 20, columns=["accession", "evidence", "negated", "date"]):
        table = pa.table(batch)
        table = table.set_column(0, "accession", table["accession"].cast(pa.string()))
        counts.append(table.group_by(["date", "evidence", "negated"]).aggregate([([], "count_all")]))
        firsts.append(table.group_by("accession").aggregate([("date", "min")]).rename_columns(["accession", "date"]))
        if len(firsts) == 16:
            merged = pa.concat_tables(firsts).group_by("accession").aggregate([("date", "min")])
            firsts = [merged.rename_columns(["accession", "date"])]
    rows = pa.concat_tables(counts)
    first = pa.concat_tables(firsts).group_by("accession").aggregate([("date", "min")])["date_min"]

    def count(table: pa.Table) -> int:
        return int(pc.sum(table["count_all"]).as_py() or 0)

    def up_to(cut: dt.date) -> dict[str, Any]:
        until = pa.scalar(cut, pa.date32())
        stored = rows.filter(pc.less_equal(rows["date"], until))
        if not len(stored):
            start = pc.min(rows["date"]).as_py()
            raise InputError(
                f"{path}: no row is dated {cut} or before; the first is of {start}", hint="see --cut-dates"
            )
        kept = stored.filter(pc.not_equal(stored["evidence"], ND))
        dropped = {
            reason: sum(n for day, n in whole[f"{reason}_by_date"].items() if day <= cut.isoformat())
            for reason in ("other_database", "not_in_proteins")
        }
        filtered = {"other_database": dropped["other_database"], "no_data": count(stored) - count(kept)}
        groups = dict.fromkeys(whole["evidence_groups"], 0)
        for code, n in zip(kept["evidence"].to_pylist(), kept["count_all"].to_pylist(), strict=True):
            groups[group(CODES[code])] += n
        dates = pc.min_max(kept["date"])
        return whole | {
            "rows": count(stored) + sum(dropped.values()) + sum(whole["rejected"].values()),
            "kept": count(kept),
            "negated": count(kept.filter(kept["negated"])),
            "proteins": int(pc.sum(pc.less_equal(first, until)).as_py()),
            "filtered": {reason: n for reason, n in filtered.items() if n},
            "not_in_proteins": dropped["not_in_proteins"],
            "evidence_groups": groups,
            "first_date": str(dates["min"]) if len(kept) else None,
            "last_date": str(dates["max"]) if len(kept) else None,
        }

    return [whole if cut is None else up_to(cut) for cut in cuts]
