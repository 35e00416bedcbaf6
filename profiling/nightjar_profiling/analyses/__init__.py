"""Analyses of a capture, one per file.

Every analysis is a pure function from `Tables` to a Polars frame; its docstring lists the columns. Times are integer
nanoseconds and sums are exact. Data missing from a trace is null or an empty frame, never a guess.
"""
