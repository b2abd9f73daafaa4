"""The Alembic migrations of the catalogue. `upgrade` runs them; called by `protea.catalog`."""

import threading
from pathlib import Path

from sqlalchemy import Connection

_alembic = threading.Lock()
"""Alembic keeps its state in modules; other processes are kept away by a lock in the database (see env.py)."""


def upgrade(connection: Connection) -> None:
    """Bring the database of an open connection to the newest revision, in the connection's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    with _alembic:
        command.upgrade(config, "head")
