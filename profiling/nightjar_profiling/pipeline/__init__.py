"""From a trace to a capture folder: reading, merging ranks, and opening a capture for programs."""
