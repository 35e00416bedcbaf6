"""`nightjar-doctor`: what JAX has to run on here (gather), what is wrong with it (checks), and one page about both."""
