"""Is a store of 10,000 nights x 500 series still usable? Makes one, then gates and reports its last night.

SQLite; a hundred cells of five measures, one run of each a night, a verdict for each series and night. The documents
of earlier nights are left out: nothing that is measured here reads them.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from nightjar_ci.gate import gate_night
from nightjar_ci.night import read_night, write_night
from nightjar_ci.policy import Policies
from nightjar_ci.report.contents import gather
from nightjar_ci.report.write import write_reports
from nightjar_ci.settings import read_settings
from nightjar_ci.store import open_store
from nightjar_ci.store.query import query
from tests.bench.table import Row
from tests.ci.nights import make_night, outcome, record

CELLS, NIGHTS = 100, 10_000
MEASURES = (
    ("loss", "curve", "nats/token"),
    ("step_time", "sample", "s"),
    ("compile_time", "sample", "s"),
    ("eval_time", "sample", "s"),
    ("peak_memory", "sample", "bytes"),
)
POLICIES = Policies.model_validate({"schema": "nightjar.policies/1", "history": [{"measure": "*"}]})
START = datetime(2000, 1, 1, 3, tzinfo=UTC)


def measure(quick: bool) -> list[Row]:
    """Times of the gate, the report and a question; sizes of the store and the page."""
    nights = NIGHTS // 10 if quick else NIGHTS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = read_settings({"NIGHTJAR_STATE_DIR": name})
        open_store(settings).close()
        began = time.perf_counter()
        fill(folder / "store.sqlite", nights)
        print(f"made {nights} nights in {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        tonight = make_tonight(folder / "tonight", nights)
        store = open_store(settings)
        began = time.perf_counter()
        verdicts = gate_night(tonight, POLICIES, folder / "none", store)
        gated = time.perf_counter()
        page = write_reports(tonight, gather(tonight, verdicts, POLICIES, folder / "none", store))
        reported = time.perf_counter()
        query(settings, "SELECT night, value FROM history WHERE cell = 'cell007' AND measure = 'step_time'")
        asked = time.perf_counter()
        series = len(store.series_before(read_night(tonight).id))
        store.close()
        size_mb, page_mb = ((folder / "store.sqlite").stat().st_size / 1e6, page.stat().st_size / 1e6)
    where = f"{nights} nights x {series} series"
    return [
        Row(name=f"gate of one night, {where}", ours=gated - began, goal=10.0, unit="s"),
        Row(name=f"report of one night, {where}", ours=reported - gated, goal=30.0, unit="s"),
        Row(name="report.html", ours=page_mb, goal=10.0, unit="MB"),
        Row(name=f"query: one series over {nights} nights", ours=asked - reported, unit="s"),
        Row(name=f"series judged, of {series}", ours=len(verdicts.verdicts), goal=float(series), better="higher"),
        Row(name="store", ours=size_mb, unit="MB"),
        Row(name="store, a night and series", ours=1e6 * size_mb / nights / series, unit="bytes"),
    ]


def fill(path: Path, nights: int) -> None:
    """Writes the nights, many at once; as the store itself does it a night takes a tenth of a second."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous = OFF")
    key = record(0).environment.measured_on
    connection.execute("INSERT INTO environment VALUES (1, ?)", (key,))
    names = [(cell, one) for cell in range(CELLS) for one in MEASURES]
    rows = [(i, f"cell{cell:03d}", name, kind, unit, "lower") for i, (cell, (name, kind, unit)) in enumerate(names, 1)]
    connection.executemany("INSERT INTO series VALUES (?, ?, ?, ?, ?, ?)", rows)
    numbers = [int((START + timedelta(days=day)).timestamp() * 1e6) for day in range(nights)]
    for first in range(0, nights, 500):
        piece = range(first, min(nights, first + 500))
        connection.executemany("INSERT INTO night VALUES (?, ?, 'm', ?, ?, NULL)", _nights(piece, numbers))
        connection.executemany(
            "INSERT INTO run VALUES (?, ?, ?, 1, ?, 0, 'train', 'completed', 'k', ?)", _runs(piece, numbers)
        )
        connection.executemany(
            "INSERT INTO verdict VALUES (?, ?, ?, 'history', 'ok', ?)",
            ((numbers[day], i, f"{row[1]}/{row[2]}", "{}") for day in piece for i, row in enumerate(rows)),
        )
    rng = np.random.default_rng(0)
    for series, *_ in rows:  # in the order of the table
        values = np.exp(rng.normal(0, 0.01, nights)).tolist()
        cell = (series - 1) // len(MEASURES)
        column = ((series, numbers[day], day * CELLS + cell + 1, 1, values[day]) for day in range(nights))
        connection.executemany("INSERT INTO measure VALUES (?, ?, ?, ?, ?)", column)
    connection.commit()
    connection.close()


def make_tonight(folder: Path, nights: int) -> Path:
    """The night folder of the night after them."""
    runs = []
    for cell in range(CELLS):
        one = record(0, values=np.linspace(3, 1, 100).tolist(), step_times=(9.0, 1.0, 1.0), facts=[])
        more = [one.samples[0].model_copy(update={"name": name}) for name in ("compile_time", "eval_time")]
        one = one.model_copy(update={"samples": (*one.samples, *more)})
        runs.append((outcome(f"cell{cell:03d}-s0"), one))
    started = (START + timedelta(days=nights)).isoformat()
    made = make_night(folder, runs, "2050-01-01T0300-0000")
    write_night(made, read_night(made).model_copy(update={"started_at": started}))
    return made


def _nights(days: range, numbers: list[int]) -> Iterator[tuple[object, ...]]:
    for day in days:
        started = START + timedelta(days=day)
        yield numbers[day], f"{started:%Y-%m-%dT%H%M}-0000", started.isoformat(), started.isoformat()


def _runs(days: range, numbers: list[int]) -> Iterator[tuple[object, ...]]:
    for day in days:
        for cell in range(CELLS):
            name = f"cell{cell:03d}"
            yield day * CELLS + cell + 1, numbers[day], f"{name}-s0", name, f"{day}-{cell}"
