"""The product's core on a world's files, without a catalogue: what the property tests compare with the reference."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from protea.core import accretion, annotations, config, interpro, ontology, proteins, scores, taxonomy, term_vectors
from protea.core.annotation_set import AnnotationSource
from protea.core.embeddings.store import VectorStore, build_store
from protea.core.keys import ExportInputs, InputRef
from protea.core.operations.export_minijobs import Context
from protea.core.operations.export_research_dataset import export_research_dataset, silent
from worlds import TABLES, World


class Rows(dict[str, Any]):
    """`Dataset` rows in memory; the operation's `Registry`."""

    def find(self, name: str) -> Mapping[str, Any] | None:
        return self.get(name)

    def register(self, name: str, fingerprint: str, path: Path, manifest: Mapping[str, Any]) -> None:
        self[name] = {"fingerprint": fingerprint, "path": str(path), "manifest": manifest}


class Product:
    """A world loaded by the product's readers under `directory`."""

    def __init__(self, world: World, directory: Path, embeddings: str = "npz") -> None:
        self.world, self.directory, self.rows = world, directory, Rows()
        files = world.write(directory / "files")
        onto, report = ontology.read_obo(files["ontology"])
        onto.save(self._new("ontology"))
        table, fasta = proteins.read_fasta(files["proteins"])
        pq.write_table(table, self._new("proteins") / "proteins.parquet")
        built = build_store(files["embeddings"][embeddings], self._new("vectors"))
        sets = {v: self._set(v, path, None) for v, path in files["annotations"].items()}
        if files.get("derived"):
            for d in world.cut_dates:
                sets[d] = self._set(d, files["derived"], date.fromisoformat(d))
        keyed = {int(v) if str(v).isdigit() else v: s for v, s in sets.items()}
        self.inputs = ExportInputs(
            InputRef("ontology", report.sha256, directory / "ontology"),
            InputRef("proteins", fasta.sha256, directory / "proteins"),
            InputRef("vectors", str(built.identity), directory / "vectors"),
            {v: keyed[v] for v in sorted(keyed)},
            frozenset(v for v, s in keyed.items() if s.cut_date),
        )
        self.tables = self._tables(files)
        self.store = VectorStore.open(directory / "vectors")

    def _new(self, name: str) -> Path:
        path = self.directory / name
        path.mkdir(exist_ok=True)
        return path

    def _set(self, version: str, path: Path, cut: date | None) -> AnnotationSource:
        out = self._new(f"set-{path.name}")
        writer = pq.ParquetWriter(out / "rows.parquet", annotations.SCHEMA)
        report = annotations.read_gaf(path, sink=writer.write_batch)
        writer.close()
        key = int(version) if str(version).isdigit() else version
        return AnnotationSource(key, out, f"{report.sha256}:{cut}", cut, report.to_json())

    def _tables(self, files: Mapping[str, Any]) -> dict[str, InputRef]:
        """The optional inputs that the world has, by the names of their settings."""
        out = {}
        readers = {
            "term_vectors": term_vectors.read_term_vectors,
            "interpro": interpro.read_interpro,
            "external_scores": scores.read_scores,
            "information_accretion": accretion.read_ia,
        }
        for name, read_table in readers.items():
            if path := files.get(name):
                report = read_table(path, self._new(name))
                out[name] = InputRef(TABLES[name], report.sha256, self.directory / name, report.to_json())
        if path := files.get("taxonomy"):
            tables, _ = taxonomy.read_taxdump(path)
            tables.save(self._new("taxonomy"))
            out["taxonomy"] = InputRef(TABLES["taxonomy"], "taxonomy", self.directory / "taxonomy")
        return out

    def config(self, settings: Mapping[str, Any]) -> config.ExportConfig:
        named = {"name": "d", "embedding_config": "vectors", "annotation_source": "goa", **settings}
        return config.parse({**named, "ontology": "ontology", "proteins": "proteins"})

    def used(self, c: config.ExportConfig, inputs: ExportInputs | None = None) -> ExportInputs:
        """The inputs of an export with these settings."""
        inputs = inputs or self.inputs
        return ExportInputs(
            inputs.ontology,
            inputs.proteins,
            inputs.embeddings,
            {v: inputs.sets[v] for v in c.versions},
            frozenset(v for v in c.versions if v in inputs.derived),
            {name: ref for name, ref in self.tables.items() if getattr(c, name) is not None},
        )

    def context(self, settings: Mapping[str, Any], where: str = "run", **how: Any) -> Context:
        """What the minijobs of that export need, below `directory/where`."""
        c, base = self.config(settings), self.directory / where
        return Context(c, self.used(c), base / "resume", base / "datasets", **how)

    def export(
        self, settings: Mapping[str, Any], where: str = "run", report: Callable[..., None] = silent, **how: Any
    ) -> Path:
        """Run the export below `directory/where` and return the dataset's directory."""
        base = self.directory / where
        rows = how.pop("rows", Rows())
        inputs = how.pop("inputs", None)
        c = self.config(settings)
        used = self.used(c, inputs)
        return export_research_dataset(
            c, used, rows, resume_dir=base / "resume", datasets_dir=base / "datasets", report=report, **how
        )


@contextmanager
def product(world: World, **how: Any):  # type: ignore[no-untyped-def]
    """A `Product` in a temporary directory (hypothesis runs many examples in one test)."""
    with tempfile.TemporaryDirectory() as d:
        yield Product(world, Path(d), **how)


def read(path: Path) -> list[dict[str, Any]]:
    """All rows of a published file as plain Python values."""
    table: pa.Table = pq.read_table(path)
    return table.to_pylist()


FILES = ("train.parquet", "eval.parquet", "truth.parquet", "known.parquet", "manifest.json")


def contents(dataset: Path) -> dict[str, bytes]:
    """The published files whose bytes are promised."""
    return {name: (dataset / name).read_bytes() for name in FILES}
