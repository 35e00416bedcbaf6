"""The questions that an agent can ask about nights, facts and bisections, each with its answer as JSON.

In: the settings, which name the store and the bisections. Out: at most 4 kB of text each. The store is asked over the
connection of `nightjar-ci query`, which cannot write.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from nightjar_ci.agents.answers import Row, write_answer
from nightjar_ci.bisect.result.answer import ANSWER_SCHEMA, Answer
from nightjar_ci.errors import InputError
from nightjar_ci.formats.documents import read_document
from nightjar_ci.formats.run_record import Facts
from nightjar_ci.settings import Settings
from nightjar_ci.store import open_store
from nightjar_ci.store.query import Limits, query

MOST_ROWS = 1000
LIMITS = Limits(rows=MOST_ROWS)
GROUPS, SHOWN = ("opcodes", "fusions", "custom_calls", "collectives"), 6
STATUSES = ("regressed", "cannot_tell", "improved", "ok")
OF_VERDICT = ("effect", "interval", "p", "p_adjusted", "n", "explanation", "details", "watch")


def quote(text: str) -> str:
    """A text in SQL.

    >>> quote("it's")
    "'it''s'"
    """
    return "'" + text.replace("\x00", "").replace("'", "''") + "'"


class Questions:
    """The available questions; every method returns the text of an answer."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def nights(self, first: int = 0) -> str:
        """List the nights, newest first: id, matrix, when, commit, whether it is finished."""
        sql = f"SELECT id, matrix, started_at, finished_at, git_sha FROM night ORDER BY number DESC LIMIT {MOST_ROWS}"
        return write_answer(self._ask(sql), "store: night", "a night without finished_at is not whole", first)

    def outcomes(self, night: str = "", state: str = "", first: int = 0) -> str:
        """How the jobs of a night ended (the latest night if none is named); `state` such as failed or timeout."""
        wanted = f" AND state = {quote(state)}" if state else ""
        sql = (
            "SELECT job, cell, kind, state, attempt FROM outcomes "
            f"WHERE night = {quote(night or self._latest())}{wanted} ORDER BY job LIMIT {MOST_ROWS}"
        )
        return write_answer(self._ask(sql), "store: outcomes", "states are facts; the latest attempt counts", first)

    def verdicts(self, night: str = "", status: str = "", first: int = 0) -> str:
        """The verdicts of a night, worst first: effect, 95 % interval, p, runs behind it, and why in a sentence."""
        if status and status not in STATUSES:
            raise InputError(f"{status!r}: not a status.", f"expected one of {', '.join(STATUSES)}")
        wanted = f" AND status = {quote(status)}" if status else ""
        sql = (
            "SELECT series, judge, status, body FROM verdicts "
            f"WHERE night = {quote(night or self._latest())}{wanted} ORDER BY series LIMIT {MOST_ROWS}"
        )
        rows = [self._verdict(row) for row in self._ask(sql)]
        rows.sort(key=lambda row: STATUSES.index(row["status"]) if row["status"] in STATUSES else len(STATUSES))
        says = "interval and p of each row; p_adjusted corrects for all series of the night"
        return write_answer(rows, "store: verdicts", says, first)

    @staticmethod
    def _verdict(row: Row) -> dict[str, Any]:
        body = row["body"]
        if isinstance(body, str):
            body = json.loads(body)
        return {**{name: row[name] for name in ("series", "judge", "status")}, **{n: body.get(n) for n in OF_VERDICT}}

    def series(self, contains: str = "", first: int = 0) -> str:
        """List the measured series as cell and measure, with unit and number of values."""
        wanted = f"WHERE lower(cell || '/' || measure) LIKE {quote(f'%{contains.lower()}%')} " if contains else ""
        sql = (
            f"SELECT cell, measure, kind, unit, better, count(value) AS n_values FROM history {wanted}"
            f"GROUP BY cell, measure, kind, unit, better ORDER BY cell, measure LIMIT {MOST_ROWS}"
        )
        return write_answer(self._ask(sql), "store: history", "ask `history` for the spread of the values", first)

    def history(self, cell: str, measure: str, first: int = 0) -> str:
        """The values of a series, newest night first, with the replicate that each is of."""
        sql = (
            "SELECT night, replicate, value, unit, environment FROM history "
            f"WHERE cell = {quote(cell)} AND measure = {quote(measure)} "
            f"ORDER BY started_at DESC, night DESC, replicate LIMIT {MOST_ROWS}"
        )
        says = "single values: compare replicates of one night for their spread; `verdicts` judges"
        return write_answer(self._ask(sql), "store: history", says, first)

    def facts(self, cell: str, night: str = "", first: int = 0) -> str:
        """Compile facts of a cell's programs in a night: counts of kernels, flops, memory, collectives."""
        store = open_store(self.settings)
        rows = [
            {"job": outcome.job, **self._summarise(facts)}
            for outcome, record in store.results_of(cell, night or self._latest())
            if record is not None
            for facts in record.facts
        ]
        return write_answer(rows, "store: run", "exact for that compiler and device: other versions differ", first)

    @staticmethod
    def _summarise(facts: Facts) -> dict[str, Any]:
        """The facts of a program, with the most frequent names of each group."""
        groups = {name: getattr(facts, name) for name in GROUPS}
        most = {
            name: [
                {"name": key, "count": tally.count}
                for key, tally in sorted(group.items(), key=lambda item: -item[1].count)[:SHOWN]
            ]
            for name, group in groups.items()
        }
        totals = {f"{name}_total": sum(tally.count for tally in group.values()) for name, group in groups.items()}
        return {
            "program": facts.program,
            "flops": facts.flops,
            "memory": facts.memory.model_dump(mode="json"),
            **totals,
            **most,
        }

    def bisections(self, first: int = 0) -> str:
        """The bisections that have ended: conclusion, probability and culprits."""
        paths = sorted(self.settings.bisections_dir.glob("*/answer.json"), reverse=True)
        rows = []
        for path in paths:
            try:
                answer = read_document(path, Answer, ANSWER_SCHEMA)
            except InputError:  # of another version
                continue
            kept = ("kind", "title", "culprits", "probability", "effect", "tests", "duration_s")
            rows.append({"file": f"{path.parent.name}/answer.json", **{name: getattr(answer, name) for name in kept}})
        return write_answer(rows, "bisections", "probability: that the change came with the culprits", first)

    def sql(self, select: str, first: int = 0) -> str:
        """Rows of one SELECT over the store: the views history, outcomes, verdicts and night; it cannot write."""
        return write_answer(self._ask(select), "store", "as the columns say", first)

    def _ask(self, sql: str) -> list[dict[str, Any]]:
        return query(self.settings, sql, LIMITS).to_dicts()

    def _latest(self) -> str:
        rows = self._ask("SELECT id FROM night ORDER BY number DESC LIMIT 1")
        if not rows:
            raise InputError("The store has no night.", "nightjar-ci run MATRIX, or nightjar-ci store --import NIGHT")
        return str(rows[0]["id"])

    def all(self) -> list[Callable[..., str]]:
        """The questions, as tools."""
        return [
            self.nights,
            self.outcomes,
            self.verdicts,
            self.series,
            self.history,
            self.facts,
            self.bisections,
            self.sql,
        ]
