"""The real exports on every path: in place, by one, two and four workers, and submitted to a PostgreSQL server on TCP with
two workers that share nothing but it and a bucket. The files are the same to the byte.

CI takes each path once and each species at least twice; PROTEA_TEST_ALL=1 takes every path of every species.
"""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from test_real_exports import ECOLI, WORM, YEAST, loaded, pytestmark

from objectstore import KEYS, ObjectStore
from pgserver import PgServer
from protea import exporting
from protea.catalog import Dataset, open_catalog, upgrade
from protea.exporting import open_dataset
from protea.jobs import local
from protea.jobs.local import start_worker, stop_workers
from protea.settings import Settings

__all__ = ["pytestmark"]

EVERYTHING = bool(os.environ.get("PROTEA_TEST_ALL"))
SPECIES = {"worm": WORM, "yeast": YEAST, "ecoli": ECOLI}
PATHS = {"worm": (2, "s3"), "yeast": (4,), "ecoli": (1,)}
FILES = ("train.parquet", "eval.parquet", "truth.parquet", "known.parquet", "manifest.json")


@dataclass
class Sites:
    """One home, with and without the bucket, and another one; the database server has everybody's rows."""

    plain: Settings
    first: Settings
    second: Settings
    server: PgServer
    store: ObjectStore

    def forget(self, name: str) -> None:
        """As if the dataset had not been made."""
        with open_catalog(self.plain) as catalog, catalog.session() as session:
            session.query(Dataset).delete()
        shutil.rmtree(self.plain.datasets_dir / name, ignore_errors=True)

    def contents(self, name: str, settings: Settings) -> dict[str, Any]:
        found = open_dataset(name, settings=settings)
        files: dict[str, Any] = {}
        for file in FILES:
            path = found.at(file)
            if isinstance(path, Path):
                files[file] = path.read_bytes()
            else:
                with self.store.filesystem().open_input_stream(path.removeprefix("s3://")) as f:
                    files[file] = f.read()
        manifest = json.loads(files["manifest.json"])
        return files | {"manifest.json": json.dumps({k: v for k, v in manifest.items() if k != "producer_git_sha"})}


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    place = tmp_path_factory.mktemp("paths")
    server, store = PgServer(), ObjectStore(place / "s3")
    try:
        with pytest.MonkeyPatch.context() as patch:
            for key, value in KEYS.items():
                patch.setenv(key, value)
            bucket = {"database_url": server.url, "storage_url": store.url("real")}
            plain = Settings(home=place / "first", database_url=server.url)
            first, second = Settings(home=place / "first", **bucket), Settings(home=place / "second", **bucket)
            upgrade(plain)
            loaded(first)
            yield Sites(plain, first, second, server, store)
    finally:
        store.stop()
        server.stop()


@pytest.mark.parametrize("species", SPECIES)
def test_the_same_bytes_on_every_path(sites: Sites, species: str) -> None:
    settings = {"name": species, **SPECIES[species], "use_embedding_pca": True}
    exporting.export(settings=sites.plain, **settings)
    serial = sites.contents(species, sites.plain)
    for path in (1, 2, 4, "s3") if EVERYTHING else PATHS[species]:
        sites.forget(species)
        if path == "s3":
            distribute(sites, settings)
        else:
            local.export(settings=sites.plain, workers=int(path), **settings)
        made = sites.contents(species, sites.first if path == "s3" else sites.plain)
        assert made == serial, path
        sizes = ", ".join(f"{name} {len(data):,}" for name, data in made.items())
        print(f"\n{species}, {path if path == 's3' else f'--workers {path}'}: as in place ({sizes} bytes)")


def distribute(sites: Sites, settings: dict[str, Any]) -> None:
    """Submitted, and done by a worker of each home."""
    job = local.submit(settings=sites.first, minijobs=True, **settings)
    workers = [start_worker(home, 2) for home in (sites.first, sites.second)]
    try:
        with open_catalog(sites.first) as catalog:
            local.raise_failed(local.follow(catalog, job.id))
            owners = {e.payload["owner"] for e in catalog.jobs.events(job.id) if e.kind == "minijob.started"}
        assert [w.wait(60) for w in workers] == [0, 0]
    finally:
        stop_workers(workers)
    assert len(owners) == 2
    assert not [p for home in (sites.first, sites.second) for p in home.resume_dir.glob("*")]
    assert not sites.store.objects("real/export_resume")
    print(f"\nPostgreSQL {sites.server.version} from {sites.server.programs}")
