"""Other people's projects: their tests and scripts, the matrix and workflow written for them, trials of another JAX."""
