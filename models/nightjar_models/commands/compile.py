"""`nightjar-models compile`: compile a workload or any function for GPUs or a CPU, and write facts and a profile."""

from __future__ import annotations

import lzma
import os
import re
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nightjar_models.errors import InputError
from nightjar_models.measuring.result import ResultFile, Run, dump, write_file
from nightjar_models.parallel.mesh import MeshShape, parse_mesh, render_xla_flags
from nightjar_models.presets import find_preset
from nightjar_models.presets.config import flatten, override

if TYPE_CHECKING:  # they import JAX, which reads the environment that this command sets first
    from nightjar_models.aot.compile import Compilation
    from nightjar_models.aot.record import Place

_NOT_ID = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The program to compile, and its options."""

    program: str
    args: str | None
    target: str
    mesh: str | None
    xla: list[str]
    settings: list[str]
    on_device: bool


def compile_(
    program: Annotated[
        str, typer.Argument(help="A preset of `nightjar-models presets`, or module:function, or file.py:function.")
    ],
    args: Annotated[
        str | None,
        typer.Option(
            help="Arguments of a function: shapes such as f32[8,128],i32[8], or the address of a function that returns"
            " a tuple of them."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Devices, such as h100x8: a100, h100, h200, b200, or cpu for this machine's"
            " [default: h100x8; of a function: cpu]."
        ),
    ] = None,
    mesh: Annotated[
        str | None,
        typer.Option(
            help="Such as fsdp=8 or dp2.fsdp2.tp2; of a function its own axes, such as data=4,model=2;"
            " all devices over data by default."
        ),
    ] = None,
    xla: Annotated[
        list[str] | None, typer.Option("--xla", metavar="FLAG=VALUE", help="A compiler option; may be repeated.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one number of a preset; may be repeated."),
    ] = None,
    on_device: Annotated[
        bool, typer.Option("--on-device", help="Compile for this machine's own GPUs, for comparison.")
    ] = False,
    out: Annotated[Path | None, typer.Option(envvar="NIGHTJAR_OUT", help="Output folder.")] = None,
    job: Annotated[
        str | None, typer.Option(envvar="NIGHTJAR_JOB", help="Job id (default: made from the options).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result document instead of a table.")] = False,
) -> None:
    """Compile a train step, or any jitted function, without running it.

    For a GPU it needs no GPU and no driver, only the packages jax-cuda12-plugin, jax-cuda12-pjrt, nvidia-cuda-nvcc-cu12
    (ptxas) and nvidia-cudnn-cu12: docker/locks/aot.txt. Arguments are shapes, so that nothing takes memory.

    OUT/result.json holds the compiler's facts (kernels, collectives, memory, and for a GPU an estimate of the step
    time), OUT/program.hlo.pb.xz the optimized program; for a GPU also OUT/capture, a static
    profile for `nightjar-profiling report`. `nightjar-ci show` compares two results.

    Example: nightjar-models compile step.py:step --args step.py:data --out out
    """
    is_function = ":" in program
    if is_function and settings:
        raise InputError("--set: expected with a preset, not with a function.")
    if not is_function and args is not None:
        raise InputError("--args: expected with a function, not with a preset.", "presets have their own batch")
    config: dict[str, Any] = {"function": program, "args": args or ""}
    if not is_function:
        config = flatten(override(find_preset(program)(), settings or []))
    wanted = Wanted(
        program=program,
        args=args,
        target=target or ("cpu" if is_function else "h100x8"),
        mesh=mesh,
        xla=xla or [],
        settings=settings or [],
        on_device=on_device,
    )
    make = compile_function if is_function else compile_preset
    file = ResultFile(out)
    compilation, place, shape = make(wanted)

    from nightjar_models.aot import capture, record
    from nightjar_models.aot.compile import parse_options
    from nightjar_models.aot.estimate import estimate_step
    from nightjar_models.aot.summary import summarize
    from nightjar_models.measuring.environment import read_environment

    name = program.rpartition(":")[2] if is_function else record.PROGRAM
    estimate = None
    if place.cluster is not None:
        estimate = estimate_step(compilation.module, place.cluster)
    environment = record.render_environment(read_environment(), place, on_device=on_device)
    environment["flags"] |= {f"--xla {flag}": str(value) for flag, value in parse_options(wanted.xla).items()}
    if not is_function:
        config["parameters"] = compilation.parameter_count
    run = Run(
        status="completed",
        config={**config, "mesh": shape, "target": wanted.target},
        curves=[],
        samples=record.render_samples(compilation),
        facts=[record.render_facts(compilation, estimate, place, name)],
    )
    job = job or f"{_NOT_ID.sub('-', program)}-compile-{place.name}-{shape.replace('=', '').replace(',', '.')}"
    document = file.render(run, environment, job=job, workload=program)
    write_file(file.folder / "program.hlo.pb.xz", lzma.compress(compilation.hlo))
    if estimate is not None and place.cluster is not None:
        timeline = capture.render_timeline(estimate, name, place.cluster)
        sources = capture.find_sources(compilation.module)
        manifest = capture.render_manifest(sys.argv, environment, place.cluster, sources)
        capture.write_capture(file.folder / "capture", compilation.hlo, timeline, manifest)
    file.write(document)
    print(dump(document) if as_json else summarize(document, file.path))


def compile_preset(wanted: Wanted) -> tuple[Compilation, Place, str]:
    """The train step of a preset for GPUs."""
    from nightjar_models.aot.topology import prepare_process
    from nightjar_models.hardware.target import parse_cluster

    config = override(find_preset(wanted.program)(), wanted.settings)
    cluster = parse_cluster(wanted.target)
    shape = MeshShape(dp=cluster.devices) if wanted.mesh is None else parse_mesh(wanted.mesh)
    if not wanted.on_device:
        prepare_process()

    from nightjar_models.aot.compile import compile_step, parse_options
    from nightjar_models.aot.compile_errors import watched_folder
    from nightjar_models.aot.record import Place

    options = parse_options(wanted.xla)
    with watched_folder() as folder:
        compilation = compile_step(config, shape, cluster, options, folder, on_device=wanted.on_device)
    return compilation, Place(name=str(cluster), devices=cluster.devices, cluster=cluster), str(shape)


def compile_function(wanted: Wanted) -> tuple[Compilation, Place, str]:
    """A user's function, for GPUs or for this machine's CPU."""
    from nightjar_models.aot.topology import prepare_process
    from nightjar_models.hardware.target import parse_cluster

    cluster = None
    match = re.fullmatch(r"cpu(?:x([1-9][0-9]{0,3}))?", wanted.target)
    if match is None:
        cluster = parse_cluster(wanted.target)
        count = cluster.devices
        if not wanted.on_device:
            prepare_process()
    else:
        count = int(match[1] or 1)
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["XLA_FLAGS"] = render_xla_flags(os.environ.get("XLA_FLAGS", ""), count)

    import jax

    from nightjar_models.aot.compile import compile_lowered, parse_options
    from nightjar_models.aot.compile_errors import watched_folder
    from nightjar_models.aot.compile_warnings import find_warnings
    from nightjar_models.aot.function import (
        find_function,
        lower_function,
        make_arguments,
        make_mesh,
        name_variables,
        place_arguments,
    )
    from nightjar_models.aot.record import Place
    from nightjar_models.aot.topology import find_devices, name_device

    devices = jax.devices()[:count]
    if cluster is not None and not wanted.on_device:
        devices = list(find_devices(cluster))
    if len(devices) < count:
        raise InputError(f"--target {wanted.target}: JAX has {len(devices)} devices, expected {count}.")
    mesh = make_mesh(devices, wanted.mesh)
    begin = time.perf_counter()
    context: Any = nullcontext()
    if count > 1:
        context = jax.set_mesh(mesh)
    elif cluster is not None:
        context = name_device(cluster)
    with context:
        function = find_function(wanted.program)
        arguments = place_arguments(make_arguments(wanted.args), mesh, wanted.args or "")
        if cluster is not None and count == 1 and not jax.tree.leaves(arguments):  # it would be one for this machine
            raise InputError(f"--args: {wanted.program} is compiled for the device of its arguments, and has none.")
        try:
            lowered = lower_function(function, arguments)
        except Exception as error:  # the user's own code, while it is traced
            raise InputError(
                f"{wanted.program}: tracing it: {type(error).__name__}: {error}",
                "do --args fit the function? `--debug` before the command prints the traceback",
            ) from error
        with watched_folder() as folder:
            compilation = compile_lowered(
                lowered,
                parse_options(wanted.xla),
                folder,
                lower_s=time.perf_counter() - begin,
                names=name_variables(function, arguments),
                warn=partial(find_warnings, configured="", choices=()),
                capability=None if cluster is None else cluster.target.compute_capability,
            )
    name = f"cpux{count}" if cluster is None else str(cluster)
    axes = ",".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    return compilation, Place(name=name, devices=count, cluster=cluster), axes
