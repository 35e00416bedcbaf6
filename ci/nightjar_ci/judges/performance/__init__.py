"""Judges of paired timings: effect with its interval, and sequential decisions with stated error rates."""
