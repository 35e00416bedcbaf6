"""How do jobs run on a Slurm cluster? `script` renders (pure), `cluster` asks Slurm, `executor` uses both."""
