"""The same bytes from the same inputs: threads, blocks, processes, hash seeds, formats, homes and orders of lines."""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import protea
from product import Product, contents
from protea import ingest
from protea.core import cut
from protea.core.knn.exact import ExactSearch
from protea.settings import Settings
from worlds import World, random_world

SEED, SIZE, DIM = 21, 120, 384
PARQUET = ("train.parquet", "eval.parquet", "truth.parquet", "known.parquet")


def the_world() -> World:
    """Vectors long enough for a BLAS to use its threads, in clusters that no float32 product can put in order."""
    world = random_world(
        SEED, SIZE, corners={"negated", "ids", "qualifiers", "evidence", "identical", "missing", "ties"}
    )
    rng = np.random.default_rng(SEED)
    centres = rng.normal(size=(12, DIM))
    near = centres[rng.integers(0, 12, len(world.embeddings))] + rng.normal(size=(len(world.embeddings), DIM)) * 1e-4
    return replace(world, embeddings=dict(zip(world.embeddings, near.astype(np.float32), strict=True)))


def the_settings(world: World) -> dict[str, Any]:
    return {**world.names(), "name": "d", "k": 7, "use_embedding_pca": True, "expand_votes_to_ancestors": True}


def promised(dataset: Path) -> dict[str, bytes]:
    """The bytes of the published files; the commit is left out, since a checkout may move on while tests run."""
    found = contents(dataset)
    manifest = json.loads(found["manifest.json"])
    assert "producer_git_sha" in manifest
    lines = found["manifest.json"].splitlines(keepends=True)
    found["manifest.json"] = b"".join(line for line in lines if b'"producer_git_sha"' not in line)
    return found


def same(one: dict[str, bytes], two: dict[str, bytes], names: tuple[str, ...] = (*PARQUET, "manifest.json")) -> None:
    assert [n for n in names if one[n] != two[n]] == []


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Product:
    return Product(the_world(), tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def want(loaded: Product) -> dict[str, bytes]:
    """What one thread and the default blocks give."""
    dataset = loaded.export(the_settings(loaded.world), "want", threads=1)
    assert pq.read_metadata(dataset / "train.parquet").num_rows > 1000
    assert pq.read_metadata(dataset / "eval.parquet").num_rows > 100
    return promised(dataset)


@pytest.mark.parametrize("threads", [2, 5])
def test_threads(loaded: Product, want: dict[str, bytes], threads: int) -> None:
    same(promised(loaded.export(the_settings(loaded.world), f"threads{threads}", threads=threads)), want)


@pytest.mark.parametrize("queries", [1, 7, 2000])
def test_queries_per_block(loaded: Product, want: dict[str, bytes], queries: int) -> None:
    same(promised(loaded.export(the_settings(loaded.world), f"block{queries}", queries_per_block=queries)), want)


@pytest.mark.parametrize(("room", "queries", "tile"), [(1, 3, 5), (50, 1, 64), (10**9, 10**6, 10**6)])
def test_internal_blocks(
    loaded: Product, want: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, room: int, queries: int, tile: int
) -> None:
    monkeypatch.setattr(cut, "ROOM_PER_TALLY", room)
    defaults = ExactSearch.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "queries", queries)
    monkeypatch.setitem(defaults, "tile", tile)
    same(promised(loaded.export(the_settings(loaded.world), f"room{room}", threads=3)), want)


