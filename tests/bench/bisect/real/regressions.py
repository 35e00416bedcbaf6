"""Does a bisection name the release that a public issue names? In: an index of packages. Out: tables of rows.

Each regression is bisected by the command, with its defaults, in a folder of its own. A metric may honestly be too loud
to tell where the machine is busy; a wrong release is never right.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.bench.table import Row

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[3] / "ci" / "examples" / "bisect"
LONGEST_S = 300.0  # the issue's "within five minutes", builds included


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """One regression.

    Attributes:
        issue: where it was reported.
        test: the script; it is run with the good and the bad release.
        package, good, bad: the ladder.
        culprit: the release that it came with.
        metric: what the test prints; None where its exit code counts.
    """

    issue: str
    test: Path
    package: str
    good: str
    bad: str
    culprit: str
    metric: str | None = None


REGRESSIONS = (
    Regression(
        issue="pallets/click#3084",
        test=HERE / "click_optional_value.py",
        package="click",
        good="8.1.0",
        bad="8.3.0",
        culprit="8.3.0",
    ),
    Regression(
        issue="pallets/click#3054",
        test=HERE / "click_default_false.py",
        package="click",
        good="8.1.0",
        bad="8.2.2",
        culprit="8.2.2",
    ),
    Regression(
        issue="pallets/click#2894",
        test=HERE / "click_typed_flag.py",
        package="click",
        good="8.1.0",
        bad="8.2.0",
        culprit="8.2.0",
    ),
    Regression(
        issue="python/typing_extensions#207",
        test=HERE / "typing_extensions_abc.py",
        package="typing-extensions",
        good="4.0.0",
        bad="4.6.2",
        culprit="4.6.0",
    ),
    Regression(
        issue="agronholm/typeguard#104",
        test=HERE / "typeguard_protocol.py",
        package="typeguard",
        good="2.5.0",
        bad="2.7.1",
        culprit="2.7.0",
        metric="us_per_check",
    ),
    Regression(
        issue="jax-ml/jax#25190",
        test=EXAMPLES / "tiny_while.py",
        package="jax",
        good="0.4.30",
        bad="0.4.35",
        culprit="0.4.32",
        metric="us_per_turn",
    ),
)


def bisect(regression: Regression) -> tuple[dict[str, object], float]:
    """The answer of the command, and the seconds that it took."""
    command = [sys.executable, "-m", "nightjar_ci", "bisect", "--json", "--package", regression.package]
    command += ["--good", regression.good, "--bad", regression.bad]
    if regression.metric is not None:
        command += ["--metric", regression.metric]
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


def regressions(only: str = "") -> list[tuple[str, list[Row]]]:
    """All of them, one after the other."""
    named, wrong, took = [], [], []
    for regression in REGRESSIONS:
        if only not in f"{regression.issue} {regression.package}":
            continue
        answer, seconds = bisect(regression)
        name = f"{regression.issue}, {regression.package} {regression.culprit}"
        kind, culprits = answer["kind"], answer["culprits"]
        print(f"{name}: {kind}, {culprits}, {seconds:.0f} s", file=sys.stderr, flush=True)
        is_named = kind == "culprit" and culprits == [f"{regression.package} {regression.culprit}"]
        is_wrong = not is_named and kind not in ("too_loud", "budget_out")
        named.append(Row(name=f"{name}: {kind}", ours=100.0 * is_named, goal=100.0, better="higher", unit="%"))
        wrong.append(Row(name=name, ours=100.0 * is_wrong, goal=0.0, unit="%"))
        took.append(Row(name=name, ours=seconds, goal=LONGEST_S, unit="s"))
    return [
        ("Real regressions: the release that the issue names (on a quiet machine)", named),
        ("Real regressions: another answer than that or 'too loud' (on any machine)", wrong),
        ("Real regressions: time", took),
    ]
