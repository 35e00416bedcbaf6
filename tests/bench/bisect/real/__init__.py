"""Real regressions between releases on PyPI, from public trackers: a test each, and the release it came with."""
