"""`nightjar-doctor`: the parts that JAX runs on here (gather), their faults (checks), and one page about both."""
