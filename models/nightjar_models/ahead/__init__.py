"""Compile for GPUs that are not there: what the compiler emits, whether it fits, and how long it should take."""
