"""Matrices, executors, store, statistical gates and reports. Needs no JAX: workloads are read through files."""
