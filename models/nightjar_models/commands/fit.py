"""`nightjar-models fit`: search for the mesh on which a workload fits on absent GPUs and trains fastest."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import typer

from nightjar_models.aot.compile_subprocess import CompilerProcess
from nightjar_models.aot.fit import TERMS, Candidate, Measured, choose_remats, measure_candidate, parse_devices, search
from nightjar_models.parallel.mesh import parse_mesh
from nightjar_models.presets import find_preset
from nightjar_models.presets.config import override

_WIDTHS = (5, 9, 9, 9, 9, 9, 9, 9)
_TITLES = ("fits", "step ms", "compute", "HBM", "NVLink", "network", "exposed", "rate")


def fit(
    preset: Annotated[str, typer.Argument(help="What to train; `nightjar-models presets` lists them.")],
    target: Annotated[str, typer.Option(help="GPU: a100, h100, h200 or b200.")] = "h100",
    devices: Annotated[str, typer.Option(help="How many: 8, or 8,64, or 8..1024 (8, 16, 32, ...).")] = "8",
    meshes: Annotated[
        list[str] | None, typer.Option("--mesh", help="Try this mesh only; may be repeated. Replaces --devices.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Examples per step over all devices (default: the preset's).")
    ] = None,
    xla: Annotated[
        list[str] | None, typer.Option("--xla", metavar="FLAG=VALUE", help="A compiler option; may be repeated.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one number; may be repeated.")
    ] = None,
    memory_fraction: Annotated[
        float,
        typer.Option(min=0.75, max=1.0, help="Largest fraction of a GPU's memory that JAX may take at start."),
    ] = 0.9,
    most: Annotated[int, typer.Option(min=1, help="Maximum number of compilations per number of devices.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document instead of a table.")] = False,
) -> None:
    """Search mesh, microbatches and rematerialization for absent GPUs.

    Exit code 1: nothing fits; 4: nothing that was tried fits, but not everything could be tried.

    Each row was compiled for its mesh. Memory is what the compiler reserves, plus the workspace of cuDNN's attention,
    which the compiler does not know without a GPU. Times are rooflines of the compiled program with the efficiencies
    that kernels reached on an H100: the step, kernels bound by arithmetic and by the device's memory (HBM), collectives
    within a host and between hosts, and the part of those that no computation overlaps. A compilation takes 5 to 20 s
    of CPU, so the search skips meshes whose state alone is too large and candidates that need more memory than one that
    does not fit. Experts are split over devices, equal layers into a pipeline; `parts` counts the microbatches of both
    kinds.

    The batch size is the same for every number of devices, except for a mesh that splits it over more devices than it
    has examples: there it is raised to one example per device. Compare examples per second (`rate`), by which rows are
    sorted.

    A step fits if it takes at most 95 % of what JAX may take of the device's memory (--memory-fraction): the rest is
    for evaluation, the next batch and fragmentation; memory outside JAX is for CUDA, NCCL and cuDNN. Both fractions are
    assumed. A plan that needs more than JAX's default of 75 % sets XLA_CLIENT_MEM_FRACTION.

    If XLA finds no tiles for a Triton product (vit_b16, t5_large), the search continues without such products, as with
    --xla xla_gpu_enable_triton_gemm=false, and the plan includes the flag; likewise without XLA's own kernels for
    all-reduces if one of them does not compile (llama2_7b on 64 GPUs, jax 0.12).

    Example: nightjar-models fit llama2_7b --target h100 --devices 8..64
    """
    from nightjar_models.aot.plan import render_plan, room_bytes
    from nightjar_models.aot.topology import prepare_process
    from nightjar_models.hardware.target import Cluster, parse_cluster, read_target

    config = override(find_preset(preset)(), settings or [])
    gpu = read_target(target)
    shapes = [parse_mesh(mesh) for mesh in meshes or []]
    counts = sorted({shape.size for shape in shapes}) or parse_devices(devices)
    for count in counts:
        parse_cluster(f"{target}x{count}")
    prepare_process()

    from nightjar_models.aot.compile import list_parameters, parse_options
    from nightjar_models.aot.meshes import list_meshes, state_bytes

    parameters, options = list_parameters(config), parse_options(xla or [])
    answers: list[dict[str, Any]] = []
    room = room_bytes(gpu.memory_bytes, memory_fraction)
    document = {
        "preset": preset,
        "target": target,
        "parameters": sum(math.prod(parameter.shape) for parameter in parameters),
        "device_bytes": gpu.memory_bytes,
        "room_bytes": room,
        "memory_fraction": memory_fraction,
        "estimate": True,
        "answers": answers,
    }
    if not as_json:
        print(render_heading(document), flush=True)
    with CompilerProcess() as compiler:
        for count in counts:
            cluster = parse_cluster(f"{target}x{count}")

            def compile_one(candidate: Candidate, cluster: Cluster = cluster) -> Measured:
                print(f"compiling {describe(candidate)}", file=sys.stderr, flush=True)
                measured = measure_candidate(compiler, config, candidate, cluster, options)
                print(f"  {describe_outcome(measured, room)}", file=sys.stderr, flush=True)
                return measured

            chosen = [shape for shape in shapes if shape.size == count]
            outcomes = search(
                chosen or list_meshes(count, gpu.devices_per_host, parameters, room),
                state_of=partial(state_bytes, parameters),
                batch_size=batch_size or config.batch_size,
                room_bytes=room,
                compile_one=compile_one,
                remats=choose_remats(config, settings or []),
                most=most,
            )
            plan = None
            if outcomes and outcomes[0].fits(room):
                plan = render_plan(preset, outcomes[0], gpu.memory_bytes, settings or [])
            answers.append({"devices": count, "plan": plan, "candidates": list_outcomes(outcomes, room)})
            if not as_json:
                print(render_answer(answers[-1]), flush=True)
    if as_json:
        print(json.dumps(document))
    if not any(answer["plan"] for answer in answers):
        raise typer.Exit(4 if any(row["open"] for answer in answers for row in answer["candidates"]) else 1)


def describe(candidate: Candidate) -> str:
    """One line about a candidate."""
    return f"{candidate.mesh}, batch {candidate.batch_size} in {candidate.parts} microbatches, remat {candidate.remat}"


def describe_outcome(measured: Measured, room_bytes: int) -> str:
    """One line about the outcome of a candidate."""
    if measured.reserved_bytes is None or measured.step_s is None:
        return f"does not compile: {measured.problem}"
    used, room = (size / 2**30 for size in (measured.reserved_bytes, room_bytes))
    return f"{used:.1f} of {room:.1f} GiB, estimated {measured.step_s * 1e3:.0f} ms"


def list_outcomes(outcomes: Sequence[Measured], room_bytes: int) -> list[dict[str, Any]]:
    """The outcomes as rows of the document; `rate` is of all devices together."""
    return [
        {
            **dataclasses.asdict(outcome),
            "rate": outcome.rate * outcome.candidate.mesh.size,
            "candidate": {
                **dataclasses.asdict(outcome.candidate),
                "mesh": str(outcome.candidate.mesh),
                "parts": outcome.candidate.parts,
            },
            "fits": outcome.fits(room_bytes),
        }
        for outcome in outcomes
    ]


def render_heading(document: dict[str, Any]) -> str:
    """The workload, its memory limit and the assumptions."""
    device, room = (document[name] / 2**30 for name in ("device_bytes", "room_bytes"))
    return (
        f"{document['preset']}: {document['parameters']:,} parameters. {document['target']}: a step may take "
        f"{room:.1f} of {device:.1f} GiB (JAX takes at most {document['memory_fraction']:.0%}, a step 95 % of that: "
        "assumed). Step times are estimates, not measured; rate is examples per second over all devices."
    )


def render_answer(answer: dict[str, Any]) -> str:
    """The table for one number of devices, and the command of the best candidate."""
    title = f"{answer['devices']} devices"
    rows = ["", f"{title:20} {'batch':>6} {'parts':>5} {'remat':14} {'GiB':>7} {_columns(_TITLES)}"]
    problems: dict[str, list[str]] = {}
    for outcome in answer["candidates"]:
        candidate = outcome["candidate"]
        row = f"{candidate['mesh']:20} {candidate['batch_size']:6} {candidate['parts']:5} {candidate['remat']:14}"
        if outcome["problem"] is not None:
            hint = ""
            if outcome["hint"]:
                hint = f" Hint: {outcome['hint']}"
            problems.setdefault(f"{outcome['problem'][:120]}{hint}", []).append(candidate["mesh"])
            continue
        times = [f"{outcome[term] * 1e3:.1f}" for term in TERMS]
        cells = _columns(["yes" if outcome["fits"] else "no", *times, f"{outcome['rate']:.1f}"])
        rows.append(f"{row} {outcome['reserved_bytes'] / 2**30:7.1f} {cells}")
    rows += [f"{', '.join(meshes)}: {problem}" for problem, meshes in problems.items()]
    if answer["plan"]:
        return "\n".join([*rows, answer["plan"]])
    is_open = any(outcome["open"] for outcome in answer["candidates"])
    return "\n".join([*rows, "nothing that was tried fits" if is_open else "nothing fits"])


def _columns(texts: Sequence[str]) -> str:
    return " ".join(f"{text:>{width}}" for text, width in zip(texts, _WIDTHS, strict=True))
