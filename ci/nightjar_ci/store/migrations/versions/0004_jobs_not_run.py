"""A night's jobs that have not run, and the cells that it was told to leave out."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the two columns; existing nights have no values in them."""
    op.add_column("night", sa.Column("not_run", sa.JSON()))
    op.add_column("night", sa.Column("left_out", sa.JSON()))
