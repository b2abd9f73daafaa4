"""`make bench`, or `python -m bench [--only STAGE ...] [--size S] [--json] [--plot FILE]`: the table of speed and memory.

Each stage is timed next to its limit, or next to the usual way, in turn, within this run, and held against its target.
Workloads are made in a temporary directory (`--dir` keeps them), which takes about 20 GB for all stages.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from .measure import child, machine, spread


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--only", nargs="+", metavar="STAGE", help="stages to run; 'growth' is the scaling run")
    parser.add_argument("--size", help="S, M, L or XL instead of the stages' own sizes")
    parser.add_argument("--rounds", type=int, default=5, help="times each side is timed (default 5)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--dir", type=Path, help="where the workloads are made, and kept")
    parser.add_argument("--plot", type=Path, help="draw the growth into this file (needs matplotlib)")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stage:
        print(json.dumps(_run(args.stage, args.size, args.dir, args.rounds)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        report(args, args.dir or Path(scratch))


def _run(stage: str, size: str, directory: Path, rounds: int) -> dict[str, Any]:
    """One stage, in this process."""
    from .growth import growth
    from .stages import STAGES

    if stage == "growth":
        return growth(directory, rounds)
    return {"stage": stage, "rows": STAGES[stage][0](size, directory, rounds)}


def report(args: argparse.Namespace, directory: Path) -> None:
    from .growth import as_text, draw
    from .stages import STAGES

    directory.mkdir(parents=True, exist_ok=True)
    asked = args.only or [*STAGES, "growth"]
    if unknown := [name for name in asked if name not in STAGES and name != "growth"]:
        raise SystemExit(f"no stage {unknown[0]!r}; there are {', '.join([*STAGES, 'growth'])}")
    found: dict[str, Any] = {"machine": machine(), "rows": [], "failed": []}
    if not args.json:
        print(", ".join(f"{k} {v}" for k, v in found["machine"].items()))
        print(HEAD, flush=True)
    for name in asked:
        size = "-" if name == "growth" else args.size or STAGES[name][1]
        done = child(name, size, directory, args.rounds)
        if "failed" in done:
            found["failed"].append(done)
            print(f"{name}: {done['failed']}", file=sys.stderr)
            continue
        lines = [] if name == "growth" else done["rows"]
        found["rows"] += lines
        if name == "growth":
            found["growth"] = done
            if args.plot:
                draw(done, args.plot)
        if not args.json:
            for r in lines:
                print(line(r), flush=True)
            if name == "growth":
                print(as_text(done))
    if args.json:
        print(json.dumps(found, indent=1))
    elif found["rows"]:
        met = [r["met"] for r in found["rows"] if r["met"] is not None]
        print(f"\n{sum(met)} of {len(met)} targets met; load at the end {machine()['load'][0]:.1f}")
    if found["failed"]:
        raise SystemExit(1)


HEAD = (
    "| stage | size | ours, s: median (range) | CPU s | against | s: median (range) | CPU s | result | target | met |"
    " peak MB |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def line(r: dict[str, Any]) -> str:
    """A line of the table, in Markdown."""
    target = "-" if r["target"] is None else f"{'>=' if r['least'] else '<='} {r['target']:g} {r['unit']}"
    met = {None: "-", True: "yes", False: "NO"}[r["met"]]
    ours, other, used, theirs = (
        spread(r[side]) if r[side] else "-" for side in ("ours", "other", "ours_cpu", "other_cpu")
    )
    used, theirs = used.partition(" ")[0], theirs.partition(" ")[0]  # the median alone
    result = f"{r['value']:.3g} {r['unit']}"
    cells = (r["stage"], r["size"], ours, used, r["against"] or "-", other, theirs, result, target, met)
    return "| " + " | ".join(map(str, cells)) + f" | {r['peak_mb']:,} |"


if __name__ == "__main__":
    main()
