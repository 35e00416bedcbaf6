"""Counters of a job besides its times: JAX's tracing, lowering and compiling, and calls of Python.

A matrix asks for them with `measure`. Here: the code that runs in the job's Python processes, the second run that
counts calls, and the samples that both add to the result. Records that are not judged belong in `calls`.
"""
