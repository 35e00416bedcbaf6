"""On which mesh does a model train, and how fast? A search over meshes, microbatches and rematerialization.

In: the meshes (`meshes.py`), what a step may take of a device, and a function that compiles one candidate. Out: what
was tried, in words and numbers, fastest first. Each candidate costs a compilation (5 to 20 s of CPU), so the search is
short: a mesh whose state alone is too large is left out, and what must need more than a candidate that did not fit;
on each other mesh the step is made to use less memory, from no recomputing to all, then by halving what is computed at
once, until it fits.

Less recomputing is less arithmetic, and fewer microbatches are fewer passes over the weights: the first candidate of a
mesh that fits is taken for the fastest on it. But what is kept must be written and read (`llama2_7b` on eight H100, all
kept: 808 ms as estimated, with `dots_no_batch` 645), and of microbatches and recomputing either may cost more: so on
the fastest mesh more is recomputed once, and less with more microbatches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nightjar_models.errors import InputError
from nightjar_models.parallel.mesh import MeshShape
from nightjar_models.presets.config import TrainConfig
from nightjar_models.presets.sizes import MoEConfig

TERMS = ("step_s", "compute_s", "memory_s", "nvlink_s", "network_s", "exposed_s")  # of `Measured`
REMATS = ("none", "dots", "dots_no_batch", "full")
MOST_MICROBATCHES = 8
MOST_DEVICES = 16_384  # sixteen times what was tried; a topology is made of each device
AT_PEAK = 18 / 16  # of the state's bytes: parameters in bfloat16 beside it
KEPT_BACK = 2  # compilations for what else may be faster on the fastest mesh, of the most that are allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to run a step.

    Attributes:
        mesh: how many devices along each axis.
        batch_size: examples per step over all devices.
        microbatches: parts of the batch, one after the other, whose gradients are added up.
        remat: as in `Compute`.
        pipelined: parts into which the pipeline cuts each of them; 0 without one.
    """

    mesh: MeshShape
    batch_size: int
    microbatches: int
    remat: str
    pipelined: int = 0

    @property
    def share(self) -> float:
        """Examples that are computed at once, per device."""
        return self.batch_size / self.microbatches / self.mesh.size

    @property
    def parts(self) -> int:
        """Into how many the batch is cut, by whom ever."""
        return self.microbatches * max(1, self.pipelined)

    @property
    def settings(self) -> list[str]:
        """What `--set` says of it."""
        found = [
            f"batch_size={self.batch_size}",
            f"compute.remat={self.remat}",
            f"compute.accumulate={self.microbatches}",
        ]
        if self.pipelined:
            found += ["compute.scan_layers=true", f"compute.microbatches={self.pipelined}"]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What compiling a candidate told.

    Attributes:
        reserved_bytes: of each device; None where it was not compiled.
        step_s: estimated; the terms of it: compute_s of kernels that arithmetic bounds, memory_s that the device's
            memory does, nvlink_s and network_s of collectives, exposed_s of those what nothing hides.
        options: of the compiler, that the times and the memory are with.
        problem: why there is nothing to tell, in words; hint: what may help.
        open: whether it might fit all the same: it was not tried, or the compiler failed.
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
    open: bool = False

    def fits(self, room_bytes: int) -> bool:
        """Whether there is room for the step."""
        return self.reserved_bytes is not None and self.reserved_bytes <= room_bytes

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


def choose_remats(config: TrainConfig, settings: Sequence[str] = ()) -> tuple[str, ...]:
    """What is recomputed, ever more: `dots` keeps more than `dots_no_batch` where products have batch dimensions.

    Those are the experts', and attention's where it is not fused; of the others both keep the same. What the user's
    settings say of it is the only choice.
    """
    if any(setting.startswith("compute.remat=") for setting in settings):
        return (config.compute.remat,)
    batched = isinstance(config.model, MoEConfig) or config.compute.attention != "cudnn"
    return REMATS if batched else tuple(name for name in REMATS if name != "dots")


