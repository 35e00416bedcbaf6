"""Memory and estimated time of a candidate, by compiling it.

In: a config, a candidate, a cluster and compiler options. Out: a `Measured`, with the reason if the compiler fails or
its process dies. Candidates are compiled in another process, so that the search continues after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nightjar_models.aot.compile_errors import compile_with_remedies
from nightjar_models.aot.compile_subprocess import CompilerProcess
from nightjar_models.aot.fit import TERMS, Candidate, Measured
from nightjar_models.errors import CompilerError, InputError
from nightjar_models.hardware.target import Cluster
from nightjar_models.parallel.mesh import MeshShape
from nightjar_models.presets.config import TrainConfig, override


def measure_candidate(
    compiler: CompilerProcess, config: TrainConfig, candidate: Candidate, cluster: Cluster, options: dict[str, Any]
) -> Measured:
    """Compiles a candidate.

    Args:
        config: the config before the candidate's settings.
        options: compiler options; workarounds that were needed are added (`compile_with_remedies`).
    """
    config = override(config, candidate.settings)

    def compile_with(options: Mapping[str, Any]) -> dict[str, Any]:
        return compiler.call(measure_step, config, candidate.mesh, cluster, options)

    try:
        figures = compile_with_remedies(compile_with, options)
    except (InputError, CompilerError) as error:
        figures = {"problem": error.message, "hint": error.hint, "open": isinstance(error, CompilerError)}
    return Measured(candidate=candidate, options=dict(options), **figures)


def measure_step(
    folder: Path, config: TrainConfig, shape: MeshShape, cluster: Cluster, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Compiles a step and returns fields of `Measured`: bytes that it reserves and estimated seconds."""
    from nightjar_models.aot.compile import compile_step
    from nightjar_models.aot.estimate import estimate_step
    from nightjar_models.program.memory import reserved_bytes

    compilation = compile_step(config, shape, cluster, options, folder, spills=False)
    step = estimate_step(compilation.module, cluster)
    return {"reserved_bytes": reserved_bytes(compilation.module), **{term: getattr(step, term) for term in TERMS}}
