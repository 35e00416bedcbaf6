"""The pipeline from a trace to a capture folder: reading, merging ranks, and opening captures in Python."""
