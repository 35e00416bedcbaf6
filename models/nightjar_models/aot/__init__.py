"""Ahead-of-time compilation for absent GPUs: the compiler's output, whether it fits, and how long it should take."""
