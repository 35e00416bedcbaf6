"""Tests of the package that brings all programs."""
