"""Analyses of several devices: clocks, collectives and their bandwidth, overlap, and stragglers."""
