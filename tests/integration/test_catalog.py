"""The catalogue against a real PostgreSQL server reached by URL, and what it says when something is wrong."""

import ast
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, text

from protea import catalog as module
from protea.catalog import (
    REVISIONS,
    AnnotationSet,
    Catalog,
    Dataset,
    OntologySnapshot,
    ProteinSet,
    migrations,
    open_catalog,
    upgrade,
)
from protea.catalog.models import Base
from protea.errors import BusyError, ConfigError, ConflictError, DatabaseError, NotFoundError
from protea.settings import Settings


def ontology(name: str, **changes: Any) -> OntologySnapshot:
    row: dict[str, Any] = {"identity": "i" + name, "object_digest": "d" + name, "stats": {}, "source_file": "f"}
    return OntologySnapshot(name=name, **(row | changes))


def annotations(source: str, version: str, name: str | None = None) -> AnnotationSet:
    return AnnotationSet(
        name=name or f"{source}:{version}",
        identity=f"i{source}{version}",
        object_digest="d",
        stats={"kept": 1},
        source_file="f.gaf",
        source=source,
        version=version,
        derived_from_date=False,
        file_identity="f",
    )


def dataset(name: str, path: str = "p") -> Dataset:
    return Dataset(name=name, fingerprint="f", path=path, manifest={"k": 5}, n_train_rows=1, n_eval_rows=2)


# -- tables


def psycopg_url(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://")


def test_models_and_migrations_agree(catalog: Catalog) -> None:
    with catalog.engine.connect() as connection:
        options = {
            "compare_type": True,
            "compare_server_default": True,
            "version_table": "protea_revision",
            "include_name": lambda name, kind, parents: kind != "table" or name in Base.metadata.tables,
        }
        assert compare_metadata(MigrationContext.configure(connection, opts=options), Base.metadata) == []
        tables = {t for t in inspect(connection).get_table_names() if not t.startswith("procrastinate_")}
    assert tables == {
        "annotation_set", "dataset", "embedding_config", "job", "job_event", "ontology_snapshot", "protea_revision",
        "protein_set", "taxonomy", "term_vectors", "interpro_table", "external_scores", "information_accretion",
        "minijob", "worker", "queue_revision",
    }  # fmt: skip


def test_the_known_revisions_are_the_migrations(blank_url: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    script = ScriptDirectory.from_config(config)
    assert tuple(reversed([s.revision for s in script.walk_revisions()])) == REVISIONS
    engine = create_engine(psycopg_url(blank_url))
    with engine.begin() as connection:
        migrations.upgrade(connection)
    with engine.begin() as connection:  # and back
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    assert inspect(engine).get_table_names() == ["protea_revision"]
    engine.dispose()


def test_a_server_is_migrated_only_when_asked(tmp_path: Path, blank_url: str) -> None:
    settings = Settings(home=tmp_path, database_url=blank_url)
    with pytest.raises(DatabaseError, match=r"no tables of PROTEA yet.*protea db upgrade"):
        open_catalog(settings)
    assert upgrade(settings) == REVISIONS[-1]
    with open_catalog(settings) as catalog:
        assert catalog.inputs("proteins") == []
    assert upgrade(settings) == REVISIONS[-1]
    assert list(tmp_path.iterdir()) == []  # a server needs nothing of the home


def test_upgrades_at_once(tmp_path: Path, blank_url: str) -> None:
    settings = Settings(home=tmp_path, database_url=blank_url)
    code = "from protea.settings import Settings; from protea.catalog import upgrade; print(upgrade(Settings()))"
    environment = {"PROTEA_DATABASE_URL": blank_url, "PROTEA_HOME": str(tmp_path)}
    others = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(upgrade, [settings] * 2)) == [REVISIONS[-1]] * 2
    assert [p.wait() for p in others] == [0, 0]


@pytest.mark.parametrize(("revision", "words"), [("9999", "newer than this PROTEA"), ("0000", "newer than")])
def test_a_newer_catalogue_is_refused(settings: Settings, revision: str, words: str) -> None:
    with psycopg.connect(settings.database_url or "") as c:
        c.execute("UPDATE protea_revision SET version_num = %s", [revision])
    for use in (open_catalog, upgrade):
        with pytest.raises(DatabaseError, match=words):
            use(settings)


def test_an_old_catalogue_is_migrated_where_it_is_embedded(
    own_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_catalog(own_settings) as catalog:
        catalog.add(ontology("a"))
        with catalog.engine.begin() as c:
            c.exec_driver_sql("ALTER TABLE protea_revision ADD COLUMN kept int")
    monkeypatch.setattr(module, "REVISIONS", (*REVISIONS, "next"))
    ran: list[bool] = []
    monkeypatch.setattr(migrations, "upgrade", lambda connection: ran.append(True))
    with open_catalog(own_settings) as catalog:
        assert [r.name for r in catalog.inputs("ontology")] == ["a"]
    assert ran == [True]


def test_an_old_server_is_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REVISIONS", (*REVISIONS, "next"))
    with pytest.raises(DatabaseError, match=rf"old revision {REVISIONS[-1]}.*protea db upgrade"):
        open_catalog(settings)


def test_opening_a_current_catalogue_imports_no_alembic(settings: Settings) -> None:
    code = (
        "import sys; from protea.settings import Settings; from protea.catalog import open_catalog\n"
        "with open_catalog(Settings()) as c: c.inputs('annotations')\n"
        "print(sorted(m for m in ('alembic', 'numpy', 'pyarrow', 'psutil') if m in sys.modules))"
    )
    environment = {"PROTEA_DATABASE_URL": settings.database_url or "", "PROTEA_HOME": str(settings.home)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout) == []


# -- URLs and errors


def test_both_forms_of_url(settings: Settings) -> None:
    url = settings.database_url or ""
    for given in (url, psycopg_url(url)):
        with open_catalog(Settings(home=settings.home, database_url=given)) as catalog:
            assert catalog.datasets() == []
            assert catalog.place == url.replace("%2F", "/") or catalog.place == url


@pytest.mark.parametrize("url", ["mysql://u:hunter2@h/d", "postgresql+asyncpg://u:hunter2@h/d", "hunter2 nonsense"])
def test_urls_of_something_else(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match="PROTEA_DATABASE_URL") as caught:
        open_catalog(Settings(home=tmp_path, database_url=url))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://someone:hunter2@127.0.0.1:1/d",
        "postgresql://someone@127.0.0.1:1/d?password=hunter2",
        "postgresql://someone:hunter2@/d?host=/nowhere",
        "postgresql://someone:hunter2@127.0.0.1:1/d?no_such_option=hunter2",
    ],
)
def test_an_unreachable_server_is_one_line_without_the_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(DatabaseError) as caught:
        open_catalog(Settings(home=tmp_path, database_url=url))
    assert "\n" not in str(caught.value)
    assert "someone" in str(caught.value)
    assert "hunter2" not in str(caught.value).replace("no_such_option=hunter2", "")


