"""Comparison of captures: which programs, lines and instructions match, and what became slower."""
