"""What an export would do, and what a run of it would reuse, without doing or writing anything.

Called by the command line; calls the catalogue through `exporting`, and the same core functions as a run.
"""

import difflib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .catalog import open_catalog
from .core.config import ExportConfig, load
from .errors import NotFoundError
from .exporting import Report, Rows, bucket_of, configure, in_place, resolve
from .settings import Settings

BASE_MEMORY = 400 << 20
"""What a run needs beside the inputs it holds: libraries, one batch of rows in each of three shards, one tile."""


@dataclass(frozen=True)
class Plan:
    """The answer of `plan`; `cuts` holds one entry a cut."""

    name: str
    fingerprint: str
    cuts: list[dict[str, Any]]
    expected_rows: int
    disk_bytes: int
    free_disk_bytes: int
    memory_bytes: int
    warnings: list[str]

    def to_json(self) -> dict[str, Any]:
        return vars(self)


def plan(
    config: Path | str | ExportConfig | None = None,
    *,
    settings: Settings | None = None,
    report: Report | None = None,
    **values: Any,
) -> Plan:
    """Cuts, members per category, donors, expected rows, disk and memory. Nothing is written.

    Expected rows come from a fixed sample of each cut's queries, whose neighbours are really searched.
    """
    import numpy as np

    from .core import annotation_set, room
    from .core.cut import NEIGHBOURS_PER_BLOCK, QUERIES_PER_BLOCK, prepare
    from .core.keys import cut_key, cuts, fingerprint
    from .core.manifest import no_vectors
    from .core.ontology import ASPECT_NAMES
    from .core.operations.export_research_dataset import load_inputs, open_staging
    from .core.schema import CATEGORIES

    settings = settings or Settings()
    wanted = configure(config, values)
    with open_catalog(settings) as catalog:
        resolved, inputs = resolve(wanted, catalog, settings)
        row, bucket = Rows(catalog).find(resolved.name), bucket_of(settings, catalog)
    mark = fingerprint(resolved, inputs)
    staging = open_staging(bucket, settings.resume_dir, resolved.name, mark)
    shared = load_inputs(room.without_families(resolved), inputs, settings.threads)
    out: list[dict[str, Any]] = []
    warnings: list[str] = []
    if row and row["fingerprint"] == mark:
        warnings.append(f"the dataset {resolved.name!r} is published already, from the same settings and inputs")
    elif row:
        warnings.append(
            f"the name {resolved.name!r} is taken by another dataset; a run needs --replace or another name"
        )
    if not (place := room.existing(staging.path.parent)).is_dir():
        warnings.append(f"{place} is no directory: no export can be staged there (see PROTEA_EXPORT_RESUME_DIR)")
    sets: dict[Any, annotation_set.AnnotationSet] = {}
    sizes: list[room.CutSize] = []
    memory = 0
    for number, cut in enumerate(todo := cuts(resolved, inputs), 1):
        if report:
            report("plan.cut", cut=cut.pair, label=cut.label, number=number, of=len(todo))
        sets = {s.version: sets.get(s.version) or annotation_set.load(s, shared.onto) for s in (cut.old, cut.new)}
        p = prepare(cut, shared, sets[cut.old.version], sets[cut.new.version])
        n_rows, t = room.expected_rows(p), p.truth
        stage, why = staging.restore(cut.pair, cut_key(resolved, inputs, cut))
        sizes.append(replace(room.size_of(resolved, n_rows, p), there=stage is not None))
        members = {
            c: {a: int(((t.category == i) & (t.aspect == j)).sum()) for j, a in enumerate(ASPECT_NAMES)}
            for i, c in enumerate(CATEGORIES)
        }
        aspects = p.search.aspects
        if len(t.protein) and not len(p.queries):
            warnings.append(no_vectors(cut.pair, len(t.protein)))
        absent = int(np.count_nonzero(t.absent))
        if absent > 0.2 * len(t.protein):
            warnings.append(f"{cut.pair}: {absent} of {len(t.protein)} members do not occur in the old set at all")
        if cut.old.version in inputs.derived and not p.groups_old["electronic"]:
            warnings.append(f"{cut.old.version} was cut by date and has no electronic row")
        out.append(
            {
                "pair": cut.pair,
                "kind": cut.kind,
                "label": cut.label,
                "members": members,
                "members_total": len(t.protein),
                "queries": len(p.queries),
                "donors": {a: int(np.count_nonzero(aspects >> i & 1)) for i, a in enumerate(ASPECT_NAMES)},
                "expected_rows": n_rows,
                "status": "finished" if stage else why or "to compute",
            }
        )
        held = sum(a.nbytes for s in sets.values() for a in (s.protein, s.term, s.evidence, s.qualifier, s.negated))
        memory = max(memory, 4 * held + shared.proteins.nbytes)
    expected = sum(c["expected_rows"] for c in out)
    return Plan(
        resolved.name,
        mark,
        out,
        expected,
        sum(room.needs(sizes)),
        shutil.disk_usage(room.existing(settings.storage)).free,
        BASE_MEMORY + memory + 50 * min(NEIGHBOURS_PER_BLOCK, 3 * resolved.k * QUERIES_PER_BLOCK),
        warnings,
    )


