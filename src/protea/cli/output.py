"""What the commands write: tables, trees and JSON on standard output, remarks on standard error.

No control character, line break or markup of a name or a file reaches a terminal or a pipe as such.
"""

import datetime as dt
import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protea.settings import Settings

LONG = 8
"""More entries than this go on a line each."""


def read_settings() -> "Settings":
    """The settings of the environment; ConfigError when a variable makes no sense."""
    from pydantic import ValidationError

    from protea.errors import ConfigError
    from protea.settings import Settings

    try:
        return Settings()
    except ValidationError as e:
        said = [f"PROTEA_{str(x['loc'][0]).upper()}={x['input']}: {x['msg']}" for x in e.errors()]
        raise ConfigError("; ".join(said), hint="see the environment") from None


def clean(text: str) -> str:
    """One line of printable characters; the others as Python escapes."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def say(text: str) -> None:
    """A remark, one line on standard error."""
    print(f"protea: {clean(text)}", file=sys.stderr, flush=True)


def write(text: str = "") -> None:
    """A line of the result."""
    print(clean(text))


def write_json(value: Any) -> None:
    """The one JSON document of `--json`."""
    print(json.dumps(value, indent=2, default=str))


def size(n: int | None) -> str:
    """Bytes, for people: `12.3 MB`."""
    if n is None:
        return ""
    value, units = float(n), iter(("bytes", "kB", "MB", "GB", "TB", "PB"))
    unit = next(units)
    while value >= 1000 and unit != "PB":
        value, unit = value / 1000, next(units)
    return f"{n} bytes" if unit == "bytes" else f"{value:.3g} {unit}" if value < 100 else f"{value:.0f} {unit}"


def when(moment: dt.datetime | None) -> str:
    """A moment in local time, to the minute."""
    return "" if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M}"


def cell(value: Any) -> str:
    """A value for people: numbers with thousands separators, nothing for None."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else clean(str(value))


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], *, text: int | None = None) -> None:
    """Columns under a head, numbers to the right, every value whole; only a terminal gets column `text` folded."""
    rows = list(rows)
    numeric = [
        any(isinstance(r[i], int | float) for r in rows) and not any(isinstance(r[i], str) and r[i] for r in rows)
        for i in range(len(head))
    ]
    lines = [list(head), *([cell(value) for value in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    terminal = sys.stdout.isatty()
    if terminal and text is not None:
        room = shutil.get_terminal_size().columns - sum(widths) - 2 * (len(widths) - 1) + widths[text]
        widths[text] = min(widths[text], max(room, 20))
    for number, line in enumerate(lines):
        folded = [line[i] if i != text else "" for i in range(len(line))]
        parts = [""] if text is None else textwrap.wrap(line[text], widths[text]) or [""]
        for part in parts:
            if text is not None:
                folded[text] = part
            padded = (t.rjust(w) if r else t.ljust(w) for t, w, r in zip(folded, widths, numeric, strict=True))
            shown = "  ".join(padded).rstrip()
            print(f"\x1b[1m{shown}\x1b[0m" if terminal and number == 0 else shown)
            folded = [""] * len(line)


def tree(value: dict[str, Any], indent: str = "") -> None:
    """A report for people: a line an entry, what is small on one line."""
    width = max((len(k) for k in value), default=0) + 2
    for key, entry in value.items():
        items = [f"{k} {cell(v)}" for k, v in entry.items()] if isinstance(entry, dict) else entry
        if not isinstance(items, list):
            shown = "yes" if entry is True else "no" if entry is False else "-" if entry is None else cell(entry)
            write(f"{indent}{key:{width}}{shown}")
        elif len(items) <= LONG and not any(isinstance(x, list | tuple | dict) for x in items):
            write(f"{indent}{key:{width}}{', '.join(map(cell, items)) or '-'}")
        else:
            write(f"{indent}{key}")
            for item in items:
                write(f"{indent}  {'  '.join(map(cell, item)) if isinstance(item, list | tuple) else cell(item)}")
