"""The results of a night, read once for the store, the gate, the report and the exit code.

In: a night folder. Out: its night with checked outcomes, and the result of each job that has one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from nightjar_ci.formats.night_folder import Night, job_folder, read_checked, read_night
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.profile import Profile
from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.formats.suite import Suite, join_suites

Cells = Mapping[str, Sequence[RunRecord]]


@dataclass(frozen=True, kw_only=True)
class NightResults:
    """A night with the results of its jobs.

    Attributes:
        night: with checked outcomes: `invalid` if the result is unreadable.
    """

    folder: Path
    night: Night
    records: Mapping[str, RunRecord]
    profiles: Mapping[str, Profile]

    def __iter__(self) -> Iterator[tuple[Outcome, RunRecord | None]]:
        return ((outcome, self.records.get(outcome.job)) for outcome in self.night.jobs)

    def by_cell(self) -> Cells:
        """The training results by cell; their `job` is the job's id, whatever the workload wrote."""
        cells: dict[str, list[RunRecord]] = defaultdict(list)
        for outcome, record in self:
            if record is not None and outcome.kind == "train":
                cells[outcome.cell].append(record.model_copy(update={"job": outcome.job}))
        return cells

    def has_sample(self, cell: str, name: str) -> bool:
        return (cell, name) in self._samples

    @cached_property
    def _samples(self) -> frozenset[tuple[str, str]]:
        return frozenset(
            (cell, sample.name) for cell, runs in self.by_cell().items() for run in runs for sample in run.samples
        )

    def suites_by_cell(self) -> Mapping[str, Mapping[str, RunRecord]]:
        cells: dict[str, dict[str, RunRecord]] = defaultdict(dict)
        for outcome, record in self:
            if record is not None and record.tests is not None and outcome.completed:
                cells[outcome.cell][outcome.job] = record
        return cells

    def read_suites(self) -> dict[str, Suite]:
        return {
            cell: join_suites([record.tests for record in records.values() if record.tests is not None])
            for cell, records in self.suites_by_cell().items()
        }


def read_night_results(folder: Path) -> NightResults:
    night = read_night(folder)
    checked = [read_checked(outcome, job_folder(folder, outcome.job)) for outcome in night.jobs]
    return NightResults(
        folder=folder,
        night=night.model_copy(update={"jobs": tuple(outcome for outcome, _ in checked)}),
        records={outcome.job: result for outcome, result in checked if isinstance(result, RunRecord)},
        profiles={outcome.job: result for outcome, result in checked if isinstance(result, Profile)},
    )
