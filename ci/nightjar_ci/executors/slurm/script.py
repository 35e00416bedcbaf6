"""Which batch script do jobs become? Pure: cells in, the text that `sbatch` reads out.

One script holds one cell, or many small ones as an array. Each runs through `srun`, so that a job of several tasks
finds its processes by Slurm's variables, and leaves `slurm.exit` beside its logs: exit code, start, end.

Source: sbatch(1) and srun(1) of Slurm 22.05; the container options are those of Pyxis (github.com/NVIDIA/pyxis).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nightjar_ci.formats.resources import Resources

EXIT_FILE = "slurm.exit"
NO_FOLDER, NO_NAME, GAVE_UP = 73, 68, 75  # sysexits.h: EX_CANTCREAT, EX_NOHOST, EX_TEMPFAIL
OUT = "/out"  # the job's folder, in a container
WORK = "/work"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One job of a batch, as its script knows it.

    Attributes:
        folder: absolute path of its folder, on a file system that the nodes share.
        command: argument list.
        variables: environment variables that are its own; the others, secrets too, reach it from that of sbatch.
    """

    folder: str
    command: tuple[str, ...]
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What all cells of a batch have in common; cells with equal places can be one array.

    Attributes:
        resources: what each cell needs.
        timeout_s: wall time of each cell; Slurm counts whole minutes, so its own limit is the next one.
        image: a container image for Pyxis, or None.
        work: working directory, mounted as `/work` in a container; the cell's folder where None.
        options: further options of sbatch, such as `--partition=gpu`.
        restarts: how often a cell may start again after a node has failed or is drained, or a preemption.
        passed: names of the variables that the cells inherit by the matrix; their values are in no script.
    """

    resources: Resources
    timeout_s: float
    image: str | None = None
    work: str | None = None
    options: tuple[str, ...] = ()
    restarts: int = 3
    passed: tuple[str, ...] = ()


def render_batch(name: str, place: Place, cells: Sequence[Cell], excluded: Sequence[str] = ()) -> str:
    """The batch script.

    Args:
        name: job name.
        place: what the cells have in common.
        cells: one cell, or the elements of an array in their order.
        excluded: nodes that must not be used.
    """
    header = [
        f"--job-name={name}",
        *_ask_for(place.resources),
        f"--time={math.ceil(place.timeout_s / 60)}",
        "--requeue",
        "--open-mode=append",
        f"--output={cells[0].folder}/slurm-%j.log",
        *([f"--array=0-{len(cells) - 1}"] if len(cells) > 1 else []),
        *([f"--exclude={','.join(excluded)}"] if excluded else []),
        *place.options,
    ]
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {shlex.quote(option)}" for option in header),
            "",
            'case "${SLURM_ARRAY_TASK_ID:-0}" in',
            *(line for number, cell in enumerate(cells) for line in _render_cell(number, cell)),
            "esac",
            "",
            *_render_start(place),
            "",
            *_render_step(place, sorted({*place.passed, *(name for cell in cells for name in cell.variables)})),
            "",
        ]
    )


def _ask_for(resources: Resources) -> list[str]:
    wanted = (
        ("nodes", resources.nodes),
        ("ntasks-per-node", resources.tasks_per_node),
        ("cpus-per-task", resources.cpus_per_task),
        ("gpus-per-task", resources.gpus_per_task or None),
        ("mem", resources.memory),
    )
    return [f"--{option}={value}" for option, value in wanted if value is not None]


def _render_cell(number: int, cell: Cell) -> list[str]:
    exports = (f"  export {name}={shlex.quote(value)}" for name, value in sorted(cell.variables.items()))
    return [
        f"{number})",
        f"  folder={shlex.quote(cell.folder)}",
        *exports,
        f"  command=({shlex.join(cell.command)})",
        "  ;;",
    ]


def _render_start(place: Place) -> list[str]:
    """What happens before the step: logs, the count of attempts, and names that must resolve."""
    lines = [
        f'cd "$folder" || exit {NO_FOLDER}',
        f"rm -f {EXIT_FILE}",
        "for log in stdout.log stderr.log; do",  # a job that starts again may have left links there
        '  if [ -L "$log" ] || [ ! -f "$log" ]; then rm -f "$log"; fi',
        "done",
        "exec >>stdout.log 2>>stderr.log",
        "attempt=${SLURM_RESTART_COUNT:-0}",
        f'if [ "$attempt" -gt {place.restarts} ]; then',
        '  echo "nightjar: restarted $attempt times after lost or drained nodes or preemptions: given up" >&2',
        f"  exit {GAVE_UP}",
        "fi",
        '[ "$attempt" = 0 ] || echo "nightjar: restart $attempt, on $SLURM_JOB_NODELIST" >&2',
    ]
    if place.resources.tasks > 1:  # JAX takes the first node as coordinator, and hangs where its name is unknown
        lines += [
            'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            'if ! getent hosts "$first" >/dev/null; then',
            '  echo "nightjar: the name of the first node, $first, does not resolve on $(hostname)" >&2',
            f"  exit {NO_NAME}",
            "fi",
        ]
    return lines if place.work is None else [*lines, *_enter(place)]


def _enter(place: Place) -> list[str]:
    return (
        [] if place.image is not None or place.work is None else [f"cd {shlex.quote(place.work)} || exit {NO_FOLDER}"]
    )


def _render_step(place: Place, variables: Sequence[str]) -> list[str]:
    step = ["srun", "--kill-on-bad-exit=1"]
    if place.resources.cpus_per_task is not None:  # since 22.05 srun no longer takes it from sbatch
        step.append(f"--cpus-per-task={place.resources.cpus_per_task}")
    if place.resources.tasks > 1:
        step.append("--label")
    mounts = f'"--container-mounts=$folder:{OUT}'
    if place.image is not None:
        step += [shlex.quote(f"--container-image={name_for_pyxis(place.image)}"), "--no-container-mount-home"]
        step.append(f"--container-env={','.join(variables)}")  # they win over the image's own
        if place.work is not None:
            mounts += f",{place.work}:{WORK}:ro"
            step.append(f"--container-workdir={WORK}")
        step.append(f'{mounts}"')
    return [
        "started=$EPOCHREALTIME",
        f'{" ".join(step)} "${{command[@]}}"',
        "code=$?",
        f'rm -f "$folder/{EXIT_FILE}"',  # the job may have left a link there
        f'echo "$code $started $EPOCHREALTIME" >"$folder/{EXIT_FILE}"',
        'exit "$code"',
    ]


def name_for_pyxis(image: str) -> str:
    """An image reference as Pyxis spells it: `#` after the registry; a squashfs file stays a path.

    >>> name_for_pyxis("ghcr.io/nightjar/jax:2026-11-21")
    'ghcr.io#nightjar/jax:2026-11-21'
    >>> name_for_pyxis("nightjar/jax:cuda13"), name_for_pyxis("/images/jax.sqsh")
    ('nightjar/jax:cuda13', '/images/jax.sqsh')
    """
    registry, slash, rest = image.partition("/")
    if registry and slash and ("." in registry or ":" in registry or registry == "localhost") and registry[0] != ".":
        return f"{registry}#{rest}"
    return image
