"""The embedded server's life cycle, with real processes and signals. Facts are asked of the kernel and of PostgreSQL."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from protea.catalog import embedded, open_catalog, pgprograms
from protea.catalog.embedded import EmbeddedServer
from protea.errors import DatabaseError
from protea.settings import Settings

CLIENT = """
import os, sys
from pathlib import Path
from protea.catalog.embedded import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]))
server.acquire()
print("up", flush=True)
sys.stdin.readline()
server.release()
print("left", flush=True)
"""
CHURN = """
import random, sys, time
from pathlib import Path
import psycopg
from protea.catalog.embedded import EmbeddedServer
random.seed(int(sys.argv[2]))
for _ in range(int(sys.argv[3])):
    server = EmbeddedServer(Path(sys.argv[1]))
    server.acquire()
    with psycopg.connect(f"host='{server.socket_dir}' user=postgres dbname=postgres") as c:
        assert c.execute("SELECT 1").fetchone() == (1,)
    time.sleep(random.random() * 0.02)
    server.release()
    time.sleep(random.random() * 0.02)
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A server's directory; whatever a test leaves running there is ended."""
    place = tmp_path / "postgres"
    yield place
    kill(running(place))


def kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # the others go by themselves once the postmaster is gone
            os.kill(pid, signal.SIGKILL)


def running(place: Path) -> list[int]:
    """The pids of all PostgreSQL processes that work in the directory, postmaster or not."""
    found = []
    for p in psutil.process_iter(["name", "cwd", "status"]):
        if p.info["name"] == "postgres" and p.info["cwd"] == str(place / "data") and p.info["status"] != "zombie":
            found.append(p.pid)
    return found


def postmaster(place: Path) -> int:
    return int((place / "data" / "postmaster.pid").read_text().split()[0])


