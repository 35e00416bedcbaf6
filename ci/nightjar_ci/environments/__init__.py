"""Environments in which jobs run: named specifications, uv environments, and locks that are kept current."""
