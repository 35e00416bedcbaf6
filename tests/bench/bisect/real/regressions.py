"""Does a bisection name the release that a public issue names? In: an index of packages. Out: tables of rows.

Each became slower, and is bisected by the command, with its defaults, in a folder of its own: once with the machine as
it is, once beside two busy processes. Beside them a metric may honestly be too loud to tell; a wrong release is never
right. `bench_ecosystem` bisects releases that broke a library.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.table import Row

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[3] / "ci" / "examples" / "bisect"
LONGEST_S = 300.0  # builds and downloads included
NAMED = "Real regressions: the release that the issue names"
WRONG = "Real regressions beside two busy processes: another answer than that or 'too loud'"
TOOK = "Real regressions: time"
BUSY = ", beside two busy processes"


@dataclass(frozen=True, slots=True)
class Regression:
    issue: str
    test: Path
    package: str
    good: str
    bad: str
    culprit: str
    metric: str

    @property
    def name(self) -> str:
        return f"{self.issue}, {self.package} {self.culprit}"


REGRESSIONS = (
    Regression(
        "agronholm/typeguard#104",
        HERE / "typeguard_protocol.py",
        "typeguard",
        "2.5.0",
        "2.7.1",
        "2.7.0",
        "us_per_check",
    ),
    Regression("jax-ml/jax#25190", EXAMPLES / "tiny_while.py", "jax", "0.4.30", "0.4.35", "0.4.32", "us_per_turn"),
    Regression("jax-ml/jax#36799", HERE / "jax_scan_f64.py", "jax", "0.4.29", "0.4.34", "0.4.32", "us_per_step"),
    Regression("scipy/scipy#22655", HERE / "scipy_linprog.py", "scipy", "1.12.0", "1.15.2", "1.15.0", "ms_per_solve"),
    Regression("scipy/scipy#22884", HERE / "scipy_nnls.py", "scipy", "1.10.0", "1.13.1", "1.12.0", "us_per_solve"),
)


def bisect(regression: Regression) -> tuple[dict[str, object], float]:
    command = [sys.executable, "-m", "nightjar_ci", "bisect", "--json", "--metric", regression.metric]
    for option, version in (("--good", regression.good), ("--bad", regression.bad)):
        command += [option, f"{regression.package}=={version}"]
    with tempfile.TemporaryDirectory(prefix="nightjar-bench-") as state:
        start = time.monotonic()
        done = subprocess.run(
            [*command, "--", "python", str(regression.test)],
            env={**os.environ, "NIGHTJAR_STATE_DIR": state},
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.monotonic() - start
    if not done.stdout:
        return {"kind": f"failed: {done.stderr[-300:]}", "culprits": []}, seconds
    answer: dict[str, object] = json.loads(done.stdout)
    return answer, seconds


@contextmanager
def two_busy_processes() -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def choose(only: str) -> list[Regression]:
    return [regression for regression in REGRESSIONS if only in regression.name]


def list_goals(only: str = "") -> dict[str, list[str]]:
    names = [regression.name for regression in choose(only)]
    return {NAMED: names, WRONG: names, TOOK: [*names, *(f"{name}{BUSY}" for name in names)]}


def measure(only: str = "") -> list[tuple[str, list[Row]]]:
    named, wrong, took = [], [], []
    for regression in choose(only):
        kind, is_named, seconds = judge(regression)
        named.append(Row(f"{regression.name} ({kind})", 100.0 * is_named, goal=100.0, better="higher", unit="%"))
        took.append(Row(regression.name, seconds, goal=LONGEST_S, unit="s"))
    for regression in choose(only):
        with two_busy_processes():
            kind, is_named, seconds = judge(regression)
        is_wrong = not is_named and kind != "too_loud"
        wrong.append(Row(f"{regression.name} ({kind})", 100.0 * is_wrong, goal=0.0, unit="%"))
        took.append(Row(f"{regression.name}{BUSY}", seconds, goal=LONGEST_S, unit="s"))
    return [(NAMED, named), (WRONG, wrong), (TOOK, took)]


def judge(regression: Regression) -> tuple[str, bool, float]:
    answer, seconds = bisect(regression)
    kind, culprits = str(answer["kind"]), answer["culprits"]
    print(f"{regression.name}: {kind}, {culprits}, {seconds:.0f} s", file=sys.stderr, flush=True)
    return kind, kind == "culprit" and culprits == [f"{regression.package} {regression.culprit}"], seconds
