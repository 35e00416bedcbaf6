"""The index of the bench: relabelled wheels of many days, some of them incomplete, and a machine that uses it."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from importlib.metadata import distribution
from pathlib import Path

from tests.ci.jax_nightly.wheels import LINUX, serve, write_wheel

CHECKOUT = Path(__file__).parents[3]
FIRST = date(2026, 9, 22)
LACKING_EVERY = 7  # this day, counted from the first, lacks a wheel
PYTHONS = tuple(dict.fromkeys(("3.12", "3.13", f"3.{sys.version_info[1]}")))  # of the images, and of this machine
LACKING = (  # package, and the part of a file name that tells the wheel
    ("jaxlib", "cp313-*aarch64"),
    ("jax", "py3-none-any"),
    ("jax-cuda12-pjrt", "x86_64"),
    ("jax-cuda13-plugin", "cp312-*x86_64"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Days:
    """The index: its URL, its folder, the complete days and the incomplete ones, oldest first."""

    url: str
    folder: Path
    complete: tuple[str, ...]
    incomplete: tuple[str, ...]


def name_version(day: str) -> str:
    return f"9.0.0.dev{day.replace('-', '')}"


@contextmanager
def serve_days(count: int) -> Iterator[Days]:
    days = [(FIRST + timedelta(days=number)).isoformat() for number in range(count)]
    incomplete = [day for number, day in enumerate(days[:-1]) if number % LACKING_EVERY == LACKING_EVERY - 1]
    with tempfile.TemporaryDirectory(prefix="nightjar-bench-") as scratch:
        folder = Path(scratch)
        for day in days:
            _relabel(folder, day)
        for number, day in enumerate(incomplete):
            package, part = LACKING[number % len(LACKING)]
            (wheel,) = (folder / package).glob(f"*{name_version(day)}*{part}*")
            wheel.unlink()
        with serve(folder) as url:
            complete = tuple(day for day in days if day not in incomplete)
            yield Days(url=url, folder=folder, complete=complete, incomplete=tuple(incomplete))


def _relabel(folder: Path, day: str) -> None:
    """Wheels of a day, with the metadata of the installed jax and jaxlib under another version."""
    version = name_version(day)
    bound = re.compile(r"(Requires-Dist: jax(?:lib|-cuda\d+-p\w+)?(?:\[[^\]]*\])?)[^;\n]*")
    texts = {}
    for name in ("jax", "jaxlib"):
        metadata = distribution(name).read_text("METADATA") or ""
        kept = [line for line in metadata.split("\n\n")[0].splitlines() if line.startswith(("Requires", "Provides"))]
        lines = (bound.sub(rf"\g<1><={version},>=9.0.0.dev0", line) for line in kept)
        texts[name] = "".join(f"{line}\n" for line in lines if "libtpu" not in line)
    commit = f"{int(day.replace('-', '')):040x}"
    jax = {"jax/version.py": f"_git_hash: str = {commit!r}\n", "jax/__init__.py": f"__version__ = {version!r}\n"}
    write_wheel(folder, "jax", version, "py3-none-any", texts["jax"], jax)
    for machine in LINUX:
        for python in PYTHONS:
            tag = f"cp{python.replace('.', '')}"
            write_wheel(folder, "jaxlib", version, f"{tag}-{tag}-{machine}", texts["jaxlib"], {})
            for cuda in ("12", "13"):
                needs = f"Requires-Dist: jax-cuda{cuda}-pjrt=={version}\nProvides-Extra: with-cuda\n"
                write_wheel(folder, f"jax-cuda{cuda}-plugin", version, f"{tag}-{tag}-{machine}", needs, {})
        for cuda in ("12", "13"):
            write_wheel(folder, f"jax-cuda{cuda}-pjrt", version, f"py3-none-{machine}", "", {})


@contextmanager
def copy_checkout() -> Iterator[Path]:
    """A copy of what `images bump` reads, in which it may write."""
    with tempfile.TemporaryDirectory(prefix="nightjar-bench-") as scratch:
        root = Path(scratch)
        shutil.copytree(CHECKOUT / "docker", root / "docker")
        for package in ("ci", "models", "profiling"):
            (root / package).mkdir()
            shutil.copy(CHECKOUT / package / "pyproject.toml", root / package)
        yield root


def run(folder: Path, index: str, *arguments: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """Runs nightjar-ci in a folder with this index of nightly wheels; returns its seconds, too."""
    environ = {**os.environ, "NIGHTJAR_NIGHTLY_INDEX": index}
    environ["NIGHTJAR_STATE_DIR"] = str(folder / ".nightjar")
    started = time.monotonic()
    argv = [sys.executable, "-m", "nightjar_ci", *arguments]
    done = subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    return done, time.monotonic() - started
