"""Alembic's environment: runs the migrations on the connection it is given, one process at a time.

Called by Alembic for `protea.catalog.migrations.upgrade`.
"""

from alembic import context
from sqlalchemy import text

from protea.catalog.models import Base

_LOCK = 0x70726F746561
"""The key of the advisory lock under which a database is migrated ("protea")."""

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=Base.metadata, version_table="protea_revision")
with context.begin_transaction():
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    context.run_migrations()
