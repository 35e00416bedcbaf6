"""Nightly wheels of JAX: the days of their index, one day as an index for uv, a mirror, and the commits of a day."""
