"""The catalogue: which inputs, datasets and jobs there are, in PostgreSQL.

`open_catalog` starts or joins the embedded server, or connects to the one that PROTEA_DATABASE_URL names, and checks
that its tables are this version's. Called by the loaders, the export and the command line; calls the embedded server,
the models and, only when the tables are not current, Alembic.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from sqlalchemy import URL, Engine, create_engine, delete, make_url, select, text
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from protea.catalog import pgprograms
from protea.catalog.embedded import EmbeddedServer
from protea.catalog.jobs import Jobs
from protea.catalog.models import (
    INPUTS,
    AnnotationSet,
    Dataset,
    EmbeddingConfig,
    Input,
    Job,
    JobEvent,
    Minijob,
    OntologySnapshot,
    ProteinSet,
    Taxonomy,
    Worker,
)
from protea.errors import ConfigError, ConflictError, DatabaseError, NotFoundError
from protea.settings import Settings

__all__ = [
    "INPUTS",
    "REVISIONS",
    "AnnotationSet",
    "Catalog",
    "Dataset",
    "EmbeddingConfig",
    "Input",
    "Job",
    "JobEvent",
    "Jobs",
    "Minijob",
    "OntologySnapshot",
    "ProteinSet",
    "Taxonomy",
    "Worker",
    "open_catalog",
    "upgrade",
]

REVISIONS = ("0001", "0002", "0003")
"""The migrations, oldest first: known here so that opening a current catalogue need not import Alembic."""


def open_catalog(settings: Settings) -> "Catalog":
    """Open the catalogue, migrating the embedded one when needed. Use it in a `with` statement, or `close` it.

    DatabaseError: it cannot be started or reached, is not migrated, or is newer than this version of PROTEA.
    """
    return Catalog(settings)


def upgrade(settings: Settings) -> str:
    """Migrate the catalogue to this version's tables (`protea db upgrade`); gives the revision."""
    with Catalog(settings, migrate=True) as catalog:
        catalog.install_queue()
        return REVISIONS[-1]


