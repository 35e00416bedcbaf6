"""Nightly wheels of JAX: the days of their index, one day as an index for uv, and the commits of a day."""
