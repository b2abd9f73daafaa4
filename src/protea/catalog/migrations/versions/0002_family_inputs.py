"""The inputs of the later families: term vectors, InterPro tables, external scores, information accretion.

Revision 0002, after 0001.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_TABLES = ("term_vectors", "interpro_table", "external_scores", "information_accretion")


def upgrade() -> None:
    for name in _TABLES:
        op.create_table(
            name,
            sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
            sa.Column("name", sa.Text(), nullable=False),
            sa.Column("identity", sa.Text(), nullable=False),
            sa.Column("object_digest", sa.Text(), nullable=False),
            sa.Column("stats", JSONB(), nullable=False),
            sa.Column("source_file", sa.Text(), nullable=False),
            sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
            sa.PrimaryKeyConstraint("id", name=f"pk_{name}"),
            sa.UniqueConstraint("name", name=f"uq_{name}_name"),
        )
        for column in ("identity", "object_digest"):
            op.create_index(f"ix_{name}_{column}", name, [column])


def downgrade() -> None:
    for name in reversed(_TABLES):
        op.drop_table(name)
