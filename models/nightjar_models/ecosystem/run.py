"""Runner of ecosystem cells.

In: an entry of the table. Out: a `Run` with every checked number, and the environment with the versions of the cell's
packages; or an error that names the two versions.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from nightjar_models.ecosystem.blame import describe_versions, find_pair, find_version, summarize_error
from nightjar_models.ecosystem.cell import CannotTellError, Check, Finding
from nightjar_models.ecosystem.table import Entry
from nightjar_models.errors import BrokenError, NightjarError, NotMeasurableError
from nightjar_models.measuring.result import Run


def run_cell(entry: Entry) -> tuple[Run, dict[str, Any]]:
    """Runs a cell in this environment.

    Raises:
        BrokenError: an import failed, a call failed, or a number is wrong.
        NotMeasurableError: this machine lacks a part that the cell needs.
        NightjarError: the cell's own packages are not installed.
    """
    absent = [name for name in entry.packages if find_version(name) is None]
    if absent:
        raise NightjarError(
            f"{entry.name}: {', '.join(absent)} is not installed here, so it cannot be checked.",
            f"pip install {' '.join(absent)}; in a checkout of Nightjar, `nox -s ecosystem -- --jobs '{entry.name}*'` "
            "runs the cell in an environment of its own",
        )
    try:
        finding = entry.load()()
    except CannotTellError as error:
        raise NotMeasurableError(f"{describe_versions([*entry.packages, 'jax'])}: {error}.") from None
    except Exception as error:
        pair = describe_versions(find_pair(error, entry.packages))
        command = Path(sys.prefix, "bin", "nightjar-models")  # of this environment: another one has other versions
        hint = f"`{command} --debug smoke {entry.name} --out OUT` prints the traceback"
        raise BrokenError(f"{pair}: {summarize_error(error)}", hint) from error
    judge(entry, finding)
    from nightjar_models.measuring.environment import read_environment

    environment = read_environment()
    versions = {name: version for name in entry.packages if (version := find_version(name))}
    environment["packages"] = dict(sorted({**environment["packages"], **versions}.items()))
    config = {"versions": describe_versions([*entry.packages, "jax"]), **describe(finding)}
    run = Run(status="completed", config=config, curves=[], samples=[*finding.samples], facts=[])
    return run, environment


def judge(entry: Entry, finding: Finding) -> None:
    """Raises if a number is wrong.

    Raises:
        BrokenError: a check fails; the message lists all failed checks.
    """
    wrong = [check for check in finding.checks if not check.holds]
    if wrong or not finding.checks:
        what = "; ".join(map(str, wrong)) or "the cell checked nothing"
        raise BrokenError(f"{describe_versions([*entry.packages[:1], 'jax'])}: {what}.")


def describe(finding: Finding) -> dict[str, Any]:
    """Every checked number and its expected value, as names to scalars."""

    def expected(check: Check) -> str:
        return f"{check.expected:.6g} +- {check.tolerance:.3g}: {check.why}"

    values = {f"check.{check.name}": float(check.value) for check in finding.checks}
    return {**values, **{f"expected.{check.name}": expected(check) for check in finding.checks}}
