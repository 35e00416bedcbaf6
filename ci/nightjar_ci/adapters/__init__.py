"""Adapters: convert the logs of other programs to `nightjar.run/1`."""

from __future__ import annotations

from nightjar_ci.formats.adapter import Adapter, AdapterFile, read_adapter

__all__ = ["Adapter", "AdapterFile", "read_adapter"]
