"""Projects of other people: what a folder has to run, the matrix and workflow written for it, trials of another JAX."""
