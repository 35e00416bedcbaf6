"""Compilation of a training step, or of any lowered function, for absent devices.

In: a config, a mesh, a cluster and compiler options. Out: a `Compilation`: the optimized module with its buffer
assignment, the compiler's memory figures, its time and peak memory, the size of the PTX and warnings. State and batch
are only shapes, so an 8B model takes no memory.

The module comes from the compiler's dump, since only the dump holds the buffer assignment. Where a compiler with a
device would choose kernels by timing them, this one uses its defaults.
"""

from __future__ import annotations

import os
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from nightjar_models.aot.compile_errors import LOG, make_error
from nightjar_models.aot.compile_warnings import find_repeated, find_warnings
from nightjar_models.aot.topology import find_devices
from nightjar_models.errors import CompilerError, InputError
from nightjar_models.hardware.target import Cluster
from nightjar_models.kernels.fused_attention import note_choices
from nightjar_models.measuring.facts import read_memory
from nightjar_models.measuring.hlo import parse_hlo
from nightjar_models.parallel.mesh import MeshShape
from nightjar_models.parallel.sharding import make_mesh, use_mesh
from nightjar_models.presets.config import TrainConfig
from nightjar_models.program import ptx
from nightjar_models.program.module import Module, read_module
from nightjar_models.training.idioms import make_program
from nightjar_models.training.step import Program
from nightjar_models.training.tasks import Task, find_task

OPTIMIZED = "*after_optimizations.hlo.pb"
_RAISED = re.compile(r"^\w+(?:Error|Exception): .*$", re.MULTILINE)
_SHOWN_CHARACTERS = 600  # of a compiler's message


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """A compiled function, such as a training step.

    Attributes:
        hlo: the serialized `xla.HloProto`.
        module: the same, indexed.
        memory: as `facts.read_memory` reads it.
        code_bytes: size of the PTX text.
        spill_bytes: None without ptxas or PTX.
        names: of the variables of model and optimizer, in the order in which the step takes them.
        lower_s, compile_s: wall time; compile_cpu_s: of all threads.
        compiler_bytes: peak resident set of this process so far.
        warnings: for a person to read (`find_warnings`).
    """

    hlo: bytes
    module: Module
    memory: Mapping[str, int | None]
    code_bytes: int
    spill_bytes: int | None
    parameter_count: int
    names: Mapping[str, tuple[str, ...]]
    lower_s: float
    compile_s: float
    compile_cpu_s: float
    compiler_bytes: int
    warnings: tuple[str, ...]


def compile_step(
    config: TrainConfig,
    shape: MeshShape,
    cluster: Cluster,
    options: Mapping[str, Any],
    folder: Path,
    *,
    on_device: bool,
) -> Compilation:
    """Compiles the train step of a config.

    Args:
        shape: how many devices along each axis.
        folder: an empty folder for the compiler's dumps and its log (`compile_errors.LOG`).
        on_device: compile for this machine's own GPUs, on which kernels are then chosen by timing.
    """
    if shape.size != cluster.devices:
        raise InputError(
            f"--mesh {shape}: {shape.size} devices, expected the {cluster.devices} of --target {cluster}.",
            f"name {cluster.target.short}x{shape.size}, or another mesh",
        )
    mesh = make_mesh(shape, None if on_device else find_devices(cluster))
    task = find_task(config)
    program = make_program(config, task, mesh)
    begin = time.perf_counter()
    with note_choices() as choices:
        lowered = program.lower(abstract_batch(config, task, program))
    lower_s = time.perf_counter() - begin
    with use_mesh(mesh):  # TransformerEngine asks for it while XLA splits its kernels
        return compile_lowered(
            lowered,
            options,
            folder,
            lower_s=lower_s,
            parameter_count=program.parameter_count,
            names=program.names,
            warn=partial(find_warnings, configured=config.compute.attention, choices=choices),
            capability=cluster.target.compute_capability,
        )


