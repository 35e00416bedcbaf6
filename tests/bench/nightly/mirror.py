"""Is every day locked again from the mirror, to the same hashes, when the index has lost it?"""

import re
import subprocess

from nightjar_ci.environments.uv import find_index
from nightjar_ci.jax_nightly.day_index import serve_day
from nightjar_ci.jax_nightly.days import MACHINES, NAMES, Day, read_days
from nightjar_ci.jax_nightly.mirror import is_for_images, keep_files
from nightjar_ci.settings import read_settings
from tests.bench.nightly.index import serve_days
from tests.bench.table import Row

IMAGE_PYTHONS = ("3.12", "3.13")


def list_goals(quick: bool) -> list[str]:
    return ["days locked again from the mirror"]


def measure(quick: bool) -> list[Row]:
    default = read_settings().index_url or find_index()
    before: dict[str, str] = {}
    with serve_days(12 if quick else 60) as days:
        mirror = days.folder / "mirror"
        for day in read_days(days.url):
            if day.date in days.complete:
                before[day.date] = _lock(day, default)
                files = [(name, file) for name, wheels in day.files.items() for file in wheels]
                kept = [pair for pair in files if is_for_images(pair[1], IMAGE_PYTHONS, MACHINES)]
                keep_files(mirror, kept, lambda step: None)
        for package in NAMES:
            for wheel in (days.folder / package).glob("*.whl"):
                wheel.unlink()
        after = {day.date: _lock(day, default) for day in read_days(str(mirror))}
    same = sum(_is_part(after.get(date, ""), lock) for date, lock in before.items())
    return [Row("days locked again from the mirror", same, goal=len(days.complete), better="higher")]


def _is_part(again: str, lock: str) -> bool:
    """Whether a lock has the same pins, with hashes of the other one: the mirror has the images' wheels only."""
    pins = [[line for line in text.splitlines() if "==" in line] for text in (again, lock)]
    hashes = [set(re.findall(r"sha256:\w+", text)) for text in (again, lock)]
    return bool(hashes[0]) and pins[0] == pins[1] and hashes[0] <= hashes[1]


def _lock(day: Day, default: str) -> str:
    """The locked day for CUDA 12 on Python 3.13, with the hashes of its wheels for the images."""
    pins = "".join(f"{name}=={version}\n" for name, version in day.versions.items() if "cuda13" not in name)
    with serve_day(day, default) as url:
        argv = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--generate-hashes", "--no-deps"]
        argv += ["--python-version", "3.13", "--python-platform", "linux", "--index", f"nightly={url}"]
        done = subprocess.run(
            [*argv, "--default-index", default, "-"], input=pins, capture_output=True, text=True, check=True
        )
    return done.stdout
