"""The contents of a night's report, as plain data that a template lays out.

In: a night folder, its verdicts, policies, baselines and the store. Out: `Contents`. Text from jobs is untrusted: it is
passed on unchanged, and the renderers escape it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from nightjar_ci.baselines.accepted import Entry, read_accepted
from nightjar_ci.baselines.baseline import read_convergence
from nightjar_ci.causes.causes import Cause, find_causes
from nightjar_ci.causes.tonight import find_row
from nightjar_ci.errors import InputError
from nightjar_ci.formats.ledger import Due, read_ledger
from nightjar_ci.formats.night_folder import Night, job_folder
from nightjar_ci.formats.night_results import Cells, NightResults
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.policy import Policies
from nightjar_ci.formats.profile import Profile, read_flamegraph
from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.suite import Suite
from nightjar_ci.formats.verdict import NightVerdicts, describe_exit
from nightjar_ci.gate.gate import find_exit_code, read_pairs
from nightjar_ci.gate.history import with_earlier_names
from nightjar_ci.judges.performance.performance import log_ratio
from nightjar_ci.report.attention import CauseCard, Row, gather_cards, gather_rows
from nightjar_ci.report.figures import Figure, curve_figure, pairs_figure, sample_figure
from nightjar_ci.report.history import find_all_levels, history_figure
from nightjar_ci.store import Store

TREND_NIGHTS = 120
MOST_CAUSES = 10  # that a summary and a terminal show; the page has all


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsRow:
    """The most important facts of a cell's program."""

    cell: str
    program: str
    instructions: int
    fusions: str
    custom_calls: str
    collectives: str
    flops: float | None
    temp_bytes: int | None
    peak_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPart:
    """The figures of a cell, by title, and its numbers."""

    cell: str
    figures: tuple[tuple[str, Figure], ...]
    numbers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPart:
    """The values that a job checked itself.

    Attributes:
        versions: of the tested packages, one line.
    """

    job: str
    versions: str
    speed: str | None
    numbers: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePart:
    """A profile job: its summary and flame graph, or why they cannot be shown."""

    job: str
    profile: Profile | None
    flamegraph: Figure | None
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """All that a report shows."""

    night: Night
    verdicts: NightVerdicts
    exit_code: int
    exit_text: str
    duration_s: float
    environment: tuple[tuple[str, str], ...]
    failed: tuple[Outcome, ...]
    checked: tuple[CheckedPart, ...]
    cells: tuple[CellPart, ...]
    facts: tuple[FactsRow, ...]
    suites: tuple[tuple[str, Suite], ...]
    causes: tuple[CauseCard, ...]
    rows: tuple[Row, ...]
    due: tuple[Due, ...]
    profiles: tuple[ProfilePart, ...]


def gather(
    results: NightResults,
    verdicts: NightVerdicts,
    policies: Policies,
    baselines: Path,
    store: Store | None = None,
    causes: Sequence[Cause] | None = None,
) -> Contents:
    """Gathers the contents of a night's report.

    Args:
        causes: of the verdicts that are not ok, with findings from earlier nights; None: from this night alone.
    """
    folder, night, cells = results.folder, results.night, results.by_cell()
    if causes is None:
        causes = find_causes(find_row(results, verdicts, ()))
    pairs = _pair_figures(folder, verdicts)
    accepted, series = read_accepted(baselines), dict[str, Series]()
    if store is not None:
        histories = with_earlier_names(store.series_before(night.id, window=TREND_NIGHTS), accepted, store)
        series = {history.name: history for history in histories}
    cell_figures = {
        cell: [*_cell_figures(cell, runs, cells, policies, baselines), *pairs.get(cell, ())]
        for cell, runs in cells.items()
    }
    by_series = {
        f"{cell}/{name}": [(title, figure)] for cell, figures in cell_figures.items() for name, title, figure in figures
    }
    ledger, due = folder / "ledger.json", tuple[Due, ...]()
    if ledger.exists():
        due = read_ledger(ledger).due
    exit_code = find_exit_code(results, verdicts)
    checked = tuple(part for runs in cells.values() for run in runs if (part := _checked(run)).numbers)
    suites = results.read_suites()
    trends = _trends(series, accepted)
    return Contents(
        night=night,
        verdicts=verdicts,
        exit_code=exit_code,
        exit_text=describe_exit(
            exit_code,
            verdicts.verdicts,
            sum(len(part.numbers) for part in checked),
            len(night.not_run),
            sum(suite.cut for suite in suites.values()),
        ),
        duration_s=sum(outcome.duration_s for outcome in night.jobs),
        environment=_environment(tuple(results.records.values())),
        failed=tuple(outcome for outcome in night.jobs if not outcome.completed),
        checked=checked,
        cells=tuple(
            CellPart(
                cell=cell,
                figures=(
                    *((title, figure) for _, title, figure in cell_figures[cell]),
                    *trends.get(cell, ()),
                ),
                numbers=tuple(_numbers(runs)),
            )
            for cell, runs in cells.items()
        ),
        facts=tuple(row for cell, runs in cells.items() for row in _facts_rows(cell, runs[0])),
        suites=tuple(suites.items()),
        causes=gather_cards(folder, causes, series, accepted, by_series, night.jobs),
        rows=gather_rows(verdicts.verdicts, series),
        due=due,
        profiles=tuple(_profile(results, outcome) for outcome in night.jobs if outcome.kind == "profile"),
    )


