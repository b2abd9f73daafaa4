"""`manifest.json`: what a dataset is, from what it was made, and what was counted on the way (contract section 8).

Nothing in it depends on the time, the machine or the path that made it; that goes into `run.json`. Called by the export
operation; reads the finished files' statistics to tell which columns vary.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from . import features, schema
from .config import ExportConfig
from .cut import Cut
from .keys import ExportInputs, fingerprint, libraries
from .parquet_export import FileInfo, split_digest
from .staging import Stage

SCHEMA_VERSION = 1

BY_DEFINITION = ("lineage_ancestor_of_count", "lineage_is_ancestor_of_known", "knn_present")
"""Columns that vary only with `keep_known` or `interpro_candidates`: the manifest names them, a run does not."""


def build(
    config: ExportConfig,
    inputs: ExportInputs,
    cuts: Sequence[Cut],
    stages: Mapping[str, Stage],
    files: Mapping[str, FileInfo],
    directory: Path,
) -> dict[str, Any]:
    """The manifest of the dataset whose parquet files lie in `directory`; `stages` by snapshot pair."""
    families = _families(config, [directory / files[split].name for split in ("train", "eval")])
    pairs = {kind: [c.pair for c in cuts if c.kind == kind] for kind in ("train", "eval")}
    eval_pairs = pairs["eval"]
    return {
        "schema_version": SCHEMA_VERSION,
        "name": config.name,
        "format": "parquet",
        "k": config.k,
        "embedding_config_id": inputs.embeddings.identity,
        "ontology_snapshot_id": inputs.ontology.identity,
        "annotation_source": config.annotation_source,
        "train_snapshot_pairs": pairs["train"],
        "eval_snapshot_pair": eval_pairs[0] if len(eval_pairs) == 1 else eval_pairs,
        "schema_sha": schema.schema_sha(),
        "schema_digest": schema.schema_digest(),
        "n_train_rows": files["train"].rows,
        "n_eval_rows": files["eval"].rows,
        "feature_families": [f for f, status in families.items() if status["status"] == "produced"],
        "families": families,
        "producer_version": version("protea"),
        "producer_git_sha": _git_sha(),
        "fingerprint": fingerprint(config, inputs),
        "config": config.model_dump(mode="json"),
        "inputs": _inputs(inputs),
        "columns": [
            {"name": c.name, "type": str(c.type), "family": c.family, "description": c.description, "unit": c.unit}
            for c in schema.COLUMNS
        ],
        "counts": {c.pair: stages[c.pair].result["counts"] for c in cuts},
        "dropped": {
            "annotation_sets": _by_version(cuts, stages, "dropped_sets"),
            "cuts": {c.pair: stages[c.pair].result["dropped"] for c in cuts},
            "tables": _dropped_tables(inputs, cuts, stages),
        },
        "evidence_groups": _by_version(cuts, stages, "evidence_groups"),
        "derived_by_date": [str(v) for v in inputs.sets if v in inputs.derived],
        "warnings": warnings(cuts, stages, inputs),
        "files": {info.name: {"size": info.size, "sha256": info.sha256} for info in files.values()},
        "logical_sha256": {split: split_digest(files[split].digests) for split in ("train", "eval")},
        "libraries": libraries(),
    }


def dumps(manifest: Mapping[str, Any]) -> bytes:
    """The bytes of `manifest.json`."""
    return (json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _dropped_tables(inputs: ExportInputs, cuts: Sequence[Cut], stages: Mapping[str, Stage]) -> dict[str, Any]:
    """Rows of the optional inputs that were of no use: malformed ones when loaded, the others under the ontology."""
    resolved = stages[cuts[0].pair].result["dropped_tables"]
    return {
        name: dict(sorted({**ref.stats.get("rejected", {}), **resolved.get(name, {})}.items()))
        for name, ref in sorted(inputs.tables.items())
    }


def _inputs(inputs: ExportInputs) -> dict[str, Any]:
    named = {"ontology": inputs.ontology, "proteins": inputs.proteins, "embedding_config": inputs.embeddings}
    named |= dict(sorted(inputs.tables.items()))
    out: dict[str, Any] = {kind: {"name": ref.name, "identity": ref.identity} for kind, ref in named.items()}
    out["annotation_sets"] = {
        str(v): {"identity": s.identity, "derived_by_date": v in inputs.derived} for v, s in inputs.sets.items()
    }
    return out


def _by_version(cuts: Sequence[Cut], stages: Mapping[str, Stage], what: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for c in cuts:
        for v, found in stages[c.pair].result[what].items():
            out[v] = dict(sorted(found.items()))
    return out


def warnings(cuts: Sequence[Cut], stages: Mapping[str, Stage], inputs: ExportInputs) -> list[str]:
    """What a user of the dataset should know, one line each."""
    out = []
    derived_olds = dict.fromkeys(c.old.version for c in cuts if c.old.version in inputs.derived)
    groups = _by_version(cuts, stages, "evidence_groups")
    for v in derived_olds:
        if groups[str(v)]["electronic"] == 0:
            out.append(
                f"annotation set {v} was cut by date and has no electronic row: electronic rows are re-dated at each release"
            )
    for c in cuts:
        cells = [n for by_aspect in stages[c.pair].result["counts"].values() for n in by_aspect.values()]
        members, absent = sum(n["members"] for n in cells), sum(n["absent_from_old"] for n in cells)
        if not members:
            out.append(f"{c.pair}: no members at all: do the ontology and the two annotation sets belong together?")
        elif not any(n["queried"] for n in cells):
            out.append(no_vectors(c.pair, members))
        if absent > 0.2 * members:
            out.append(
                f"{c.pair}: {absent} of {members} members do not occur in the old set at all: the files' scopes differ, "
                "and that is not new knowledge"
            )
    return out


def no_vectors(pair: str, members: int) -> str:
    """The warning of a cut that cannot have a row."""
    return f"{pair}: none of the {members} members has a vector: are the embeddings those of other proteins?"


def _families(config: ExportConfig, splits: Sequence[Path]) -> dict[str, Any]:
    """Each family `produced` or `absent` and why; columns of a produced one that do not vary are named."""
    on = features.switched_on(config)
    constant = _constant_columns(splits)
    out: dict[str, Any] = {}
    for family in schema.FAMILIES:
        names = [c.name for c in schema.COLUMNS if c.family == family]
        still = {n: constant[n] for n in names if n in constant}
        if family not in on:
            by = features.producer(family)
            out[family] = {"status": "absent", "reason": f"switched off ({by.switch if by else None})"}
        elif len(still) == len(names):
            out[family] = {"status": "absent", "reason": "; ".join(dict.fromkeys(still.values()))}
        else:
            out[family] = {"status": "produced"}
            if still:
                out[family]["absent_columns"] = still
    return out


def still(families: Mapping[str, Any]) -> list[str]:
    """The families and columns that were switched on and do not vary, one line each."""
    out = []
    for family, s in families.items():
        if s["status"] == "absent" and not s["reason"].startswith("switched off"):
            out.append(f"family {family} is absent: {s['reason']}")
        columns = s.get("absent_columns", {}).items()
        out += [f"column {name} of {family} does not vary: {why}" for name, why in columns if name not in BY_DEFINITION]
    return out


def _constant_columns(splits: Sequence[Path]) -> dict[str, str]:
    """Columns with one value at most, nulls aside, over all row groups, by the files' statistics."""
    seen: dict[str, set[Any]] = {name: set() for name in schema.NAMES}
    nulls: dict[str, int] = dict.fromkeys(schema.NAMES, 0)
    rows = 0
    for path in splits:
        with pq.ParquetFile(path) as f:
            for g in range(f.metadata.num_row_groups):
                group = f.metadata.row_group(g)
                rows += group.num_rows
                for i, name in enumerate(schema.NAMES):
                    s = group.column(i).statistics
                    nulls[name] += s.null_count
                    if s.null_count < group.num_rows:
                        seen[name] |= (
                            {_plus(s.min), _plus(s.max)} if s.has_min_max else {0, 1}
                        )  # unknown: taken to vary
    if not rows:
        return dict.fromkeys(schema.NAMES, "there are no rows")
    return {
        name: f"always {next(iter(v))}{' or null' if nulls[name] else ''}" if v else "always null"
        for name, v in seen.items()
        if len(v) <= 1
    }


def _plus(value: Any) -> Any:
    """The value; 0.0 for -0.0, which Parquet's statistics use as the least zero."""
    return value + 0.0 if isinstance(value, float) else value


def _git_sha() -> str | None:
    """The commit of the checkout this runs from, if it is one."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None
