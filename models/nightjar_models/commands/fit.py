"""`nightjar-models fit`: does a workload fit on so many GPUs, on which mesh, and how fast should it be?"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from nightjar_models.config import TrainConfig, override
from nightjar_models.errors import CompilerError, InputError
from nightjar_models.mesh import parse_mesh
from nightjar_models.presets import find_preset

TERMS = ("step_s", "compute_s", "memory_s", "nvlink_s", "network_s", "exposed_s")
_WIDTHS = (5, 9, 9, 9, 9, 9, 9, 9)
_TITLES = ("fits", "step ms", "compute", "HBM", "NVLink", "network", "exposed", "rate")


def fit(
    preset: Annotated[str, typer.Argument(help="What to train; `nightjar-models presets` lists them.")],
    target: Annotated[str, typer.Option(help="GPU: a100, h100 or b200.")] = "h100",
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
    most: Annotated[int, typer.Option(min=1, help="Compilations for each number of devices, at most.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document instead of a table.")] = False,
) -> None:
    """Search mesh, microbatches and rematerialization for GPUs that this machine does not have; 1 where nothing fits.

    Every line was compiled for its mesh: memory is what the compiler reserves; times are rooflines of the compiled
    program, not measured, for comparing lines: of the step, of kernels bound by arithmetic and by the device's memory
    (HBM), of collectives within a host and between hosts, and of those what nothing hides. A compilation takes 5 to
    20 s of CPU. The batch stays the same for every number of devices, but for a mesh that shares it among more devices
    than it has examples: there it is raised to one example for each, so compare examples per second (`rate`), by which
    lines are sorted.

    Where XLA finds no tiles for a Triton product (vit_b16, t5_large), it goes on without such products, as with
    --xla xla_gpu_enable_triton_gemm=false, and the plan says so.

    Example: nightjar-models fit llama2_7b --target h100 --devices 8..64
    """
    from nightjar_models.ahead.fit import (
        Candidate,
        Measured,
        compile_tiled,
        list_meshes,
        parse_devices,
        render_plan,
        search,
    )
    from nightjar_models.ahead.target import parse_cluster, read_target
    from nightjar_models.ahead.topology import prepare_process

    config = override(find_preset(preset)(), settings or [])
    gpu = read_target(target)
    shapes = [parse_mesh(mesh) for mesh in meshes or []]
    counts = sorted({shape.size for shape in shapes}) or parse_devices(devices)
    for count in counts:
        parse_cluster(f"{target}x{count}")
    prepare_process()

    from nightjar_models.ahead.compile import Compilation, compile_step, count_parameters, parse_options
    from nightjar_models.ahead.estimate import estimate_step
    from nightjar_models.ahead.memory import reserved_bytes

    parameters, options = count_parameters(config), parse_options(xla or [])
    answers: list[dict[str, Any]] = []
    for count in counts:
        cluster, left = parse_cluster(f"{target}x{count}"), [most]

        def compile_one(candidate: Candidate, cluster: Any = cluster, left: list[int] = left) -> Measured:
            if not left[0]:
                return Measured(candidate=candidate, problem=f"not tried: --most {most}")
            left[0] -= 1
            print(f"compiling {describe(candidate)}", file=sys.stderr, flush=True)

            def compile_with(options: Mapping[str, Any]) -> Compilation:
                return compile_step(configure(config, candidate), candidate.mesh, cluster, options)

            try:
                made = compile_tiled(compile_with, options)
            except (InputError, CompilerError) as error:
                return Measured(candidate=candidate, problem=error.message, hint=error.hint, options=dict(options))
            step = estimate_step(made.module, cluster)
            return Measured(
                candidate=candidate,
                reserved_bytes=reserved_bytes(made.module),
                options=dict(options),
                **{term: getattr(step, term) for term in TERMS},
            )

        found = search(
            [shape for shape in shapes if shape.size == count] or list_meshes(count, gpu.devices_per_host),
            parameters=parameters,
            batch_size=batch_size or config.batch_size,
            device_bytes=gpu.memory_bytes,
            compile_one=compile_one,
        )
        best = found[0] if found and found[0].fits(gpu.memory_bytes) else None
        answers.append(
            {
                "devices": count,
                "plan": None if best is None else render_plan(preset, best, settings or []),
                "candidates": [
                    {
                        **dataclasses.asdict(one),
                        "rate": one.rate * count,
                        "candidate": {**dataclasses.asdict(one.candidate), "mesh": str(one.candidate.mesh)},
                        "fits": one.fits(gpu.memory_bytes),
                    }
                    for one in found
                ],
            }
        )
    document = {
        "schema": "nightjar.fit/1",
        "preset": preset,
        "target": target,
        "parameters": parameters,
        "device_bytes": gpu.memory_bytes,
        "estimate": True,
        "answers": answers,
    }
    print(json.dumps(document) if as_json else summarize(document))
    if not any(answer["plan"] for answer in answers):
        raise typer.Exit(1)


def configure(config: TrainConfig, candidate: Any) -> TrainConfig:
    """The config of a candidate."""
    settings = [f"batch_size={candidate.batch_size}", f"compute.remat={candidate.remat}"]
    return override(config, [*settings, f"compute.accumulate={candidate.microbatches}"])


def describe(candidate: Any) -> str:
    """A candidate in a few words."""
    return (
        f"{candidate.mesh}, batch {candidate.batch_size} in {candidate.microbatches} microbatches, "
        f"remat {candidate.remat}"
    )


def summarize(document: dict[str, Any]) -> str:
    """A table for each number of devices, and the commands of the best."""
    device = document["device_bytes"]
    rows = [
        f"{document['preset']}: {document['parameters']:,} parameters, {document['target']} with "
        f"{device / 2**30:.1f} GiB. Step times are rooflines, not measured; rate is examples per second of all devices."
    ]
    for answer in document["answers"]:
        title = f"{answer['devices']} devices"
        rows += [
            "",
            f"{title:20} {'batch':>6} {'parts':>5} {'remat':14} {'GiB':>7} {_columns(_TITLES)}",
        ]
        for one in answer["candidates"]:
            way = one["candidate"]
            row = f"{way['mesh']:20} {way['batch_size']:6} {way['microbatches']:5} {way['remat']:14}"
            if one["problem"] is not None:
                hint = f" Hint: {one['hint']}" if one["hint"] else ""
                rows.append(f"{row} {one['problem'][:120]}{hint}")
                continue
            times = [f"{one[term] * 1e3:.1f}" for term in TERMS]
            cells = _columns(["yes" if one["fits"] else "no", *times, f"{one['rate']:.1f}"])
            rows.append(f"{row} {one['reserved_bytes'] / 2**30:7.1f} {cells}")
        rows.append(answer["plan"] or "nothing fits")
    return "\n".join(rows)


def _columns(texts: Sequence[str]) -> str:
    return " ".join(f"{text:>{width}}" for text, width in zip(texts, _WIDTHS, strict=True))
