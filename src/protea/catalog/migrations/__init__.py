"""The Alembic migrations of the catalogue. `upgrade` runs them; called by `protea.catalog`."""

import threading
from pathlib import Path

from sqlalchemy import Connection

from protea.catalog import queue

_alembic = threading.Lock()
"""Alembic keeps its state in modules; other processes are kept away by a lock in the database (see env.py)."""


def upgrade(connection: Connection) -> None:
    """Bring the database of an open connection to the newest revision, in the connection's transaction.

    With it goes the schema of Procrastinate, to the version of the installed package.
    """
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    with _alembic:
        command.upgrade(config, "head")
    queue.install(connection)
