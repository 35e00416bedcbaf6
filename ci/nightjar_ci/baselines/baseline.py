"""Committed baselines of a cell: its training curves and compile facts.

In: results of ten seeds. Out: `<cell>/convergence.json` (`nightjar.baseline/1`: curves by seed) and
`<cell>/facts/<facts key>.json` (`nightjar.facts-baseline/1`), which the judges compare with.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from nightjar_ci.errors import InputError
from nightjar_ci.formats.documents import read_document, write_text
from nightjar_ci.formats.run_record import Better, Environment, Facts, RunRecord

BASELINE_SCHEMA = "nightjar.baseline/1"
FACTS_SCHEMA = "nightjar.facts-baseline/1"
SIGNIFICANT_DIGITS = 7  # losses are computed in float32, which has 7.2
LEAST_SEEDS = 10


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", populate_by_name=True)


class BaselineCurve(_Strict):
    """One curve of every seed; all seeds have the same steps.

    Attributes:
        replicas: repeated trainings by seed, with sums in another order; may be empty.
    """

    name: str
    unit: str
    better: Better
    steps: tuple[int, ...]
    seeds: dict[int, tuple[float, ...]]
    replicas: dict[int, tuple[float, ...]] = {}


class Elsewhere(_Strict):
    """Trainings of the same program in another environment, such as another processor or jaxlib.

    Attributes:
        curves: values by name of the curve and seed, at the steps of the baseline's curve.
    """

    environment: Environment
    curves: dict[str, dict[int, tuple[float, ...]]]


class ConvergenceBaseline(_Strict):
    """The curves of a cell by seed, with command, configuration and environment: `nightjar.baseline/1`.

    Attributes:
        elsewhere: some of its seeds in other environments; may be empty.
    """

    schema_: Annotated[Literal["nightjar.baseline/1"], Field(alias="schema")] = "nightjar.baseline/1"
    cell: str
    made_at: str
    command: tuple[str, ...]
    config: dict[str, JsonValue]
    environment: Environment
    data_digest: str | None
    curves: tuple[BaselineCurve, ...]
    elsewhere: tuple[Elsewhere, ...] = ()

    def curve(self, name: str) -> BaselineCurve | None:
        return next((curve for curve in self.curves if curve.name == name), None)


class FactsBaseline(_Strict):
    """The compile facts of a cell for one facts key: `nightjar.facts-baseline/1`."""

    schema_: Annotated[Literal["nightjar.facts-baseline/1"], Field(alias="schema")] = "nightjar.facts-baseline/1"
    cell: str
    made_at: str
    environment: Environment
    facts: tuple[Facts, ...]
    compiler: dict[str, float] = Field({}, exclude=True)  # of older baselines; histories judge what compiling costs


def data_digest(record: RunRecord) -> str | None:
    """The digest of the training data in a workload's configuration, or None."""
    digest = record.config.get("data_digest")
    if digest is None:
        return None
    return str(digest)


def convergence_path(folder: Path, cell: str) -> Path:
    return folder / cell / "convergence.json"


def facts_path(folder: Path, cell: str, facts_key: str) -> Path:
    return folder / cell / "facts" / f"{facts_key}.json"


def read_convergence(folder: Path, cell: str) -> ConvergenceBaseline | None:
    path = convergence_path(folder, cell)
    return read_document(path, ConvergenceBaseline, BASELINE_SCHEMA) if path.exists() else None


def read_facts(folder: Path, cell: str, facts_key: str) -> FactsBaseline | None:
    path = facts_path(folder, cell, facts_key)
    return read_document(path, FactsBaseline, FACTS_SCHEMA) if path.exists() else None


def make_convergence(
    cell: str, command: Sequence[str], records: Sequence[RunRecord], replicas: Sequence[RunRecord] = ()
) -> ConvergenceBaseline:
    """Makes the baseline of a cell's curves from completed runs with different seeds."""
    by_seed = {record.seed: record for record in records}
    replicas_by_seed = {record.seed: record for record in replicas}
    if len(by_seed) < LEAST_SEEDS:
        hint = "an envelope needs ten: give the [[job]] seeds and its command {seed}, add --seeds 0:10; or --facts-only"
        raise InputError(f"{cell}: {len(by_seed)} different seeds, expected at least {LEAST_SEEDS}.", hint)
    first = by_seed[min(by_seed)]
    for record in (*by_seed.values(), *replicas_by_seed.values()):
        if record.status != "completed":
            raise InputError(f"{cell}: seed {record.seed} {record.status}: a baseline needs completed runs.")
        if record.environment.facts_key != first.environment.facts_key or data_digest(record) != data_digest(first):
            raise InputError(f"{cell}: seeds {first.seed} and {record.seed} differ in environment or data.")
    return ConvergenceBaseline(
        cell=cell,
        made_at=max(record.started_at for record in by_seed.values()),
        command=tuple(command),
        config=first.config,
        environment=first.environment,
        data_digest=data_digest(first),
        curves=tuple(_gather_curve(cell, curve.name, by_seed, replicas_by_seed) for curve in first.curves),
    )