@dataclass(frozen=True)
class Explanation:
    """The answer of `explain`; `cuts` holds one entry a cut: reused or not, and what changed."""

    name: str
    fingerprint: str
    directory: str
    published: bool
    cuts: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        return vars(self)


def explain(
    target: str, *, settings: Settings | None = None, overrides: Mapping[str, Any] | None = None
) -> Explanation:
    """Which cuts a run of `target` (a TOML file, or the name of a dataset or of an unfinished export) would reuse.

    A cut that cannot be reused comes with the reason: never finished, damaged, or what changed since another run of
    that name.
    """
    from .core.keys import cut_key, cuts, fingerprint
    from .core.operations.export_research_dataset import open_staging
    from .core.staging import changes, read_marker

    settings = settings or Settings()
    with open_catalog(settings) as catalog:
        file = Path(target)
        if file.suffix == ".toml" or file.is_file():
            config = load(file, overrides)
        else:
            config = _config_of(target, catalog, overrides)
        resolved, inputs = resolve(config, catalog, settings)
        row, bucket = Rows(catalog).find(resolved.name), bucket_of(settings, catalog)
        mark = fingerprint(resolved, inputs)
        same = row is not None and row["fingerprint"] == mark
        published = same and in_place(catalog.find_dataset(resolved.name), settings)
    staging = open_staging(bucket, settings.resume_dir, resolved.name, mark)
    since = [] if same or not row else changes(row["manifest"]["config"], resolved.model_dump(mode="json"))
    others = [
        d
        for d in sorted(settings.resume_dir.glob(f"{resolved.name}-{'[0-9a-f]' * 12}"))
        if d != staging.path and d.is_dir()
    ]
    out = []
    for cut in cuts(resolved, inputs):
        key = cut_key(resolved, inputs, cut)
        stage, why = staging.restore(cut.pair, key)
        entry: dict[str, Any] = {"pair": cut.pair, "kind": cut.kind, "reused": stage is not None, "reason": None}
        entry["changes"] = []
        if stage is None:
            entry["reason"] = why or ("the dataset is published; nothing is left to do" if published else None)
            if row and same and not published:
                entry["reason"] = f"the dataset was published, but its files are gone from {row['path']} or damaged"
            told = [
                (changes(marker["document"], key) or ["another cut of the series"], other.name)
                for other in others
                if (marker := read_marker(other / "cuts" / cut.pair)) is not None
            ]
            if told:  # of several runs the one that differs least
                entry["changes"], name = min(told, key=lambda one: (len(one[0]), one))
                entry["reason"] = why or f"finished for {name}, but something changed"
            if not entry["changes"] and since:
                entry["changes"] = since
                entry["reason"] = why or f"the dataset {resolved.name!r} was made from other settings"
            entry["reason"] = entry["reason"] or "never finished"
        out.append(entry)
    return Explanation(resolved.name, mark, str(staging.path), published, out)


def _config_of(name: str, catalog: Any, overrides: Mapping[str, Any] | None) -> ExportConfig:
    """The settings of a dataset, or of the newest export job of that name."""
    values: dict[str, Any] | None = None
    row = next((r for r in catalog.datasets() if r.name == name), None)
    if row is not None:
        values = row.manifest["config"]
    else:
        job = next((j for j in catalog.jobs.recent(limit=1000) if j.config.get("name") == name), None)
        if job is not None:
            values = job.config
    if values is None:
        names = {r.name for r in catalog.datasets()} | {
            j.config.get("name", "") for j in catalog.jobs.recent(limit=1000)
        }
        near = difflib.get_close_matches(name, names, 1, 0.5)
        raise NotFoundError(
            f"{name!r} is neither a file nor a dataset nor an export that was begun",
            hint=f"did you mean {near[0]!r}?" if near else None,
        )
    plain = {k: v for k, v in json.loads(json.dumps(values)).items() if v is not None}
    return configure(None, {**plain, **(overrides or {})})
