"""The documentation against the code."""
