"""The result of a test job, made from its JUnit files, the runs of its failing tests and its exit code.

In: a job of kind `test`, its outcome and its folder. Out: `result.json` with the `tests`, and the outcome. A job whose
tests fail did complete: the gate judges its tests. A command that writes no JUnit file is one test, which passes if
the exit code is 0. Measures are in the JUnit files, or in a `result.json` that the command left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from nightjar_ci.adapters.convert import describe, make_record
from nightjar_ci.adapters.machine import read_machine
from nightjar_ci.environments.current import Interpreter
from nightjar_ci.executors.ending import find_reason
from nightjar_ci.executors.process import STDERR, STDOUT, read_tail
from nightjar_ci.formats.documents import write_json
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.run_record import Git, RunRecord, Sample, read_run
from nightjar_ci.formats.suite import SUITE, WHOLE_COMMAND, Case, Suite, SuiteOptions, describe_failing, merge_cases
from nightjar_ci.suites.command import JUNIT, find_pytest
from nightjar_ci.suites.junit import read_junit, read_measures
from nightjar_ci.untrusted.border import REMOVED

RESULT = "result.json"
TIME = "tests_time"
_MOST_QUOTED = 100  # failing tests whose traceback is kept: a suite that cannot import its library has thousands
_CANNOT_RUN = (126, 127)  # exit codes of a shell: not executable, not found
_PYTEST_FAILED, _PYTEST_INTERRUPTED = 1, 2  # tests failed; a file could not be imported, or pytest was stopped
_RERUN = "rerun-"


def rerun_folder(folder: Path, number: int) -> Path:
    return folder / f"{_RERUN}{number}"


def find_reports(folder: Path, options: SuiteOptions) -> list[Path]:
    return sorted(path for path in folder.glob(options.junit) if path.is_file())


def read_failing(folder: Path, options: SuiteOptions) -> list[str]:
    cases = read_junit(find_reports(folder, options), folder)
    return [case.name for case in cases if case.state == "failed" and options.find_known(case.name) is None]


def collect_suite(
    job: Job, outcome: Outcome, folder: Path, interpreter: Interpreter | None, git: Git | None
) -> Outcome:
    """Writes the result of a job whose command ended by itself, whatever its exit code.

    Returns:
        The outcome: completed if its tests are known.
    """
    options = job.tests or SuiteOptions()
    if outcome.state not in ("completed", "failed") or outcome.exit_code in (None, *_CANNOT_RUN):
        return outcome
    reports = find_reports(folder, options)
    if not reports and outcome.completed and (find_pytest(job.command) is not None or job.tests is not None):
        message = f"{job.id}: exit code 0, but no file matches {options.junit!r} in {folder}."
        hint = f"write a JUnit file to {{out}}/{JUNIT}, or name yours: tests = {{ junit = '*.xml' }}"
        return outcome.model_copy(update={"state": "invalid", "message": f"{message} Hint: {hint}"})
    cases = list(_with_reruns(read_junit(reports, folder), folder, options))
    if case := _explain_exit(job, outcome, cases, folder, options):
        cases.append(case)
    suite = _make_suite(cases, folder, options)
    record = _make_record(outcome, suite, interpreter, git, read_measures(reports, folder))
    write_json(folder / RESULT, _with_measures(record, folder))
    said = [line for line in (outcome.message or "").splitlines() if REMOVED in line]
    lines = filter(None, (describe_failing(suite), *said))
    return outcome.model_copy(update={"state": "completed", "message": "\n".join(lines) or None})


def _with_reruns(cases: Sequence[Case], folder: Path, options: SuiteOptions) -> Iterable[Case]:
    later: list[Mapping[str, Case]] = []
    for number in range(1, options.reruns + 1):
        reports = find_reports(rerun_folder(folder, number), options)
        later.append({case.name: case for case in read_junit(reports, rerun_folder(folder, number))})
    for case in cases:
        again = [run[case.name].state for run in later if case.name in run]
        update: dict[str, object] = {"runs": 1 + len(again)}
        if case.state == "failed" and "passed" in again:
            update["state"] = "flaky"
        yield case.model_copy(update=update)


def _explain_exit(
    job: Job, outcome: Outcome, cases: Sequence[Case], folder: Path, options: SuiteOptions
) -> Case | None:
    """The test that stands for the command, if it wrote no report or no test explains its exit code."""
    failing = [case for case in cases if case.state in ("failed", "flaky")]
    if cases and (outcome.exit_code == 0 or (failing and not _was_cut_short(job, outcome, failing, options))):
        return None
    if outcome.exit_code == 0:
        return Case(name=WHOLE_COMMAND, state="passed", duration_s=outcome.duration_s)
    end = read_tail(folder / STDERR).strip() or read_tail(folder / STDOUT).strip()
    reason = find_reason(end)
    message = f"exit code {outcome.exit_code}, expected 0"
    if cases:
        why = "though no test failed"
        if failing:
            why = "which its failing tests do not explain"
        message = f"exit code {outcome.exit_code}, {why}"
    if reason:
        message += f": {reason}"
    return Case(name=WHOLE_COMMAND, state="failed", duration_s=outcome.duration_s, message=message, quote=end or None)


def _was_cut_short(job: Job, outcome: Outcome, failing: Sequence[Case], options: SuiteOptions) -> bool:
    """Whether pytest ended before its last test: the remaining tests may fail, even if all failures are known."""
    if find_pytest(job.command) is None or outcome.exit_code == _PYTEST_FAILED:
        return False
    is_new_failure = any(case.state == "failed" and options.find_known(case.name) is None for case in failing)
    return outcome.exit_code != _PYTEST_INTERRUPTED or not is_new_failure


def _make_suite(cases: Iterable[Case], folder: Path, options: SuiteOptions) -> Suite:
    complete, quoted = [], 0
    for case in merge_cases(cases):
        if known := options.find_known(case.name):
            case = case.model_copy(update={"known": str(known)})
        if case.quote is not None:
            quoted += 1
            if quoted > _MOST_QUOTED:
                case = case.model_copy(update={"quote": None})
        complete.append(case)
    if not any(case.state in ("failed", "flaky") for case in complete):
        return Suite(cases=tuple(complete))
    ends = {"stdout_end": read_tail(folder / STDOUT), "stderr_end": read_tail(folder / STDERR)}
    return Suite(cases=tuple(complete), **{name: end or None for name, end in ends.items()})


def _with_measures(record: RunRecord, folder: Path) -> RunRecord:
    """The record with the command's own measures, if it left its own result."""
    if not (folder / RESULT).exists():
        return record
    left = read_run(folder / RESULT, left_in=folder)
    own = {sample.name for sample in record.samples}
    samples = (*record.samples, *(sample for sample in left.samples if sample.name not in own))
    return record.model_copy(update={"samples": samples, "curves": left.curves, "facts": left.facts})


def _make_record(
    outcome: Outcome, suite: Suite, interpreter: Interpreter | None, git: Git | None, measures: Iterable[Sample]
) -> RunRecord:
    samples = (
        Sample(name=SUITE, unit="tests", better="higher", values=(float(suite.passed),)),
        Sample(name=TIME, unit="s", better="lower", values=(outcome.duration_s,)),
        *measures,
    )
    about = describe(outcome, read_machine(outcome.environment, git, interpreter, all_packages=True))
    return make_record(about, (), samples).model_copy(update={"tests": suite})
