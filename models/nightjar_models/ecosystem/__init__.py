"""Cells for libraries built on JAX, one file each, run in a locked environment of its own."""
