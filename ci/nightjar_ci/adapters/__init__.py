"""Adapters: a `nightjar.run/1` made from the logs of a program that knows nothing of Nightjar."""

from __future__ import annotations

from nightjar_ci.formats.adapter import Adapter, AdapterFile, read_adapter

__all__ = ["Adapter", "AdapterFile", "read_adapter"]
