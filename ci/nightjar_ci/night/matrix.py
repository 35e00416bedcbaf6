"""The matrix of jobs: `nightjar.matrix/1` and its expansion (docs/reference/matrix.md).

In: a TOML file. Out: jobs with readable, stable, unique ids. Expansion is pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, Strict

from nightjar_ci.environments.commit import parse_commit
from nightjar_ci.environments.package_source import parse_source
from nightjar_ci.environments.prepare import parse_environment, with_requirements
from nightjar_ci.errors import InputError
from nightjar_ci.executors import EXECUTORS
from nightjar_ci.formats.adapter import Adapter
from nightjar_ci.formats.documents import StrictModel, read_document
from nightjar_ci.formats.globs import matches
from nightjar_ci.formats.job import SAFE_ID, Job, Kind, Measure
from nightjar_ci.formats.night_folder import Options
from nightjar_ci.formats.placeholders import fill_placeholders
from nightjar_ci.formats.resources import Resources, merge_resources
from nightjar_ci.formats.suite import SuiteOptions
from nightjar_ci.untrusted.inheritance import check_passed, check_secret

SCHEMA = "nightjar.matrix/1"
RESERVED = ("seed", "out", "job", "source")
_LONGEST_ID = 120  # leaves room for suffixes: a file name has at most 255 bytes


def _known_executor(name: str) -> str:
    if name not in EXECUTORS:
        raise ValueError(f"unknown executor {name!r}: expected one of {', '.join(EXECUTORS)}")
    return name


def _known_environment(name: str) -> str:
    if "{" not in name:  # a template is checked when it is filled
        parse_environment(name)
    return name


def _known_source(text: str) -> str:
    parse_source(text.replace("{", "").replace("}", ""))
    return text


AxisValue = Annotated[int, Strict()] | str
Combination = dict[str, AxisValue]
ExecutorName = Annotated[str, AfterValidator(_known_executor)]
EnvironmentName = Annotated[str, AfterValidator(_known_environment)]
Seconds = Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)]
Seed = Annotated[int, Strict(), Field(ge=0)]
PassedName = Annotated[str, AfterValidator(check_passed)]
SecretName = Annotated[str, AfterValidator(check_secret)]


class Defaults(StrictModel):
    """The defaults of all jobs of a matrix."""

    executor: ExecutorName = "local"
    environment: EnvironmentName = "current"
    timeout_s: Seconds = 300
    kind: Kind = "train"
    env: Mapping[str, str] = {}
    pass_env: tuple[PassedName, ...] = ()
    secrets: tuple[SecretName, ...] = ()
    resources: Resources = Resources()
    share_programs: bool = False


class JobEntry(StrictModel):
    """One `[[job]]` of a matrix: a cell for every combination of its axes, a job for every seed."""

    name: str
    command: Annotated[tuple[str, ...], Field(min_length=1)]
    cwd: str | None = None
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] | None = None
    axes: Mapping[str, Annotated[tuple[AxisValue, ...], Field(min_length=1)]] = {}
    exclude: tuple[Combination, ...] = ()
    include: tuple[Combination, ...] = ()
    executor: ExecutorName | None = None
    environment: EnvironmentName | None = None
    timeout_s: Seconds | None = None
    usual_s: Seconds | None = None
    kind: Kind | None = None
    env: Mapping[str, str] = {}
    pass_env: tuple[PassedName, ...] = ()
    secrets: tuple[SecretName, ...] = ()
    resources: Resources | None = None
    adapter: Adapter | None = None
    tests: SuiteOptions | None = None
    source: Annotated[str, AfterValidator(_known_source)] | None = None
    measure: tuple[Measure, ...] = ()

    def find_kind(self, defaults: Defaults) -> Kind:
        return self.kind or ("test" if self.tests is not None else defaults.kind)


class Matrix(StrictModel):
    """A matrix before expansion: `nightjar.matrix/1`."""

    schema_: Annotated[Literal["nightjar.matrix/1"], Field(alias="schema")]
    name: str
    defaults: Defaults = Defaults()
    job: Annotated[tuple[JobEntry, ...], Field(min_length=1)]


def read_matrix(path: Path) -> Matrix:
    matrix = read_document(path, Matrix, SCHEMA)
    try:
        expand(matrix)
    except InputError as error:
        raise InputError(f"{path}: {error.message}", error.hint) from None
    return matrix


def expand(matrix: Matrix) -> tuple[Job, ...]:
    """The jobs of a matrix, in its order: entries, then combinations of axes, then seeds."""
    jobs: list[Job] = []
    for number, entry in enumerate(matrix.job, start=1):
        try:
            jobs += _expand_entry(matrix.defaults, entry)
        except ValueError as error:
            raise InputError(f"[[job]] {number} ({entry.name}): {error}.") from None
    for job_id, count in Counter(job.id for job in jobs).items():
        if count > 1:
            raise InputError(
                f"{count} jobs have the id {job_id!r}, expected one.",
                "put every {axis} into 'name', and give each [[job]] its own name",
            )
    return tuple(jobs)


def select_jobs(jobs: Sequence[Job], *, pattern: str | None = None, seeds: Collection[int] | None = None) -> list[Job]:
    """The jobs whose id matches a glob and whose replicate is one of `seeds`."""
    chosen = [
        job for job in jobs if (pattern is None or matches(job.id, pattern)) and (seeds is None or job.seed in seeds)
    ]
    if not chosen:
        criteria = []
        if pattern is not None:
            criteria.append(f"an id like {pattern!r}")
        if seeds is not None:
            criteria.append(f"a seed in {','.join(map(str, sorted(seeds)))}")
        raise InputError(f"no job has {' and '.join(criteria)}: expected one of {', '.join(job.id for job in jobs)}.")
    return chosen


def choose_jobs(matrix: Matrix, options: Options) -> list[Job]:
    """The jobs of a matrix that options choose, moved as they say."""
    seeds = None if options.seeds is None else parse_seeds(options.seeds)
    moves = options.model_dump(exclude={"jobs", "seeds"})
    return [move_job(job, **moves) for job in select_jobs(expand(matrix), pattern=options.jobs, seeds=seeds)]


def parse_seeds(text: str) -> list[int]:
    """The seeds of `0,2` or `0:3`, in the order given.

    >>> parse_seeds("0:3,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, colon, end = part.strip().partition(":")
        if not first.isdecimal() or (colon and not end.isdecimal()):
            raise InputError(f"--seeds: {text!r} is not a list of seeds: expected for example 0,1,2 or 0:3.")
        seeds += range(int(first), int(end)) if colon else [int(first)]
    if not seeds:
        raise InputError(f"--seeds: {text!r} names no seed: expected for example 0,1,2 or 0:3.")
    return seeds


def with_seeds(matrix: Matrix, seeds: Sequence[int]) -> Matrix:
    """The matrix with other seeds in every entry that names seeds."""
    entries = tuple(
        entry if entry.seeds is None else entry.model_copy(update={"seeds": tuple(seeds)}) for entry in matrix.job
    )
    return matrix.model_copy(update={"job": entries})


def move_job(
    job: Job,
    *,
    executor: str | None = None,
    environment: str | None = None,
    requirements: str | None = None,
    one_process: bool = False,
) -> Job:
    """The job on another executor, in another environment, or as one process.

    Args:
        requirements: added to its uv environment's; `current` becomes a uv environment with them.
        one_process: asks for none of the job's resources.
    """
    environment = environment or job.environment
    try:
        if requirements:
            environment = with_requirements(environment, requirements)
        moved = replace(job, executor=executor or job.executor, environment=environment)
        if one_process:
            moved = replace(moved, resources=Resources())
        _check_executor(moved.executor, moved.environment, moved.resources)
        _check_is_local(moved.executor, source=moved.source, measure=moved.measure)
    except ValueError as error:
        raise InputError(f"{job.id}: {error}.") from None
    return moved


def _expand_entry(defaults: Defaults, entry: JobEntry) -> Iterator[Job]:
    for axis in entry.axes:
        if axis in RESERVED:
            raise ValueError(f"the axis {axis!r} has the name of a placeholder: expected another name")
    for duplicate, count in Counter(entry.seeds).items():
        if count > 1:
            raise ValueError(f"duplicate seed {duplicate} in 'seeds'")
    executor, environment = entry.executor or defaults.executor, entry.environment or defaults.environment
    kind = entry.find_kind(defaults)
    _check_kind(kind, entry)
    resources = merge_resources(defaults.resources, entry.resources)
    _check_is_local(executor, source=entry.source, measure=entry.measure)
    env = {**defaults.env, **entry.env}
    secrets = tuple(dict.fromkeys((*defaults.secrets, *entry.secrets)))
    for name in secrets:
        if name in env:
            raise ValueError(f"{name!r} is in 'env' and in 'secrets': expected a value or the name of a secret")
    kept = {"out"} if entry.source is None else {"out", "source"}
    command = entry.command
    if entry.cwd is not None:  # any executor can run it, and a bisection
        command = ("env", f"--chdir={entry.cwd}", *command)
    for combination in _combinations(entry):
        cell = fill_placeholders(entry.name, combination)
        for seed in entry.seeds or (None,):
            job_id = cell if seed is None else f"{cell}-s{seed}"
            _check_id(job_id)
            values = {**combination, "seed": str(seed or 0), "job": job_id}
            filled = fill_placeholders(environment, values)
            _check_executor(executor, filled, resources)
            yield Job(
                id=job_id,
                cell=cell,
                replicate=seed,
                kind=kind,
                command=tuple(fill_placeholders(text, values, keep=kept) for text in command),
                env={name: fill_placeholders(text, values, keep=kept) for name, text in env.items()},
                environment=filled,
                executor=executor,
                timeout_s=entry.timeout_s or defaults.timeout_s,
                usual_s=entry.usual_s,
                adapter=entry.adapter,
                resources=resources,
                pass_env=tuple(dict.fromkeys((*defaults.pass_env, *entry.pass_env))),
                secrets=secrets,
                tests=entry.tests,
                source=None if entry.source is None else fill_placeholders(entry.source, values),
                measure=entry.measure,
            )


def _combinations(entry: JobEntry) -> Iterator[Mapping[str, str]]:
    """All combinations of the axes except the excluded ones, then the included ones."""
    for combination in (*entry.exclude, *entry.include):
        for axis in combination:
            if axis not in entry.axes:
                axes = ", ".join(entry.axes) or "none (this job has no axes)"
                raise ValueError(f"unknown axis {axis!r} in 'exclude' or 'include': expected one of {axes}")
    for combination in entry.include:
        for axis in entry.axes:
            if axis not in combination:
                raise ValueError(f"the combination {combination} in 'include' lacks the axis {axis!r}")
    for values in product(*entry.axes.values()):
        candidate = _as_text(dict(zip(entry.axes, values, strict=True)))
        if not any(_as_text(excluded).items() <= candidate.items() for excluded in entry.exclude):
            yield candidate
    yield from map(_as_text, entry.include)


def _as_text(combination: Combination) -> Mapping[str, str]:
    return {axis: str(value) for axis, value in combination.items()}


def _check_kind(kind: Kind, entry: JobEntry) -> None:
    if entry.adapter is not None and kind != "train":
        raise ValueError("adapter makes a result: expected kind = 'train'")
    if entry.tests is not None and kind != "test":
        raise ValueError("tests says how JUnit files are read: expected kind = 'test'")
    if entry.measure and kind == "profile":
        raise ValueError("measure adds to a result, and a capture has none: expected kind = 'train' or 'test'")


def _check_id(job_id: str) -> None:
    if not re.fullmatch(SAFE_ID, job_id) or len(job_id) > _LONGEST_ID:
        raise ValueError(
            f"the id {job_id!r} is not a safe file name: expected at most {_LONGEST_ID} letters, digits, '.', '_' and "
            "'-', starting with a letter or digit"
        )


def _check_is_local(executor: str, **needs: object) -> None:
    for key, value in needs.items():
        if value and executor != "local":
            raise ValueError(f"{key!r} needs files of this machine: expected the executor local, not {executor}")


def _check_executor(executor: str, environment: str, resources: Resources) -> None:
    _known_executor(executor)
    kind, rest = parse_environment(environment)
    if kind == "commit":  # entered as its own environment is
        kind = parse_environment(parse_commit(rest)[1])[0]
    if kind not in EXECUTORS[executor].kinds:
        able = [name for name, candidate in EXECUTORS.items() if kind in candidate.kinds]
        raise ValueError(
            f"the executor {executor!r} cannot run in the environment {environment!r}: expected {' or '.join(able)}"
        )
    if resources.tasks > 1 and not EXECUTORS[executor].runs_several_tasks:
        able = [name for name, candidate in EXECUTORS.items() if candidate.runs_several_tasks]
        raise ValueError(
            f"the executor {executor!r} runs a job as one process, but resources ask for {resources.nodes} nodes of "
            f"{resources.tasks_per_node} tasks: expected {' or '.join(able)}"
        )
    if resources.pinned_cpus and not EXECUTORS[executor].pins_cpus:
        raise ValueError(
            f"the executor {executor!r} chooses processors itself and cannot use pinned_cpus = "
            f"{resources.pinned_cpus!r}: expected cpus_per_task, and for timings an option such as --exclusive"
        )
