"""The views of the store answer any client of its database, as docs/reference/store.md says."""

import sqlite3
from contextlib import closing
from pathlib import Path

from nightjar_ci.settings import read_settings
from nightjar_ci.store import open_store
from nightjar_ci.store.folder import import_night
from tests.ci.nights import CELL, failed, make_night, outcome, record


def test_the_documented_views_answer_any_client(tmp_path: Path) -> None:
    settings = read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path)})
    store = open_store(settings)
    runs = [(outcome(f"{CELL}-s{seed}"), record(seed, values=[3.0, 2.0 + seed])) for seed in range(2)]
    night = import_night(store, make_night(tmp_path / "night", [*runs, (failed("vit-s0"), None)]))
    store.add_verdicts(night.id, [{"series": f"{CELL}/loss", "judge": "convergence", "status": "ok", "n": 2}])
    store.close()
    with closing(sqlite3.connect(f"file:{tmp_path}/store.sqlite?mode=ro", uri=True)) as connection:
        losses = "SELECT replicate, value, unit FROM history WHERE measure = 'loss' ORDER BY replicate"
        assert connection.execute(losses).fetchall() == [(0, 2.0, "nats/token"), (1, 3.0, "nats/token")]
        assert connection.execute("SELECT job FROM outcomes WHERE state = 'failed'").fetchall() == [("vit-s0",)]
        assert connection.execute("SELECT status FROM verdicts").fetchall() == [("ok",)]
