"""Faults of the disk: every call with which a command writes fails in turn, or the process is killed in it."""
