"""The gate: it hands each series of a night to its judge and gathers the verdicts.

In: a night folder, policies, a folder of baselines, the store. Out: `NightVerdicts`, worst first, with a note for
everything that was not judged. Each judge has false alarms, so the verdicts of a night are corrected together. The gate
runs no jobs: it reads the pairs of a paired comparison from `ab/`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from nightjar_ci.baselines.baseline import read_convergence, read_facts
from nightjar_ci.formats.documents import write_json
from nightjar_ci.formats.ledger import Ledger
from nightjar_ci.formats.night_folder import read_result
from nightjar_ci.formats.night_results import Cells, NightResults
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.policy import Policies
from nightjar_ci.formats.run_record import Facts, RunRecord
from nightjar_ci.formats.suite import SUITE, PastSuite
from nightjar_ci.formats.verdict import (
    NightVerdicts,
    Verdict,
    decide_exit_code,
    describe_not_run,
    sort_worst_first,
)
from nightjar_ci.gate.earlier_nights import import_earlier
from nightjar_ci.gate.history import COMMAND, Memory, judge_histories, remember, screen_histories
from nightjar_ci.gate.ledger import find_due
from nightjar_ci.gate.presence import add_judges, judge_presence
from nightjar_ci.judges.convergence.convergence import judge_convergence
from nightjar_ci.judges.convergence.equality import judge_equality
from nightjar_ci.judges.facts.facts import KnownFacts, judge_facts, mark_new
from nightjar_ci.judges.false_discovery import adjust_for_night
from nightjar_ci.judges.finding import count
from nightjar_ci.judges.history.screening import ScreenedSeries
from nightjar_ci.judges.performance.performance import Pair, judge_performance
from nightjar_ci.judges.suite import Tonight, judge_suite
from nightjar_ci.store import Store
from nightjar_ci.store.folder import import_results
from nightjar_ci.untrusted.files import read_untrusted

LONGEST_HISTORY = 60  # nights read per suite; a suite of 3,000 tests takes 10 ms to read
_MOST_NAMED = 10
_RUN_FOLDER = re.compile(r"(\d+)-([ab])")


def gate_night(
    results: NightResults,
    policies: Policies,
    baselines: Path,
    store: Store,
    command: str = COMMAND,
    nights: Path | None = None,
) -> NightVerdicts:
    """Judges a night, writes `verdicts.json` and `ledger.json` into its folder and remembers the verdicts in the store.

    Earlier nights next to the folder, or in `nights`, that the store lacks are imported first.

    Args:
        command: the command that re-runs the series that need it, for people.
        nights: the folder of this machine's nights.
    """
    folder, night = results.folder, results.night
    notes = import_earlier(store, folder, nights)
    import_results(store, results)  # they may come from another machine
    memory = remember(store, night.id, baselines, command)
    suites = store.suites_before(night.id, window=LONGEST_HISTORY)
    screened = screen_histories(memory, policies)
    verdicts = judge_night(results, policies, baselines, store, memory, suites, screened)
    due = find_due(results, store.recent_before(night.id), policies, baselines, memory.series)
    absent = []
    if night.finished_at is not None:
        absent = list(judge_presence(due, verdicts.verdicts, verdicts.night))
    if absent:
        accept = f"nightjar-ci accept SERIES --ended --night {verdicts.night} --reason WHY"
        notes.append(f"What is due and absent stays *cannot tell* until it is back or somebody accepts it: `{accept}`.")
    verdicts = verdicts.model_copy(
        update={
            "verdicts": sort_worst_first([*verdicts.verdicts, *absent]),
            "notes": (*notes, *verdicts.notes),
        }
    )
    write_json(folder / "verdicts.json", verdicts)
    entries = add_judges(due, verdicts.verdicts, policies, screened)
    write_json(folder / "ledger.json", Ledger(night=verdicts.night, due=entries))
    store.add_verdicts(verdicts.night, [verdict.document for verdict in verdicts.verdicts])
    return verdicts


def judge_night(
    results: NightResults,
    policies: Policies,
    baselines: Path,
    store: Store | None = None,
    memory: Memory = Memory(),  # noqa: B008  (frozen)
    suites: Mapping[str, Sequence[PastSuite]] = MappingProxyType({}),
    screened: Mapping[str, ScreenedSeries] | None = None,
) -> NightVerdicts:
    """Judges all results of a night.

    Args:
        store: earlier nights, asked for facts if no baseline is committed.
    """
    folder, night, cells = results.folder, results.night, results.by_cell()
    notes: list[str] = []
    verdicts = [
        *_judge_curves(cells, policies, baselines, notes),
        *_judge_facts(cells, policies, baselines, store, night.id, notes),
        *_judge_pairs(folder, cells, policies, notes),
        *_judge_tests(results, suites, policies, memory),
        *judge_histories(
            memory, policies, night.jobs, read_pairs(folder, "confirm"), notes, results.has_sample, screened
        ),
    ]
    verdicts = adjust_for_night(verdicts, policies.night)
    if watched := sum(verdict.watch and verdict.judge != "tests" for verdict in verdicts):
        usual = "unusual tonight, but within what chance produces across this many series."
        notes.append(f"{watched} series on watch: {usual}")
    if night.finished_at is None:
        notes.append("The night is not finished: `nightjar-ci run --resume` continues it.")
    elif not night.jobs and not night.planned:
        notes.append("The night has no jobs, so there is nothing to judge.")
    elif night.not_run:
        notes.append(f"{describe_not_run(len(night.not_run))}: {', '.join(night.not_run[:_MOST_NAMED])}.")
    if night.left_out:
        shown = ", ".join(night.left_out[:_MOST_NAMED])
        notes.append(f"The night was asked to leave out {count(len(night.left_out), 'cell')} of its matrix: {shown}.")
    for outcome in night.jobs:
        if not outcome.completed:
            notes.append(f"{outcome.job} {outcome.state}: it is not judged, or only by what it left.")
    for run, outcome in read_pair_outcomes(folder).items():
        if not outcome.completed:
            why = (outcome.message or "no message").strip().partition("\n")[0]
            notes.append(f"{run} in {outcome.environment} {outcome.state}, and its comparison ended: {why}")
    return NightVerdicts(night=night.id, verdicts=sort_worst_first(verdicts), notes=tuple(notes))


def _judge_tests(
    results: NightResults, suites: Mapping[str, Sequence[PastSuite]], policies: Policies, memory: Memory
) -> Iterator[Verdict]:
    joined = results.read_suites()
    for cell, records in results.suites_by_cell().items():
        tonight = Tonight(
            night=results.night.id,
            cell=cell,
            jobs=tuple(records),
            machine=next(iter(records.values())).environment.measured_on,
            suite=joined[cell],
            accepted=memory.accepted.get(f"{cell}/{SUITE}", ()),
        )
        yield from judge_suite(tonight, suites.get(cell, ()), policies.for_tests(cell))


def find_exit_code(results: NightResults, verdicts: NightVerdicts) -> int:
    """The exit code of a judged night: its jobs, the runs of its paired comparisons, and its verdicts."""
    night = results.night
    ended = [*night.jobs, *read_pair_outcomes(results.folder).values()]
    states = [outcome.state for outcome in ended]
    if night.finished_at is None:
        states.append("not_started")
    return decide_exit_code(verdicts.verdicts, states, not_run=len(night.not_run) or int(not night.jobs))


def read_pairs(folder: Path, kind: str = "ab") -> dict[str, tuple[str, list[Pair]]]:
    """The paired comparisons of a night: cell to the reference environment and the pairs in order.

    Args:
        kind: `ab` with a reference environment, `confirm` if a history needed a re-run.
    """
    compared: dict[str, tuple[str, list[Pair]]] = {}
    for cell in sorted(path for path in (folder / kind).glob("*") if path.is_dir()):
        runs: dict[int, dict[str, Path]] = defaultdict(dict)
        for path in cell.iterdir():
            if match := _RUN_FOLDER.fullmatch(path.name):
                runs[int(match[1])][match[2]] = path
        reference = next(
            (o.environment for r in runs.values() if "b" in r and (o := read_outcome(r["b"]))), "reference"
        )
        pairs = [
            Pair(number=number, candidate=_record(sides.get("a")), reference=_record(sides.get("b")))
            for number, sides in sorted(runs.items())
        ]
        compared[cell.name] = (reference, pairs)
    return compared


def read_pair_outcomes(folder: Path) -> dict[str, Outcome]:
    runs = (path.parent for kind in ("ab", "confirm") for path in sorted((folder / kind).glob("*/*/outcome.json")))
    outcomes = ((run.relative_to(folder).as_posix(), read_outcome(run)) for run in runs)
    return {run: outcome for run, outcome in outcomes if outcome is not None}


def read_outcome(folder: Path) -> Outcome | None:
    """The outcome in a run's folder, or None if none can be read."""
    try:
        return Outcome.model_validate_json(read_untrusted(folder, "outcome.json"))
    except (OSError, ValueError):
        return None


