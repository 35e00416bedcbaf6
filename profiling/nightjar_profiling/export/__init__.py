"""Exports to the formats of other tools; each is a pure function from tables to the bytes of a file."""
