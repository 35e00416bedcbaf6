"""Readers of XSpace traces, which JAX's own profiler writes."""
