"""Reference convergence points of MLPerf: how long a benchmark takes to reach its target, by batch size.

In: a file `rcps_<benchmark>.json`. Out: the points with MLPerf's mean and standard deviation; or the text of such a
file, for their checker.

Source: mlcommons/logging, mlperf_logging/rcp_checker: the JSON files, and rcp_checker.py for the numbers (`Olympic`
mean: the fastest and the slowest run are left out; four of each in unet3d; standard deviation of all runs).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nightjar_ci.errors import InputError
from nightjar_ci.formats.documents import read_json

TIMES = ("Epochs to converge", "samples to converge")  # the first is what most files say, of samples too
SAMPLES = ("llama2_70b_lora", "flux1")  # benchmarks whose files say the second
LEFT_OUT = {"unet3d": 4}  # runs at either end; of every other benchmark one
LARGEST_BATCH = 2**53  # a float holds it
FILE = "rcp.json"  # beside a cell's `convergence.json`


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencePoint:
    """The runs of a reference with one batch size.

    Attributes:
        times: until the target was reached, one for each run: epochs or samples, as the benchmark counts.
    """

    name: str
    benchmark: str
    batch_size: int
    times: tuple[float, ...]

    @property
    def left_out(self) -> int:
        """How many runs MLPerf leaves out at either end."""
        return LEFT_OUT.get(self.benchmark, 1)

    @property
    def mean(self) -> float:
        """The mean without the fastest and the slowest runs."""
        return olympic_mean(self.times, self.left_out)

    @property
    def stdev(self) -> float:
        """The standard deviation of all runs."""
        return float(np.std(self.times))


def olympic_mean(times: Sequence[float], left_out: int = 1) -> float:
    """The mean without that many of the smallest and of the largest values.

    >>> olympic_mean([9.0, 1.0, 2.0, 3.0])
    2.5
    """
    return float(np.mean(sorted(times)[left_out : len(times) - left_out]))


def read_points(path: Path) -> list[ReferencePoint]:
    """The points of a file, the smallest batch first.

    Raises:
        InputError: the file cannot be read, or is not one of reference convergence points.
    """
    document = read_json(path)
    if not isinstance(document, dict) or not document:
        hint = "such a file is rcps_bert.json of mlcommons/logging"
        raise InputError(f"{path}: expected an object of reference convergence points by name.", hint)
    return sorted(
        (_read_point(path, name, entry) for name, entry in document.items()), key=lambda point: point.batch_size
    )


def read_points_of(folder: Path, cell: str) -> list[ReferencePoint]:
    """The points that are committed beside the baselines of a cell; empty where there are none.

    Raises:
        InputError: the file is there but wrong.
    """
    path = folder / cell / FILE
    return read_points(path) if path.exists() else []


def _read_point(path: Path, name: str, entry: object) -> ReferencePoint:
    source = f"{path}: {name}"
    if not isinstance(entry, Mapping):
        raise InputError(f"{source}: expected an object, found {type(entry).__name__}.")
    key = next((key for key in TIMES if key in entry), None)
    missing = [repr(wanted) for wanted in ("Benchmark", "BS") if wanted not in entry]
    if key is None or missing:
        raise InputError(f"{source}: it has no {', '.join(missing) or ' or '.join(map(repr, TIMES))}.")
    times, benchmark = entry[key], str(entry["Benchmark"])
    least = 2 * LEFT_OUT.get(benchmark, 1) + 2
    if not isinstance(times, list) or not all(_is_time(value) for value in times):
        raise InputError(f"{source}: {key!r}: expected a list of positive numbers.")
    if len(times) < least:
        raise InputError(f"{source}: {len(times)} runs, expected at least {least}.")
    size = entry["BS"]
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= LARGEST_BATCH:
        raise InputError(f"{source}: 'BS': {str(size)[:40]} is not a batch size.")
    return ReferencePoint(
        name=name,
        benchmark=benchmark,
        batch_size=size,
        times=tuple(float(value) for value in times),
    )


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


def render_points(
    points: Sequence[ReferencePoint], about: Mapping[str, Any], hyperparameters: Mapping[str, Any]
) -> str:
    """A file of points as MLPerf's checker reads it.

    Args:
        points: of one benchmark.
        about: `Creator`, `When`, `Platform`, as MLPerf's files name them.
        hyperparameters: by name.
    """
    document = {
        point.name: {
            "Benchmark": point.benchmark,
            **about,
            "BS": point.batch_size,
            "Hyperparams": dict(hyperparameters),
            TIMES[point.benchmark in SAMPLES]: [int(time) if time == int(time) else time for time in point.times],
        }
        for point in points
    }
    return json.dumps(document, indent=2) + "\n"


def find_point(points: Sequence[ReferencePoint], batch_size: int) -> ReferencePoint | None:
    """The point of a batch size; between two others one that is interpolated, as MLPerf does; None outside of them.

    An interpolated point has the runs of the smaller batch, scaled to the interpolated mean.
    """
    exact = next((point for point in points if point.batch_size == batch_size), None)
    below = [point for point in points if point.batch_size < batch_size]
    above = [point for point in points if point.batch_size > batch_size]
    if exact is not None or not below or not above:
        return exact
    low, high = below[-1], above[0]
    mean = float(np.interp(batch_size, [low.batch_size, high.batch_size], [low.mean, high.mean]))
    return ReferencePoint(
        name=f"{low.benchmark}_interp_{batch_size}",
        benchmark=low.benchmark,
        batch_size=batch_size,
        times=tuple(time * mean / low.mean for time in low.times),
    )