def wait_for(what: Any, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def connect(server: EmbeddedServer) -> psycopg.Connection:
    return psycopg.connect(host=str(server.socket_dir), user="postgres", dbname="postgres", autocommit=True)


def client(place: Path, **options: Any) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", CLIENT, place], stdin=pipe, stdout=pipe, text=True, **options)


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def leave(process: subprocess.Popen[str]) -> None:
    out, _ = process.communicate("\n", timeout=60)
    assert out.split()[-1] == "left"
    assert process.returncode == 0


def test_started_shared_and_stopped_by_the_last(place: Path) -> None:
    first, second = EmbeddedServer(place), EmbeddedServer(place)
    first.acquire()
    pid = postmaster(place)
    second.acquire()
    assert postmaster(place) == pid
    with connect(second) as c:
        assert c.execute("SHOW listen_addresses").fetchone() == ("",)
        assert c.execute("SHOW fsync").fetchone() == ("on",)
        assert c.execute("SHOW data_checksums").fetchone() == ("on",)
        c.execute("CREATE TABLE kept (x int)")
    assert not [c for c in psutil.Process(pid).net_connections("inet") if c.status == "LISTEN"]
    assert stat.S_IMODE(first.socket_dir.stat().st_mode) == 0o700
    assert first.socket_dir == place / "data"
    first.release()
    assert pid in running(place)
    second.release()
    assert running(place) == []
    assert not (place / "data" / "postmaster.pid").exists()
    first.release()  # once more does nothing
    first.acquire()
    with connect(first) as c:
        c.execute("SELECT * FROM kept")
    first.release()


def test_four_processes_start_a_new_one_at_once(place: Path) -> None:
    clients = [client(place) for _ in range(4)]
    assert [says(c) for c in clients] == ["up"] * 4
    pid = postmaster(place)
    assert {psutil.Process(p).ppid() for p in running(place) if p != pid} == {pid}
    for c in clients[:3]:
        leave(c)
        assert postmaster(place) == pid
    leave(clients[3])
    assert running(place) == []


def test_leaving_while_others_arrive(place: Path) -> None:
    churn = [subprocess.Popen([sys.executable, "-c", CHURN, place, str(i), "12"]) for i in range(4)]
    assert [c.wait(240) for c in churn] == [0] * 4
    assert running(place) == []


def test_a_killed_client_lets_go(place: Path) -> None:
    one = client(place)
    assert says(one) == "up"
    pid = postmaster(place)
    one.kill()
    one.wait()
    assert pid in running(place)  # nobody was there to stop it
    two = client(place)
    assert says(two) == "up"
    assert postmaster(place) == pid
    leave(two)
    assert running(place) == []


def test_interrupting_the_terminal_does_not_stop_it(place: Path) -> None:
    one = client(place, start_new_session=True)
    assert says(one) == "up"
    os.killpg(one.pid, signal.SIGINT)
    one.wait()
    wait_for(lambda: running(place) == [], 20)  # the client leaves in order; it was the only one


def test_a_killed_process_group_does_not_take_it_along(place: Path) -> None:
    one = client(place, start_new_session=True)
    assert says(one) == "up"
    pid = postmaster(place)
    os.killpg(one.pid, signal.SIGKILL)
    one.wait()
    assert pid in running(place)


@pytest.mark.parametrize("all_of_them", [False, True])
def test_a_killed_server_is_recovered(place: Path, all_of_them: bool) -> None:
    server, later = EmbeddedServer(place), EmbeddedServer(place)
    server.acquire()
    with connect(server) as c:
        c.execute("CREATE TABLE kept AS SELECT generate_series(1, 1000) AS x")
    pid = postmaster(place)
    kill(running(place) if all_of_them else [pid])
    later.acquire()  # the first one still holds its share
    assert postmaster(place) != pid
    with connect(later) as c:
        assert c.execute("SELECT count(*) FROM kept").fetchone() == (1000,)
    later.release()
    assert running(place) != []
    server.release()
    assert running(place) == []


def test_a_busy_backend_of_a_killed_postmaster_is_ended(place: Path) -> None:
    server = EmbeddedServer(place)
    server.acquire()
    code = "import psycopg, sys; psycopg.connect(host=sys.argv[1], user='postgres').execute(sys.argv[2])"
    busy = "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 10000000) b"
    query = subprocess.Popen([sys.executable, "-c", code, server.socket_dir, busy], stderr=subprocess.DEVNULL)
    with connect(server) as c:
        wait_for(lambda: c.execute("SELECT 1 FROM pg_stat_activity WHERE query = %s", [busy]).fetchone())
    time.sleep(1)
    os.kill(postmaster(place), signal.SIGKILL)
    time.sleep(0.5)
    left = running(place)
    assert left  # it did not notice
    server.acquire()
    assert not set(left) & set(running(place))
    with connect(server) as c:
        assert c.execute("SELECT 1").fetchone() == (1,)
    query.wait()
    server.release()


def stale(place: Path, pid: int) -> None:
    """A data directory as a killed postmaster leaves it, its pid now being another process's."""
    server = EmbeddedServer(place)
    server.acquire()
    lines = (place / "data" / "postmaster.pid").read_text().splitlines()
    os.kill(postmaster(place), signal.SIGKILL)
    wait_for(lambda: running(place) == [])
    server.release()
    (place / "data" / "postmaster.pid").write_text("\n".join([str(pid), *lines[1:]]) + "\n")
    (place / "data" / f"{pgprograms.SOCKET}.lock").write_text("\n".join([str(pid), *lines[1:]]) + "\n")


def test_a_reused_pid_is_not_the_server(place: Path) -> None:
    EmbeddedServer(place).acquire()
    owner = (place / "data").stat().st_uid
    options = {"user": owner, "group": owner} if os.geteuid() == 0 else {}
    with subprocess.Popen(["sleep", "600"], **options) as other:
        stale(place, other.pid)
        server = EmbeddedServer(place)
        server.acquire()
        with connect(server) as c:
            assert c.execute("SELECT 1").fetchone() == (1,)
        server.release()
        assert other.poll() is None
        other.kill()


def test_another_servers_pid_is_not_ours(place: Path, tmp_path: Path) -> None:
    other = EmbeddedServer(tmp_path / "other")
    other.acquire()
    pid = postmaster(tmp_path / "other")
    stale(place, pid)
    server = EmbeddedServer(place)
    server.acquire()
    assert postmaster(place) != pid
    server.release()
    assert psutil.pid_exists(pid)
    other.release()
    assert running(tmp_path / "other") == []


@pytest.mark.parametrize("content", ["", "nonsense\n", "999999999\n"])
def test_a_damaged_pid_file(place: Path, content: str) -> None:
    stale(place, 1)
    (place / "data" / "postmaster.pid").write_text(content)
    server = EmbeddedServer(place)
    server.acquire()
    server.release()
    assert running(place) == []


def test_a_lost_socket_restarts_the_server(place: Path) -> None:
    server = EmbeddedServer(place)
    server.acquire()
    (place / "data" / pgprograms.SOCKET).unlink()
    server.acquire()
    with connect(server) as c:
        assert c.execute("SELECT 1").fetchone() == (1,)
    server.release()


def test_killed_while_making_the_data_directory(place: Path) -> None:
    (place / "init-left").mkdir(parents=True)
    (place / "init-left" / "PG_VERSION").write_text("18\n")
    one = client(place, start_new_session=True)
    wait_for(lambda: any((d / "base").exists() for d in place.glob("init-*") if d.name != "init-left"))
    os.killpg(one.pid, signal.SIGKILL)
    one.wait()
    assert not (place / "data").exists()
    server = EmbeddedServer(place)
    server.acquire()
    assert list(place.glob("init-*")) == []
    server.release()


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.02, 0.05, 0.1])
def test_killed_while_starting(place: Path, seconds: float) -> None:
    server = EmbeddedServer(place)
    server.acquire()
    server.release()
    log = (place / "log").stat().st_size
    one = client(place, start_new_session=True)
    wait_for(lambda: (place / "log").stat().st_size > log)
    time.sleep(seconds)
    os.killpg(one.pid, signal.SIGKILL)
    one.wait()
    server = EmbeddedServer(place)
    server.acquire()
    with connect(server) as c:
        assert c.execute("SELECT 1").fetchone() == (1,)
    server.release()
    assert running(place) == []


