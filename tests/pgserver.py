"""A PostgreSQL server as an administrator would run one: Debian's if it is installed, on TCP, with a password."""

from __future__ import annotations

import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from protea.catalog import pgprograms


def programs() -> Path:
    """Debian's newest, else those of the wheel."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda p: int(p.parts[-3]))
    return found[-1].parent if found else pgprograms._binaries(None)


class PgServer:
    """Started in a new directory; `stop` removes it. `address` is the interface it listens on."""

    def __init__(self, address: str = "127.0.0.1", network: str = "127.0.0.1/32") -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="protea-pg-"))
        self.programs, data = programs(), self.directory / "data"
        identity = pgprograms._identity(data)
        pgprograms._give(self.directory, identity)
        pgprograms._open_the_way(self.programs / "initdb", identity)
        password = secrets.token_hex(8)
        secret = self.directory / "password"
        secret.write_text(password)
        pgprograms._give(secret, identity)
        run = {"cwd": "/", "env": pgprograms._environment(), "stdin": subprocess.DEVNULL, **identity}
        subprocess.run(
            [self.programs / "initdb", "-D", data, "-U", "protea", "--auth=scram-sha-256", f"--pwfile={secret}",
             "--encoding=UTF8", "--locale=C", "-N"], check=True, stdout=subprocess.DEVNULL, **run,
        )  # fmt: skip
        with (data / "pg_hba.conf").open("a") as f:
            f.write(f"host all all {network} scram-sha-256\n")
        with socket.socket() as s:
            s.bind((address, 0))
            port = s.getsockname()[1]
        options = {"listen_addresses": address, "port": port, "unix_socket_directories": self.directory, "fsync": "off"}
        with (self.directory / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [self.programs / "postgres", "-D", data, *(f"--{k}={v}" for k, v in options.items())],
                stdout=log, stderr=log, start_new_session=True, **run,
            )  # fmt: skip
        self.url = f"postgresql://protea:{password}@{address}:{port}/postgres"
        end = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                said = (self.directory / "log").read_text()[-3000:]
                assert time.monotonic() < end, said
                assert self.process.poll() is None, said
                time.sleep(0.1)

    @property
    def version(self) -> str:
        with psycopg.connect(self.url) as connection:
            return str(connection.execute("SHOW server_version").fetchall()[0][0])

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)  # without waiting for connections
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)
