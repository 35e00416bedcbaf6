"""`nightjar-models train`: train one workload and write its `result.json`."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from nightjar_models.doctor.checks import warn_before_nccl
from nightjar_models.errors import DivergedError
from nightjar_models.measuring.result import ResultFile, Run, dump
from nightjar_models.parallel.distributed import find_cluster, meet, start_jax
from nightjar_models.parallel.mesh import parse_mesh, render_xla_flags
from nightjar_models.presets import find_preset
from nightjar_models.presets.config import override
from nightjar_models.training.progress import show_progress


def train(
    preset: Annotated[str, typer.Argument(help="What to train; `nightjar-models presets` lists them.")],
    out: Annotated[
        Path | None, typer.Option(envvar="NIGHTJAR_OUT", help="Output folder; continued if it holds a checkpoint.")
    ] = None,
    mesh: Annotated[
        str, typer.Option(help="Devices along each axis (dp, fsdp, tp, sp, ep, pp), such as dp2.fsdp2.tp2.")
    ] = "dp1",
    seed: Annotated[
        int, typer.Option(envvar="NIGHTJAR_SEED", min=0, max=2**31 - 1, help="Seed of initialisation and data order.")
    ] = 0,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps to run (default: the preset's); the schedule does not change.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one number; may be repeated.")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(min=0, help="Steps between checkpoints; 0 writes none.")] = 0,
    nudged: Annotated[
        bool,
        typer.Option("--nudged", help="Start each parameter one rounding off, to see the effect of rounding."),
    ] = False,
    job: Annotated[
        str | None, typer.Option(envvar="NIGHTJAR_JOB", help="Job id (default: made from the options).")
    ] = None,
    programs: Annotated[
        Path | None,
        typer.Option(
            envvar="NIGHTJAR_PROGRAMS", help="Folder of compiled programs: load those that are there, add the others."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result document instead of a table.")] = False,
) -> None:
    """Train one workload on real data and write OUT/result.json.

    The result holds curves, step times and compile facts.

    If the mesh needs more than one device, a CPU is split into that many virtual devices (XLA_FLAGS). Under srun, or
    with JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, several processes train together; process 0
    writes the result.
    With --checkpoint-every, SIGTERM saves the current step and ends the run (exit code 143).

    Example: nightjar-models train gpt_tiny --seed 0 --out /tmp/gpt
    """
    settings = [*(settings or []), *([] if steps is None else [f"steps={steps}"])]
    config = override(find_preset(preset)(), settings)
    shape = parse_mesh(mesh)
    cluster = find_cluster(os.environ)
    devices = shape.size if cluster is None else cluster.share(shape.size)
    file = ResultFile(out)
    if flags := render_xla_flags(os.environ.get("XLA_FLAGS", ""), devices):
        os.environ["XLA_FLAGS"] = flags
    if cluster is not None:
        meet(cluster)
        start_jax(cluster)
    leads = cluster is None or cluster.leads

    import jax  # reads XLA_FLAGS when it starts

    if programs is not None:
        keep_programs(programs)

    from nightjar_models.measuring.environment import read_environment
    from nightjar_models.training import train as trainer

    warn_before_nccl(shape.size, jax.default_backend())
    with show_progress(f"{preset} {shape} seed {seed}", config.steps, shown=leads) as progress:
        run = trainer.train(
            config,
            seed=seed,
            mesh=shape,
            out=file.folder,
            checkpoint_every=checkpoint_every,
            nudged=nudged,
            counted=True,
            progress=progress,
        )
    environment = read_environment()
    name = job or f"{preset}-train-{environment['backend']}-{config.compute.dtype}-{shape}-s{seed}"
    document = file.render(run, environment, job=name, workload=preset, seed=seed)
    if leads:
        file.write(document)
        print(dump(document) if as_json else summarize(document, file.path))
    if run.status == "diverged":
        raise _diverged(name, run, config.learning_rate, file.path)


def keep_programs(folder: Path) -> None:
    """Makes JAX load compiled programs from a folder, and store new ones there, however quickly they compiled."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(folder))  # type: ignore[no-untyped-call]
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # type: ignore[no-untyped-call]
    # A GPU's kernels are chosen by timing, in each run again.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")  # type: ignore[no-untyped-call]


def _diverged(job: str, run: Run, learning_rate: float, path: Path) -> DivergedError:
    loss = run.curves[0]
    step, value = loss.steps[-1], loss.values[-1]
    what = f"the loss of step {step} is {value}"
    if math.isfinite(value):
        what = f"step {step} left NaN or infinity"
    message = f"{job}: {what}, expected a finite number."
    hint = f"lower learning_rate (now {learning_rate}) with --set; the curve up to that step is in {path}"
    return DivergedError(message, hint)


def summarize(document: dict[str, Any], path: Path) -> str:
    """A table of the last value of each curve and the median of each sample, and the result's path."""
    rows = [(curve["name"], curve["values"][-1], curve["unit"]) for curve in document["curves"]]
    for sample in document["samples"]:
        steady = sorted(sample["values"][sample["warmup"] :])
        rows.append((sample["name"], steady[len(steady) // 2], sample["unit"]))
    rows += [(name, value, "") for name, value in document["config"].items() if name.startswith("trivial.")]
    return "\n".join([*(f"{name:26} {value:14.6g} {unit}".rstrip() for name, value, unit in rows), str(path)])
