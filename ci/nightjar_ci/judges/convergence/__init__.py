"""Judges of training curves: against the baseline's seeds, the same seed and another cell."""
