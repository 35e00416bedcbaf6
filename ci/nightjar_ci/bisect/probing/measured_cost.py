"""The times of builds and tests that earlier bisections recorded on this machine, to estimate a new one by.

In: the folder of all bisections. Out: seconds of a build and of one run of a test, or None if nothing similar was
recorded. Medians: a first build fetches files that the others find in the cache.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from packaging.utils import canonicalize_name

from nightjar_ci.bisect.state import Bisection, Probe, Question, read_bisection, read_probes
from nightjar_ci.environments.installed import read_distributions
from nightjar_ci.errors import NightjarError


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCost:
    """Times of earlier bisections; None if none is similar.

    Attributes:
        build_s: of a rung of that kind: with the same packages, repository or images, if any.
        test_s: of one run of the same command; half of a pair.
    """

    build_s: float | None
    test_s: float | None


def read_measured_cost(bisections: Path, question: Question) -> MeasuredCost:
    """The times that earlier bisections took."""
    earlier = list(_read_all(bisections))
    alike = [probes for bisection, probes in earlier if bisection.question.command == question.command]
    same_ladder = [probes for bisection, probes in earlier if _what(bisection.question) == _what(question)]
    tests = [_run_s(probe) for probes in alike for probe in probes if probe.test_s > 0]
    builds = [probe.build_s / probe.built for probes in same_ladder for probe in probes if probe.built]
    return MeasuredCost(build_s=_median(builds), test_s=_median(tests))


def _median(seconds: list[float]) -> float | None:
    if not seconds:
        return None
    return median(seconds)


def measure_own_bytes(prefix: Path) -> int:
    """Bytes on the disk that an environment does not share with uv's cache: of files that nothing else links to."""
    stats = [path.lstat() for path in prefix.rglob("*") if not path.is_dir() or path.is_symlink()]
    return sum(512 * stat.st_blocks for stat in stats if stat.st_nlink == 1)


def measure_package_bytes(prefix: Path, names: Collection[str]) -> int:
    """Bytes of some packages of an environment, by their records; uv keeps them in its cache."""
    packages = [dist for dist in read_distributions(prefix) if canonicalize_name(dist.metadata["Name"]) in names]
    return sum(path.size or 0 for package in packages for path in package.files or ())


def _run_s(probe: Probe) -> float:
    if probe.against is None:
        return probe.test_s
    return probe.test_s / 2


def _what(question: Question) -> tuple[str | None, str | None]:
    return question.ladder.get("kind"), question.ladder.get("what")


def _read_all(bisections: Path) -> Iterator[tuple[Bisection, list[Probe]]]:
    for path in sorted(bisections.glob("*/bisection.json")):
        try:
            bisection = read_bisection(path.parent)
            if bisection is not None:
                yield bisection, read_probes(path.parent)
        except NightjarError:
            continue  # another bisection's damage is not this one's
