"""Counters of a job beside its times: what JAX traced, lowered and compiled, and the instructions of the processor.

A matrix asks for them with `measure`. Here: the code that runs in the job's Python processes, the second run under
Valgrind, and the samples that both add to the result. What is recorded without being judged belongs into `calls`.
"""