def _judge_curves(cells: Cells, policies: Policies, baselines: Path, notes: list[str]) -> Iterator[Verdict]:
    for cell, runs in cells.items():
        baseline = read_convergence(baselines, cell)
        names = dict.fromkeys(curve.name for run in runs for curve in run.curves)
        if baseline is not None:
            names |= dict.fromkeys(curve.name for curve in baseline.curves)
        for name in names:
            policy = policies.for_curve(cell, name)
            if policy is None:
                notes.append(f"{cell}/{name} is not judged: no convergence policy matches it.")
            elif policy.same_as == cell:
                continue  # itself
            elif policy.same_as is not None:
                yield judge_equality(cell, name, runs, cells.get(policy.same_as, ()), policy)
            else:
                yield judge_convergence(cell, name, runs, baseline, policy)


def _judge_facts(
    cells: Cells, policies: Policies, baselines: Path, store: Store | None, night: str, notes: list[str]
) -> Iterator[Verdict]:
    for cell, runs in cells.items():
        for key in dict.fromkeys(run.environment.facts_key for run in runs):
            alike = [run for run in runs if run.environment.facts_key == key]
            latest = None
            if store is not None:
                latest = store.latest_facts(cell, key, night)
            reference = _find_reference(cell, key, baselines, latest)
            programs = dict.fromkeys(facts.program for run in alike for facts in run.facts)
            if reference is not None:
                programs |= dict.fromkeys(facts.program for facts in reference.facts)
            for program in programs:
                policy = policies.for_facts(cell, program)
                if policy is None:
                    notes.append(f"{cell}/{program} is not judged: no facts policy matches it.")
                    continue
                verdict = judge_facts(cell, program, alike, reference, policy)
                if latest is not None:
                    verdict = mark_new(verdict, alike[0].facts, latest, policy)
                yield verdict