def compile_lowered(
    lowered: Any,
    options: Mapping[str, Any],
    folder: Path,
    *,
    lower_s: float,
    parameter_count: int = 0,
    names: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    warn: Callable[[str, Module], tuple[str, ...]],
    capability: str | None = None,
) -> Compilation:
    """Compiles a lowered function, and reads the compiler's dump.

    Args:
        lower_s: seconds that lowering took.
        parameter_count, names: as in `Compilation`.
        warn: the warnings, of the compiler's log and the module.
        capability: compute capability of the GPU, to count spilled registers for; None: they are not counted.
    """
    dumped = {
        "xla_dump_to": str(folder),
        "xla_dump_hlo_as_proto": True,
        "xla_dump_hlo_module_re": ".*",
        "xla_dump_emitter_re": "ptx",  # jax 0.12 dumps none by default; 0.10 dumps all anyway
    }
    begin, cpu = time.perf_counter(), time.process_time()
    with (folder / LOG).open("w+b") as log:
        try:
            with captured_stderr(log.fileno()):
                compiled = lowered.compile(compiler_options={**options, **dumped})
        except (jax.errors.JaxRuntimeError, ValueError, NotImplementedError) as error:
            raise _translate(error) from None
        log.seek(0)
        messages = log.read().decode(errors="replace")
    compile_s, compile_cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    hlo = _read_dump(folder)
    texts = sorted(folder.glob("*.ptx"))
    spill_bytes = None
    if capability is not None and texts and (ptxas := ptx.find_ptxas()):
        spill_bytes = ptx.count_spills(texts, capability, ptxas)
    module = read_module(parse_hlo(hlo, "the compiler's dump"))
    return Compilation(
        hlo=hlo,
        module=module,
        memory=read_memory(compiled),
        code_bytes=sum(path.stat().st_size for path in texts),
        spill_bytes=spill_bytes,
        parameter_count=parameter_count,
        names=names,
        lower_s=lower_s,
        compile_s=compile_s,
        compile_cpu_s=compile_cpu_s,
        compiler_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        warnings=(*warn(messages, module), *find_repeated(lowered, module, count_devices(compiled))),
    )


def count_devices(compiled: Any) -> int:
    """On how many devices a compiled program runs; one if it returns nothing."""
    return max((sharding.num_devices for sharding in jax.tree.leaves(compiled.output_shardings)), default=1)


def abstract_batch(config: TrainConfig, task: Task, program: Program) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes, types and shardings of a batch."""
    example = task.read().train[0]
    return {
        name: jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
            (config.batch_size, *np.shape(value)), np.asarray(value).dtype, sharding=program.batch
        )
        for name, value in example.items()
    }


def parse_options(settings: Sequence[str]) -> dict[str, Any]:
    """Compiler options from `FLAG=VALUE` texts; the two dashes of XLA_FLAGS may stay.

    >>> parse_options(["--xla_gpu_enable_triton_gemm=false", "xla_gpu_autotune_level=0"])
    {'xla_gpu_enable_triton_gemm': False, 'xla_gpu_autotune_level': '0'}
    """
    options: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip("-"):
            raise InputError(f"--xla {setting}: expected FLAG=VALUE, such as xla_gpu_enable_triton_gemm=false.")
        options[name.lstrip("-")] = {"true": True, "false": False}.get(value.lower(), value)
    return options


@contextmanager
def captured_stderr(descriptor: int) -> Iterator[None]:
    """Redirects this process's stderr, C++'s included, to a file."""
    sys.stderr.flush()
    original = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(original, 2)
        os.close(original)


def _read_dump(folder: Path) -> bytes:
    modules = sorted(folder.glob(OPTIMIZED))
    if len(modules) != 1:
        raise CompilerError(
            f"the compiler dumped {len(modules)} optimized modules, expected one.",
            "unset XLA_FLAGS, and check that the disk of TMPDIR is not full",
        )
    return modules[0].read_bytes()


def _translate(error: Exception) -> CompilerError | InputError:
    text = str(error).strip()
    if "No such compile option" in text:
        return InputError(f"--xla: {text.splitlines()[0]}.", "use the names of XLA_FLAGS, without the dashes")
    raised = _RAISED.findall(text)  # by Python code that the compiler called, between two tracebacks
    if raised:
        text = raised[-1]
    return make_error(f"the program does not compile: {' '.join(text.split())[:_SHOWN_CHARACTERS]}")
