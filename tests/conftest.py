"""What all tests share: no property has a time limit of its own, so that a busy machine fails no test."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("nightjar", deadline=None)
settings.load_profile("nightjar")
