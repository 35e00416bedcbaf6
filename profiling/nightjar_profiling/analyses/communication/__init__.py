"""Analyses across devices: clock offsets, collectives and their bandwidth, overlap, and stragglers."""
