"""Judges of paired timings: the effect with its interval, and sequential decisions with stated error rates."""
