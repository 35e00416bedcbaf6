"""The noisy search: pure functions from results so far to a posterior and the next rungs to test."""
