"""Queued jobs: what they were asked beside settings, their minijobs, and the workers.

Revision 0003, after 0002.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB, UUID

from protea.catalog import queue

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Procrastinate's own schema has a version of its own: `protea.catalog.queue` installs it after the migrations."""
    time = sa.DateTime(timezone=True)
    op.add_column("job", sa.Column("options", JSONB(), server_default="{}", nullable=False))
    op.create_table(
        "minijob",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("job_id", UUID(as_uuid=True), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("cut", sa.Text(), nullable=False),
        sa.Column("block", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("worker_id", sa.BigInteger()),
        sa.Column("child", sa.Text()),
        sa.Column("fencing_token", sa.BigInteger(), nullable=False),
        sa.Column("heartbeat_at", time),
        sa.Column("spec", JSONB(), nullable=False),
        sa.Column("delivery", sa.BigInteger()),
        sa.Column("progress", JSONB(), nullable=False),
        sa.Column("artefact", sa.Text()),
        sa.Column("rows", sa.BigInteger()),
        sa.Column("error_code", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("created_at", time, server_default=sa.func.now(), nullable=False),
        sa.Column("started_at", time),
        sa.Column("finished_at", time),
        sa.PrimaryKeyConstraint("id", name="pk_minijob"),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_minijob_job_id", ondelete="CASCADE"),
        sa.UniqueConstraint("job_id", "stage", "cut", "block", name="uq_minijob_job_id_stage_cut_block"),
    )
    op.create_index("ix_minijob_state", "minijob", ["state"])
    op.create_table(
        "worker",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("machine", sa.Text(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("born", sa.Double(), nullable=False),
        sa.Column("queues", sa.Text(), nullable=False),
        sa.Column("processes", sa.Integer(), nullable=False),
        sa.Column("doing", JSONB(), nullable=False),
        sa.Column("started_at", time, server_default=sa.func.now(), nullable=False),
        sa.Column("heartbeat_at", time, server_default=sa.func.now(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_worker"),
    )


def downgrade() -> None:
    queue.remove(op.get_bind())
    for name in ("worker", "minijob"):
        op.drop_table(name)
    op.drop_column("job", "options")
