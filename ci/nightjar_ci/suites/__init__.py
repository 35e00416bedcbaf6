"""Tests as jobs: the options of a test command, the reports that it writes, and how they become a result."""
