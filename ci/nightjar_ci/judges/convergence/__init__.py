"""Judges of training curves: against seeds of a baseline, the same seed of an earlier night, and a committed target."""