def _find_reference(cell: str, key: str, baselines: Path, latest: tuple[Facts, ...] | None) -> KnownFacts | None:
    committed = read_facts(baselines, cell, key)
    if committed is not None:
        flags = committed.environment.flags
        return KnownFacts(facts=committed.facts, source="the committed baseline", flags=flags)
    if not latest:
        return None
    return KnownFacts(facts=latest, source="the latest earlier night")


def _judge_pairs(folder: Path, cells: Cells, policies: Policies, notes: list[str]) -> Iterator[Verdict]:
    compared = read_pairs(folder)
    if not compared and any(policies.for_performance(cell) for cell in cells):
        notes.append("The performance judge is off: no reference environment was named (`--reference`).")
    for cell, (reference, pairs) in compared.items():
        policy = policies.for_performance(cell)
        if policy is None:
            notes.append(f"{cell}: its pairs are not judged, no performance policy matches it.")
        else:
            yield judge_performance(cell, pairs, reference, policy)


def _record(folder: Path | None) -> RunRecord | None:
    """The result of a run of a pair, named after its folder; None if the run did not complete."""
    if folder is None or (outcome := read_outcome(folder)) is None or not outcome.completed:
        return None
    record = read_result(folder)
    if record is None:
        return None
    return record.model_copy(update={"job": "/".join(folder.parts[-3:])})
