"""Is what a rival's loop compiles our own program? Then their step times differ by chance alone.

In: a preset. Out: a line of JSON: the styles of Flax's loops whose optimized program is ours, for the preset's batch.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import jax
from jaxlib._hlo import HloPrintOptions  # type: ignore[import-not-found]  # nothing public leaves out names

from nightjar_models.data.pipeline import train_batches
from nightjar_models.presets import find_preset
from nightjar_models.training.tasks import find_task
from tests.bench.models import contestant_flax, contestant_ours

STYLES = ("state", "our-state")  # loops over `jax.jit`, which can say what they compile
_DONATED = re.compile(r"input_output_alias=.*(?=, entry_computation_layout)")
# How values would lie on several devices; behind parameters there is nothing else
_SPREAD = re.compile(r"( parameter\(\d+\)).*|, sharding=\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}")


def find_same(preset: str) -> list[str]:
    """Which loops of Flax's run our program, as seen in a process of their own."""
    command = [sys.executable, "-m", "tests.bench.models.program", preset]
    environ = {**os.environ, "JAX_PLATFORMS": "cpu"}
    found: list[str] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environ).stdout)
    return found


def describe(lowered: jax.stages.Lowered) -> str:
    """Which arguments it overwrites, and every instruction in its order and with its operands, under canonical names.

    Left out are the names of the optimized program and its arguments, and how values would lie on several devices.
    """
    how = HloPrintOptions.canonical()
    how.print_backend_config = how.print_large_constants = True
    (module,) = lowered.compile().runtime_executable().hlo_modules()  # type: ignore[union-attr]
    text: str = module.to_string(how)
    header, _, instructions = text.partition("\n")
    donated = _DONATED.search(header)
    return (donated.group() if donated else "") + "\n" + _SPREAD.sub(r"\1", instructions)


def main(preset: str) -> None:
    """Compiles ours and the loops, and prints which are the same."""
    config = find_preset(preset)()
    batch: Any = dict(next(train_batches(find_task(config).read(), config.batch_size, seed=0)))
    ours = describe(contestant_ours.make(preset).lower(batch))
    print(json.dumps([s for s in STYLES if describe(contestant_flax.make(preset, s).lower(batch)) == ours]))


if __name__ == "__main__":
    main(*sys.argv[1:])
