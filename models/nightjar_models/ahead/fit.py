"""On which mesh does a model train, and how fast? A search over meshes, microbatches and rematerialization.

In: the number of parameters, of devices, what a device holds, and a function that compiles one candidate. Out: what was
tried, in words and numbers, fastest first. Each candidate costs a compilation (5 to 20 s of CPU), so that the search is
short: a mesh whose state alone fills the devices is left out; on each other mesh the step is made to use less memory,
from no recomputing to all, then by halving what is computed at once, until it fits.

Less recomputing is less work, and fewer microbatches are fewer passes over the weights: the first candidate of a mesh
that fits is taken for the fastest on it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nightjar_models.ahead.refusal import TRITON_PRODUCTS, is_untiled
from nightjar_models.errors import CompilerError, InputError
from nightjar_models.mesh import MeshShape

STATE_BYTES = 12  # of a parameter: itself and Adam's two moments, in float32
REMATS = ("none", "dots_no_batch", "full")
MOST_MICROBATCHES = 8
MOST_DEVICES = 16_384  # sixteen times what was tried; a topology is made of each device
Compiled = TypeVar("Compiled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to run a step: `microbatches` parts of the batch one after the other, `remat` as in `Compute`."""

    mesh: MeshShape
    batch_size: int
    microbatches: int
    remat: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What compiling a candidate told.

    Attributes:
        reserved_bytes: of each device; None where it was not compiled.
        step_s: estimated; the terms of it: compute_s of kernels that arithmetic bounds, memory_s that the device's
            memory does, nvlink_s and network_s of collectives, exposed_s of those what nothing hides.
        options: of the compiler, that the times and the memory are with.
        problem: why there is nothing to tell, in words; hint: what may help.
    """

    candidate: Candidate
    reserved_bytes: int | None = None
    step_s: float | None = None
    compute_s: float | None = None
    memory_s: float | None = None
    nvlink_s: float | None = None
    network_s: float | None = None
    exposed_s: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None
    hint: str | None = None

    def fits(self, device_bytes: int) -> bool:
        """Whether the step's memory is there."""
        return self.reserved_bytes is not None and self.reserved_bytes <= device_bytes

    @property
    def rate(self) -> float:
        """Examples per second and device, by the estimate; 0 where there is none."""
        return self.candidate.batch_size / self.step_s / self.candidate.mesh.size if self.step_s else 0.0


def parse_devices(text: str) -> list[int]:
    """Reads `8`, `8,64` or `8..1024`, which doubles.

    Raises:
        InputError: no numbers, the first is larger than the last, or more than `MOST_DEVICES`.

    >>> parse_devices("8..64"), parse_devices("8,256")
    ([8, 16, 32, 64], [8, 256])
    """
    first, dots, last = text.partition("..")
    numbers = [first, last] if dots else text.split(",")
    if not all(number.isdecimal() and int(number) > 0 for number in numbers):
        raise InputError(f"--devices {text}: expected a number, several such as 8,64, or a range such as 8..1024.")
    found = [int(number) for number in numbers]
    if max(found) > MOST_DEVICES:
        raise InputError(f"--devices {text}: expected at most {MOST_DEVICES:,} devices.")
    if not dots:
        return sorted(set(found))
    if found[0] > found[1]:
        raise InputError(f"--devices {text}: expected the smaller number first.")
    return [found[0] << power for power in range(64) if found[0] << power <= found[1]]


