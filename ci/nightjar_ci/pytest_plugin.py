"""The pytest plugin: `pytest --nightjar` writes the tests' measures as a `nightjar.run/1`.

In: calls of the fixture, `nightjar.measure("loss", value, unit="nats")`. Out: `result.json` in the folder of the job,
or the file that `--nightjar-out` names: one sample for each test and name. Without `--nightjar` the fixture does
nothing. No test fails because of it, unless a value is not a number. Measures travel in the reports of the tests, so
that they arrive from the workers of pytest-xdist.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypedDict

import pytest

_PROPERTY = "nightjar"
_ALONE = "nightjar-result.json"  # outside a job


class Measured(TypedDict):
    """One value that a test measured."""

    name: str
    value: float
    unit: str
    better: Literal["lower", "higher"]


class Measures:
    """The measures of one test; the value of the fixture `nightjar`."""

    def __init__(self, node: pytest.Item, *, enabled: bool) -> None:
        self._node, self._enabled = node, enabled

    def measure(self, name: str, value: float, *, unit: str, better: Literal["lower", "higher"] = "lower") -> None:
        """Records a value; several values of a name are samples of one measure.

        Args:
            name: such as `loss`; the name of the test is put before it.
            value: a number, or a value that `float` accepts, such as a JAX scalar.
        """
        if not self._enabled:
            return
        if better not in ("lower", "higher"):
            raise ValueError(f"better is {better!r}, expected 'lower' or 'higher'")
        measured: Measured = {
            "name": f"{_name_test(self._node.nodeid)}.{name}",
            "value": float(value),
            "unit": unit,
            "better": better,
        }
        self._node.user_properties.append((_PROPERTY, measured))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup("nightjar", "what tests measure")
    group.addoption("--nightjar", action="store_true", help="Write what tests measure as a nightjar.run/1.")
    group.addoption(
        "--nightjar-out",
        type=Path,
        metavar="FILE",
        help=f"File for it; default: result.json in the job's folder, $NIGHTJAR_OUT, else {_ALONE}.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collects measures if requested, in the process that sees all reports."""
    if config.getoption("--nightjar") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Collector(config.getoption("--nightjar-out") or find_file(os.environ)))


@pytest.fixture
def nightjar(request: pytest.FixtureRequest) -> Measures:
    """The recorder of the test's measures: `nightjar.measure("loss", value, unit="nats")`."""
    return Measures(request.node, enabled=request.config.getoption("--nightjar"))


def find_file(environ: Mapping[str, str]) -> Path:
    """The file of the measures: in the job's folder, or in the working directory.

    >>> find_file({"NIGHTJAR_OUT": "/nights/1/jobs/a"})
    PosixPath('/nights/1/jobs/a/result.json')
    """
    folder = environ.get("NIGHTJAR_OUT")
    if folder:
        return Path(folder, "result.json")
    return Path(_ALONE)


class _Collector:
    """Gathers the measures of all tests, and writes them at the end."""

    def __init__(self, path: Path) -> None:
        self._path, self._begin, self._started_at = path, time.monotonic(), datetime.now(UTC)
        self._measured: dict[str, list[Measured]] = {}
        self._summary = "nothing was measured: a test measures by its fixture `nightjar`"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Takes the measures of a test that has ended."""
        if report.when == "teardown":
            for name, measured in report.user_properties:
                if name == _PROPERTY and isinstance(measured, dict):
                    self._measured.setdefault(str(measured["name"]), []).append(measured)  # type: ignore[arg-type]

    def pytest_sessionfinish(self) -> None:
        """Writes the file; the summary reports a failure to do so."""
        if not self._measured:
            return
        try:
            self._write()
        except Exception as error:  # the tests have their own answer
            self._summary = f"{self._path} was not written: {type(error).__name__}: {error}"
        else:
            self._summary = f"measures written to {self._path}: {len(self._measured)}"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(f"nightjar: {self._summary}")

    def _write(self) -> None:
        from nightjar_ci.adapters.machine import read_machine
        from nightjar_ci.environments.current import find_running
        from nightjar_ci.environments.git_tree import read_git
        from nightjar_ci.formats.documents import write_json
        from nightjar_ci.formats.run_record import RunRecord

        document = {
            "schema": "nightjar.run/1",
            "job": os.environ.get("NIGHTJAR_JOB", "pytest"),
            "workload": "pytest",
            "status": "completed",
            "seed": int(os.environ.get("NIGHTJAR_SEED", "0")),
            "started_at": self._started_at.isoformat(timespec="seconds"),
            "duration_s": time.monotonic() - self._begin,
            "config": {},
            "environment": read_machine("current", read_git(Path.cwd()), find_running()),
            "curves": (),
            "samples": [
                {
                    "name": name,
                    "unit": values[0]["unit"],
                    "better": values[0]["better"],
                    "values": [measured["value"] for measured in values],
                }
                for name, values in self._measured.items()
            ],
            "facts": (),
        }
        write_json(self._path, RunRecord.model_validate(document))


def _name_test(node_id: str) -> str:
    """The name of a test in a measure: its file without folders, class and function.

    >>> _name_test("tests/nn/test_linear.py::TestLinear::test_init[float32]")
    'test_linear.TestLinear.test_init[float32]'
    """
    file, *parts = node_id.split("::")
    return ".".join([Path(file).stem, *parts])
