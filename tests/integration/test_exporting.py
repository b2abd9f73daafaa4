"""Exports through the catalogue: jobs and their log, explanations, what `import protea` gives."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import protea
from protea import exporting, ingest, planning
from protea.catalog import open_catalog
from protea.errors import ConfigError, NotFoundError
from protea.settings import Settings
from worlds import World, random_world


@pytest.fixture
def loaded(settings: Settings, tmp_path: Path) -> tuple[Settings, World]:
    """A home with a world in it."""
    world = random_world(3, size=20, corners=("negated", "ties", "evidence"))
    files = world.write(tmp_path / "files")
    ingest.load_ontology(settings, files["ontology"])
    ingest.load_proteins(settings, files["proteins"])
    ingest.load_embeddings(settings, files["embeddings"]["npz"], name="vectors")
    for version, path in files["annotations"].items():
        ingest.load_annotations(settings, path, source="goa", version=version)
    return settings, world


def test_a_dataset_from_python(loaded: tuple[Settings, World]) -> None:
    settings, world = loaded
    dataset = protea.export(settings=settings, **world.names())
    again = protea.open_dataset("world", settings=settings)
    assert again.manifest == dataset.manifest
    assert list(again.manifest) == list(dataset.manifest)
    assert again.train.count_rows() == dataset.manifest["n_train_rows"] > 0
    assert dataset.file("truth") == dataset.path / "truth.parquet"
    assert pq.read_schema(dataset.file("eval")).equals(dataset.eval.schema)
    with pytest.raises(NotFoundError, match="has no file 'test'"):
        dataset.file("test")
    with pytest.raises(NotFoundError, match="did you mean 'world'"):
        protea.open_dataset("wrld", settings=settings)
    with pytest.raises(ConfigError, match="did you mean 'label_mode'"):
        protea.export(settings=settings, **world.names(), label_mod="direct")


def test_a_run_leaves_a_job_and_its_log(loaded: tuple[Settings, World]) -> None:
    settings, world = loaded
    protea.export(settings=settings, **world.names())
    with pytest.raises(NotFoundError):
        protea.export(settings=settings, **{**world.names(), "embedding_config": "none"})
    with open_catalog(settings) as catalog:
        (job,) = catalog.jobs.recent()
        kinds = [e.kind for e in catalog.jobs.events(job.id)]
    assert (job.state, job.attempt, job.config["name"]) == ("succeeded", 1, "world")
    assert kinds[0] == "export.started"
    assert kinds[-1] == "export.published"
    assert kinds.count("cut.finished") == len(world.train_versions) - 1 + len(world.test_versions)


def test_a_killed_run_is_found_dead_by_the_next(loaded: tuple[Settings, World]) -> None:
    settings, world = loaded
    code = f"""
    import os, signal
    import protea
    def report(kind, **what):
        if kind == "cut.finished":
            os.kill(os.getpid(), signal.SIGKILL)
    protea.export(report=report, **{world.names()!r})
    """
    env = {**os.environ, "PROTEA_HOME": str(settings.home), "PROTEA_DATABASE_URL": str(settings.database_url)}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=env, check=False)
    assert done.returncode == -signal.SIGKILL
    said: list[str] = []
    protea.export(settings=settings, report=lambda kind, **_: said.append(kind), **world.names())
    assert said.count("cut.restored") == 1
    with open_catalog(settings) as catalog:
        states = {job.state: job for job in catalog.jobs.recent()}
        assert set(states) == {"failed", "succeeded"}
        assert states["failed"].error_code == "lost"
        assert catalog.jobs.events(states["failed"].id)[-1].kind == "worker.lost"


def test_explain_says_what_changed_since_the_dataset(loaded: tuple[Settings, World]) -> None:
    settings, world = loaded
    protea.export(settings=settings, **world.names())
    same = planning.explain("world", settings=settings)
    assert same.published
    other = planning.explain("world", settings=settings, overrides={"k": 9})
    assert not other.published
    assert {tuple(c["changes"]) for c in other.cuts} == {("k: 5 -> 9",)}
    with pytest.raises(NotFoundError, match="did you mean 'world'"):
        planning.explain("wolrd", settings=settings)


def test_a_switch_without_its_input_is_refused(loaded: tuple[Settings, World]) -> None:
    settings, world = loaded
    with pytest.raises(ConfigError, match="compute_taxonomy needs taxonomy"):
        exporting.export(settings=settings, **world.names(), compute_taxonomy=True)
    with pytest.raises(NotFoundError, match="taxonomy"):
        exporting.export(settings=settings, **world.names(), compute_taxonomy=True, taxonomy="none")
    assert not settings.resume_dir.exists()


def test_embedding_the_loaded_sequences(loaded: tuple[Settings, World]) -> None:
    settings, world = loaded
    heard: list[tuple[int, int]] = []
    row = ingest.embed(settings, "kmer", progress=lambda done, of: heard.append((done, of))).row
    assert (row.name, row.dim, row.vectors) == ("kmer-proteins", 512, len(world.proteins))
    assert row.stats["recipe"]["backend"] == "kmer"
    assert heard[-1][0] == heard[-1][1]
    assert ingest.embed(settings, "kmer").already_loaded
    with pytest.raises(ConfigError, match="no backend 'esm'"):
        ingest.embed(settings, "esm")
    with open_catalog(settings) as catalog:
        assert catalog.find("embeddings", "vectors").stats["recipe"]["file"] == "vectors.npz"