def _environment(records: Sequence[RunRecord]) -> tuple[tuple[str, str], ...]:
    """The environment of the first result, and the packages that all results share."""
    if not records:
        return ()
    first = records[0].environment
    packages = ("jax", "jaxlib", "flax", "optax", "numpy")
    shared = dict(set(first.packages.items()).intersection(*(r.environment.packages.items() for r in records)))
    devices = sorted(
        {f"{len(r.environment.devices)} x {r.environment.devices[0]}" for r in records if r.environment.devices}
    )
    rows = [
        ("machine", f"{first.cpu.model}, {first.cpu.cores} cores, {first.cpu.memory_bytes / 2**30:.0f} GiB"),
        ("devices", ", ".join(devices)),
        ("python", f"{first.python} on {first.platform}"),
        *((name, shared[name]) for name in packages if name in shared),
    ]
    if first.git is not None:
        commit = first.git.sha[:12]
        if first.git.dirty:
            commit += " (dirty)"
        rows.append(("commit", commit))
    if first.image is not None:
        rows.append(("image", first.image))
    return tuple(rows)


def _cell_figures(
    cell: str, runs: Sequence[RunRecord], cells: Cells, policies: Policies, baselines: Path
) -> Iterator[tuple[str, str, Figure]]:
    """Measure, title and figure of a cell's curves and step times."""
    baseline = read_convergence(baselines, cell)
    for name in _curve_names(runs, drawn=True):
        policy = policies.for_curve(cell, name)
        others: Sequence[RunRecord] = ()
        if policy is not None and policy.same_as is not None:
            others = cells.get(policy.same_as, ())
        baseline_curve = None
        if baseline is not None:
            baseline_curve = baseline.curve(name)
        yield name, name, curve_figure(runs, name, policy, baseline_curve, others)
    steps = {f"seed {run.seed}": sample for run in runs if (sample := run.sample("step_time")) is not None}
    if steps:
        yield "step_time", "step time", sample_figure(steps)


def _pair_figures(folder: Path, verdicts: NightVerdicts) -> dict[str, list[tuple[str, str, Figure]]]:
    judged = {verdict.cell: verdict for verdict in verdicts.verdicts if verdict.judge == "performance"}
    figures = {}
    for cell, (reference, pairs) in read_pairs(folder).items():
        if (verdict := judged.get(cell)) is not None:
            sample = verdict.measure
            ratios = {pair.number: ratio for pair in pairs if (ratio := log_ratio(pair, sample)) is not None}
            worse = {number: math.expm1(ratio) for number, ratio in ratios.items()}
            figures[cell] = [(sample, f"{sample} against {reference}", pairs_figure(worse, verdict.interval, sample))]
    return figures


def _trends(
    series: Mapping[str, Series], accepted: Mapping[str, Sequence[Entry]]
) -> dict[str, list[tuple[str, Figure]]]:
    """The histories of each cell's measures, if it has more than one night."""
    trends: dict[str, list[tuple[str, Figure]]] = defaultdict(list)
    histories = {name: history for name, history in series.items() if len(history.nights) > 1}
    for (name, history), levels in zip(histories.items(), find_all_levels(list(histories.values())), strict=True):
        title = f"{history.measure.replace('_', ' ')} over {len(history.nights)} nights"
        trends[history.cell].append((title, history_figure(history, accepted.get(name, ()), levels)))
    return trends


