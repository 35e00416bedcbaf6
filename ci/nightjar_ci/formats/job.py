"""One job of a night, and its command line.

In: a job of an expanded matrix, and the output folder as the job sees it. Out: its argument list, and the environment
variables that are added to the inherited ones (`inheritance`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Literal

from nightjar_ci.formats.adapter import Adapter
from nightjar_ci.formats.placeholders import fill_placeholders
from nightjar_ci.formats.resources import Resources
from nightjar_ci.formats.suite import SuiteOptions

SAFE_ID = r"[A-Za-z0-9][A-Za-z0-9._-]*"  # an id is also a file name

Kind = Literal["train", "profile", "test"]
Measure = Literal["front_end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One command to run, once.

    Attributes:
        id: readable, stable, unique in its matrix, and safe as a file name.
        cell: the id without its replicate; the jobs of a cell differ only in their seed.
        replicate: the seed, if the matrix lists seeds.
        kind: output of the job: a result (`train`), a capture (`profile`) or its tests (`test`).
        command: argument list; `{out}` is still a placeholder, and braces are escaped.
        env: environment variables, templates like the command.
        environment: `current`, `uv:<requirements>`, `project:<folder>` or `image:<reference>`.
        executor: a name of `nightjar_ci.executors.EXECUTORS`.
        timeout_s: wall time after which the job is killed.
        usual_s: usual wall time, used to estimate the duration of a night; None if unknown.
        adapter: how its result is read from its output; None if it writes one itself.
        tests: how its tests are read; None if the matrix does not say.
        measure: what is counted in addition to the job's own measures.
        source: package whose source distribution it needs as `{source}`, in its environment's version.
        pass_env: names and patterns of variables that it inherits in addition to every job's.
        secrets: names of inherited variables whose values are masked in all its output.
    """

    id: str
    cell: str
    replicate: int | None
    kind: Kind
    command: tuple[str, ...]
    env: Mapping[str, str]
    environment: str
    executor: str
    timeout_s: float
    adapter: Adapter | None = None
    resources: Resources = field(default_factory=Resources)
    pass_env: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    usual_s: float | None = None
    tests: SuiteOptions | None = None
    source: str | None = None
    measure: tuple[Measure, ...] = ()

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of the matrix, with `{out}` for the output folder."""
        return {
            name: fill_placeholders(text, {"out": "{out}", "source": "{source}"}) for name, text in self.env.items()
        }

    @property
    def seed(self) -> int:
        return self.replicate or 0

    @property
    def inherited(self) -> tuple[str, ...]:
        return (*self.pass_env, *self.secrets)

    def with_source(self, folder: PurePath) -> Job:
        """The job with the folder of its source distribution in place of `{source}`."""
        values = {"source": str(folder)}
        return replace(
            self,
            command=tuple(fill_placeholders(text, values, keep={"out"}) for text in self.command),
            env={name: fill_placeholders(text, values, keep={"out"}) for name, text in self.env.items()},
        )

    def rendered(self, out: PurePath) -> tuple[tuple[str, ...], dict[str, str]]:
        """The argument list and the environment variables of the job.

        Args:
            out: the output folder as the job sees it (in a container, the folder there).
        """
        values = {"out": str(out)}
        variables = {
            **{name: fill_placeholders(text, values) for name, text in self.env.items()},
            "NIGHTJAR_JOB": self.id,
            "NIGHTJAR_SEED": str(self.seed),
            "NIGHTJAR_OUT": str(out),
        }
        return tuple(fill_placeholders(text, values) for text in self.command), variables
