"""Tests as jobs: what a test command is given, the reports that it writes, and how they become a result."""
