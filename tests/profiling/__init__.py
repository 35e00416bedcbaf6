"""Tests of the profiling package."""
