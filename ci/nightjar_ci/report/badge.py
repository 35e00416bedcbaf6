"""The badge of a night, for the endpoint badges of shields.io.

In: an exit code, verdicts, the number of failed jobs and the tests that ran. Out: JSON.

Source: https://shields.io/badges/endpoint-badge
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from nightjar_ci.formats.suite import Suite
from nightjar_ci.formats.verdict import Verdict

_COLOURS = {0: "brightgreen", 1: "red", 3: "orange", 4: "yellow"}


def render_badge(exit_code: int, verdicts: Sequence[Verdict], failed_jobs: int, suites: Sequence[Suite] = ()) -> str:
    """The badge of a night; how many tests passed, where it ran tests and its jobs completed."""
    regressed = sum(verdict.status == "regressed" and verdict.judge != "tests" for verdict in verdicts)
    unclear = sum(verdict.status == "cannot_tell" for verdict in verdicts)
    message = {
        0: f"{len(verdicts)} ok" if verdicts else "nothing judged",
        1: f"{regressed} regressed",
        3: f"{failed_jobs} failed" if failed_jobs else "failed",
        4: f"{unclear} cannot tell" if unclear else "jobs have not run",
    }[exit_code]
    if suites and exit_code in (0, 1):
        tests = f"{sum(suite.passed for suite in suites):,}/{sum(suite.ran for suite in suites):,}"
        message = f"{regressed} regressed, {tests} tests" if regressed else f"{tests} tests"
    colour = _COLOURS[exit_code] if verdicts or exit_code else "lightgrey"
    return json.dumps({"schemaVersion": 1, "label": "nightjar", "message": message, "color": colour}, indent=1) + "\n"