def test_a_server_lost_on_the_way(settings: Settings, catalog: Catalog) -> None:
    catalog.add(ontology("a"))

    def use() -> None:
        with catalog.session() as session:
            pid = session.scalar(text("SELECT pg_backend_pid()"))
            with psycopg.connect(settings.database_url or "") as other:
                other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
            session.add(ontology("b"))

    with pytest.raises(DatabaseError, match="the database") as caught:
        use()
    assert "\n" not in str(caught.value)
    assert [r.name for r in catalog.inputs("ontology")] == ["a"]  # and it connects again


# -- inputs


def test_inputs_come_back_as_they_went_in(catalog: Catalog) -> None:
    stats = {"version": "releases/2021-12-15", "edges": {"is_a": 3}, "none": None, "share": 0.25}
    catalog.add(ontology("b", stats=stats), ontology("a"))
    a, b = catalog.inputs("ontology")
    assert (a.name, b.name, b.stats, b.source_file) == ("a", "b", stats, "f")
    assert b.created_at.tzinfo is not None
    assert catalog.find("ontology", "b").id == b.id
    assert catalog.uses_object("ontology", "db")
    assert not catalog.uses_object("proteins", "db")


def test_annotation_sets_are_ordered_by_version(catalog: Catalog) -> None:
    catalog.add(*[annotations("goa", v) for v in ("10", "9", "100")])
    catalog.add(annotations("yeast", "2014-01-01"), annotations("yeast", "2010-01-01"))
    assert [r.name for r in catalog.inputs("annotations")] == [
        "goa:9", "goa:10", "goa:100", "yeast:2010-01-01", "yeast:2014-01-01",
    ]  # fmt: skip
    assert catalog.annotation_set("goa", "9").name == "goa:9"
    with pytest.raises(NotFoundError, match=r"goa:11.*goa:9, goa:10"):
        catalog.annotation_set("goa", "11")


