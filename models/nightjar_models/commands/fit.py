"""`nightjar-models fit`: does a workload fit on so many GPUs, on which mesh, and how fast should it be?"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import typer

from nightjar_models.aot.fit import TERMS, Candidate, Measured, choose_remats, parse_devices, search
from nightjar_models.parallel.mesh import parse_mesh
from nightjar_models.presets import find_preset
from nightjar_models.presets.config import override

_WIDTHS = (5, 9, 9, 9, 9, 9, 9, 9)
_TITLES = ("fits", "step ms", "compute", "HBM", "NVLink", "network", "exposed", "rate")


def fit(
    preset: Annotated[str, typer.Argument(help="What to train; `nightjar-models presets` lists them.")],
    target: Annotated[str, typer.Option(help="GPU: a100, h100, h200 or b200.")] = "h100",
    devices: Annotated[str, typer.Option(help="How many: 8, or 8,64, or 8..1024, which doubles.")] = "8",
    meshes: Annotated[
        list[str] | None, typer.Option("--mesh", help="Try this mesh only; may be repeated. Replaces --devices.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Examples per step over all devices, if not the preset's.")
    ] = None,
    xla: Annotated[
        list[str] | None, typer.Option("--xla", metavar="FLAG=VALUE", help="A compiler option; may be repeated.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one number; may be repeated.")
    ] = None,
    memory_fraction: Annotated[
        float,
        typer.Option(min=0.75, max=1.0, help="The largest share of a GPU's memory that JAX may take at its start."),
    ] = 0.9,
    most: Annotated[int, typer.Option(min=1, help="Compilations for each number of devices, at most.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document instead of a table.")] = False,
) -> None:
    """Search mesh, microbatches and rematerialization for absent GPUs.

    Ends with 1 where nothing fits, with 4 where nothing that was tried fits but not all could be.

    Every line was compiled for its mesh: memory is what the compiler reserves, and the workspace of cuDNN's attention
    that it does not know without a GPU; times are rooflines of the compiled
    program by what kernels reached on an H100: of the step, of kernels bound by arithmetic and by the device's memory
    (HBM), of collectives within a host and between hosts, and of those what nothing hides. A compilation takes 5 to
    20 s of CPU: a mesh whose state alone is too large is left out, and what must need more than a line that does not
    fit. Experts are split where there are any, equal layers into a pipeline; `parts` are microbatches of both kinds.

    The batch stays the same for every number of devices, but for a mesh that shares it among more devices than it has
    examples: there it is raised to one example for each, so compare examples per second (`rate`), by which lines are
    sorted.

    A step fits where it takes at most 95 % of what JAX may take of the device's memory (--memory-fraction): the rest of
    that is for evaluation, the next batch and gaps, and what JAX does not take is CUDA's, NCCL's and cuDNN's. Both
    shares are assumed. A plan that needs more than the 75 % that JAX takes by itself sets XLA_CLIENT_MEM_FRACTION.

    Where XLA finds no tiles for a Triton product (vit_b16, t5_large), it goes on without such products, as with
    --xla xla_gpu_enable_triton_gemm=false, and the plan says so; likewise without XLA's own kernels for all-reduces
    where one of them does not compile (llama2_7b on 64 GPUs, jax 0.12).

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
    from nightjar_models.aot.compile_subprocess import Apart
    from nightjar_models.aot.measure import measure_candidate
    from nightjar_models.aot.meshes import list_meshes, state_bytes

    parameters, options = list_parameters(config), parse_options(xla or [])
    answers: list[dict[str, Any]] = []
    room = room_bytes(gpu.memory_bytes, memory_fraction)
    document = {
        "schema": "nightjar.fit/1",
        "preset": preset,
        "target": target,
        "parameters": sum(math.prod(one.shape) for one in parameters),
        "device_bytes": gpu.memory_bytes,
        "room_bytes": room,
        "memory_fraction": memory_fraction,
        "estimate": True,
        "answers": answers,
    }
    if not as_json:
        print(render_heading(document), flush=True)
    with Apart() as apart:
        for count in counts:
            cluster = parse_cluster(f"{target}x{count}")

            def compile_one(candidate: Candidate, cluster: Cluster = cluster) -> Measured:
                print(f"compiling {describe(candidate)}", file=sys.stderr, flush=True)
                measured = measure_candidate(apart, config, candidate, cluster, options)
                print(f"  {tell(measured, room)}", file=sys.stderr, flush=True)
                return measured

            wanted = [shape for shape in shapes if shape.size == count]
            found = search(
                wanted or list_meshes(count, gpu.devices_per_host, parameters, room),
                state_of=partial(state_bytes, parameters),
                batch_size=batch_size or config.batch_size,
                room_bytes=room,
                compile_one=compile_one,
                remats=choose_remats(config, settings or []),
                most=most,
            )
            best = next((one for one in found[:1] if one.fits(room)), None)
            plan = None if best is None else render_plan(preset, best, gpu.memory_bytes, settings or [])
            answers.append({"devices": count, "plan": plan, "candidates": list_found(found, room)})
            if not as_json:
                print(render_answer(answers[-1]), flush=True)
    if as_json:
        print(json.dumps(document))
    if not any(answer["plan"] for answer in answers):
        raise typer.Exit(4 if any(one["open"] for answer in answers for one in answer["candidates"]) else 1)


