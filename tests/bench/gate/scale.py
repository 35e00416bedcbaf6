"""Many nights and many series: seconds of gate, report and site.

In: a made store of 2,000 nights of 300 series, and one of sixty nights of 20,000. Out: how long each command's work on
the next night takes. SQLite.
"""

import sys
import tempfile
import time
from pathlib import Path

from nightjar_ci.settings import read_settings
from nightjar_ci.site.write import Sources, write_site
from tests.bench.gate.store import MEASURES, fill_sqlite, fill_store, spend_night
from tests.bench.table import Row

SHAPES = {"2,000 nights x 300 series": (2000, 60, 5.0), "60 nights x 20,000 series": (60, 4000, 30.0)}
STEPS = ("gate", "report", "site")


def list_goals(quick: bool = False) -> list[str]:
    return [f"{step}, {shape}" for shape in SHAPES for step in STEPS]


def measure(quick: bool = False) -> list[Row]:
    rows = []
    for shape, (nights, cells, limit) in SHAPES.items():
        spent = time_steps(nights // 10 if quick else nights, cells)
        rows += [Row(name=f"{step}, {shape}", ours=spent[step], goal=limit, unit="s") for step in STEPS]
    return rows


def time_steps(nights: int, cells: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = f"sqlite:///{name}/store.sqlite"
        settings = read_settings({"NIGHTJAR_STATE_DIR": name, "NIGHTJAR_DATABASE_URL": url})
        fill_store(settings, lambda: fill_sqlite(url, nights, cells))
        gate_s, report_s, verdicts, _ = spend_night(folder / "nights" / "tonight", settings, nights, cells)
        began = time.perf_counter()
        write_site(folder / "site", settings, Sources(nights=folder / "nights", bisections=folder / "none"))
        site_s = time.perf_counter() - began
        judged = sum(verdict.judge == "history" for verdict in verdicts.verdicts)
        print(f"{judged} histories of {cells * len(MEASURES)} series were judged", file=sys.stderr, flush=True)
    return dict(zip(STEPS, (gate_s, report_s, site_s), strict=True))