def test_finding(catalog: Catalog) -> None:
    with pytest.raises(NotFoundError, match=r"no ontology is loaded.*protea load ontology"):
        catalog.find("ontology", "x")
    with pytest.raises(NotFoundError, match=r"no ontology is loaded"):
        catalog.find("ontology")
    with pytest.raises(ConfigError, match="no kind of input 'ontologies'"):
        catalog.find("ontologies", "x")
    catalog.add(ontology("go-2021", stats={"version": "releases/2021-12-15"}))
    assert catalog.find("ontology").name == "go-2021"
    for label in ("releases/2021-12-15", "2021-12-15"):
        assert catalog.find("ontology", label).name == "go-2021"
    catalog.add(ontology("other"))
    with pytest.raises(ConfigError, match=r"which ontology.*go-2021, other"):
        catalog.find("ontology")
    with pytest.raises(NotFoundError, match=r"no ontology 'go-2012'; there is: go-2021, other.*'go-2021'"):
        catalog.find("ontology", "go-2012")


def test_a_taken_name_is_a_conflict_and_nothing_is_inserted(catalog: Catalog) -> None:
    catalog.add(ontology("a"))
    with pytest.raises(ConflictError, match=r"ontology b, a: the name is taken"):
        catalog.add(ontology("b"), ontology("a"))
    assert [r.name for r in catalog.inputs("ontology")] == ["a"]
    catalog.add(ProteinSet(name="a", identity="i", object_digest="d", stats={}, source_file="f"))  # another kind
    catalog.add(annotations("goa", "1"))
    with pytest.raises(ConflictError):
        catalog.add(annotations("goa", "1", name="another"))


# -- datasets


def test_datasets(catalog: Catalog) -> None:
    with pytest.raises(NotFoundError, match=r"no dataset yet.*protea export run"):
        catalog.find_dataset("worm")
    catalog.add_dataset(dataset("worm"))
    catalog.add_dataset(dataset("yeast"))
    assert [d.name for d in catalog.datasets()] == ["yeast", "worm"]
    with pytest.raises(ConflictError, match=r"'worm' exists.*--replace"):
        catalog.add_dataset(dataset("worm", "new"))
    assert catalog.find_dataset("worm").path == "p"
    catalog.add_dataset(dataset("worm", "new"), replace=True)
    found = catalog.find_dataset("worm")
    assert (found.path, found.manifest, found.n_train_rows, found.n_eval_rows) == ("new", {"k": 5}, 1, 2)
    with pytest.raises(NotFoundError, match="did you mean 'worm'"):
        catalog.find_dataset("wurm")


# -- jobs


def test_the_life_of_a_job(catalog: Catalog) -> None:
    jobs = catalog.jobs
    job = jobs.create("export_research_dataset", {"name": "worm"})
    assert (job.state, job.attempt, job.fencing_token) == ("queued", 0, 0)
    one = jobs.start(job.id, "host:1")
    assert (one.state, one.attempt, one.fencing_token, one.owner) == ("running", 1, 1, "host:1")
    with pytest.raises(ConflictError, match="is running; it cannot become running"):
        jobs.start(job.id, "host:2")
    assert jobs.heartbeat(job.id, 1, {"cuts": 1})
    assert jobs.get(job.id).progress == {"cuts": 1}
    jobs.finish(job.id, "queued", token=1)  # its worker was lost
    two = jobs.start(job.id, "host:2")
    assert (two.attempt, two.fencing_token) == (2, 2)
    assert not jobs.heartbeat(job.id, 1)
    with pytest.raises(BusyError, match="taken over by host:2"):
        jobs.finish(job.id, "succeeded", token=1)
    failed = jobs.finish(job.id, "failed", token=2, error_code="input", error_message="bad")
    assert (failed.error_code, failed.error_message, failed.finished_at is None) == ("input", "bad", False)
    jobs.finish(job.id, "queued")
    again = jobs.start(job.id, "host:3")
    assert (again.error_code, again.finished_at) == (None, None)
    assert jobs.finish(job.id, "succeeded", token=3).state == "succeeded"
    with pytest.raises(ConflictError):
        jobs.finish(job.id, "cancelled")
    assert [j.id for j in jobs.recent(state="succeeded")] == [job.id]
    assert jobs.recent(state="queued") == []


def test_events_are_numbered_without_gaps(catalog: Catalog) -> None:
    job, other = (catalog.jobs.create("x", {}) for _ in range(2))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: catalog.jobs.append(job.id, "minijob.done", {"i": i}), range(40)))
    assert catalog.jobs.append(other.id, "export.started") == 1
    events = catalog.jobs.events(job.id)
    assert [e.seq for e in events] == list(range(1, 41))
    assert {e.payload["i"] for e in events} == set(range(40))
    assert [e.seq for e in catalog.jobs.events(job.id, after=38)] == [39, 40]
    with pytest.raises(NotFoundError, match="no job"):
        catalog.jobs.append(uuid.uuid4(), "x")
