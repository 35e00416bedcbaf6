"""Analyses of a capture, one per file.

Every analysis is a pure function from `Tables` to a Polars frame, whose columns its docstring names. Times are integer
nanoseconds, sums lose nothing, and what a trace does not hold is null or an empty frame, never a guess.
"""
