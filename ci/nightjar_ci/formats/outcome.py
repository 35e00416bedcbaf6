"""The outcome of a job, as in `outcome.json` and the entries of `night.json`.

Source: docs/reference/night-folder.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from nightjar_ci.formats.adapter import Adapter
from nightjar_ci.formats.documents import StrictModel
from nightjar_ci.formats.job import SAFE_ID, Job, Kind, Measure
from nightjar_ci.formats.resources import Resources
from nightjar_ci.formats.run_record import LocalPackage

State = Literal["completed", "failed", "killed", "timeout", "invalid", "not_started"]

SafeId = Annotated[str, Field(pattern=f"^{SAFE_ID}$", max_length=160)]  # the longest job id, and a suffix


class Outcome(StrictModel):
    """How a job ended, on any executor.

    `python` is the interpreter of its environment, `local_packages` the packages installed there from this machine;
    neither is known for an image. `env` has its variables from the matrix, with `{out}` for its folder, and `adapter`
    says how its result was read from its output.
    """

    job: SafeId
    cell: SafeId
    replicate: int | None
    kind: Kind
    command: tuple[str, ...]
    environment: str
    executor: str
    state: State
    exit_code: int | None
    signal: str | None
    started_at: str
    duration_s: float
    peak_rss_bytes: int | None
    message: str | None
    python: str | None = None
    local_packages: tuple[LocalPackage, ...] = ()
    jax: str | None = None
    env: Mapping[str, str] = {}
    adapter: Adapter | None = None
    resources: Resources = Resources()
    measure: tuple[Measure, ...] = ()

    @property
    def completed(self) -> bool:
        return self.state == "completed"


def make_outcome(
    job: Job,
    *,
    state: State,
    started_at: str,
    command: tuple[str, ...] | None = None,
    exit_code: int | None = None,
    signal: str | None = None,
    duration_s: float = 0.0,
    peak_rss_bytes: int | None = None,
    message: str | None = None,
) -> Outcome:
    """The outcome of a job, with the job's fields copied; `command` replaces the job's own."""
    return Outcome(
        job=job.id,
        cell=job.cell,
        replicate=job.replicate,
        kind=job.kind,
        command=command or job.command,
        environment=job.environment,
        executor=job.executor,
        resources=job.resources,
        measure=job.measure,
        state=state,
        exit_code=exit_code,
        signal=signal,
        started_at=started_at,
        duration_s=duration_s,
        peak_rss_bytes=peak_rss_bytes,
        message=message,
    )