class Catalog:
    """An open catalogue. Rows that it gives are detached: reading their attributes asks the database nothing."""

    def __init__(self, settings: Settings, *, migrate: bool = False) -> None:
        self._server: EmbeddedServer | None = None
        try:
            if settings.database_url:
                self.url = _url(settings.database_url)
            else:
                self._server = EmbeddedServer(settings.storage / "postgres")
                self._server.acquire()
                self.url = _embedded_url(self._server)
            self.engine = _engine(self.url, settings.lease_seconds)
            self.jobs = Jobs(self.session)
            self._check_revision(migrate or self._server is not None)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections; the last one to leave an embedded server stops it."""
        if hasattr(self, "engine"):
            self.engine.dispose()
        if self._server is not None:
            self._server.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """A session in one transaction: committed at the end of the block, undone by an exception."""
        try:
            with Session(self.engine, expire_on_commit=False) as session, session.begin():
                yield session
        except DBAPIError as e:
            if isinstance(e, IntegrityError):
                raise
            raise _database_error(e, self.url) from e

    @property
    def place(self) -> str:
        """Which database this is, without a password: `embedded`, or the URL."""
        return "embedded" if self._server is not None else _masked(self.url)

    # -- inputs

    def inputs(self, kind: str) -> list[Any]:
        """Every input of a kind (a key of INPUTS), by name; annotation sets by source and version."""
        with self.session() as session:
            rows: list[Input] = list(session.scalars(select(_model(kind))))
        return sorted(rows, key=_order)

    def find(self, kind: str, name: str | None = None) -> Any:
        """The input of that name; without a name, the only one loaded. NotFoundError, ConfigError if there are several.

        An ontology is also found by its `data-version` label, with or without the leading `releases/`.
        """
        model, rows = _model(kind), self.inputs(kind)
        if name is None:
            if len(rows) > 1:
                raise ConfigError(
                    f"which {model.title}? {len(rows)} are loaded: {_some(r.name for r in rows)}", hint="name one"
                )
            if rows:
                return rows[0]
        for row in rows:
            if row.name == name:
                return row
        if name is not None and kind == OntologySnapshot.kind:
            label = name.removeprefix("releases/")
            found = [r for r in rows if str(r.stats.get("version") or "").removeprefix("releases/") == label]
            if len(found) == 1:
                return found[0]
        raise _not_found(model.title, name, [r.name for r in rows], f"load one with `protea load {kind} FILE`")

    def annotation_set(self, source: str, version: str) -> AnnotationSet:
        """The annotation set of (source, version). NotFoundError lists what is loaded."""
        rows = self.inputs(AnnotationSet.kind)
        for row in rows:
            if (row.source, row.version) == (source, str(version)):
                return row
        name, names = f"{source}:{version}", [f"{r.source}:{r.version}" for r in rows]
        how = f"load it with `protea load annotations FILE --source {source} --version {version}`"
        raise _not_found(AnnotationSet.title, name, names, how)

    def add(self, *rows: Input) -> None:
        """Insert inputs, all or none. ConflictError when a name (or a source and version) is taken."""
        with self.session() as session:
            self.add_in(session, *rows)

    def add_in(self, session: Session, *rows: Input) -> None:
        """As `add`, in a transaction of the caller."""
        session.add_all(rows)
        try:
            session.flush()
        except IntegrityError as e:
            names = _some(r.name for r in rows)
            raise ConflictError(
                f"{type(rows[0]).title} {names}: the name is taken", hint="choose another --name"
            ) from e

    def uses_object(self, kind: str, digest: str) -> bool:
        """Whether any input lies in that object of the store."""
        model = _model(kind)
        with self.session() as session:
            return session.scalar(select(model.id).where(model.object_digest == digest).limit(1)) is not None

    # -- datasets

    def datasets(self) -> list[Dataset]:
        """Every dataset, the newest first."""
        with self.session() as session:
            return list(session.scalars(select(Dataset).order_by(Dataset.created_at.desc(), Dataset.id.desc())))

    def find_dataset(self, name: str) -> Dataset:
        """The dataset of that name, else NotFoundError."""
        rows = self.datasets()
        for row in rows:
            if row.name == name:
                return row
        raise _not_found("dataset", name, [r.name for r in rows], "make one with `protea export run FILE`")

    def add_dataset(
        self, dataset: Dataset, *, replace: bool = False, guard: Callable[[Session], None] = lambda session: None
    ) -> None:
        """Insert a dataset's row; with `replace`, instead of one of that name. ConflictError when the name is taken.

        `guard` is called first, in the same transaction; what it raises undoes it.
        """
        with self.session() as session:
            guard(session)
            old = session.scalar(select(Dataset).where(Dataset.name == dataset.name).with_for_update())
            if old is not None and replace:
                session.delete(old)
                session.flush()
            session.add(dataset)
            try:
                session.flush()
            except IntegrityError as e:
                raise ConflictError(
                    f"the dataset {dataset.name!r} exists", hint="choose another name, or use --replace"
                ) from e

    def remove_dataset(self, name: str) -> None:
        """Delete a dataset's row, if there is one."""
        with self.session() as session:
            session.execute(delete(Dataset).where(Dataset.name == name))

    # -- opening

    def revive(self) -> None:
        """Start an embedded server that died while this was open; a server named by a URL is others' business."""
        if self._server is not None:
            self._server.revive()

    def install_queue(self) -> None:
        """Bring Procrastinate's tables to the version of the installed package; nothing to do when they are."""
        from protea.catalog import queue

        try:
            with self.engine.begin() as connection:
                queue.install(connection)
        except DBAPIError as e:
            raise _database_error(e, self.url) from e

    def prepare_queue(self) -> None:
        """Before jobs are queued or worked off: DatabaseError when Procrastinate's tables on a server are old."""
        if self._server is not None:
            self.install_queue()
            return
        from protea.catalog import queue

        with self.session() as session:
            found = queue.installed(session.connection())
        if found is None or found < queue.newest():
            raise DatabaseError(
                f"the queue's tables in {self.place} are of another version", hint="run `protea db upgrade`"
            )

    def _check_revision(self, migrate: bool) -> None:
        try:
            with self.engine.begin() as connection:
                revision = _revision(connection)
                if revision == REVISIONS[-1]:
                    return
                if revision is not None and revision not in REVISIONS:
                    raise DatabaseError(
                        f"the catalogue ({self.place}) is at revision {revision}, newer than this PROTEA knows"
                        f" ({REVISIONS[-1]})",
                        hint="upgrade PROTEA",
                    )
                if not migrate:
                    state = "has no tables of PROTEA yet" if revision is None else f"is at the old revision {revision}"
                    raise DatabaseError(f"the database {self.place} {state}", hint="run `protea db upgrade`")
                from protea.catalog.migrations import upgrade as run_migrations

                run_migrations(connection)
        except DBAPIError as e:
            raise _database_error(e, self.url) from e


