"""What every column is, from the registry and the schema: for `protea features`, and for `docs/columns.md`.

`python -m protea.core.describe > docs/columns.md` writes the documentation; a test keeps it current.
"""

from typing import Any

from . import features, schema


def describe() -> list[dict[str, Any]]:
    """One entry a column: name, type, family, description, unit, range, null rule, producer, what it depends on."""
    out = []
    for c in schema.COLUMNS:
        by = features.producer(c.family)
        out.append(
            {
                "name": c.name,
                "type": "dictionary" if c.type == schema.DICT else str(c.type),
                "family": c.family,
                "description": c.description,
                "unit": c.unit,
                "range": c.range,
                "null_when": c.null_when,
                "producer": by.module.removeprefix("protea.") if by else "core.cut",
                "switch": by.switch if by else None,
                "needs": list(by.needs) if by else ["annotation_source", "embedding_config", "ontology"],
                "section": by.section if by else "2, 3, 6, 7",
            }
        )
    return out


def markdown() -> str:
    """The column reference."""
    columns = describe()
    lines = [
        "# Columns",
        "",
        f"The {len(columns)} columns of `train.parquet` and `eval.parquet`, by family. `python -m protea.core.describe`",
        "writes this page from the registry, and a test keeps it current; `protea features` prints the same.",
        "Measurements are float32, counts int32, flags bool; text columns are dictionary-encoded. Missing is null.",
        "",
        "## Categories, truth and known",
        "",
        "A member is a (protein, aspect) with novel terms: experimental terms of the new release, propagated, that the old",
        "one did not imply. `nk` (no knowledge): the protein had no experimental term at all at the old release; `lk`",
        "(limited): none in this aspect, but in another; `pk` (partial): some in this aspect already.",
        "",
        "`truth.parquet` holds every novel term of every member, those without a vector or a row included: `snapshot_pair`,",
        "`protein_accession`, `aspect`, `category`, `go_term_id` and `reached`, true when the splits have a row for it.",
        "`known.parquet` holds the experimental terms of every member's protein at the old release: `snapshot_pair`,",
        "`protein_accession`, `aspect`, `go_term_id`. With both, recall, Fmax and coverage can be computed.",
        "",
        "## Families",
        "",
        "| family | columns | switched on by | needs | contract section | module |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for family in schema.FAMILIES:
        of = [c for c in columns if c["family"] == family]
        first = of[0]
        switch = f"`{first['switch']}`" if first["switch"] else "always on"
        needs = ", ".join(f"`{n}`" for n in first["needs"])
        lines.append(f"| `{family}` | {len(of)} | {switch} | {needs} | {first['section']} | `{first['producer']}` |")
    for family in schema.FAMILIES:
        lines += ["", f"## {family}", "", "| column | type | what it is | unit | values | null when |"]
        lines.append("| --- | --- | --- | --- | --- | --- |")
        lines += [
            f"| `{c['name']}` | {c['type']} | {c['description']} | {c['unit'] or '-'} | {c['range']} | {c['null_when']} |"
            for c in columns
            if c["family"] == family
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
