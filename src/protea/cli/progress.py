"""Progress on standard error: bars with rate and time left on a terminal, elsewhere a plain line every few seconds.

`reading` is for what reads files, `Exporting` hears the events of an export (`protea.exporting`).
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from protea.cli.output import clean, say, size

EVERY = 5.0
"""Seconds between two plain lines about the same thing."""


def bars() -> bool:
    """Whether standard error is a terminal that can draw."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def file_size(path: str | Path) -> int:
    """Bytes of a file, or of the files in a directory; 0 when there is none (the reader will say so)."""
    path = Path(path)
    with contextlib.suppress(OSError):
        return sum(p.stat().st_size for p in path.iterdir()) if path.is_dir() else path.stat().st_size
    return 0


def left(seconds: float) -> str:
    """A time to wait: `0:00:12`."""
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


@contextlib.contextmanager
def reading(what: str, total: int = 0) -> Iterator[Callable[..., None]]:
    """Gives a function that is told how many of about `total` bytes are done (and, if it knows better, of how many)."""
    if bars():
        with _drawing("download") as progress:
            task = progress.add_task(_short(what), total=total or None)
            yield lambda done, of=0: progress.update(task, completed=done, total=max(of or total, done) or None)
        return
    start = shown = time.monotonic()

    def tell(done: int, of: int = 0) -> None:
        nonlocal shown, total
        total = of or total
        now = time.monotonic()
        if now - shown >= EVERY:
            shown = now
            rate = done / (now - start)
            share = f" of {size(total)} ({done / total:.0%})" if total > done else ""
            rest = f", {left((total - done) / rate)} left" if total > done and rate else ""
            say(f"{what}: {size(done)}{share}, {size(round(rate))}/s{rest}")

    yield tell


class Exporting:
    """Shows the events of an export; call it with them, within a `with` block."""

    def __init__(self) -> None:
        self.progress: Any = _drawing("rows") if bars() else None
        self.task: Any = None
        self.start = self.shown = 0.0

    def __enter__(self) -> Self:
        if self.progress:
            self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.progress:
            self.progress.stop()

    def __call__(self, kind: str, **what: Any) -> None:
        """Show one event."""
        now = time.monotonic()
        if kind == "cut.started":
            self.start = self.shown = now
        elif kind == "cut.prepared":
            self.start = now
        if kind == "cut.progress":
            self._advance(now, **what)
            return
        if self.progress and self.task is not None:
            self.progress.remove_task(self.task)
            self.task = None
        if self.progress:
            self._draw(kind, what)
        else:
            say(event(kind, what))

    def _draw(self, kind: str, what: dict[str, Any]) -> None:
        """What is going on as a bar, and everything that stays true as a line above it."""
        from rich.text import Text

        if kind not in ("cut.started", "assembly.started", "plan.cut"):
            self.progress.console.print(Text(clean(event(kind, what))), soft_wrap=True)
        bar = f"{what['number']}/{what['of']} {what['label']}" if "label" in what else event(kind, what)
        if kind in ("cut.started", "cut.prepared", "assembly.started", "plan.cut"):
            self.task = self.progress.add_task(_short(bar), total=what.get("queries"), rows="")

    def _advance(self, now: float, done: int, queries: int, rows: int, **where: Any) -> None:
        seconds = max(now - self.start, 1e-9)
        rate = f"{rows:,} rows, {rows / seconds:,.0f}/s"
        if self.progress:
            if self.task is not None:
                self.progress.update(self.task, completed=done, total=queries, rows=rate)
        elif now - self.shown >= EVERY:
            self.shown = now
            rest = left(seconds * (queries - done) / done) if done else "?"
            say(f"{_cut(where)}: {done:,} of {queries:,} queries ({done / max(queries, 1):.0%}), {rate}, {rest} left")


def _cut(what: dict[str, Any]) -> str:
    return f"cut {what['number']}/{what['of']} {what['label']} ({what['cut']})"


def event(kind: str, what: dict[str, Any]) -> str:
    """An event as a line."""
    if kind == "export.started":
        return f"export {what['name']}, staged in {what['staging']}"
    if kind == "export.waiting":
        return f"waiting: {what['reason']}"
    if kind == "export.warning":
        return f"warning: {what['text']}"
    if kind == "export.unchanged":
        return f"{what['name']} is there already, from the same settings and inputs"
    if kind == "export.published":
        return f"published {what['name']} in {what['path']}"
    if kind == "cut.started":
        return f"{_cut(what)}: reading the annotation sets"
    if kind == "cut.prepared":
        return f"{_cut(what)}: {what['members']:,} members, {what['queries']:,} queries, {what['donors']:,} donors"
    if kind == "cut.aligned":
        return f"{_cut(what)}: {what['asked']:,} pairs of sequences, {what['from_cache']:,} of them aligned before"
    if kind == "cut.finished":
        return f"{_cut(what)}: {what['rows']:,} rows in {what['seconds']:.1f} s"
    if kind == "cut.restored":
        return f"{_cut(what)}: restored, {what['rows']:,} rows"
    if kind == "cut.discarded":
        return f"{_cut(what)}: computed again: {what['reason']}"
    if kind == "assembly.started":
        return f"writing {what['file']} ({what['shards']} shards)"
    if kind == "plan.cut":
        return f"{_cut(what)}: counting"
    return f"{kind}: " + ", ".join(f"{k} {v}" for k, v in what.items())


def _short(text: str) -> str:
    """A description that leaves room for the numbers, without markup."""
    from rich.markup import escape

    return escape(clean(text if len(text) <= 40 else f"{text[:37]}..."))


def _drawing(what: str) -> Any:
    """A rich progress display on standard error, for bytes (`download`) or for rows."""
    from rich import progress as p
    from rich.console import Console

    columns: list[Any] = [p.TextColumn("{task.description}"), p.BarColumn(bar_width=12)]
    if what == "download":
        columns += [p.DownloadColumn(), p.TransferSpeedColumn()]
    else:
        columns += [p.MofNCompleteColumn(), p.TextColumn("{task.fields[rows]}")]
    return p.Progress(*columns, p.TimeRemainingColumn(), console=Console(stderr=True, highlight=False), transient=True)
