"""Suspects: the functions of libraries that the red jobs of a cause execute, most suspect first.

In: a cause, the results of its night and the recorded calls of its matrix. Out: a few `Suspect`s, each with its reason.
Three sources, the surest first: the libraries that failing tests name; the traceback of a failed job; and the functions
that run in red cells and not in green ones, ranked by Ochiai's coefficient.
Source: Abreu, Zoeteweij, van Gemund, "On the Accuracy of Spectrum-based Fault Localization", 2007, equation 1.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from nightjar_ci.causes.causes import Cause, Suspect
from nightjar_ci.formats.calls import Calls
from nightjar_ci.formats.night_folder import job_folder
from nightjar_ci.formats.night_results import NightResults
from nightjar_ci.formats.suite import Case
from nightjar_ci.judges.finding import count
from nightjar_ci.untrusted.files import read_untrusted

MOST = 5
MOST_NAMED = 20  # functions that are equally suspect; more of them are shown by library
PACKAGES = ("jax", "optax", "orbax", "flax", "grain")  # without a recording; Flax requires Optax and Orbax
_WORDS = {"jnp": "jax", "lax": "jax", "nnx": "flax", "linen": "flax", "ocp": "orbax"}
_FRAME = re.compile(
    r'File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>\S+)|^(?P<short>\S+\.py):(?P<at>\d+): ', re.M
)
_LOG_BYTES = 1 << 20


def find_suspects(
    cause: Cause, results: NightResults, calls: Calls | None, open_cells: Collection[str]
) -> tuple[Suspect, ...]:
    """The suspects of a cause, most suspect first; empty without evidence.

    Args:
        cause: to find suspects for; only a red one has some.
        open_cells: the cells of all causes: the others are green.
    """
    if not cause.is_red:
        return ()
    packages = PACKAGES if calls is None else calls.packages
    red = {*cause.cells, *(outcome.cell for outcome in results.night.jobs if outcome.job in cause.jobs)}
    suspects = [*_by_tests(cause, results, red, packages), *_by_traceback(cause, results, red, packages)]
    if calls is not None:
        ended = {outcome.cell for outcome in results.night.jobs if outcome.completed}
        suspects += rank_functions(red, ended.difference(open_cells), calls)
    return tuple(suspects[:MOST])


def rank_functions(red: Collection[str], green: Collection[str], calls: Calls) -> Iterator[Suspect]:
    """The functions that tell red cells from green ones, best first; none if no cell is green.

    A function that all cells execute tells nothing. Among equals, the library with the largest part among the best
    comes first.
    """
    failing, passing = [cell for cell in red if cell in calls.cells], [cell for cell in green if cell in calls.cells]
    if not failing or not passing:
        return
    in_red = Counter(place for cell in failing for place in calls.cells[cell].functions)
    in_green = Counter(place for cell in passing for place in calls.cells[cell].functions)
    scores = {place: _ochiai(n, len(failing), in_green[place]) for place, n in in_red.items()}
    best = max(scores.values(), default=0.0)
    places = [place for place, score in scores.items() if score == best and in_green[place] < len(passing)]
    totals = Counter(_package(calls.functions[place]) for place in in_red)
    shares = Counter(_package(calls.functions[place]) for place in places)
    places.sort(
        key=lambda place: (-shares[_package(calls.functions[place])] / totals[_package(calls.functions[place])], place)
    )
    if len(places) > MOST_NAMED:  # they tell libraries apart, and not functions
        for package in dict.fromkeys(_package(calls.functions[place]) for place in places):
            number = count(shares[package], "function")
            yield Suspect(library=package, function="", reason=f"{number} of it tell the red cells from the green ones")
        return
    for place in places:
        reason = (
            f"runs in {in_red[place]} of {count(len(failing), 'red cell')}, {in_green[place]} of {len(passing)} green"
        )
        yield Suspect(library=_package(calls.functions[place]), function=calls.functions[place], reason=reason)


def _ochiai(in_red: int, n_red: int, in_green: int) -> float:
    """Ochiai's coefficient of a function: 1 if it runs in all red cells and in no other.

    >>> _ochiai(2, 2, 0), _ochiai(2, 2, 2), _ochiai(0, 2, 1)
    (1.0, 0.7071067811865475, 0.0)
    """
    if in_red:
        return in_red / math.sqrt(n_red * (in_red + in_green))
    return 0.0


def _package(function: str) -> str:
    return function.partition(".")[0].partition(":")[0]


def _by_tests(cause: Cause, results: NightResults, red: Collection[str], packages: Sequence[str]) -> Iterator[Suspect]:
    """The library whose tests fail; of several, the one that the others build on."""
    failing: list[Case] = []
    for cell, suite in results.read_suites().items():
        if cell in red:
            failing += [case for case in suite.cases if case.state == "failed" and case.known is None]
    counts = Counter(library for case in failing if (library := name_library(case.name, packages)) is not None)
    for library in sorted(counts, key=packages.index):
        example = next(case.name for case in failing if name_library(case.name, packages) == library)
        yield Suspect(library=library, function="", reason=f"{count(counts[library], 'test')} of it, such as {example}")


def name_library(test: str, packages: Collection[str]) -> str | None:
    """The library that the name of a test refers to.

    >>> name_library("tests.test_nnx.test_linear", PACKAGES), name_library("test_parser", PACKAGES)
    ('flax', None)
    """
    for word in re.split(r"[^a-zA-Z0-9]+", test.lower()):
        library = _WORDS.get(word, word)
        if library in packages:
            return library
    return None


def _by_traceback(
    cause: Cause, results: NightResults, red: Collection[str], packages: Sequence[str]
) -> Iterator[Suspect]:
    """The innermost functions of libraries in the first traceback of a failed job or test.

    JAX raises errors about its callers' arguments: the innermost frame of another library comes before JAX's.
    """
    for text in _find_tracebacks(cause, results, red):
        frames = list(find_frames(text, packages))
        others = [frame for frame in frames if frame[0] != packages[0]]
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


def find_frames(text: str, packages: Collection[str]) -> Iterator[tuple[str, str]]:
    """The frames of packages in tracebacks of Python or pytest: package, and file, line and function."""
    for match in _FRAME.finditer(text):
        path = match["file"] or match["short"]
        parts = path.split("/")
        inside = [
            index for index, part in enumerate(parts) if part in packages and "site-packages" not in parts[index:]
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
