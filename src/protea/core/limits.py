"""What a file may grow to when it is read: the guard against archives that unpack to far more than they are.

Called by the readers of `core`; `protea load` and `protea inspect` lift it with `--allow-large`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from protea.errors import InputError

LARGE = 1 << 30
"""Bytes up to which any ratio is fine."""
MAX_RATIO = 200
"""GAF, OBO and taxdump files are compressed 5 to 30 times, numbers less; deflate cannot do more than 1032."""
MAX_RECORD = 64 << 20
"""Bytes of one FASTA record: titin has 35 thousand residues."""
MAX_VALUES = 1 << 20
"""Values of one vector."""

_allowed: ContextVar[bool] = ContextVar("allow_large", default=False)


@contextmanager
def large_allowed(yes: bool = True) -> Iterator[None]:
    """Within the block, what is opened may unpack to any size."""
    token = _allowed.set(yes)
    try:
        yield
    finally:
        _allowed.reset(token)


def allowed() -> bool:
    return _allowed.get()


def check_size(what: str, stored: int, unpacked: int) -> None:
    """InputError when `stored` bytes become more than LARGE and MAX_RATIO times as many."""
    if unpacked > LARGE and unpacked > MAX_RATIO * stored and not allowed():
        raise too_large(what, stored, unpacked)


def too_large(what: str, stored: int, unpacked: int) -> InputError:
    return InputError(
        f"{what}: {stored:,} bytes unpack to {unpacked:,} or more, over {MAX_RATIO} times as many",
        hint="if it is meant to be like that, give --allow-large",
    )
