"""The trainer: tasks, the step and its optimizer, checkpoints, orderly ends, and failures found early."""