def describe(candidate: Candidate) -> str:
    """A candidate in a few words."""
    return f"{candidate.mesh}, batch {candidate.batch_size} in {candidate.parts} microbatches, remat {candidate.remat}"


def tell(measured: Measured, room_bytes: int) -> str:
    """What became of a candidate, in a few words."""
    if measured.reserved_bytes is None or measured.step_s is None:
        return f"refused: {measured.problem}"
    used, room = (size / 2**30 for size in (measured.reserved_bytes, room_bytes))
    return f"{used:.1f} of {room:.1f} GiB, estimated {measured.step_s * 1e3:.0f} ms"


def list_found(found: Sequence[Measured], room_bytes: int) -> list[dict[str, Any]]:
    """What was tried, as the document has it; `rate` is of all devices."""
    return [
        {
            **dataclasses.asdict(one),
            "rate": one.rate * one.candidate.mesh.size,
            "candidate": {
                **dataclasses.asdict(one.candidate),
                "mesh": str(one.candidate.mesh),
                "parts": one.candidate.parts,
            },
            "fits": one.fits(room_bytes),
        }
        for one in found
    ]


def render_heading(document: dict[str, Any]) -> str:
    """What is fitted, into how much, and what is assumed."""
    device, room = (document[name] / 2**30 for name in ("device_bytes", "room_bytes"))
    return (
        f"{document['preset']}: {document['parameters']:,} parameters. {document['target']}: a step may take "
        f"{room:.1f} of {device:.1f} GiB (JAX takes at most {document['memory_fraction']:.0%}, a step 95 % of that: "
        "assumed). Step times are estimates, not measured; rate is examples per second of all devices."
    )


def render_answer(answer: dict[str, Any]) -> str:
    """A table for a number of devices, and the command of the best."""
    title = f"{answer['devices']} devices"
    rows = ["", f"{title:20} {'batch':>6} {'parts':>5} {'remat':14} {'GiB':>7} {_columns(_TITLES)}"]
    untold: dict[str, list[str]] = {}
    for one in answer["candidates"]:
        way = one["candidate"]
        row = f"{way['mesh']:20} {way['batch_size']:6} {way['parts']:5} {way['remat']:14}"
        if one["problem"] is not None:
            hint = f" Hint: {one['hint']}" if one["hint"] else ""
            untold.setdefault(f"{one['problem'][:120]}{hint}", []).append(way["mesh"])
            continue
        times = [f"{one[term] * 1e3:.1f}" for term in TERMS]
        cells = _columns(["yes" if one["fits"] else "no", *times, f"{one['rate']:.1f}"])
        rows.append(f"{row} {one['reserved_bytes'] / 2**30:7.1f} {cells}")
    rows += [f"{', '.join(meshes)}: {problem}" for problem, meshes in untold.items()]
    doubt = any(one["open"] for one in answer["candidates"])
    return "\n".join([*rows, answer["plan"] or ("nothing that was tried fits" if doubt else "nothing fits")])


def _columns(texts: Sequence[str]) -> str:
    return " ".join(f"{text:>{width}}" for text, width in zip(texts, _WIDTHS, strict=True))
