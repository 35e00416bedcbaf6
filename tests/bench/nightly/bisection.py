"""Is a planted slow day found, and with how few environments?"""

import json
import random
import sys
from pathlib import Path

from tests.bench.nightly.index import Days, name_version, run, serve_days
from tests.bench.table import Row

SLOW_S = 0.3
PROGRAM = """
import sys, time
from importlib.metadata import version
started = time.monotonic()
if version("jax") >= "{version}":
    time.sleep({slow})
sys.exit(time.monotonic() - started > {slow} / 2)
"""


def list_goals(quick: bool) -> list[str]:
    return ["slow days found", "environments of the worst bisection"]


def measure(quick: bool) -> list[Row]:
    choice, trials = random.Random(20261120), 4 if quick else 20
    found, worst = 0, 0
    with serve_days(12 if quick else 60) as days:
        for number in range(trials):
            slow = choice.choice(days.complete[1:])
            culprit, environments = _bisect(days, days.folder / f"trial-{number}", slow)
            found += culprit == f"jax {name_version(slow)}"
            worst = max(worst, environments)
    return [
        Row("slow days found", found, goal=trials, better="higher"),
        Row("environments of the worst bisection", worst, goal=8),
    ]


def _bisect(days: Days, folder: Path, slow: str) -> tuple[str, int]:
    folder.mkdir()
    (folder / "test.py").write_text(PROGRAM.format(version=name_version(slow), slow=SLOW_S))
    ends = ("--good", f"jax@{days.complete[0]}", "--bad", f"jax@{days.complete[-1]}")
    done, _ = run(folder, days.url, "bisect", *ends, "--deterministic", "--json", "--", "python", "test.py")
    made = [path for path in (folder / ".nightjar/environments").iterdir() if path.is_dir()]
    if done.returncode not in (0, 1):
        print(done.stderr, file=sys.stderr)
        return "", len(made)
    return " ".join(json.loads(done.stdout)["culprits"]), len(made)
