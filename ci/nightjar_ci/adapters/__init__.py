"""What did a program measure that knows nothing of Nightjar? `adapt` makes a `nightjar.run/1` of its logs."""

from __future__ import annotations

from nightjar_ci.adapters.config import Adapter, AdapterFile, read_adapter

__all__ = ["Adapter", "AdapterFile", "read_adapter"]
