"""The right to do something among all machines of a catalogue: an advisory lock of PostgreSQL.

It is held by a connection of its own, and so goes with the process that holds it, however that dies, or with its machine
after half a minute (keep-alives). Made for the core's `Bucket` by `protea.exporting`.
"""

import contextlib
import hashlib
import os
import socket
import time
from collections.abc import Callable
from typing import TypeVar

import psycopg
from sqlalchemy import URL

from protea.errors import BusyError, DatabaseError

T = TypeVar("T")
PATIENCE = 120.0
"""Seconds to wait for a database that is away."""
ALIVE = {"tcp_keepalives_idle": 10, "tcp_keepalives_interval": 5, "tcp_keepalives_count": 3}
"""After how long the server gives up a machine that is gone, and a machine the server."""
HOLDER = """
SELECT application_name FROM pg_stat_activity JOIN pg_locks USING (pid)
WHERE locktype = 'advisory' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND ((classid::bigint << 32) | objid::bigint) = %s AND pid <> pg_backend_pid() LIMIT 1
"""


class AdvisoryRight:
    """The right to do `what`; see `protea.core.bucket.Right`."""

    def __init__(self, url: URL, what: str) -> None:
        self.what = what
        self._url = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._key = int.from_bytes(hashlib.sha256(what.encode()).digest()[:8], signed=True)
        self._connection: psycopg.Connection | None = None
        self._shared = False

    def take(self, *, shared: bool) -> str | None:
        self._shared = shared
        return _patiently(self._take)

    def _take(self) -> str | None:
        if self._connection is None or self._connection.closed:
            name = f"protea, process {os.getpid()} on {socket.gethostname()}"[:63]
            options = " ".join(f"-c {k}={v}" for k, v in ALIVE.items())
            self._connection = psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=10,
                options=options,
                application_name=name,
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=3,
                tcp_user_timeout=25_000,
            )
        lock = "pg_try_advisory_lock_shared" if self._shared else "pg_try_advisory_lock"
        row = self._connection.execute(f"SELECT {lock}(%s)", (self._key,)).fetchone()
        if row and row[0]:
            return None
        found = self._connection.execute(HOLDER, (self._key,)).fetchone()
        return str(found[0]) if found else "another process"

    def check(self) -> None:
        """BusyError when the right was lost, with the connection, and another process has it now."""

        def ask() -> str | None:
            if self._connection is not None and not self._connection.closed:
                try:
                    self._connection.execute("SELECT 1")
                    return None
                except psycopg.OperationalError:
                    self.release()
            return self._take()

        holder = _patiently(ask)
        if holder is not None:
            self.release()
            raise BusyError(f"{self.what} was taken over by {holder} while the database was away")

    def release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()


def _patiently(ask: Callable[[], T]) -> T:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return ask()
        except psycopg.OperationalError as e:
            if time.monotonic() > deadline:
                said = "; ".join(line.strip() for line in str(e).splitlines() if line.strip())
                raise DatabaseError(f"the database cannot be reached: {said}") from None
        time.sleep(1)
