"""The tables of the first release, and its views for people who ask in SQL.

It makes today's tables: a migration that follows and changes one has to write out here how it was.
"""

from __future__ import annotations

from alembic import op

from nightjar_ci.store.tables import metadata

revision = "0004"
down_revision = None
branch_labels = None
depends_on = None

HISTORY = """
CREATE VIEW history AS
SELECT night.id AS night, night.started_at, night.matrix, series.cell, series.name AS measure, series.kind, series.unit,
       series.better, run.replicate, measure.value, environment.key AS environment
FROM measure
JOIN series ON series.id = measure.series
JOIN night ON night.number = measure.night
JOIN run ON run.id = measure.run
JOIN environment ON environment.id = measure.environment
"""
OUTCOMES = """
CREATE VIEW outcomes AS
SELECT night.id AS night, night.started_at, night.matrix, run.job, run.cell, run.replicate, run.kind, run.state,
       run.attempt
FROM run
JOIN night ON night.number = run.night
WHERE NOT EXISTS (
    SELECT 1 FROM run AS later WHERE later.night = run.night AND later.job = run.job AND later.attempt > run.attempt
)
"""
JUDGED = """
CREATE VIEW verdicts AS
SELECT night.id AS night, night.started_at, night.matrix, verdict.series, verdict.judge, verdict.status, verdict.body
FROM verdict
JOIN night ON night.number = verdict.night
"""


def upgrade() -> None:
    # The next migration needs the tables as they are now: it writes them out here before it changes tables.py.
    metadata.create_all(op.get_bind())
    for view in (HISTORY, OUTCOMES, JUDGED):
        op.execute(view)
