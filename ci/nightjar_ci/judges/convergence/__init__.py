"""Judges of training curves: against the baseline's seeds, the same seed, another cell, and a committed target."""
