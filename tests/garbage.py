"""Python's collector of garbage in processes that trace and compile much.

It walks through all that JAX keeps each time, which was a fifth of the CPU time of tests of models, and finds little.
"""

import gc

EVERY = (20_000, 20, 20)  # Python's are 700, 10, 10


def collect_seldom() -> None:
    """Leaves out what is there already, modules above all, and collects the rest seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*EVERY)