def export_elsewhere(directory: Path, embeddings: str, threads: int, **env: str) -> Path:
    """The export in a process of its own, from the files on, with another home and working directory."""
    base = {k: v for k, v in os.environ.items() if not k.startswith("PROTEA_")}
    base |= {"HOME": str(directory), "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, __file__, str(directory / "world"), embeddings, str(threads)]
    run = subprocess.run(command, env=base | env, cwd=directory, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return Path(run.stdout.strip())


@pytest.mark.parametrize(
    ("blas", "threads", "hash_seed", "embeddings"), [(1, 1, 1, "npz"), (2, 2, 12345, "h5"), (2, 5, 0, "parquet")]
)
def test_processes(
    tmp_path: Path, want: dict[str, bytes], blas: int, threads: int, hash_seed: int, embeddings: str
) -> None:
    """Other BLAS and OpenMP threads, and another hash seed."""
    env = {f"{n}_NUM_THREADS": str(blas) for n in ("OMP", "OPENBLAS", "MKL", "NUMBA", "VECLIB_MAXIMUM")}
    same(promised(export_elsewhere(tmp_path, embeddings, threads, PYTHONHASHSEED=str(hash_seed), **env)), want)


def test_another_processor(tmp_path: Path, loaded: Product) -> None:
    """OpenBLAS for a processor of 2004 rounds its products otherwise: only the PCA, which it makes, may differ."""
    there = export_elsewhere(tmp_path, "npz", 2, OPENBLAS_CORETYPE="Prescott")
    here = loaded.export(the_settings(loaded.world), "here")
    for name in PARQUET:
        one, two = (pq.read_table(d / name) for d in (here, there))
        kept = [c for c in one.column_names if not c.startswith("emb_pca_query_")]
        assert one.select(kept).equals(two.select(kept)), name


def test_order_of_vectors_changes_nothing(tmp_path: Path, want: dict[str, bytes]) -> None:
    """Vectors are identified by what they are: the manifest is the same too."""
    world = the_world()
    shuffled = random.Random(1).sample(list(world.embeddings.items()), len(world.embeddings))
    p = Product(replace(world, embeddings=dict(shuffled)), tmp_path)
    same(promised(p.export(the_settings(world))), want)


def test_order_of_lines_changes_no_row(tmp_path: Path, want: dict[str, bytes]) -> None:
    """Another order of proteins, annotations and terms: other files, so another manifest, but the same tables."""
    world = the_world()
    rng = random.Random(2)
    mixed = replace(
        world,
        proteins=dict(rng.sample(list(world.proteins.items()), len(world.proteins))),
        releases={v: rng.sample(rows, len(rows)) for v, rows in world.releases.items()},
        terms=rng.sample(world.terms, len(world.terms)),
    )
    found = promised(Product(mixed, tmp_path).export(the_settings(world)))
    same(found, want, PARQUET)
    assert found["manifest.json"] != want["manifest.json"]


def test_two_homes(tmp_path: Path, settings: Settings, _new_database: Any, _migrated: str) -> None:  # noqa: PT019
    """The whole way, catalogue and object store included: nothing of where it ran is in what it made."""
    world = the_world()
    url = _new_database(_migrated)
    other = Settings(
        home=tmp_path / "an other" / "place", database_url=url, export_resume_dir=tmp_path / "r", threads=3
    )
    found = []
    for number, where in enumerate((settings, other)):
        files = world.write(tmp_path / f"files{number}")
        ingest.load_ontology(where, files["ontology"], name="ontology")
        ingest.load_proteins(where, files["proteins"], name="proteins")
        ingest.load_embeddings(where, files["embeddings"][("npz", "h5")[number]], name="vectors")
        for version, path in files["annotations"].items():
            ingest.load_annotations(where, path, source="goa", version=version, max_rejected=1.0)
        dataset = protea.export(settings=where, **the_settings(world))
        found.append(promised(dataset.path))
        assert str(tmp_path).encode() not in found[-1]["manifest.json"]
    same(found[0], found[1])


def test_other_data_gives_other_bytes(tmp_path: Path, want: dict[str, bytes]) -> None:
    """Negative control: one unit in the last place of one vector."""
    world = the_world()
    who = next(iter(world.embeddings))
    moved = world.embeddings[who].copy()
    moved[0] = np.nextafter(moved[0], np.float32(9))
    p = Product(replace(world, embeddings={**world.embeddings, who: moved}), tmp_path)
    found = promised(p.export(the_settings(world)))
    assert found["train.parquet"] != want["train.parquet"]


if __name__ == "__main__":
    home = Path(sys.argv[1])
    home.mkdir()
    made = Product(the_world(), home, embeddings=sys.argv[2])
    print(made.export(the_settings(made.world), "run", threads=int(sys.argv[3])))
