"""Is tonight's lock quick, of one day, and is every incomplete day refused by name?"""

import re

from tests.bench.nightly.index import LACKING, copy_checkout, name_version, run, serve_days
from tests.bench.table import Row

LOCKS = ("jax-cpu", "jax-cuda12", "jax-cuda13")


def list_goals(quick: bool) -> list[str]:
    return [
        "tonight's locks",
        "locks that mix days or releases",
        "incomplete days refused and named",
        "incomplete days right for the CPU's image",
    ]


def measure(quick: bool) -> list[Row]:
    with serve_days(12 if quick else 60) as days, copy_checkout() as checkout:
        run(
            checkout, days.url, "images", "bump", "--nightly", "jax", "--dry-run"
        )  # fills uv's cache, as last night did
        done, seconds = run(checkout, days.url, "images", "bump", "--nightly", "jax")
        assert done.returncode == 0, done.stderr
        mixed = 0
        for name in LOCKS:
            lock = (checkout / f"docker/locks/{name}.txt").read_text()
            versions = re.findall(
                r"^jax(?:lib|-cuda\d+-\w+)?==(\S+) ; python_full_version >= '3.12'", lock, re.MULTILINE
            )
            mixed += versions.count(name_version(days.complete[-1])) != (2 if name == "jax-cpu" else 4)
        named = right = 0
        for number, day in enumerate(days.incomplete):
            refused, _ = run(checkout, days.url, "images", "bump", "--nightly", "jax", "--date", day)
            named += refused.returncode == 2 and f"JAX of {day} is incomplete: no wheel of" in refused.stderr
            given = ("--dry-run", "--for", "cpu-*-amd64")
            taken, _ = run(checkout, days.url, "images", "bump", "--nightly", "jax", "--date", day, *given)
            right += (taken.returncode == 0) == (LACKING[number % len(LACKING)][0] != "jax")
    total = len(days.incomplete)
    return [
        Row("tonight's locks", seconds, goal=30.0, unit="s"),
        Row("locks that mix days or releases", mixed, goal=0),
        Row("incomplete days refused and named", named, goal=total, better="higher"),
        Row("incomplete days right for the CPU's image", right, goal=total, better="higher"),
    ]
