"""Tests of what is written for other people's projects, and of trials."""