def _curve_names(runs: Sequence[RunRecord], *, drawn: bool) -> list[str]:
    """The curves of a cell: those with several points are drawn, one point is a number."""
    longest: dict[str, int] = {}
    for run in runs:
        for curve in run.curves:
            longest[curve.name] = max(longest.get(curve.name, 0), len(curve.steps))
    return [name for name, points in longest.items() if (points > 1) is drawn]


def _numbers(runs: Sequence[RunRecord]) -> Iterator[tuple[str, str]]:
    """The medians of all measures over the runs, with a readable unit."""
    for name in _curve_names(runs, drawn=False):
        values = [curve.values[-1] for run in runs if (curve := run.curve(name)) is not None and curve.values]
        if values:
            yield name.replace("_", " "), f"{median(values):.4g}"
    names = dict.fromkeys(sample.name for run in runs for sample in run.samples)
    for name in names:
        samples = [sample for run in runs if (sample := run.sample(name)) is not None]
        levels = [sample.level for sample in samples]
        middle = math.nan
        if not any(map(math.isnan, levels)):
            middle = median(levels)
        yield name.replace("_", " "), with_unit(middle, samples[0].unit)


def with_unit(value: float, unit: str) -> str:
    """A value for people.

    >>> with_unit(0.0513, "s"), with_unit(3.2e8, "bytes"), with_unit(41234.5, "tokens/s")
    ('51.3 ms', '305 MiB', '41,234 tokens/s')
    """
    if unit == "s" and abs(value) < 0.9995:
        return f"{1e3 * value:.3g} ms"
    if unit == "bytes":
        names = ["B", "KiB", "MiB", "GiB", "TiB"]
        while abs(value) >= 1023.5 and len(names) > 1:
            value, names = value / 1024, names[1:]
        unit = names[0]
    if abs(value) < 999.5:  # a value that rounds to 1000 would be shown as 1e+03
        return f"{value:.3g} {unit}"
    return f"{value:,.0f} {unit}"


def _checked(run: RunRecord) -> CheckedPart:
    values = {name.removeprefix("check."): value for name, value in run.config.items() if name.startswith("check.")}
    speed = None
    if (throughput := run.sample("throughput")) is not None:
        speed = with_unit(throughput.level, throughput.unit)
    return CheckedPart(
        job=run.job,
        versions=str(run.config.get("versions", "")),
        speed=speed,
        numbers=tuple(
            (name, f"{value:.6g}" if isinstance(value, float) else str(value), str(run.config[f"expected.{name}"]))
            for name, value in values.items()
            if f"expected.{name}" in run.config
        ),
    )


def _facts_rows(cell: str, run: RunRecord) -> Iterator[FactsRow]:
    for facts in run.facts:
        yield FactsRow(
            cell=cell,
            program=facts.program,
            instructions=sum(tally.count for tally in facts.opcodes.values()),
            fusions=", ".join(f"{kind} {tally.count}" for kind, tally in sorted(facts.fusions.items())),
            custom_calls=", ".join(f"{target} {tally.count}" for target, tally in sorted(facts.custom_calls.items())),
            collectives=", ".join(f"{kind} {tally.count}" for kind, tally in sorted(facts.collectives.items())),
            flops=facts.flops,
            temp_bytes=facts.memory.temp_bytes,
            peak_bytes=facts.memory.peak_bytes,
        )


def _profile(results: NightResults, outcome: Outcome) -> ProfilePart:
    if not outcome.completed:
        return ProfilePart(job=outcome.job, profile=None, flamegraph=None, problem=f"The job {outcome.state}.")
    profile = results.profiles[outcome.job]
    try:
        flamegraph = read_flamegraph(job_folder(results.folder, outcome.job) / "capture", profile)
    except InputError as error:
        return ProfilePart(job=outcome.job, profile=None, flamegraph=None, problem=str(error))
    return ProfilePart(job=outcome.job, profile=profile, flamegraph=flamegraph, problem=None)
