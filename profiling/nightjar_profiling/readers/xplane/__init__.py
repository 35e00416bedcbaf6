"""Readers of XSpace traces, the format of JAX's profiler."""
