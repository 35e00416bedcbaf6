"""Readers of the archives that nsys-jax writes."""