def add_elsewhere(baseline: ConvergenceBaseline, records: Sequence[RunRecord]) -> ConvergenceBaseline:
    """Adds completed runs of another environment; they replace the baseline's runs of it. Of its own, adds nothing."""
    environment = records[0].environment
    if environment.processor and _numerics(environment) == _numerics(baseline.environment):
        return baseline
    by_seed = {record.seed: record for record in records}
    curves: dict[str, dict[int, tuple[float, ...]]] = {}
    for seed, record in sorted(by_seed.items()):
        if _numerics(record.environment) != _numerics(environment) or data_digest(record) != baseline.data_digest:
            raise InputError(f"{baseline.cell}: seed {seed} differs in environment or data.")
        for expected in baseline.curves:
            curve = record.curve(expected.name)
            if curve is None or curve.steps != expected.steps:
                raise InputError(f"{baseline.cell}: curve {expected.name!r} of seed {seed} has other steps.")
            curves.setdefault(expected.name, {})[seed] = _round(curve.values)
    kept = [added for added in baseline.elsewhere if _numerics(added.environment) != _numerics(environment)]
    return baseline.model_copy(update={"elsewhere": (*kept, Elsewhere(environment=environment, curves=curves))})


def _numerics(environment: Environment) -> tuple[object, ...]:
    return environment.facts_key, environment.backend, environment.processor


def make_facts(cell: str, records: Sequence[RunRecord]) -> FactsBaseline:
    if not records:
        raise InputError(f"{cell}: no run to make a baseline from.")
    first = records[0]
    for record in records:
        if record.facts != first.facts or record.environment.facts_key != first.environment.facts_key:
            raise InputError(f"{cell}: seeds {first.seed} and {record.seed} were compiled differently.")
    return FactsBaseline(cell=cell, made_at=first.started_at, environment=first.environment, facts=first.facts)


def replace_program(old: FactsBaseline | None, new: FactsBaseline, program: str) -> FactsBaseline:
    if old is None:
        return new
    kept = tuple(facts for facts in old.facts if facts.program != program)
    return new.model_copy(update={"facts": (*kept, *(facts for facts in new.facts if facts.program == program))})


def write_convergence(folder: Path, baseline: ConvergenceBaseline) -> Path:
    path = convergence_path(folder, baseline.cell)
    write_text(path, render(baseline))
    return path


def write_facts(folder: Path, baseline: FactsBaseline) -> Path:
    path = facts_path(folder, baseline.cell, baseline.environment.facts_key)
    write_text(path, render(baseline))
    return path


def write_baselines(
    folder: Path,
    cell: str,
    command: Sequence[str],
    records: Sequence[RunRecord],
    replicas: Sequence[RunRecord] = (),
    *,
    facts_only: bool,
) -> list[Path]:
    """Makes and writes the baselines of a cell; writes nothing if one of them fails."""
    curves = None
    if not facts_only:
        curves = make_convergence(cell, command, records, replicas)
    facts = make_facts(cell, records)
    paths = []
    if curves is not None:
        paths.append(write_convergence(folder, curves))
    if facts.facts:
        paths.append(write_facts(folder, facts))
    return paths


def render(baseline: BaseModel) -> str:
    """JSON that is readable in a diff: one line per value, but a list of numbers on a single line."""
    return _lines(baseline.model_dump(mode="json", by_alias=True), "") + "\n"


def _lines(value: Any, indent: str) -> str:
    inner = indent + " "
    if isinstance(value, dict) and value:
        items = (f"{inner}{json.dumps(key)}: {_lines(item, inner)}" for key, item in value.items())
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[\n" + ",\n".join(inner + _lines(item, inner) for item in value) + f"\n{indent}]"
    return json.dumps(value)


def _gather_curve(cell: str, name: str, by_seed: dict[int, RunRecord], replicas: dict[int, RunRecord]) -> BaselineCurve:
    first = next(curve for record in by_seed.values() if (curve := record.curve(name)) is not None)

    def values(records: dict[int, RunRecord]) -> dict[int, tuple[float, ...]]:
        rounded = {}
        for seed, record in sorted(records.items()):
            curve = record.curve(name)
            if curve is None or curve.steps != first.steps:
                raise InputError(f"{cell}: curve {name!r} of seed {seed} has different steps than the first seed.")
            rounded[seed] = _round(curve.values)
        return rounded

    return BaselineCurve(
        name=name,
        unit=first.unit,
        better=first.better,
        steps=first.steps,
        seeds=values(by_seed),
        replicas=values(replicas),
    )


def _round(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(f"{value:.{SIGNIFICANT_DIGITS}g}") for value in values)
