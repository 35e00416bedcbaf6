"""Readers: from what a profiler wrote to the tables of a capture."""