def _revision(connection: Any) -> str | None:
    """The revision of the tables, None when there are none. Two round trips."""
    if connection.scalar(text("SELECT to_regclass('protea_revision')")) is None:
        return None
    return connection.scalar(text("SELECT version_num FROM protea_revision"))


def _url(given: str) -> URL:
    """The URL of PROTEA_DATABASE_URL for psycopg. No message may show it: it may hold a password."""
    form = "postgresql://user@host:port/database"
    try:
        url = make_url(given)
    except (ArgumentError, ValueError):
        raise ConfigError("PROTEA_DATABASE_URL is not a URL", hint=f"it looks like {form}") from None
    if url.drivername not in ("postgresql", "postgresql+psycopg"):
        raise ConfigError(
            f"PROTEA_DATABASE_URL is for {url.drivername!r}, not PostgreSQL", hint=f"it looks like {form}"
        )
    return url.set(drivername="postgresql+psycopg")


def _embedded_url(server: EmbeddedServer) -> URL:
    return URL.create(
        "postgresql+psycopg",
        username=pgprograms.USER,
        database=pgprograms.DATABASE,
        query={"host": str(server.socket_dir), "port": str(pgprograms.PORT)},
    )


def _engine(url: URL, lease: float) -> Engine:
    # a process that is paused in a transaction must not keep its locks: those who take over its work wait for them
    idle = f"-c idle_in_transaction_session_timeout={max(1, round(lease * 1000))}"
    defaults = {"connect_timeout": "10", "application_name": "protea", "options": idle}
    return create_engine(
        url,
        pool_pre_ping=True,
        json_serializer=lambda value: json.dumps(_storable(value)),
        connect_args={k: v for k, v in defaults.items() if k not in url.query},
    )


def _storable(value: Any) -> Any:
    """A JSON value without what PostgreSQL takes in no text: the character 0, and halves of surrogate pairs (bytes of a
    file's name that are not UTF-8). They become Python escapes."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {_storable(k): _storable(v) for k, v in value.items()}
    return [_storable(v) for v in value] if isinstance(value, list | tuple) else value


def storable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", r"\x00")


def _masked(url: URL) -> str:
    query = {k: "***" if "password" in k else v for k, v in url.query.items()}
    return url.set(drivername="postgresql", query=query).render_as_string(hide_password=True)


def _database_error(e: DBAPIError, url: URL) -> DatabaseError:
    """One line for whatever the driver said in several, without the password."""
    said = "; ".join(x.strip() for x in str(e.orig).splitlines() if x.strip()) or type(e.orig).__name__
    for secret in (url.password, *(v for k, v in url.query.items() if "password" in k)):
        if secret:
            said = said.replace(str(secret), "***")
    return DatabaseError(f"the database {_masked(url)}: {said}")


def _model(kind: str) -> type[Input]:
    if kind not in INPUTS:
        raise ConfigError(f"there is no kind of input {kind!r}", hint=f"the kinds are {', '.join(INPUTS)}")
    return INPUTS[kind]


def _order(row: Input) -> tuple[Any, ...]:
    """By name; annotation sets by source, then integer versions by value, then dates."""
    if isinstance(row, AnnotationSet):
        number = int(row.version) if row.version.isdigit() else None
        return (row.source, number is None, number or 0, row.version)
    return (row.name,)


def _not_found(title: str, name: str | None, names: list[str], how: str) -> NotFoundError:
    import difflib

    if not names:
        what = f"no {title} is loaded" if title != "dataset" else "there is no dataset yet"
        return NotFoundError(what if name is None else f"no {title} {name!r}: {what}", hint=how)
    near = difflib.get_close_matches(str(name), names, 1, 0.5)
    return NotFoundError(
        f"no {title} {name!r}; there is: {_some(names)}", hint=f"did you mean {near[0]!r}?" if near else how
    )


def _some(names: Any, limit: int = 20) -> str:
    names = list(names)
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
