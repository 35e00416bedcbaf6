"""Is a store of 10,000 nights x 500 series still usable, or of 20,000 series? Makes them, and gates the next night.

SQLite, and PostgreSQL where it is installed; a hundred cells of five measures, one run of each a night, a verdict for
each series and night. The documents of earlier nights are left out: nothing that is measured here reads them.
"""

import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from nightjar_ci.formats.night_folder import read_night, write_night
from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.formats.policy import Policies
from nightjar_ci.formats.verdict import NightVerdicts
from nightjar_ci.gate.gate import gate_night
from nightjar_ci.report.contents import gather
from nightjar_ci.report.write import write_reports
from nightjar_ci.settings import Settings, read_settings
from nightjar_ci.site.write import Sources, write_site
from nightjar_ci.store import open_store
from tests.bench.table import Row
from tests.ci.nights import make_night, outcome, record
from tests.ci.postgres import find_programs, running_postgres
from tests.machine import find_lack

CELLS, NIGHTS = 100, 10_000
WIDE = [f"{step}, 60 nights x 20,000 series" for step in ("gate", "report", "site")]
MEASURES = (
    ("loss", "curve", "nats/token"),
    ("step_time", "sample", "s"),
    ("compile_time", "sample", "s"),
    ("eval_time", "sample", "s"),
    ("peak_memory", "sample", "bytes"),
)
POLICIES = Policies.model_validate({"schema": "nightjar.policies/1", "history": [{"measure": "*"}]})
START = datetime(2000, 1, 1, 3, tzinfo=UTC)


def list_goals_of(kind: str) -> list[str]:
    whole = [f"{what} of one night, {kind}, " for what in ("gate", "report")]
    return [*whole, f"report.html, {kind}", f"series judged, {kind}, "]


def list_goals(quick: bool) -> list[str]:
    return [*WIDE, *(name for kind in ("SQLite", "PostgreSQL") for name in list_goals_of(kind))]


def measure(quick: bool) -> list[Row]:
    nights = NIGHTS // 10 if quick else NIGHTS
    with tempfile.TemporaryDirectory() as name:
        rows = measure_one("SQLite", f"sqlite:///{name}/store.sqlite", fill_sqlite, nights)
    rows += measure_wide(*((6, 400) if quick else (60, 4000)))
    if (lack := find_lack("postgres")) is not None:
        return rows + [Row(name=name, lack=lack) for name in list_goals_of("PostgreSQL")]
    with running_postgres(find_programs()) as url:
        return rows + measure_one("PostgreSQL", url, fill_postgres, nights)


def measure_wide(nights: int, cells: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder, url = Path(name), f"sqlite:///{name}/store.sqlite"
        settings = read_settings({"NIGHTJAR_STATE_DIR": name, "NIGHTJAR_DATABASE_URL": url})
        fill_store(settings, lambda: fill_sqlite(url, nights, cells))
        gate_s, report_s, *_ = spend_night(folder / "nights" / "tonight", settings, nights, cells)
        began = time.perf_counter()
        write_site(folder / "site", settings, Sources(nights=folder / "nights", bisections=folder / "none"))
        spent = gate_s, report_s, time.perf_counter() - began
    return [Row(name=step, ours=seconds, goal=30.0, unit="s") for step, seconds in zip(WIDE, spent, strict=True)]


def measure_one(kind: str, url: str, fill: Callable[[str, int], None], nights: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = read_settings({"NIGHTJAR_STATE_DIR": name, "NIGHTJAR_DATABASE_URL": url})
        fill_store(settings, lambda: fill(url, nights))
        gate_s, report_s, verdicts, page = spend_night(folder / "tonight", settings, nights)
        page_mb = page.stat().st_size / 1e6
    series, judged = CELLS * len(MEASURES), len(verdicts.verdicts)
    where = f"{kind}, {nights} nights x {series} series"
    return [
        Row(name=f"gate of one night, {where}", ours=gate_s, goal=10.0, unit="s"),
        Row(name=f"report of one night, {where}", ours=report_s, goal=30.0, unit="s"),
        Row(name=f"report.html, {kind}", ours=page_mb, goal=10.0, unit="MB"),
        Row(name=f"series judged, {kind}, of {series}", ours=judged, goal=float(series), better="higher"),
    ]


def fill_store(settings: Settings, fill: Callable[[], None]) -> None:
    open_store(settings).close()
    began = time.perf_counter()
    fill()
    print(f"made the nights in {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)


def spend_night(
    folder: Path, settings: Settings, nights: int, cells: int = CELLS
) -> tuple[float, float, NightVerdicts, Path]:
    """Gates and reports the night after those of a store: seconds of both, the verdicts, and the page."""
    tonight, none = make_tonight(folder, nights, cells), folder.parent / "none"
    store = open_store(settings)
    began = time.perf_counter()
    verdicts = gate_night(read_night_results(tonight), POLICIES, none, store)
    gated = time.perf_counter()
    page = write_reports(tonight, gather(read_night_results(tonight), verdicts, POLICIES, none, store))
    reported = time.perf_counter()
    store.close()
    return gated - began, reported - gated, verdicts, page


def fill_sqlite(url: str, nights: int, cells: int = CELLS) -> None:
    """Writes the nights, many at once: the store itself takes a tenth of a second a night."""
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    connection.execute("PRAGMA synchronous = OFF")
    for table, width, rows in make_tables(nights, cells):
        connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * width)})", rows)
    connection.commit()
    connection.close()


