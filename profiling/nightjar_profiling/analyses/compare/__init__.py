"""Comparison of two captures: which programs match, and what became slower."""
