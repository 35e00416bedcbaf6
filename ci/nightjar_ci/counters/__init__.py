"""Counters of a job besides its times: JAX's tracing, lowering and compiling, recorded in its Python processes."""
