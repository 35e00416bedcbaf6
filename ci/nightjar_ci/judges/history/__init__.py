"""Judges of a series over many nights: a jump far beyond the noise, a step of some nights, a lasting change, drift."""
