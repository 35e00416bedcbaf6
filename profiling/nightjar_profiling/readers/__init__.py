"""Readers of raw traces, which make the tables of a capture."""
