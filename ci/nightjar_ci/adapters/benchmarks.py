"""Readers for the JSON of pytest-benchmark and asv, which contains the names of its measures.

In: a file. Out: samples, named after the benchmark; parameters in parentheses.

Source: pytest-benchmark 5 `--benchmark-json`; asv 0.6 `results/MACHINE/COMMIT-ENVIRONMENT.json`, version 2 of its
format (asv/results.py).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from nightjar_ci.adapters.records import read_file
from nightjar_ci.errors import InputError
from nightjar_ci.formats.run_record import Sample

_ASV_VERSION = 2
_ASV_UNITS = {"time": "s", "timeraw": "s", "mem": "bytes", "peakmem": "bytes"}  # track_* may have any unit


def read_pytest_benchmark(path: Path, *, left_in: Path | None = None) -> Iterator[Sample]:
    """The rounds of every benchmark, in seconds; their median if the file has no rounds.

    Raises:
        InputError: not a pytest-benchmark file, or a benchmark without a number.
    """
    entries = _read(path, left_in).get("benchmarks")
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

    Raises:
        InputError: not an asv result, or one of another format version.
    """
    document = _read(path, left_in)
    if document.get("version") != _ASV_VERSION or not isinstance(document.get("results"), dict):
        hint = "pass asv's results/MACHINE/COMMIT-ENVIRONMENT.json"
        raise InputError(f"{path}: version {document.get('version')!r}, expected asv's version {_ASV_VERSION}.", hint)
    try:
        columns: Sequence[str] = document["result_columns"]
        for name, row in document["results"].items():
            yield from _asv_samples(name, dict(zip(columns, row, strict=False)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: not a valid asv result: {type(error).__name__}: {error}.") from None


def _asv_samples(name: str, columns: dict[str, Any]) -> Iterator[Sample]:
    results = columns["result"] or []
    samples = columns.get("samples") or [None] * len(results)
    unit = _ASV_UNITS.get(name.rpartition(".")[2].partition("_")[0], "")
    for index, combination in enumerate(product(*columns["params"])):
        result = results[index] if index < len(results) else None  # null if the whole benchmark failed
        if result is not None and math.isfinite(result):
            values = samples[index] or [result]
            full_name = f"{name}({', '.join(combination)})" if combination else name
            yield Sample(name=full_name, unit=unit, better="lower", values=tuple(map(float, values)))


def _read(path: Path, left_in: Path | None) -> dict[str, Any]:
    try:
        document = json.loads(read_file(path, left_in))
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise InputError(f"{path}:{line}: not valid JSON: {error}.") from None
    if not isinstance(document, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(document).__name__}.")
    return document
