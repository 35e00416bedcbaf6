"""Capturing: a program run under a profiler without touching its source."""
