"""How true are the shares that the profiler gives of a CPU? Programs of two parts, each timed alone."""
