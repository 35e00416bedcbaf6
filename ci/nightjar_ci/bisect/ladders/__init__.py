"""Ladders from the good end to the bad end, one module per kind: packages, images, commits, a list."""
