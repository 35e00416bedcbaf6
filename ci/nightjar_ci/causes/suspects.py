"""Suspects: the libraries, and functions of them, that the red jobs of a cause name, most suspect first.

In: a cause and the results of its night. Out: a few `Suspect`s, each with its reason. Two sources, the surest first:
the libraries that failing tests name, and the traceback of a failed job.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator

from nightjar_ci.causes.causes import Cause, Suspect
from nightjar_ci.formats.night_folder import job_folder
from nightjar_ci.formats.night_results import NightResults
from nightjar_ci.formats.suite import Case
from nightjar_ci.judges.finding import count
from nightjar_ci.untrusted.files import read_untrusted

MOST = 5
PACKAGES = ("jax", "optax", "orbax", "flax", "grain")  # Flax requires Optax and Orbax
_WORDS = {"jnp": "jax", "lax": "jax", "nnx": "flax", "linen": "flax", "ocp": "orbax"}
_FRAME = re.compile(
    r'File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>\S+)|^(?P<short>\S+\.py):(?P<at>\d+): ', re.M
)
_LOG_BYTES = 1 << 20


def find_suspects(cause: Cause, results: NightResults) -> tuple[Suspect, ...]:
    """The suspects of a cause, most suspect first; empty without evidence, or if the cause is not red."""
    if not cause.is_red:
        return ()
    red = {*cause.cells, *(outcome.cell for outcome in results.night.jobs if outcome.job in cause.jobs)}
    return (*_by_tests(results, red), *_by_traceback(cause, results, red))[:MOST]


def _by_tests(results: NightResults, red: Collection[str]) -> Iterator[Suspect]:
    """The library whose tests fail; of several, the one that the others build on."""
    failing: list[Case] = []
    for cell, suite in results.read_suites().items():
        if cell in red:
            failing += [case for case in suite.cases if case.state == "failed" and case.known is None]
    counts = Counter(library for case in failing if (library := name_library(case.name)) is not None)
    for library in sorted(counts, key=PACKAGES.index):
        example = next(case.name for case in failing if name_library(case.name) == library)
        yield Suspect(library=library, function="", reason=f"{count(counts[library], 'test')} of it, such as {example}")


def name_library(test: str) -> str | None:
    """The library that the name of a test refers to.

    >>> name_library("tests.test_nnx.test_linear"), name_library("test_parser")
    ('flax', None)
    """
    for word in re.split(r"[^a-zA-Z0-9]+", test.lower()):
        library = _WORDS.get(word, word)
        if library in PACKAGES:
            return library
    return None


def _by_traceback(cause: Cause, results: NightResults, red: Collection[str]) -> Iterator[Suspect]:
    """The innermost functions of libraries in the first traceback of a failed job or test.

    JAX raises errors about its callers' arguments: the innermost frame of another library comes before JAX's.
    """
    for text in _find_tracebacks(cause, results, red):
        frames = list(find_frames(text))
        others = [frame for frame in frames if frame[0] != "jax"]
        for library, function in dict.fromkeys([*others[-1:], *frames[-1:]]):
            yield Suspect(library=library, function=function, reason="in the traceback")
        if frames:
            return


def _find_tracebacks(cause: Cause, results: NightResults, red: Collection[str]) -> Iterator[str]:
    """The logs of failed jobs, then the output of failing tests and the logs of the jobs that ran them."""
    for job in cause.jobs[:1]:
        yield _read_log(results, job)
    for outcome, record in results:
        if outcome.cell in red and record is not None and record.tests is not None:
            failing = [case for case in record.tests.cases if case.state == "failed" and case.known is None]
            yield from (case.quote for case in failing[:1] if case.quote)
            if failing:
                yield _read_log(results, outcome.job)


def find_frames(text: str) -> Iterator[tuple[str, str]]:
    """The frames of packages in tracebacks of Python or pytest: package, and file, line and function."""
    for match in _FRAME.finditer(text):
        path = match["file"] or match["short"]
        parts = path.split("/")
        inside = [
            index for index, part in enumerate(parts) if part in PACKAGES and "site-packages" not in parts[index:]
        ]
        if not inside:
            continue
        line, function = match["line"] or match["at"], match["function"]
        shown = f"{'/'.join(parts[inside[-1] :])}:{line}"
        yield parts[inside[-1]], f"{shown} in {function}" if function else shown


def _read_log(results: NightResults, job: str) -> str:
    try:
        return read_untrusted(job_folder(results.folder, job), "stderr.log")[-_LOG_BYTES:].decode(errors="replace")
    except OSError:
        return ""
