"""How long does it take to check a type (agronholm/typeguard#104)? Prints `us_per_check=`."""

import importlib
import time

typeguard = importlib.import_module("typeguard")  # as the release of the rung has it

best = float("inf")
for _ in range(30):
    start = time.perf_counter()
    for _ in range(2000):
        typeguard.check_type("x", "foo", str)
    best = min(best, time.perf_counter() - start)
print(f"us_per_check={best / 2000 * 1e6:.4f}")
