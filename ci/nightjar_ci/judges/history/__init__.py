"""Judges of a series over many nights: change points, open regressions, and values that need a re-run."""
