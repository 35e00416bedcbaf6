"""The capture folder: its tables, manifest, sources and ranks, and the rule for what counts as user code."""
