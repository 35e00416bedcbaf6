"""Batch script of jobs. Pure: cells in, the text for `sbatch` out.

A script holds one cell, or many small cells as an array. Each cell runs through `srun`, so that the processes of a
multi-task job get Slurm's variables, and writes `slurm.exit` next to its logs: exit code, start, end.

Source: sbatch(1) and srun(1) of Slurm 22.05; the container options are Pyxis's (github.com/NVIDIA/pyxis).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nightjar_ci.formats.resources import Resources
from nightjar_ci.web.registry import split_reference

EXIT_FILE = "slurm.exit"
NO_FOLDER, NO_NAME, GAVE_UP = 73, 68, 75  # sysexits.h: EX_CANTCREAT, EX_NOHOST, EX_TEMPFAIL
OUT = "/out"  # the job's folder, in a container
WORK = "/work"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One job of a batch.

    Attributes:
        folder: absolute path of its folder, on a file system that all nodes share.
        variables: its own environment variables; it inherits the others, including secrets, from sbatch.
    """

    folder: str
    command: tuple[str, ...]
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpec:
    """The common settings of all cells of a batch; cells with equal specs can form an array.

    Attributes:
        timeout_s: wall time of each cell; Slurm's own limit is rounded up to whole minutes.
        image: a container image for Pyxis, or None.
        work: working directory, mounted as `/work` in a container; the cell's folder if None.
        options: additional sbatch options, such as `--partition=gpu`.
        restarts: restart limit of a cell after failed nodes and preemptions.
        passed: names of the variables that the matrix lets the cells inherit; no script contains their values.
    """

    resources: Resources
    timeout_s: float
    image: str | None = None
    work: str | None = None
    options: tuple[str, ...] = ()
    restarts: int = 3
    passed: tuple[str, ...] = ()


def render_batch(name: str, spec: BatchSpec, cells: Sequence[Cell], excluded: Sequence[str] = ()) -> str:
    """The batch script.

    Args:
        cells: one cell, or the elements of an array in order.
        excluded: nodes that the batch must not use.
    """
    header = [
        f"--job-name={name}",
        *_render_resources(spec.resources),
        f"--time={math.ceil(spec.timeout_s / 60)}",
        "--requeue",
        "--open-mode=append",
        f"--output={cells[0].folder}/slurm-%j.log",
    ]
    if len(cells) > 1:
        header.append(f"--array=0-{len(cells) - 1}")
    if excluded:
        header.append(f"--exclude={','.join(excluded)}")
    header += spec.options
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {shlex.quote(option)}" for option in header),
            "",
            'case "${SLURM_ARRAY_TASK_ID:-0}" in',
            *(line for number, cell in enumerate(cells) for line in _render_cell(number, cell)),
            "esac",
            "",
            *_render_start(spec),
            "",
            *_render_step(spec, sorted({*spec.passed, *(name for cell in cells for name in cell.variables)})),
            "",
        ]
    )


def _render_resources(resources: Resources) -> list[str]:
    options = (
        ("nodes", resources.nodes),
        ("ntasks-per-node", resources.tasks_per_node),
        ("cpus-per-task", resources.cpus_per_task),
        ("gpus-per-node", resources.gpus_per_node or None),  # NCCL talks between GPUs of a node that it sees
        ("mem", resources.memory),
    )
    return [f"--{option}={value}" for option, value in options if value is not None]


def _render_cell(number: int, cell: Cell) -> list[str]:
    exports = (f"  export {name}={shlex.quote(value)}" for name, value in sorted(cell.variables.items()))
    return [
        f"{number})",
        f"  folder={shlex.quote(cell.folder)}",
        *exports,
        f"  command=({shlex.join(cell.command)})",
        "  ;;",
    ]


