"""Nights, runs, measures and verdicts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "night",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("matrix", sa.String(), nullable=False),
        sa.Column("started_at", sa.String(), nullable=False),
        sa.Column("finished_at", sa.String()),
        sa.Column("git_sha", sa.String()),
    )
    op.create_table(
        "run",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("night", sa.String(), sa.ForeignKey("night.id", ondelete="CASCADE"), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("cell", sa.String(), nullable=False),
        sa.Column("replicate", sa.Integer()),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("facts_key", sa.String()),
        sa.Column("outcome", sa.JSON(), nullable=False),
        sa.Column("result", sa.JSON()),
    )
    op.create_index("run_of_job", "run", ["night", "job"], unique=True)
    op.create_index("run_of_cell", "run", ["cell", "facts_key"])
    op.create_table(
        "measure",
        sa.Column("run", sa.Integer(), sa.ForeignKey("run.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("kind", sa.String(), primary_key=True),
        sa.Column("name", sa.String(), primary_key=True),
        sa.Column("unit", sa.String(), nullable=False),
        sa.Column("better", sa.String(), nullable=False),
        sa.Column("value", sa.Float()),
    )
    op.create_index("measure_of_name", "measure", ["name"])
    op.create_table(
        "verdict",
        sa.Column("night", sa.String(), sa.ForeignKey("night.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("position", sa.Integer(), primary_key=True),
        sa.Column("series", sa.String(), nullable=False),
        sa.Column("judge", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
    )
    op.create_index("verdict_of_series", "verdict", ["series"])
