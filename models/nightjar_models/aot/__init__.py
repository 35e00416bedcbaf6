"""Ahead-of-time compilation for absent GPUs: what the compiler emits, whether it fits, and how long it should take."""
