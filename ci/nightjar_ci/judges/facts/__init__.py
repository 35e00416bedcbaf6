"""Judges of compile facts: the program that XLA emitted, its difference from the baseline, and the compile cost."""
