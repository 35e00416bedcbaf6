"""Vulnerabilities: versions, entries, exceptions, and what a person is told."""
