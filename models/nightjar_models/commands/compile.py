"""`nightjar-models compile`: compile a workload for absent GPUs, and write facts and a static profile."""

from __future__ import annotations

import datetime
import lzma
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from nightjar_models.errors import InputError
from nightjar_models.measuring.result import Run, dump, prepare_folder, render_result, write_file, write_result
from nightjar_models.parallel.mesh import MeshShape, parse_mesh
from nightjar_models.presets import find_preset
from nightjar_models.presets.config import flatten, override

SHOWN_BUFFERS = 4
NO_ROOM = "does not fit: JAX takes at most {most:.0%} of a device, and a step at most {of_step:.0%} of that"


def compile_(
    preset: Annotated[str, typer.Argument(help="What to compile; `nightjar-models presets` lists them.")],
    target: Annotated[str, typer.Option(help="GPU and how many, such as h100x8: a100, h100, h200 or b200.")] = "h100x8",
    mesh: Annotated[
        str | None, typer.Option(help="Such as fsdp=8 or dp2.fsdp2.tp2; all devices over data by default.")
    ] = None,
    xla: Annotated[
        list[str] | None, typer.Option("--xla", metavar="FLAG=VALUE", help="A compiler option; may be repeated.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one number; may be repeated.")
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
    """Compile the train step for GPUs that this machine does not have.

    Needs no GPU and no driver.

    OUT/result.json holds what the compiler emitted (kernels, collectives, memory, an estimate of the step time),
    OUT/program.hlo.pb.xz the optimized program, OUT/instructions.json.xz what each instruction costs, OUT/capture a
    static profile for `nightjar-profiling report`. Needs the packages jax-cuda12-plugin, jax-cuda12-pjrt,
    nvidia-cuda-nvcc-cu12 (ptxas) and nvidia-cudnn-cu12, nothing else of CUDA: docker/locks/aot.txt.

    Example: nightjar-models compile gpt_tiny --target h100x8 --mesh fsdp=8 --out /tmp/gpt-h100
    """
    begin, started_at = time.monotonic(), datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    from nightjar_models.aot.topology import prepare_process
    from nightjar_models.hardware.target import parse_cluster

    config = override(find_preset(preset)(), settings or [])
    cluster = parse_cluster(target)
    shape = MeshShape(dp=cluster.devices) if mesh is None else parse_mesh(mesh)
    if out is None:
        raise InputError("no output folder: expected --out or NIGHTJAR_OUT.", "add --out FOLDER")
    prepare_folder(out)
    if not on_device:
        prepare_process()

    from nightjar_models.aot import capture, instructions, record
    from nightjar_models.aot.compile import compile_step, parse_options
    from nightjar_models.aot.compile_subprocess import watched_folder
    from nightjar_models.aot.estimate import estimate_step
    from nightjar_models.measuring.environment import read_environment

    options = parse_options(xla or [])
    with watched_folder() as folder:
        compilation = compile_step(config, shape, cluster, options, folder, on_device=on_device)
    estimate = estimate_step(compilation.module, cluster)
    environment = record.render_environment(read_environment(), cluster, on_device=on_device)
    environment["flags"] |= {f"--xla {name}": str(value) for name, value in options.items()}
    facts = record.render_facts(compilation, estimate, cluster)
    run = Run(
        status="completed",
        config={**flatten(config), "mesh": str(shape), "target": target, "parameters": compilation.parameter_count},
        curves=[],
        samples=record.render_samples(compilation),
        facts=[facts],
    )
    about = {
        "job": job or f"{preset}-compile-{cluster}-{shape}",
        "workload": preset,
        "seed": 0,
        "started_at": started_at,
        "duration_s": time.monotonic() - begin,
        "environment": environment,
    }
    write_file(out / "program.hlo.pb.xz", lzma.compress(compilation.hlo))
    costs = instructions.render_instructions(compilation.module, estimate, record.PROGRAM, str(cluster))
    write_file(out / "instructions.json.xz", instructions.pack_instructions(costs))
    timeline = capture.render_timeline(estimate, record.PROGRAM, cluster)
    manifest = capture.render_manifest(sys.argv, environment, cluster, capture.find_sources(compilation.module))
    capture.write_capture(out / "capture", compilation.hlo, timeline, manifest)
    document = render_result(run, about)
    path = write_result(out, document)
    print(dump(document) if as_json else summarize(document, path))


def summarize(document: dict[str, Any], path: Path) -> str:
    """A table of kernels, messages, memory and time, and the result's path."""
    from nightjar_models.aot.plan import MOST_FRACTION, OF_STEP, room_bytes

    facts = document["facts"][0]
    aot, time_of = facts["ahead"], {sample["name"]: sample["values"][0] for sample in document["samples"]}
    rows = [f"{'per step and device':30} {'instr.':>7} {'runs':>7} {'MiB':>12} {'GFLOP':>12}"]
    for kind, work in sorted(aot["kernels"].items(), key=lambda item: (-item[1]["flops"], -item[1]["bytes"])):
        rows.append(
            f"{kind:30} {work['count']:7} {work['runs']:7} {_mib(work['bytes']):12.1f} {work['flops'] / 1e9:12.2f}"
        )
    for kind, work in aot["messages"].items():
        rows.append(f"{'message ' + kind:30} {work['count']:7} {work['runs']:7} {_mib(work['bytes']):12.1f}")
    fraction = aot["reserved_bytes"] / aot["device_bytes"]
    fits = "fits"
    if aot["reserved_bytes"] > room_bytes(aot["device_bytes"]):
        fits = NO_ROOM.format(most=MOST_FRACTION, of_step=OF_STEP)
    rows.append(
        f"memory {_mib(aot['reserved_bytes']):.1f} MiB of {_mib(aot['device_bytes']):.0f} ({fraction:.1%}, {fits})"
    )
    for temporary, title in ((True, "largest temporary values at the peak"), (False, "largest persistent values")):
        buffers = [buffer for buffer in aot["buffers"] if (buffer["kind"] == "temp") is temporary]
        if buffers:
            rows.append(title)
        for buffer in buffers[:SHOWN_BUFFERS]:
            origin = buffer["line"] or buffer["op_name"]
            rows.append(f"  {_mib(buffer['bytes']):10.1f} MiB {buffer['kind']:9} {buffer['instruction']}  {origin}")
    times = aot["estimate"]
    rows.append(
        f"estimated step {times['step_s'] * 1e3:.3f} ms (roofline with measured efficiencies, not measured): "
        f"compute {times['compute_s'] * 1e3:.3f}, memory {times['memory_s'] * 1e3:.3f}, "
        f"launches {times['latency_s'] * 1e3:.3f}, communication {times['communication_s'] * 1e3:.3f} "
        f"of which {times['exposed_s'] * 1e3:.3f} exposed"
    )
    rows.append(
        f"compiled in {time_of['compile_time']:.1f} s ({time_of['compile_cpu_time']:.1f} s of CPU), "
        f"{_mib(time_of['compiler_memory']):.0f} MiB; PTX {aot['code_bytes']} bytes"
    )
    return "\n".join([*rows, *(f"warning: {warning}" for warning in aot["lints"]), str(path)])


def _mib(size: float) -> float:
    return size / 2**20
