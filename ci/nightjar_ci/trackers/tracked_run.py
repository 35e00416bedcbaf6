"""What a tracker gets to know of a job: its measures, its configuration, and what it ran on.

In: the results of a night. Out: a `TrackedRun` per job that has a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pydantic import JsonValue

from nightjar_ci.formats.globs import matches
from nightjar_ci.formats.night_results import NightResults
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.run_record import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """A job as a run of a tracker.

    Attributes:
        night: id of the night, by which a tracker groups its runs.
        job: id of the job.
        completed: whether the job completed.
        started: when the job began, by the clock of its machine.
        ended: when it ended.
        config: the configuration of the workload, nested names joined with dots, and its seed.
        tags: cell, matrix, machine, commit, and the version of each package.
        curves: values by name, each with its training step.
        samples: repeated measurements by name, without warm-up.
        scalars: compile facts and numbers of tests, by name.
    """

    night: str
    job: str
    completed: bool
    started: datetime
    ended: datetime
    config: Mapping[str, JsonValue]
    tags: Mapping[str, str]
    curves: Mapping[str, Sequence[tuple[int, float]]]
    samples: Mapping[str, Sequence[float]]
    scalars: Mapping[str, float]

    @property
    def key(self) -> str:
        """Names the run: a job of a night is one run of a tracker, however often it is written."""
        return f"{self.night}/{self.job}"


def read_runs(results: NightResults, pattern: str = "*") -> list[TrackedRun]:
    """The jobs of a night that have a result.

    Args:
        results: the night.
        pattern: a glob of job ids.
    """
    return [
        _track(results, outcome, record)
        for outcome, record in results
        if record is not None and matches(outcome.job, pattern)
    ]


def _track(results: NightResults, outcome: Outcome, record: RunRecord) -> TrackedRun:
    environment, started = record.environment, datetime.fromisoformat(record.started_at)
    tags = {
        "cell": outcome.cell,
        "matrix": results.night.matrix,
        "state": outcome.state,
        "machine": environment.measured_on,
        "python": environment.python,
    }
    if environment.git is not None:
        tags["commit"] = environment.git.sha
    return TrackedRun(
        night=results.night.id,
        job=outcome.job,
        completed=outcome.completed,
        started=started,
        ended=started + timedelta(seconds=record.duration_s),
        config={"workload": record.workload, "seed": record.seed, **dict(_flatten(record.config))},
        tags=tags | {f"package.{name}": version for name, version in sorted(environment.packages.items())},
        curves={curve.name: list(zip(curve.steps, curve.values, strict=True)) for curve in record.curves},
        samples={sample.name: sample.steady for sample in record.samples},
        scalars=_read_scalars(record),
    )


def _read_scalars(record: RunRecord) -> dict[str, float]:
    scalars = dict[str, float]()
    for facts in record.facts:
        if facts.flops is not None:
            scalars[f"{facts.program}.flops"] = facts.flops
        for name, size in facts.memory.model_dump().items():
            if size is not None:
                scalars[f"{facts.program}.{name}"] = size
        scalars[f"{facts.program}.instructions"] = sum(tally.count for tally in facts.opcodes.values())
    if record.tests is not None:
        for state in ("passed", "failed", "flaky", "skipped"):
            scalars[f"tests.{state}"] = record.tests.count(state)
    return scalars


def _flatten(config: Mapping[str, JsonValue], prefix: str = "") -> Iterator[tuple[str, JsonValue]]:
    for name, value in config.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
