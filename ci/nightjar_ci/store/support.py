"""The versions of JAX that each cell worked with, over all nights.

In: a store. Out: the latest outcome of every cell with every version of JAX that its environment held.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select

from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.formats.suite import Suite
from nightjar_ci.store import tables

MOST_RUNS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A cell with one version of JAX."""

    cell: str
    jax: str
    night: str
    outcome: Outcome
    suite: Suite | None

    @property
    def works(self) -> bool:
        return self.outcome.completed and (self.suite is None or self.suite.count("failed") == self.suite.count_known())


def read_tried(connection: Connection, matrix: str | None) -> list[Tried]:
    """The latest outcome by cell and version of JAX, the latest night last.

    Args:
        matrix: only nights of this matrix; default: all nights.
    """
    night, run, document = tables.night, tables.run, tables.document
    query = (
        select(night.c.id, document.c.outcome, document.c.result)
        .join_from(run, night, run.c.night == night.c.number)
        .join(document, document.c.run == run.c.id)
        .order_by(night.c.number.desc(), run.c.attempt.desc())
        .limit(MOST_RUNS)
    )
    if matrix is not None:
        query = query.where(night.c.matrix == matrix)
    latest: dict[tuple[str, str], Tried] = {}
    for row in connection.execute(query):
        outcome = Outcome.model_validate(row.outcome)
        if outcome.jax is None or (outcome.cell, outcome.jax) in latest:
            continue
        suite = None if row.result is None else RunRecord.model_validate(row.result).tests
        latest[outcome.cell, outcome.jax] = Tried(
            cell=outcome.cell, jax=outcome.jax, night=row.id, outcome=outcome, suite=suite
        )
    return list(reversed(latest.values()))
