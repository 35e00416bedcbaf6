"""Programs with arrays of seven or more dimensions that end with SIGSEGV on x86.

Each runs in a process of its own, whose exit status is the value: 0, or minus the signal's number.
"""

from __future__ import annotations

import subprocess
import sys

from nightjar_models.canaries.entry import Canary

LIMIT_S = 300
PRODUCT_OF_SEVEN = """
import jax
shape = (3, 1, 2, 2, 8, 8, 8)
left, right = (jax.random.uniform(jax.random.key(seed), shape) for seed in (0, 1))
contract = jax.jit(lambda left, right: (left * right).sum(axis=3))
for _ in range(20):
    contract(left, right).block_until_ready()
"""
SUM_OF_EIGHT = """
import jax
from jax import numpy as jnp

@jax.jit
def sum_out(evidence, table):
    return jnp.log((evidence.reshape(10, 4, 6, 1, 1, 1, 1, 1) * table).sum(axis=2) + 1e-15)

sum_out(jnp.ones((10, 4, 6)), jnp.ones((10, 4, 6, 9, 9, 9, 9, 9))).block_until_ready()
"""


def run(program: str) -> int:
    """The exit status of a program."""
    return subprocess.run([sys.executable, "-c", program], check=False, timeout=LIMIT_S).returncode


CANARIES = (
    Canary(
        name="product_of_seven_dimensions",
        issue="jax-ml/jax#40412",
        compute=lambda: run(PRODUCT_OF_SEVEN),
        expected=0,
        seen=("0.10.2",),
        right="0.12.0.1",
        package="jaxlib",
    ),
    Canary(
        name="sum_of_eight_dimensions",
        issue="jax-ml/jax#39257",
        compute=lambda: run(SUM_OF_EIGHT),
        expected=0,
        seen=("0.10.2",),
        right="0.12.0.1",
        package="jaxlib",
    ),
)
