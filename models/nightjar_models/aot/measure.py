"""What does compiling a candidate tell of it? The memory that a step reserves, and how long it should take.

In: a config, a candidate, a cluster and compiler options. Out: a `Measured`; where the compiler refuses, or ends its
process, in words why. Each is compiled in a process apart, so that the search goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nightjar_models.aot.compile_errors import compile_around
from nightjar_models.aot.compile_subprocess import Apart
from nightjar_models.aot.fit import TERMS, Candidate, Measured
from nightjar_models.errors import CompilerError, InputError
from nightjar_models.hardware.target import Cluster
from nightjar_models.parallel.mesh import MeshShape
from nightjar_models.presets.config import TrainConfig, override


def measure_candidate(
    apart: Apart, config: TrainConfig, candidate: Candidate, cluster: Cluster, options: dict[str, Any]
) -> Measured:
    """Compiles a candidate.

    Args:
        apart: where to.
        config: what is trained, before the candidate's settings.
        candidate: on which mesh and how.
        cluster: the devices.
        options: of the compiler; gets one that was needed (`compile_around`).
    """
    config = override(config, candidate.settings)

    def compile_with(options: Mapping[str, Any]) -> dict[str, Any]:
        return apart.call(measure_step, config, candidate.mesh, cluster, options)

    try:
        told = compile_around(compile_with, options)
    except (InputError, CompilerError) as error:
        told = {"problem": error.message, "hint": error.hint, "open": isinstance(error, CompilerError)}
    return Measured(candidate=candidate, options=dict(options), **told)


def measure_step(
    folder: Path, config: TrainConfig, shape: MeshShape, cluster: Cluster, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Compiles a step and reads what `Measured` holds of it: bytes that it reserves, seconds that it should take.

    Args:
        folder: an empty one, for the compiler.
        config: what is trained.
        shape: how many devices along each axis.
        cluster: the devices.
        options: of the compiler.

    Raises:
        InputError: mesh, batch and devices do not fit together, or an option is unknown.
        CompilerError: the compiler refuses the program.
    """
    from nightjar_models.aot.compile import compile_step
    from nightjar_models.aot.estimate import estimate_step
    from nightjar_models.aot.program.memory import reserved_bytes

    made = compile_step(config, shape, cluster, options, folder, spills=False)
    step = estimate_step(made.module, cluster)
    return {"reserved_bytes": reserved_bytes(made.module), **{term: getattr(step, term) for term in TERMS}}
