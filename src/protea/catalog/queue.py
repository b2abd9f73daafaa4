"""The schema of Procrastinate, which delivers minijobs to workers, in the catalogue's database.

The package ships a schema for new databases and a migration for each later change, named by version; the table
`queue_revision` holds the last one that was applied. Called by `protea.catalog` and its migrations.
"""

from importlib import resources
from typing import Any

from sqlalchemy import Connection, text

_LOCK = 0x7175657565
"""The key of the advisory lock under which the schema is changed ("queue")."""


def newest() -> str:
    """The name of the installed package's last migration."""
    return _migrations()[-1]


def installed(connection: Connection) -> str | None:
    """The last migration that was applied; None when there is no schema."""
    if connection.scalar(text("SELECT to_regclass('queue_revision')")) is None:
        return None
    return connection.scalar(text("SELECT name FROM queue_revision"))


def install(connection: Connection) -> None:
    """Install or migrate, in the connection's transaction. A schema newer than the package is left as it is."""
    wanted = newest()
    if installed(connection) == wanted:
        return
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    now = installed(connection)
    if now is None:
        _run(connection, _read("schema.sql"))
        connection.execute(text("CREATE TABLE queue_revision (name text NOT NULL)"))
        connection.execute(text("INSERT INTO queue_revision VALUES (:name)"), {"name": wanted})
        return
    for name in _migrations():
        if name > now:
            _run(connection, _read("migrations", name))
            connection.execute(text("UPDATE queue_revision SET name = :name"), {"name": name})


def remove(connection: Connection) -> None:
    """Drop everything that `install` made."""
    _run(
        connection,
        """
        DO $$
        DECLARE what record;
        BEGIN
            FOR what IN SELECT oid::regclass AS name FROM pg_class
                WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' AND relname LIKE 'procrastinate\\_%'
            LOOP EXECUTE format('DROP TABLE IF EXISTS %s CASCADE', what.name); END LOOP;
            FOR what IN SELECT oid::regprocedure AS name FROM pg_proc
                WHERE pronamespace = current_schema()::regnamespace AND proname LIKE 'procrastinate\\_%'
            LOOP EXECUTE format('DROP FUNCTION IF EXISTS %s CASCADE', what.name); END LOOP;
            FOR what IN SELECT oid::regtype AS name FROM pg_type
                WHERE typnamespace = current_schema()::regnamespace AND typname LIKE 'procrastinate\\_%'
            LOOP EXECUTE format('DROP TYPE IF EXISTS %s CASCADE', what.name); END LOOP;
        END $$;
        DROP TABLE IF EXISTS queue_revision;
        """,
    )


def _run(connection: Connection, script: str) -> None:
    """Several statements at once: the driver takes them only without parameters."""
    driver: Any = connection.connection.driver_connection
    driver.execute(script)


def _migrations() -> list[str]:
    place = resources.files("procrastinate.sql") / "migrations"
    return sorted(p.name for p in place.iterdir() if p.name.endswith(".sql"))


def _read(*path: str) -> str:
    return resources.files("procrastinate.sql").joinpath(*path).read_text(encoding="utf-8")
