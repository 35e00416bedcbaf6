"""Tests of recorded calls."""
