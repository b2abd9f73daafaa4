"""The tables of the catalogue, as SQLAlchemy 2 models. The migrations make them; a test holds the two together.

Rows name things and say where their bytes lie (the object store's address); bulk data is never in a row.
Called by `protea.catalog` and the migrations' environment.
"""

import datetime as dt
import uuid
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    Date,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Integer,
    MetaData,
    Text,
    UniqueConstraint,
    func,
)
from sqlalchemy.dialects.postgresql import JSONB, UUID
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

type_map: dict[Any, Any] = {
    str: Text(),
    int: BigInteger(),
    bool: Boolean(),
    dt.date: Date(),
    dt.datetime: DateTime(timezone=True),
    dict[str, Any]: JSONB(),
    uuid.UUID: UUID(as_uuid=True),
}


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = type_map


class Input(Base):
    """What every input of an export has. Not a table: each kind has its own."""

    __abstract__ = True
    kind: ClassVar[str]
    """The word of the command line (`protea load KIND`) and of the object store."""
    title: ClassVar[str]
    """How messages call it."""

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    identity: Mapped[str] = mapped_column(index=True)
    """SHA-256 hex over what determines the content (contract section 1)."""
    object_digest: Mapped[str] = mapped_column(index=True)
    """The address of the bytes in the object store: `objects/<kind>/<object_digest>/`."""
    stats: Mapped[dict[str, Any]]
    """The reader's report: what the file held, and a count for every row that was dropped."""
    source_file: Mapped[str]
    created_at: Mapped[dt.datetime] = mapped_column(server_default=func.now())


class OntologySnapshot(Input):
    __tablename__ = "ontology_snapshot"
    kind = "ontology"
    title = "ontology"


class AnnotationSet(Input):
    """One release (source, version), or the part of one up to a cut date, sharing its object."""

    __tablename__ = "annotation_set"
    __table_args__ = (UniqueConstraint("source", "version"),)
    kind = "annotations"
    title = "annotation set"

    source: Mapped[str]
    version: Mapped[str]
    """An integer or an ISO date, as text; of a derived set its cut date."""
    derived_from_date: Mapped[bool]
    cut_date: Mapped[dt.date | None]
    """Rows of the object with a later date are not in the set. Null: all rows are."""
    file_identity: Mapped[str]
    """SHA-256 hex of the uncompressed GAF."""


class ProteinSet(Input):
    __tablename__ = "protein_set"
    kind = "proteins"
    title = "protein set"


class EmbeddingConfig(Input):
    __tablename__ = "embedding_config"
    kind = "embeddings"
    title = "embedding config"

    dim: Mapped[int] = mapped_column(Integer)
    dtype: Mapped[str]
    vectors: Mapped[int]


class Taxonomy(Input):
    __tablename__ = "taxonomy"
    kind = "taxonomy"
    title = "taxonomy"


class TermVectors(Input):
    __tablename__ = "term_vectors"
    kind = "term-vectors"
    title = "set of term vectors"


class InterProTable(Input):
    __tablename__ = "interpro_table"
    kind = "interpro"
    title = "InterPro table"


class ExternalScores(Input):
    __tablename__ = "external_scores"
    kind = "scores"
    title = "table of scores"


class InformationAccretion(Input):
    __tablename__ = "information_accretion"
    kind = "ia"
    title = "IA table"


class Dataset(Base):
    """A published dataset: the row is the last step of publication, after the files are in place."""

    __tablename__ = "dataset"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    fingerprint: Mapped[str]
    path: Mapped[str]
    manifest: Mapped[dict[str, Any]]
    n_train_rows: Mapped[int]
    n_eval_rows: Mapped[int]
    created_at: Mapped[dt.datetime] = mapped_column(server_default=func.now())


