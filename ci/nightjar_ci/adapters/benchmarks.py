"""Readers for the files of benchmark runners, which contain the names of their measures.

In: a file. Out: samples, named after the benchmark; asv's parameters in parentheses.

Source: pytest-benchmark 5 `--benchmark-json`; asv 0.6 `results/MACHINE/COMMIT-ENVIRONMENT.json`, versions 1 and 2
of its format (asv/results.py); google/benchmark docs/user_guide.md (output formats);
github-action-benchmark README.md (custom benchmarks).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from nightjar_ci.adapters.records import parse_json, read_object
from nightjar_ci.errors import InputError
from nightjar_ci.formats.run_record import Sample

_ASV_VERSIONS = (1, 2)
_GOOGLE_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_ASV_UNITS = {"time": "s", "timeraw": "s", "mem": "bytes", "peakmem": "bytes"}  # track_* may have any unit


def read_pytest_benchmark(path: Path, *, left_in: Path | None = None) -> Iterator[Sample]:
    """The rounds of every benchmark, in seconds; their median if the file has no rounds."""
    entries = read_object(path, left_in).get("benchmarks")
    if not isinstance(entries, list):
        raise InputError(f"{path}: it has no list 'benchmarks'.", "write it with pytest --benchmark-json=FILE")
    try:
        repeated = Counter(entry["name"] for entry in entries)
        for entry in entries:
            stats = entry["stats"]
            values = stats.get("data") or [stats["median"]]
            name = entry["name"]
            if repeated[name] > 1:
                name = entry["fullname"]
            yield Sample(name=name, unit="s", better="lower", values=tuple(map(float, values)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: not a valid pytest-benchmark file: {type(error).__name__}: {error}.") from None


def read_asv(path: Path, *, left_in: Path | None = None) -> Iterator[Sample]:
    """The samples of every benchmark, one `Sample` for each combination of its parameters.

    Benchmarks that failed or were skipped are left out. Without recorded samples (`asv run --record-samples`) the
    result is the only sample.
    """
    return list_asv_samples(path, read_object(path, left_in))


def list_asv_samples(path: Path, document: dict[str, Any]) -> Iterator[Sample]:
    """The samples in one of asv's files that has been read."""
    version = document.get("version")
    if version not in _ASV_VERSIONS or not isinstance(document.get("results"), dict):
        hint = "pass asv's results/MACHINE/COMMIT-ENVIRONMENT.json"
        raise InputError(f"{path}: version {version!r}, expected asv's version 1 or 2.", hint)
    try:
        for name, row in document["results"].items():
            columns = row
            if version == 2:
                columns = dict(zip(document["result_columns"], row, strict=False))
            elif not isinstance(row, dict):
                columns = {"result": [row]}
            yield from _asv_samples(name, columns)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: not a valid asv result: {type(error).__name__}: {error}.") from None


def _asv_samples(name: str, columns: dict[str, Any]) -> Iterator[Sample]:
    results = columns["result"] or []
    samples = columns.get("samples") or [None] * len(results)
    unit = _ASV_UNITS.get(name.rpartition(".")[2].partition("_")[0], "")
    for index, combination in enumerate(product(*(columns.get("params") or ()))):
        result = results[index] if index < len(results) else None  # null if the whole benchmark failed
        if result is not None and math.isfinite(result):
            values = samples[index] or [result]
            full_name = f"{name}({', '.join(combination)})" if combination else name
            yield Sample(name=full_name, unit=unit, better="lower", values=tuple(map(float, values)))


def read_google_benchmark(path: Path, *, left_in: Path | None = None) -> Iterator[Sample]:
    """The real time of every benchmark, in seconds: its repetitions, or the median if the file has only that.

    Benchmarks that ended in an error or were skipped, and fits of `Complexity()`, which have no time, are left out.
    """
    entries = read_object(path, left_in).get("benchmarks")
    if not isinstance(entries, list):
        raise InputError(f"{path}: it has no list 'benchmarks'.", "write it with --benchmark_out=FILE")
    runs: dict[str, list[float]] = defaultdict(list)
    medians: dict[str, list[float]] = {}
    try:
        for entry in entries:
            if entry.get("error_occurred") or entry.get("skipped") or "big_o" in entry or "rms" in entry:
                continue
            seconds = entry["real_time"] * _GOOGLE_UNITS[entry.get("time_unit", "ns")]
            name = entry.get("run_name", entry["name"])
            if entry.get("run_type", "iteration") == "iteration":
                runs[name].append(seconds)
            elif entry.get("aggregate_name") == "median":
                medians[name] = [seconds]
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a valid Google Benchmark file: {type(error).__name__}: {error}.") from None
    for name, values in (medians | runs).items():
        yield Sample(name=name, unit="s", better="lower", values=tuple(values))


def read_github_action_benchmark(path: Path, *, left_in: Path | None = None) -> Iterator[Sample]:
    """The value of every entry of a `customSmallerIsBetter` file; `range` is the action's own text and is left out."""
    try:
        for entry in parse_json(path, left_in):
            values = (float(entry["value"]),)
            yield Sample(name=entry["name"], unit=entry["unit"], better="lower", values=values)
    except (KeyError, TypeError, ValueError) as error:
        text = f"{path}: not a list of names, units and values: {type(error).__name__}: {error}."
        raise InputError(text, "read `customBiggerIsBetter` with format = 'json'") from None
