"""Exports to the formats of other tools: one pure function per format, from tables to the bytes of a file."""