class Job(Base):
    """One run of an operation. `catalog.jobs` holds the transitions of `state`."""

    __tablename__ = "job"

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    operation: Mapped[str]
    state: Mapped[str] = mapped_column(index=True)
    config: Mapped[dict[str, Any]]
    options: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    """What the run was asked beside the settings: `replace`, `minijobs`."""
    progress: Mapped[dict[str, Any]]
    attempt: Mapped[int] = mapped_column(Integer)
    """How many times it was started."""
    owner: Mapped[str | None]
    """Who works on it: `host:pid` of the lease's holder."""
    fencing_token: Mapped[int]
    """Grows with every start; whoever holds an older one may not commit any more."""
    heartbeat_at: Mapped[dt.datetime | None]
    error_code: Mapped[str | None]
    error_message: Mapped[str | None]
    created_at: Mapped[dt.datetime] = mapped_column(server_default=func.now())
    started_at: Mapped[dt.datetime | None]
    finished_at: Mapped[dt.datetime | None]


class Minijob(Base):
    """A delivery of a queued job: its coordinator, a block of a cut's neighbours or features, the assembly.

    `protea.jobs.rows` holds the transitions. A job without any was run in place by a command.
    """

    __tablename__ = "minijob"
    __table_args__ = (UniqueConstraint("job_id", "stage", "cut", "block"),)

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    job_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("job.id", ondelete="CASCADE", name="fk_minijob_job_id"))
    stage: Mapped[str]
    """coordinator, knn, features or write."""
    cut: Mapped[str]
    """The pair of the cut; empty for the coordinator and the assembly."""
    block: Mapped[int] = mapped_column(Integer)
    """The block of the cut's queries, from 0."""
    state: Mapped[str] = mapped_column(index=True)
    """waiting (for other minijobs), queued, running, done, failed or cancelled."""
    attempt: Mapped[int] = mapped_column(Integer)
    """How many times it was started."""
    failures: Mapped[int] = mapped_column(Integer)
    """How many of them ended by its own fault."""
    losses: Mapped[int] = mapped_column(Integer)
    """How many of them ended because a worker or a child was killed."""
    owner: Mapped[str | None]
    """`host:pid` of the worker that has, or had, it."""
    worker_id: Mapped[int | None]
    child: Mapped[str | None]
    """`pid:start time` of the process that works on it."""
    fencing_token: Mapped[int]
    """Grows with every start and take-over; whoever holds an older one may not commit any more."""
    heartbeat_at: Mapped[dt.datetime | None]
    spec: Mapped[dict[str, Any]]
    """The core's description of it (`MiniJob.to_json()`); empty for the coordinator."""
    delivery: Mapped[int | None]
    """The job of Procrastinate that brings it to a worker."""
    progress: Mapped[dict[str, Any]]
    artefact: Mapped[str | None]
    """The key of what it made, below the staging directory."""
    rows: Mapped[int | None]
    error_code: Mapped[str | None]
    error: Mapped[str | None]
    """The first error since it was queued by hand."""
    created_at: Mapped[dt.datetime] = mapped_column(server_default=func.now())
    started_at: Mapped[dt.datetime | None]
    finished_at: Mapped[dt.datetime | None]


class Worker(Base):
    """A running worker process; a worker that stops removes its row, that of a dead one is removed by another."""

    __tablename__ = "worker"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    host: Mapped[str]
    machine: Mapped[str]
    """Where its pid means something: the boot and the pid namespace."""
    pid: Mapped[int]
    born: Mapped[float] = mapped_column(Double)
    """When the process started, as its operating system says: a pid alone may be another process by now."""
    queues: Mapped[str]
    """Separated by commas."""
    processes: Mapped[int] = mapped_column(Integer)
    doing: Mapped[dict[str, Any]]
    """Minijob -> what it is, since when."""
    started_at: Mapped[dt.datetime] = mapped_column(server_default=func.now())
    heartbeat_at: Mapped[dt.datetime] = mapped_column(server_default=func.now())


class JobEvent(Base):
    """The append-only log of a job; `seq` counts from 1 within each job."""

    __tablename__ = "job_event"

    job_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("job.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[dt.datetime] = mapped_column(server_default=func.now())
    kind: Mapped[str]
    payload: Mapped[dict[str, Any]]


INPUTS: dict[str, type[Input]] = {
    model.kind: model
    for model in (
        OntologySnapshot,
        AnnotationSet,
        ProteinSet,
        EmbeddingConfig,
        Taxonomy,
        TermVectors,
        InterProTable,
        ExternalScores,
        InformationAccretion,
    )
}
