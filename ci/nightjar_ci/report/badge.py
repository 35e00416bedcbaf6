"""The badge of a night, for the endpoint badges of shields.io.

In: an exit code, verdicts, the number of failed jobs and the tests that ran. Out: JSON.

Source: https://shields.io/badges/endpoint-badge
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from nightjar_ci.errors import ExitCode
from nightjar_ci.formats.suite import Suite
from nightjar_ci.formats.verdict import Verdict

_COLOURS = {0: "brightgreen", 1: "red", 3: "orange", 4: "yellow"}


def render_badge(
    matrix: str, exit_code: int, verdicts: Sequence[Verdict], failed_jobs: int, suites: Sequence[Suite] = ()
) -> str:
    """The badge of a night, with the matrix as its label; how many tests passed, where it ran some and completed."""
    regressed = sum(verdict.status == "regressed" and verdict.judge != "tests" for verdict in verdicts)
    unclear = sum(verdict.status == "cannot_tell" for verdict in verdicts)
    colour = _COLOURS[exit_code]
    if exit_code == ExitCode.OK and not verdicts:
        colour = "lightgrey"
    if exit_code == ExitCode.FAILED:
        message = f"{failed_jobs} failed" if failed_jobs else "failed"
    elif exit_code == ExitCode.CANNOT_TELL:
        message = f"{unclear} cannot tell" if unclear else "jobs have not run"
    elif suites:
        tests = f"{sum(suite.passed for suite in suites):,}/{sum(suite.ran for suite in suites):,} tests"
        if cut := sum(suite.cut for suite in suites):
            tests += f", {cut:,} not run"
        message = tests
        if regressed:
            message = f"{regressed} regressed, {tests}"
    elif exit_code == ExitCode.NO:
        message = f"{regressed} regressed"
    elif verdicts:
        message = f"{len(verdicts)} ok"
    else:
        message = "nothing judged"
    return json.dumps({"schemaVersion": 1, "label": matrix, "message": message, "color": colour}, indent=1) + "\n"
