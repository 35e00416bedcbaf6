"""Executor for Slurm clusters: `script` renders batches (pure), `cluster` calls Slurm, `executor` uses both."""
