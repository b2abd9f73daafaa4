"""The first tables: inputs, datasets, jobs and their events.

Revision 0001, the first.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB, UUID

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _when(name: str = "created_at") -> sa.Column:
    return sa.Column(name, sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False)


def _input_table(name: str, *own: sa.Column | sa.UniqueConstraint) -> None:
    op.create_table(
        name,
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("object_digest", sa.Text(), nullable=False),
        sa.Column("stats", JSONB(), nullable=False),
        sa.Column("source_file", sa.Text(), nullable=False),
        _when(),
        *own,
        sa.PrimaryKeyConstraint("id", name=f"pk_{name}"),
        sa.UniqueConstraint("name", name=f"uq_{name}_name"),
    )
    for column in ("identity", "object_digest"):
        op.create_index(f"ix_{name}_{column}", name, [column])


def upgrade() -> None:
    for name in ("ontology_snapshot", "protein_set", "taxonomy"):
        _input_table(name)
    _input_table(
        "annotation_set",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("derived_from_date", sa.Boolean(), nullable=False),
        sa.Column("cut_date", sa.Date()),
        sa.Column("file_identity", sa.Text(), nullable=False),
        sa.UniqueConstraint("source", "version", name="uq_annotation_set_source_version"),
    )
    _input_table(
        "embedding_config",
        sa.Column("dim", sa.Integer(), nullable=False),
        sa.Column("dtype", sa.Text(), nullable=False),
        sa.Column("vectors", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "dataset",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("manifest", JSONB(), nullable=False),
        sa.Column("n_train_rows", sa.BigInteger(), nullable=False),
        sa.Column("n_eval_rows", sa.BigInteger(), nullable=False),
        _when(),
        sa.PrimaryKeyConstraint("id", name="pk_dataset"),
        sa.UniqueConstraint("name", name="uq_dataset_name"),
    )
    op.create_table(
        "job",
        sa.Column("id", UUID(as_uuid=True), nullable=False),
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("config", JSONB(), nullable=False),
        sa.Column("progress", JSONB(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("fencing_token", sa.BigInteger(), nullable=False),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True)),
        sa.Column("error_code", sa.Text()),
        sa.Column("error_message", sa.Text()),
        _when(),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name="pk_job"),
    )
    op.create_index("ix_job_state", "job", ["state"])
    op.create_table(
        "job_event",
        sa.Column("job_id", UUID(as_uuid=True), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        _when("at"),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("payload", JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "seq", name="pk_job_event"),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_job_event_job_id", ondelete="CASCADE"),
    )


def downgrade() -> None:
    for name in (
        "job_event",
        "job",
        "dataset",
        "embedding_config",
        "annotation_set",
        "taxonomy",
        "protein_set",
        "ontology_snapshot",
    ):
        op.drop_table(name)
