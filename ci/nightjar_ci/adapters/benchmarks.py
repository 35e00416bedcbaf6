"""What did a benchmark program measure? The JSON of pytest-benchmark and of asv, which name their measures themselves.

In: a file. Out: samples, named after the benchmark; parameters in brackets.

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
_ASV_UNITS = {"time": "s", "timeraw": "s", "mem": "bytes", "peakmem": "bytes"}  # track_* may be of anything


def read_pytest_benchmark(path: Path, *, left_in: Path | None = None) -> Iterator[Sample]:
    """The rounds of every benchmark, in seconds; their median where the file keeps no rounds.

    Raises:
        InputError: the file is not of pytest-benchmark, or a benchmark has no number.
    """
    entries = _read(path, left_in).get("benchmarks")
    if not isinstance(entries, list):
        raise InputError(f"{path}: no list 'benchmarks'.", "write it with pytest --benchmark-json=FILE")
    try:
        repeated = Counter(entry["name"] for entry in entries)
        for entry in entries:
            stats = entry["stats"]
            values = stats.get("data") or [stats["median"]]
            name = entry["name"] if repeated[entry["name"]] == 1 else entry["fullname"]
            yield Sample(name=name, unit="s", better="lower", values=tuple(map(float, values)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: not of pytest-benchmark: {type(error).__name__}: {error}.") from None


def read_asv(path: Path, *, left_in: Path | None = None) -> Iterator[Sample]:
    """The samples of every benchmark, one `Sample` for each combination of its parameters.

    A benchmark that failed or was skipped is left out; without recorded samples (`asv run --record-samples`) its one
    result stands for it.

    Raises:
        InputError: the file is no result of asv, or of another version of its format.
    """
    document = _read(path, left_in)
    if document.get("version") != _ASV_VERSION or not isinstance(document.get("results"), dict):
        hint = "name asv's results/MACHINE/COMMIT-ENVIRONMENT.json"
        raise InputError(f"{path}: version {document.get('version')!r}, expected asv's version {_ASV_VERSION}.", hint)
    try:
        columns: Sequence[str] = document["result_columns"]
        for name, row in document["results"].items():
            yield from _asv_samples(name, dict(zip(columns, row, strict=False)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: no result of asv: {type(error).__name__}: {error}.") from None


def _asv_samples(name: str, columns: dict[str, Any]) -> Iterator[Sample]:
    results = columns["result"] or []
    samples = columns.get("samples") or [None] * len(results)
    unit = _ASV_UNITS.get(name.rpartition(".")[2].partition("_")[0], "")
    for place, combination in enumerate(product(*columns["params"])):
        result = results[place] if place < len(results) else None  # null where the whole benchmark failed
        if result is not None and math.isfinite(result):
            values = samples[place] or [result]
            shown = f"{name}({', '.join(combination)})" if combination else name
            yield Sample(name=shown, unit=unit, better="lower", values=tuple(map(float, values)))


def _read(path: Path, left_in: Path | None) -> dict[str, Any]:
    try:
        found = json.loads(read_file(path, left_in))
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise InputError(f"{path}:{line}: no JSON: {error}.") from None
    if not isinstance(found, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(found).__name__}.")
    return found
