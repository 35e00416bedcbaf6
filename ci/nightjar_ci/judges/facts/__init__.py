"""Judges of compile facts: what XLA emitted for a cell, how it differs from the baseline, and what compiling cost."""