def list_candidates(mesh: MeshShape, batch_size: int, remats: Sequence[str] = REMATS) -> Iterator[Candidate]:
    """The candidates of a mesh, the one that needs most memory first.

    A pipeline of S stages gets S to 4 S parts, the more the less it idles.

    Args:
        mesh: how many devices along each axis.
        batch_size: examples per step over all devices; raised so that all who share the batch, and all stages, get one.
        remats: what is recomputed, ever more.
    """
    shards = mesh.dp * mesh.fsdp * mesh.ep
    batch_size = -(-batch_size // (shards * mesh.pp)) * shards * mesh.pp
    each = batch_size // shards
    pipelined = 0 if mesh.pp == 1 else next(mesh.pp * by for by in (4, 2, 1) if each % (mesh.pp * by) == 0)
    for remat in remats:
        yield Candidate(mesh=mesh, batch_size=batch_size, microbatches=1, remat=remat, pipelined=pipelined)
    yield from _cut(mesh, batch_size, pipelined, 2, remats[-1])


def _cut(mesh: MeshShape, batch_size: int, pipelined: int, parts: int, remat: str) -> Iterator[Candidate]:
    """The candidates of so many microbatches and more, as far as each device has an example in each."""
    each = batch_size // (mesh.dp * mesh.fsdp * mesh.ep)
    while parts <= MOST_MICROBATCHES and each % (parts * max(pipelined, 1)) == 0:
        yield Candidate(mesh=mesh, batch_size=batch_size, microbatches=parts, remat=remat, pipelined=pipelined)
        parts *= 2


def search(
    meshes: Iterable[MeshShape],
    *,
    state_of: Callable[[MeshShape], int],
    batch_size: int,
    room_bytes: int,
    compile_one: Callable[[Candidate], Measured],
    remats: Sequence[str] = REMATS,
    most: int = 64,
) -> list[Measured]:
    """What was tried, the fastest that fits first, then what does not fit.

    Args:
        meshes: to try.
        state_of: bytes of parameters, gradients and optimizer on each device of a mesh.
        batch_size: examples per step over all devices.
        room_bytes: what a step may take of a device.
        compile_one: compiles a candidate; a mesh that it says cannot be is given up.
        remats: what is recomputed, ever more.
        most: candidates to compile.
    """
    found: list[Measured] = []
    left = most
    for mesh in meshes:
        candidates = list(list_candidates(mesh, batch_size, remats))
        state, compiled = state_of(mesh), False
        if state > room_bytes:
            problem = f"parameters, gradients and optimizer alone take {state / 2**30:.1f} GiB of each device"
            found.append(Measured(candidate=candidates[-1], problem=problem))
            continue
        for candidate in candidates:
            if _bound(candidate, found, state_of) > room_bytes:
                continue
            if left <= min(KEPT_BACK, most // 4):
                found.append(Measured(candidate=candidate, problem=f"not tried: --most {most}", open=True))
                break
            measured = compile_one(candidate)
            found, left, compiled = [*found, measured], left - 1, True
            if measured.problem is not None or measured.fits(room_bytes):
                break
        else:
            if not compiled:
                found.append(Measured(candidate=candidates[-1], problem="needs more than another that does not fit"))
    best = max((one for one in found if one.fits(room_bytes)), key=lambda one: one.rate, default=None)
    for way in _list_neighbours(best.candidate, remats) if best is not None else ():
        for candidate in way:
            if left and _bound(candidate, found, state_of) <= room_bytes:
                measured = compile_one(candidate)
                found, left = [*found, measured], left - 1
                if measured.problem is not None or measured.fits(room_bytes):
                    break
    return sorted(found, key=lambda one: (not one.fits(room_bytes), -one.rate))


def _list_neighbours(best: Candidate, remats: Sequence[str]) -> Iterator[Iterable[Candidate]]:
    """On its mesh: one step more is recomputed; and one step less, with more microbatches, until it fits."""
    place = remats.index(best.remat)
    if best.microbatches == 1:
        yield [replace(best, remat=remat) for remat in remats[place + 1 : place + 2]]
    if place:
        yield _cut(best.mesh, best.batch_size, best.pipelined, 2 * best.microbatches, remats[place - 1])


def _bound(candidate: Candidate, found: Iterable[Measured], state_of: Callable[[MeshShape], int]) -> float:
    """Bytes that a candidate needs at least, by what those told that recompute as much or more.

    What is neither state nor made of it is kept of the examples. Where examples alone are split every device has its
    share of that; tensor parallelism and a pipeline hold some of it more than once.
    """
    bound, place = 0.0, REMATS.index(candidate.remat)
    for one in found:
        mesh, remat = one.candidate.mesh, one.candidate.remat
        if one.reserved_bytes is None or mesh.tp * mesh.pp > 1 or REMATS.index(remat) < place:
            continue
        examples = max(0.0, one.reserved_bytes - AT_PEAK * state_of(mesh))
        bound = max(bound, examples * min(1.0, candidate.share / one.candidate.share) + state_of(candidate.mesh))
    return bound
