"""A compiled program as data: its instructions, memory, kernels, source lines and replica groups."""
