"""Counters of a job: JAX's front end, instructions, and the samples that they become."""
