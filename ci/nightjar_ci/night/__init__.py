"""A run of a matrix: its jobs, the scheduler that runs them, paired runs, progress, and pruning of old nights."""
