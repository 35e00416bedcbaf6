"""How true are the shares that the profiler gives? Programs of two parts, and a clock that they read themselves."""