@pytest.mark.parametrize("name", ["a" * 100, "comma, and space", "quote' \" $HOME `x` %s"])
def test_odd_paths(tmp_path: Path, name: str) -> None:
    settings = Settings(home=tmp_path / name)
    with open_catalog(settings) as catalog:
        assert catalog.inputs("ontology") == []
        assert catalog._server is not None
        found = catalog._server.socket_dir
        assert stat.S_IMODE(found.stat().st_mode) == 0o700
        assert len(os.fsencode(found / pgprograms.SOCKET)) <= 107
        with open_catalog(settings) as again:
            assert again.datasets() == []
    assert running(settings.storage / "postgres") == []
    assert found == settings.storage / "postgres" / "data" or not found.exists()


def test_somebody_elses_socket_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(pgprograms.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(pgprograms, "_fits", lambda path: path.parent == tmp_path)
    real = Path.mkdir

    def first_come(self: Path, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        if self.name.startswith("protea-"):
            self.chmod(0o777)
            raise FileExistsError

    monkeypatch.setattr(Path, "mkdir", first_come)
    with pytest.raises(DatabaseError, match="not a private directory"):
        EmbeddedServer(tmp_path / "postgres").acquire()


def test_an_error_is_one_line_with_the_reason_and_the_log(place: Path) -> None:
    server = EmbeddedServer(place)
    server.acquire()
    server.release()
    with (place / "data" / "postgresql.conf").open("a") as f:
        f.write("no_such_parameter = 1\n")
    with pytest.raises(DatabaseError) as caught:
        server.acquire()
    assert "\n" not in str(caught.value)
    assert "FATAL" in str(caught.value)
    assert str(place / "log") in str(caught.value)
    assert "no_such_parameter" in (place / "log").read_text()


def test_a_foreign_data_directory_is_left_alone(place: Path) -> None:
    (place / "data").mkdir(parents=True)
    (place / "data" / "precious").write_text("x")
    with pytest.raises(DatabaseError, match=r"data"):
        EmbeddedServer(place).acquire()
    assert (place / "data" / "precious").read_text() == "x"
    assert list(place.glob("init-*")) == []


def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseError, match="PROTEA_HOME"):
        open_catalog(Settings(home=tmp_path / "file"))


def test_another_machine_may_still_run_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale(place, 1)
    monkeypatch.setattr(embedded, "_host", lambda: ["elsewhere", "boot"])
    with pytest.raises(DatabaseError, match="not stopped there") as caught:
        EmbeddedServer(place).acquire()
    assert "\n" not in str(caught.value)
    (place / "data" / "postmaster.pid").unlink()
    server = EmbeddedServer(place)
    server.acquire()
    server.release()
    assert (place / "host").read_text() == "elsewhere boot"


def test_a_forked_child_does_not_free_the_lock(place: Path) -> None:
    server, other = EmbeddedServer(place), EmbeddedServer(place)
    server.acquire()
    child = os.fork()
    if child == 0:
        server.release()
        os._exit(0)
    os.waitpid(child, 0)
    other.acquire()
    other.release()
    assert running(place) != []
    server.release()
    assert running(place) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")
def test_ordinary_users_and_root(place: Path, tmp_path: Path) -> None:
    (tmp_path / "way" / "data").mkdir(parents=True)
    (tmp_path / "way" / "data" / "x").touch()
    with pytest.raises(DatabaseError):  # opens the way through the directories above, as root does for its server
        EmbeddedServer(tmp_path / "way").acquire()
    place.mkdir()
    os.chown(place, 65534, 65534)

    def as_user(uid: int) -> int:
        """Uses the server in a child process of that user; 0 when the server runs as the owner of the data."""
        child = os.fork()
        if child == 0:
            code = 99
            with contextlib.suppress(BaseException):
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
                server = EmbeddedServer(place)
                try:
                    server.acquire()
                    code = 0 if psutil.Process(postmaster(place)).uids().real == 65534 else 1
                    server.release()
                except DatabaseError as e:
                    code = 2 if "belongs to the user with id 65534" in str(e) else 3
            os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert as_user(65534) == 0
    root = EmbeddedServer(place)
    root.acquire()
    assert psutil.Process(postmaster(place)).uids().real == 65534
    assert as_user(65533) == 2
    root.release()
    assert as_user(65534) == 0
    assert running(place) == []