def fill_postgres(url: str, nights: int) -> None:
    """The same by COPY, and the counters of the keys set behind what was written."""
    import psycopg
    from psycopg import sql

    with psycopg.connect(url) as connection:
        for table, _, rows in make_tables(nights, CELLS):
            with connection.cursor().copy(sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(table))) as copy:
                for row in rows:
                    copy.write_row(row)
        for table in ("environment", "series", "run"):
            newest = sql.SQL("SELECT setval(pg_get_serial_sequence({}, 'id'), max(id)) FROM {}")
            connection.execute(newest.format(sql.Literal(table), sql.Identifier(table)))
        connection.commit()
        connection.autocommit = True
        connection.execute("ANALYZE")


def make_tables(nights: int, cells: int) -> Iterator[tuple[str, int, Iterable[tuple[object, ...]]]]:
    """Each table's name, number of columns, and rows, in an order in which keys exist before they are named."""
    series = [(cell, *one) for cell in range(cells) for one in MEASURES]
    numbered = [
        (i, f"cell{cell:03d}", name, kind, unit, "lower") for i, (cell, name, kind, unit) in enumerate(series, 1)
    ]
    numbers = [int((START + timedelta(days=day)).timestamp() * 1e6) for day in range(nights)]
    yield "environment", 2, [(1, record(0).environment.measured_on)]
    yield "series", 6, numbered
    yield "night", 8, _nights(numbers)
    yield "run", 10, _runs(numbers, cells)
    yield "measure", 5, _measures(numbers, cells)
    yield "verdict", 6, _verdicts(numbers, [f"{cell}/{name}" for _, cell, name, *_ in numbered])


def make_tonight(folder: Path, nights: int, cells: int = CELLS) -> Path:
    runs = []
    for cell in range(cells):
        one = record(0, values=np.linspace(3, 1, 100).tolist(), step_times=(9.0, 1.0, 1.0), facts=[])
        more = [one.samples[0].model_copy(update={"name": name}) for name in ("compile_time", "eval_time")]
        one = one.model_copy(update={"samples": (*one.samples, *more)})
        runs.append((outcome(f"cell{cell:03d}-s0"), one))
    started = (START + timedelta(days=nights)).isoformat()
    made = make_night(folder, runs, "2050-01-01T0300-0000")
    write_night(made, read_night(made).model_copy(update={"started_at": started}))
    return made


def _nights(numbers: list[int]) -> Iterator[tuple[object, ...]]:
    for day, number in enumerate(numbers):
        started = START + timedelta(days=day)
        night, at = f"{started:%Y-%m-%dT%H%M}-0000", started.isoformat()
        yield number, night, "nightly-cpu", at, at, None, None, None


def _runs(numbers: list[int], cells: int) -> Iterator[tuple[object, ...]]:
    for day, number in enumerate(numbers):
        for cell in range(cells):
            name, run = f"cell{cell:03d}", day * cells + cell + 1
            yield run, number, f"{name}-s0", 1, name, 0, "train", "completed", "k", f"{day}-{cell}"


def _measures(numbers: list[int], cells: int) -> Iterator[tuple[object, ...]]:
    rng = np.random.default_rng(0)
    for series in range(cells * len(MEASURES)):  # in the order of the table
        values = np.exp(rng.normal(0, 0.01, len(numbers))).tolist()
        for day, number in enumerate(numbers):
            yield series + 1, number, day * cells + series // len(MEASURES) + 1, 1, values[day]


def _verdicts(numbers: list[int], names: list[str]) -> Iterator[tuple[object, ...]]:
    for number in numbers:
        for position, name in enumerate(names):
            yield number, position, name, "history", "ok", "{}"
