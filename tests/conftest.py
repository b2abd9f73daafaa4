"""Fixtures: settings with a home of their own, on an embedded server of their own or a database of a shared one.

`own_settings`  a fresh home; the first use starts (and makes) its embedded PostgreSQL, about a second.
`settings`      a fresh home; PROTEA_DATABASE_URL is a fresh migrated database on a server shared by the session (fast).
`blank_url`     the URL of a fresh database without tables on that server.
`catalog`       the open catalogue of `settings`.
"""

import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from protea.catalog import Catalog, open_catalog, upgrade
from protea.catalog.embedded import EmbeddedServer
from protea.settings import Settings


def pytest_configure(config: pytest.Config) -> None:
    # a shell starts what runs in the background with SIGINT ignored, and the tests of Ctrl-C would wait for ever
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _root_has_a_place_of_its_own(config)


def _root_has_a_place_of_its_own(config: pytest.Config) -> None:
    """For root: temporary directories in a place of our own. Each pytest closes the shared one (pytest-of-root) to other
    users when it starts, and with it the way of the servers that other runs have there under an ordinary user."""
    if os.geteuid() == 0 and config.option.basetemp is None and not hasattr(config, "workerinput"):
        place = tempfile.mkdtemp(prefix="protea-tests-")
        config.option.basetemp = os.path.join(place, "t")
        config.add_cleanup(lambda: shutil.rmtree(place, ignore_errors=True))


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No PROTEA_* of the developer's shell reaches a test (but for where the real data is, and how much to test)."""
    for name in [n for n in os.environ if n.startswith("PROTEA_") and not n.startswith("PROTEA_TEST_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def own_settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


@pytest.fixture(scope="session")
def _new_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """A function making a database from a template and giving its URL."""
    server = EmbeddedServer(tmp_path_factory.mktemp("server") / "postgres")
    server.acquire()
    place = quote(str(server.socket_dir), safe="")
    numbers = itertools.count(1)
    with psycopg.connect(f"postgresql://postgres@/postgres?host={place}", autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")  # for speed; servers of a test's own keep it on
        connection.execute("SELECT pg_reload_conf()")

    def make(template: str) -> str:
        name = f"test_{next(numbers)}"
        with psycopg.connect(f"postgresql://postgres@/postgres?host={place}", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return f"postgresql://postgres@/{name}?host={place}"

    yield make
    server.release()


@pytest.fixture(scope="session")
def _migrated(_new_database: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a migrated database to copy."""
    url = _new_database("template0")
    upgrade(Settings(home=tmp_path_factory.mktemp("template"), database_url=url))
    return url.partition("?")[0].rpartition("/")[2]


@pytest.fixture
def blank_url(_new_database: Callable[[str], str]) -> str:
    return _new_database("template0")


@pytest.fixture
def settings(tmp_path: Path, _new_database: Callable[[str], str], _migrated: str) -> Settings:
    return Settings(home=tmp_path / "home", database_url=_new_database(_migrated))


@pytest.fixture
def catalog(settings: Settings) -> Iterator[Catalog]:
    with open_catalog(settings) as opened:
        yield opened