def list_meshes(devices: int, per_host: int) -> list[MeshShape]:
    """The meshes that are tried: tensor parallelism within a host only; parameters split over nobody, a host, or all.

    >>> [str(mesh) for mesh in list_meshes(8, 8)]
    ['fsdp8', 'dp8', 'fsdp4.tp2', 'dp4.tp2', 'fsdp2.tp4', 'dp2.tp4', 'tp8']
    """
    found: dict[MeshShape, None] = {}
    tensor = 1
    while tensor <= min(devices, per_host):
        rest = devices // tensor
        if devices % tensor == 0:
            for fsdp in (rest, per_host // tensor, 1):
                if fsdp and rest % fsdp == 0:
                    found[MeshShape(dp=rest // fsdp, fsdp=fsdp, tp=tensor)] = None
        tensor *= 2
    return list(found)


def list_candidates(mesh: MeshShape, batch_size: int) -> Iterator[Candidate]:
    """The candidates of a mesh, the one that needs most memory first.

    Args:
        mesh: how many devices along each axis.
        batch_size: examples per step over all devices; raised to a multiple of those that share the batch.
    """
    shards = mesh.dp * mesh.fsdp
    batch_size = -(-batch_size // shards) * shards
    for remat in REMATS:
        yield Candidate(mesh=mesh, batch_size=batch_size, microbatches=1, remat=remat)
    parts = 2
    while parts <= MOST_MICROBATCHES and batch_size // shards % parts == 0:
        yield Candidate(mesh=mesh, batch_size=batch_size, microbatches=parts, remat=REMATS[-1])
        parts *= 2


def search(
    meshes: Iterable[MeshShape],
    *,
    parameters: int,
    batch_size: int,
    device_bytes: int,
    compile_one: Callable[[Candidate], Measured],
) -> list[Measured]:
    """What was tried, the fastest that fits first, then what does not fit.

    Args:
        meshes: to try.
        parameters: how many numbers are learned.
        batch_size: examples per step over all devices.
        device_bytes: memory of a device.
        compile_one: compiles a candidate; a mesh that it says cannot be is given up.
    """
    found: list[Measured] = []
    for mesh in meshes:
        candidates = list(list_candidates(mesh, batch_size))
        state = STATE_BYTES * parameters // (mesh.fsdp * mesh.tp)
        if state > device_bytes:
            problem = f"parameters and optimizer alone take {state / 2**30:.1f} GiB of each device"
            found.append(Measured(candidate=candidates[-1], problem=problem))
            continue
        for candidate in candidates:
            measured = compile_one(candidate)
            found.append(measured)
            if measured.problem is not None or measured.fits(device_bytes):
                break
    return sorted(found, key=lambda one: (not one.fits(device_bytes), -one.rate))


def compile_tiled(compile_one: Callable[[Mapping[str, Any]], Compiled], options: dict[str, Any]) -> Compiled:
    """Compiles; where XLA finds no tiles for a Triton product, once more without such products.

    Args:
        compile_one: options of the compiler to what it makes with them.
        options: the user's; gets the option that was needed, so that whatever is compiled next has it too.

    Raises:
        CompilerError: the compiler refuses the program for another reason, or the user wants Triton's products.
    """
    try:
        return compile_one(dict(options))
    except CompilerError as error:
        if not is_untiled(error.message) or TRITON_PRODUCTS in options:
            raise
    options[TRITON_PRODUCTS] = False
    return compile_one(dict(options))


def render_plan(preset: str, best: Measured, settings: Sequence[str] = ()) -> str:
    """The command that trains so, as a shell takes it.

    Args:
        preset: what is trained.
        best: how.
        settings: the user's `KEY=VALUE`, with which it was compiled.
    """
    candidate = best.candidate
    chosen: dict[str, object] = dict(setting.partition("=")[::2] for setting in settings)
    chosen |= {
        "batch_size": candidate.batch_size,
        "compute.remat": candidate.remat,
        "compute.accumulate": candidate.microbatches,
    }
    words = ["nightjar-models", "train", preset, "--mesh", str(candidate.mesh)]
    for name, value in chosen.items():
        words += ["--set", f"{name}={value}"]
    plan = f"{shlex.join(words)} --out OUT"
    flags = shlex.join(f"--{name}={str(value).lower()}" for name, value in best.options.items())
    return f'XLA_FLAGS="$XLA_FLAGS {flags}" {plan}' if flags else plan
