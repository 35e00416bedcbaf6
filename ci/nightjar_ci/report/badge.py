"""The badge of a night, for the endpoint badges of shields.io.

In: an exit code, verdicts and the number of failed jobs. Out: JSON.

Source: https://shields.io/badges/endpoint-badge
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from nightjar_ci.formats.verdict import Verdict

_COLOURS = {0: "brightgreen", 1: "red", 3: "orange", 4: "yellow"}


def render_badge(exit_code: int, verdicts: Sequence[Verdict], failed_jobs: int) -> str:
    """The badge of a night."""
    regressed = sum(verdict.status == "regressed" for verdict in verdicts)
    unclear = sum(verdict.status == "cannot_tell" for verdict in verdicts)
    message = {
        0: f"{len(verdicts)} ok" if verdicts else "nothing judged",
        1: f"{regressed} regressed",
        3: f"{failed_jobs} failed" if failed_jobs else "failed",
        4: f"{unclear} cannot tell" if unclear else "jobs have not run",
    }[exit_code]
    colour = _COLOURS[exit_code] if verdicts or exit_code else "lightgrey"
    return json.dumps({"schemaVersion": 1, "label": "nightjar", "message": message, "color": colour}, indent=1) + "\n"
