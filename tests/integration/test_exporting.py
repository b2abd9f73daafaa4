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
from protea.errors import ConfigError, NotFoundError, StorageError
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


def test_a_damaged_input_is_refused(loaded: tuple[Settings, World]) -> None:
    """A stored file that is not what loading wrote must not get into a dataset."""
    settings, world = loaded
    (matrix,) = (settings.storage / "objects" / "embeddings").glob("*/matrix.npy")
    data = bytearray(matrix.read_bytes())
    data[-1] ^= 1
    matrix.write_bytes(bytes(data))
    for call in (protea.export, planning.plan):
        with pytest.raises(StorageError, match=r"'vectors' are gone or damaged \(load it again\)"):
            call(settings=settings, **world.names())


def test_a_table_that_matches_nothing_is_told(loaded: tuple[Settings, World], tmp_path: Path) -> None:
    settings, world = loaded
    (tmp_path / "scores.tsv").write_text("NOBODY\tGO:0003674\t0.5\n")
    ingest.load_scores(settings, tmp_path / "scores.tsv", name="none")
    said: list[str] = []
    dataset = protea.export(
        settings=settings,
        report=lambda kind, **what: said.append(what["text"]) if kind == "export.warning" else None,
        external_scores="none",
        **world.names(),
    )
    assert dataset.manifest["families"]["classifier"]["status"] == "absent"
    assert [text for text in said if "classifier" in text] == ["family classifier is absent: always null; always False"]


def test_what_is_switched_off_changes_no_key(loaded: tuple[Settings, World]) -> None:
    settings, world = loaded
    plain = planning.plan(settings=settings, **world.names())
    assert planning.plan(settings=settings, max_alignment_cells=10, **world.names()).fingerprint == plain.fingerprint
    assert planning.plan(settings=settings, k=4, **world.names()).fingerprint != plain.fingerprint


def test_explain_compares_with_the_nearest_run(loaded: tuple[Settings, World]) -> None:
    """Of several unfinished runs of a name, the one that differs least says what changed."""
    settings, world = loaded

    def stop(kind: str, **_: object) -> None:
        if kind == "assembly.started":
            raise KeyboardInterrupt

    for values in ({"k": 6}, {"k": 7}, {"k": 8, "metric": "l2"}):
        with pytest.raises(KeyboardInterrupt):
            protea.export(settings=settings, report=stop, **{**world.names(), **values})
    found = planning.explain(
        "world", settings=settings, overrides={"k": 7, "metric": "cosine", "distance_threshold": 0.5}
    )
    assert {tuple(c["changes"]) for c in found.cuts} == {("settings.distance_threshold: null -> 0.5",)}


def test_a_plan_says_that_staging_has_no_place(loaded: tuple[Settings, World], tmp_path: Path) -> None:
    """What a run would end with."""
    settings, world = loaded
    (tmp_path / "file").write_text("")
    elsewhere = settings.model_copy(update={"export_resume_dir": tmp_path / "file" / "staging"})
    warned, plain = (planning.plan(settings=s, **world.names()).warnings for s in (elsewhere, settings))
    assert [w for w in warned if w not in plain] == [
        f"{tmp_path / 'file'} is no directory: no export can be staged there (see PROTEA_EXPORT_RESUME_DIR)"
    ]
    with pytest.raises(StorageError, match="file"):
        protea.export(settings=elsewhere, **world.names())
