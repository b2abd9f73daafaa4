"""Inputs and datasets of the catalogue in words and as JSON. Called by `load`, `embed` and `list`."""

from typing import Any

TITLES = {
    "ontology": "ontology",
    "annotations": "annotation set",
    "proteins": "protein set",
    "embeddings": "embedding config",
    "taxonomy": "taxonomy",
    "term-vectors": "term vectors",
    "interpro": "InterPro table",
    "scores": "scores",
    "ia": "information accretion",
}
TABLES = ("term-vectors", "interpro", "scores", "ia")


def version(row: Any) -> str:
    """The release of an input, as far as it has one."""
    if row.kind == "ontology":
        return str(row.stats.get("version") or "").removeprefix("releases/")
    return row.version if row.kind == "annotations" else ""


def content(kind: str, s: dict[str, Any]) -> str:
    """What an input holds, in a few words, from the report of its reader."""
    if kind == "ontology":
        return f"{s['terms']:,} terms, {s['obsolete']:,} obsolete"
    if kind == "annotations":
        dates = f", {s['first_date']} to {s['last_date']}" if s["first_date"] else ""
        return f"{s['kept']:,} rows, {s['proteins']:,} proteins{dates}"
    if kind == "proteins":
        return f"{s['sequences']:,} sequences, {s['residues']:,} residues"
    if kind == "embeddings":
        return f"{s['vectors']:,} vectors of {s['dim']:,} {s['dtype']}"
    if kind == "term-vectors":
        return f"{s['kept']:,} vectors of {s['dim']:,} {s['dtype']}"
    if kind == "interpro":
        return f"{s['stored']:,} rows, {s['proteins']:,} proteins"
    if kind == "scores":
        return f"{s['kept']:,} rows, {s['proteins']:,} proteins"
    if kind == "ia":
        return f"{s['kept']:,} terms"
    return f"{s['nodes']:,} nodes, {s['merged']:,} merged"


def remarks(kind: str, s: dict[str, Any]) -> list[str]:
    """What a reader left out or changed, in a few words each."""
    out = []
    if kind == "annotations" or kind in TABLES:
        left_out = {**s["rejected"], **s["filtered"], "not_in_proteins": s["not_in_proteins"]}
        dropped = ", ".join(f"{n:,} {reason}" for reason, n in left_out.items() if n)
        out.append(f"of {s['rows']:,} rows, left out: {dropped}" if dropped else "")
        out.append(f"negated (NOT): {s['negated']:,} rows" if s.get("negated") else "")
        out += [f"line {line}: {reason}: {text!r}" for line, reason, text in s["problems"][:3]]
    if kind == "ontology":
        out.append(f"edges to terms that are not there: {s['dangling']:,}" if s["dangling"] else "")
    if kind == "proteins":
        out.append(f"repeated sequences left out: {s['duplicates']:,}" if s["duplicates"] else "")
    if kind == "embeddings":
        out.append(f"stored as {s['dtype']}, the file has {s['file_dtype']}" if s["narrowed"] else "")
        out.append(f"per-residue matrices averaged: {s['pooled']:,}" if s["pooled"] else "")
    if kind == "taxonomy":
        out.append(f"missing: {', '.join(s['missing'])}" if s["missing"] else "")
    return [line for line in out if line]


def as_json(row: Any) -> dict[str, Any]:
    """An input of the catalogue as JSON values."""
    out = {"name": row.name, "version": version(row) or None}
    if row.kind == "annotations":
        out |= {"source": row.source, "derived_by_date": row.derived_from_date}
    moment = row.created_at
    return out | {
        "identity": row.identity,
        "source_file": row.source_file,
        "loaded_at": moment.isoformat(timespec="seconds") if moment else None,
        "bytes": row.stats.get("bytes"),
        "stats": row.stats,
    }
