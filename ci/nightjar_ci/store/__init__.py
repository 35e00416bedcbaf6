"""The store of runs, measures and verdicts across nights; `open_store(settings)` opens it."""

from __future__ import annotations

from nightjar_ci.store.measures import Point, StoredRun
from nightjar_ci.store.store import NightSummary, Store, open_store

__all__ = ["NightSummary", "Point", "Store", "StoredRun", "open_store"]
