"""What do we remember across nights? `open_store(settings)` hands out the store of runs, measures and verdicts."""

from __future__ import annotations

from nightjar_ci.store.store import NightSummary, Point, Store, StoredRun, open_store

__all__ = ["NightSummary", "Point", "Store", "StoredRun", "open_store"]