def _render_start(spec: BatchSpec) -> list[str]:
    """The commands before the step: logs, the restart limit, and a check that host names resolve."""
    lines = [
        f'cd "$folder" || exit {NO_FOLDER}',
        f"rm -f {EXIT_FILE}",
        "for log in stdout.log stderr.log; do",  # a restarted job may have left links there
        '  if [ -L "$log" ] || [ ! -f "$log" ]; then rm -f "$log"; fi',
        "done",
        "exec >>stdout.log 2>>stderr.log",
        "attempt=${SLURM_RESTART_COUNT:-0}",
        f'if [ "$attempt" -gt {spec.restarts} ]; then',
        '  echo "nightjar: giving up after $attempt restarts (lost nodes, preemptions)" >&2',
        f"  exit {GAVE_UP}",
        "fi",
        '[ "$attempt" = 0 ] || echo "nightjar: restart $attempt, on $SLURM_JOB_NODELIST" >&2',
    ]
    if spec.resources.tasks > 1:  # JAX uses the first node as coordinator, and hangs if its name does not resolve
        lines += [
            'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            'if ! getent hosts "$first" >/dev/null; then',
            '  echo "nightjar: the name of the first node, $first, does not resolve on $(hostname)" >&2',
            f"  exit {NO_NAME}",
            "fi",
        ]
    if spec.work is not None and spec.image is None:
        lines.append(f"cd {shlex.quote(spec.work)} || exit {NO_FOLDER}")
    return lines


_FAILED = (  # a process that fails has the others terminated, and 143 is the highest code
    r"""failed=$(sed -n 's/^srun: error: .* exit code \([1-9][0-9]*\)$/\1/p' "$folder/stderr.log" | tail -n 1)""",
    'if [ "$code" = 143 ]; then code=${failed:-143}; fi',
)


def _render_step(spec: BatchSpec, variables: Sequence[str]) -> list[str]:
    step = ["srun", "--kill-on-bad-exit=1"]
    if spec.resources.cpus_per_task is not None:  # since 22.05 srun no longer takes it from sbatch
        step.append(f"--cpus-per-task={spec.resources.cpus_per_task}")
    if spec.resources.tasks > 1:
        step.append("--label")
    mounts = f'"--container-mounts=$folder:{OUT}'
    if spec.image is not None:
        step += [shlex.quote(f"--container-image={name_for_pyxis(spec.image)}"), "--no-container-mount-home"]
        step.append(f"--container-env={','.join(variables)}")  # they override the image's
        if spec.work is not None:
            mounts += f",{spec.work}:{WORK}:ro"
            step.append(f"--container-workdir={WORK}")
        step.append(f'{mounts}"')
    gpus = spec.resources.gpus_per_task
    if gpus:  # JAX would take the one GPU that has the number of the task on its node
        step.append("--gpu-bind=none")
        last = f"$((SLURM_LOCALID * {gpus} + {gpus - 1}))"
        own = f'JAX_LOCAL_DEVICE_IDS=$(seq -s , $((SLURM_LOCALID * {gpus})) {last}) exec "$@"'
        step += ["sh", "-c", shlex.quote(own), "sh"]
    return [
        "started=$EPOCHREALTIME",
        f'{" ".join(step)} "${{command[@]}}"',
        "code=$?",
        *(_FAILED if spec.resources.tasks > 1 else ()),
        f'rm -f "$folder/{EXIT_FILE}"',  # the job may have left a link there
        f'echo "$code $started $EPOCHREALTIME" >"$folder/{EXIT_FILE}"',
        'exit "$code"',
    ]


def is_path(image: str) -> bool:
    """Whether Pyxis takes it for a squashfs file, which it does not pull."""
    return image.startswith(("/", "./", "../"))


def name_for_pyxis(image: str) -> str:
    """An image reference in Pyxis notation: `#` after the registry; the path of a squashfs file stays as it is.

    A digest takes the place of the tag: Enroot reads `@sha256:...` only since version 4.

    >>> name_for_pyxis("ghcr.io/nightjar/jax:2026-11-21"), name_for_pyxis("ghcr.io/nightjar/jax@sha256:0")
    ('ghcr.io#nightjar/jax:2026-11-21', 'ghcr.io#nightjar/jax:sha256:0')
    >>> name_for_pyxis("nightjar/jax:cuda13"), name_for_pyxis("/images/jax.sqsh")
    ('nightjar/jax:cuda13', '/images/jax.sqsh')
    """
    if is_path(image):
        return image
    if "@" in image:
        image = ":".join(split_reference(image))
    registry, slash, repository = image.partition("/")
    if slash and ("." in registry or ":" in registry or registry == "localhost"):
        return f"{registry}#{repository}"
    return image
