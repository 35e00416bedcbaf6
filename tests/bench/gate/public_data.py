"""Which real histories of benchmarks are public? Asked at run time; nothing of them is kept in the project.

In: the package index for what a source distribution carries, Git for what a repository does; `NIGHTJAR_HISTORIES` may
name a folder with clones `OWNER+NAME/repo`, for a machine without GitHub. Out: the logarithms of the values of each
series, in the order of its commits or nights.
"""

import ast
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from nightjar_ci.adapters.benchmarks import read_asv
from nightjar_ci.environments.run_uv import find_index
from nightjar_ci.settings import read_settings
from nightjar_ci.web.http import HttpError, get
from tests.bench.gate.noise import Array

# Looked through on 2026-11-21, none with 100 values: the source distributions of asv 0.6.6, pytest-benchmark
# 5.3.1 (but 144 timings of one benchmark) and signal-processing-algorithms 1.3.5 and 2.1.6 (its repository has two).
OTAVA = ("apache-otava", "0.8.0", r"tests/\w+\.py$")
MONGODB = ("mongodb/signal-processing-algorithms", "aec099a9696d17ccd1e85a357313614a01f859a2", "tests/data")
SUNPY = ("sunpy/sunpy-benchmarks", "4544e1802843f764ae31b6cc39c487570670db90", "results")
GITHUB = "https://github.com"
HISTORIES = "NIGHTJAR_HISTORIES"
CLONES = Path(__file__).resolve().parents[3] / ".nox" / "histories"
LEAST = 100  # values of a series that is long enough


def read_otava() -> list[Array]:
    """Nightly timings in the tests of Otava's source distribution: each long list of positive numbers in its files."""
    name, version, pattern = OTAVA
    index = (read_settings().index_url or find_index()).rstrip("/")
    address = f"{index}/{name}/"
    page = get(address, accept="text/html")[0].decode()
    link = re.search(rf'href="([^"#]*{re.escape(version)}\.tar\.gz)', page)
    if link is None:
        raise ValueError(f"the index lists no source distribution of {name} {version}")
    packed = io.BytesIO(get(urllib.parse.urljoin(address, link[1]), accept="*/*")[0])
    with tarfile.open(fileobj=packed) as archive:
        wanted = [member for member in archive.getmembers() if re.search(pattern, member.name)]
        texts = [file.read().decode() for member in wanted if (file := archive.extractfile(member)) is not None]
    nodes = (node for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.List))
    lists = ([item.value if isinstance(item, ast.Constant) else None for item in node.elts] for node in nodes)
    return [found for values in lists if (found := as_history(values)) is not None]


def read_mongodb() -> list[Array]:
    """Throughputs of MongoDB's own nightly runs, in the tests of its change point detection."""
    with checkout(*MONGODB) as folder:
        texts = {path.read_text() for path in sorted(folder.glob("*.json"))}  # two files are one series
    documents = (json.loads(text) for text in sorted(texts))
    return [found for one in documents if isinstance(one, list) and (found := as_history(one)) is not None]


def read_sunpy() -> list[Array]:
    """Times of SunPy's benchmarks by commit, as asv recorded them on hosted runners, a series per environment."""
    by_name: defaultdict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    with checkout(*SUNPY) as folder:
        for path in sorted(folder.glob("*/*-*.json")):
            document = json.loads(path.read_text())
            for sample in read_asv(path):
                if sample.unit == "s":
                    key = (document["env_name"], sample.name)
                    by_name[key].append((document["date"], float(np.median(sample.values))))
    histories = (as_history([value for _, value in sorted(points)]) for points in by_name.values())
    return [found for found in histories if found is not None]


@contextmanager
def checkout(repository: str, commit: str, folder: str) -> Iterator[Path]:
    name = repository.replace("/", "+")
    places = [Path(os.environ[HISTORIES])] if HISTORIES in os.environ else []
    clone = next((found for place in [*places, CLONES] if (found := place / name / "repo").is_dir()), None)
    if clone is None:
        clone = CLONES / name / "repo"
        with tempfile.TemporaryDirectory() as temporary:
            run_git("init", "--quiet", "--bare", temporary)
            run_git("-C", temporary, "fetch", "--quiet", "--depth", "1", f"{GITHUB}/{repository}", commit)
            shutil.copytree(temporary, clone)
    archive = run_git("-C", str(clone), "archive", commit, folder)
    with tempfile.TemporaryDirectory() as temporary, tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(temporary, filter="data")
        yield Path(temporary) / folder


def run_git(*arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], capture_output=True, env={**os.environ, "GIT_TERMINAL_PROMPT": "0"})
    if done.returncode:
        raise OSError(f"git {' '.join(arguments)}: {done.stderr.decode().strip()}")
    return done.stdout


def as_history(values: Sequence[object]) -> Array | None:
    """The logarithms of a list of positive numbers that is long enough and varies, or None.

    >>> as_history([1, "2"]) is None
    True
    """
    numbers = [value for value in values if isinstance(value, int | float) and value > 0]
    if len(values) < LEAST or len(numbers) != len(values) or len(set(numbers)) < LEAST / 4:
        return None
    return np.log(np.array(numbers, dtype=np.float64))


def read_all() -> list[tuple[str, list[Array]]]:
    """Each project and its series; a project that cannot be had is named on stderr with the reason, and left out."""
    found = []
    for project, read in (("Otava", read_otava), ("MongoDB", read_mongodb), ("SunPy", read_sunpy)):
        try:
            found.append((project, read()))
        except (OSError, ValueError, HttpError) as error:
            print(f"the history of {project} cannot be read: {error}", file=sys.stderr)
    return found
