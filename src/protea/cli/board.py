"""The board of a job: a line a cut, a column a stage; and its live picture while `export run --workers` goes on."""

import time
from typing import Any, Self

from protea.cli.output import clean, say, table
from protea.cli.progress import EVERY, bars, event

STAGES = ("knn", "features", "write")
HEAD = ("CUT", "LABEL", "KNN", "FEATURES", "WRITE", "ROWS", "WORKERS")
QUIET = ("minijob.started", "minijob.done", "job.submitted")
"""Events that the board shows already."""


def board_lines(board: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The board's cells: of each stage how many of its minijobs are done."""
    return [
        (line["cut"], line["label"], *(_cell(line["stages"].get(s)) for s in STAGES), line["rows"] or "",
         ", ".join(line["workers"]))
        if line["cut"] != "coordinator"
        else ("coordinator", _cell(line["stages"]["coordinator"]), "", "", "", "", ", ".join(line["workers"]))
        for line in board
    ]  # fmt: skip


def board_table(board: list[dict[str, Any]]) -> None:
    """Print the board."""
    table(HEAD, [(*(str(c) if c != "" else "" for c in line),) for line in board_lines(board)], text=6)


def _cell(counts: dict[str, int] | None) -> str:
    """`done`, `3/8`, with what is unusual after it."""
    if not counts:
        return ""
    total, done = sum(counts.values()), counts.get("done", 0)
    text = next(iter(counts)) if total == 1 else "done" if done == total else f"{done}/{total}"
    unusual = [f"{counts[s]} {s}" for s in ("failed", "cancelled") if s in counts and total > 1]
    return ", ".join([text, *unusual])


class Board:
    """Shows a job while it runs: on a terminal the board, elsewhere a line an event and how far it is now and then."""

    def __init__(self) -> None:
        self.live: Any = None
        self.shown = time.monotonic()

    def __enter__(self) -> Self:
        if bars():
            from rich.console import Console
            from rich.live import Live

            self.live = Live(console=Console(stderr=True, highlight=False), transient=True, refresh_per_second=4)
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live:
            self.live.stop()

    def tell(self, kind: str, **what: Any) -> None:
        """An event of the job's log."""
        if kind in QUIET:
            return
        if self.live:
            from rich.text import Text

            self.live.console.print(Text(clean(event(kind, what))), soft_wrap=True)
        else:
            say(event(kind, what))

    def show(self, job: Any, board: list[dict[str, Any]]) -> None:
        """The board as it is now."""
        if self.live:
            from rich.table import Table

            picture = Table(*HEAD, box=None)
            for line in board_lines(board):
                picture.add_row(*(clean(str(c)) for c in line))
            self.live.update(picture)
        elif (counts := job.progress.get("minijobs")) and time.monotonic() - self.shown >= EVERY:
            self.shown = time.monotonic()
            say(f"{counts.get('done', 0)} of {sum(counts.values())} minijobs, {counts.get('running', 0)} running")
