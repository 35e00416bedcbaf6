"""Judges, one per kind of measure: pure functions from plain data to a `Verdict`."""
