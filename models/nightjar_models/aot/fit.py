"""Search over meshes, microbatches and rematerialization for the fastest step that fits.

In: the meshes (`meshes.py`), the memory limit of a step, and a function that compiles one candidate. Out: the
candidates and their outcomes, fastest first. Each candidate costs a compilation (5 to 20 s of CPU), so the search is
short: it skips a mesh whose state alone is too large, and a candidate that must need more memory than one that did not
fit. On every other mesh it lowers the memory of the step until it fits: first from no to full rematerialization, then
by doubling the number of microbatches.

Less recomputing means less arithmetic, and fewer microbatches mean fewer passes over the weights, so the first
candidate that fits is assumed to be the fastest on its mesh. But stored activations must be written and read
(`llama2_7b` on eight H100: 808 ms estimated with all of them stored, 645 with `dots_no_batch`), and either microbatches
or recomputing may cost more. So on the fastest mesh the search also tries one step more of recomputing, and one step
less with more microbatches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nightjar_models.aot.compile_errors import compile_with_remedies
from nightjar_models.aot.compile_subprocess import CompilerProcess
from nightjar_models.errors import CompilerError, InputError
from nightjar_models.hardware.target import Cluster
from nightjar_models.parallel.mesh import MeshShape
from nightjar_models.presets.config import TrainConfig, override
from nightjar_models.presets.sizes import MoEConfig

TERMS = ("step_s", "compute_s", "memory_s", "nvlink_s", "network_s", "exposed_s")  # of `Measured`
REMATS = ("none", "dots", "dots_no_batch", "full")
MOST_MICROBATCHES = 8
MOST_DEVICES = 16_384  # 16 times the largest that was tried; a topology describes each device
AT_PEAK = 18 / 16  # memory at the peak / bytes of the state: parameters in bfloat16 come on top
RESERVED_COMPILATIONS = 2  # kept for neighbours of the best candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to run a step.

    Attributes:
        mesh: how many devices along each axis.
        batch_size: examples per step over all devices.
        microbatches: parts of the batch that run one after the other; their gradients are summed.
        remat: as in `Compute`.
        pipelined: microbatches of the pipeline within each of them; 0 without a pipeline.
    """

    mesh: MeshShape
    batch_size: int
    microbatches: int
    remat: str
    pipelined: int = 0

    @property
    def examples_per_device(self) -> float:
        """Examples that a device computes at once."""
        return self.batch_size / self.microbatches / self.mesh.size

    @property
    def parts(self) -> int:
        return self.microbatches * max(1, self.pipelined)

    @property
    def settings(self) -> list[str]:
        """The candidate as `--set` options."""
        settings = [
            f"batch_size={self.batch_size}",
            f"compute.remat={self.remat}",
            f"compute.accumulate={self.microbatches}",
        ]
        if self.pipelined:
            settings += ["compute.scan_layers=true", f"compute.microbatches={self.pipelined}"]
        return settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The outcome of compiling a candidate.

    Attributes:
        reserved_bytes: per device; None if it was not compiled.
        step_s: estimated; its terms: compute_s of kernels bound by arithmetic, memory_s of kernels bound by the
            device's memory, nvlink_s and network_s of collectives, exposed_s of collectives without overlap.
        options: compiler options of the compilation.
        problem: why there are no figures; hint: a possible remedy.
        open: whether it might fit after all: it was not tried, or the compiler failed.
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
        """Whether the step fits into this much memory."""
        return self.reserved_bytes is not None and self.reserved_bytes <= room_bytes

    @property
    def rate(self) -> float:
        """Estimated examples per second and device; 0 without an estimate."""
        if not self.step_s:
            return 0.0
        return self.candidate.batch_size / self.step_s / self.candidate.mesh.size


def parse_devices(text: str) -> list[int]:
    """Reads `8`, `8,64` or `8..1024`, which doubles.

    >>> parse_devices("8..64"), parse_devices("8,256")
    ([8, 16, 32, 64], [8, 256])
    """
    first, dots, last = text.partition("..")
    numbers = [first, last] if dots else text.split(",")
    if not all(number.isdecimal() and int(number) > 0 for number in numbers):
        raise InputError(f"--devices {text}: expected a number, several such as 8,64, or a range such as 8..1024.")
    counts = [int(number) for number in numbers]
    if max(counts) > MOST_DEVICES:
        raise InputError(f"--devices {text}: expected at most {MOST_DEVICES:,} devices.")
    if not dots:
        return sorted(set(counts))
    if counts[0] > counts[1]:
        raise InputError(f"--devices {text}: expected the smaller number first.")
    return [counts[0] << power for power in range(64) if counts[0] << power <= counts[1]]


def choose_remats(config: TrainConfig, settings: Sequence[str] = ()) -> tuple[str, ...]:
    """The rematerialization policies to try, from the least to the most recomputing.

    `dots` stores more than `dots_no_batch` if products have batch dimensions: experts' products, and attention that is
    not fused. If the user's settings choose a policy, it is the only one.
    """
    if any(setting.startswith("compute.remat=") for setting in settings):
        return (config.compute.remat,)
    batched = isinstance(config.model, MoEConfig) or config.compute.attention != "cudnn"
    if batched:
        return REMATS
    return tuple(name for name in REMATS if name != "dots")


def list_candidates(mesh: MeshShape, batch_size: int, remats: Sequence[str] = REMATS) -> Iterator[Candidate]:
    """The candidates of a mesh, the one that needs most memory first.

    A pipeline of S stages gets S to 4 S microbatches: the more, the less it idles.

    Args:
        mesh: how many devices along each axis.
        batch_size: examples per step over all devices; raised so that every shard and every stage gets one.
        remats: rematerialization policies, from the least to the most recomputing.
    """
    shards = mesh.dp * mesh.fsdp * mesh.ep
    batch_size = -(-batch_size // (shards * mesh.pp)) * shards * mesh.pp
    each = batch_size // shards  # examples per shard
    pipelined = 0
    if mesh.pp > 1:
        pipelined = next(mesh.pp * factor for factor in (4, 2, 1) if each % (mesh.pp * factor) == 0)
    for remat in remats:
        yield Candidate(mesh=mesh, batch_size=batch_size, microbatches=1, remat=remat, pipelined=pipelined)
    yield from _cut(mesh, batch_size, pipelined, 2, remats[-1])


def _cut(mesh: MeshShape, batch_size: int, pipelined: int, parts: int, remat: str) -> Iterator[Candidate]:
    """Candidates with `parts` microbatches, twice as many and so on, while each device has an example in each."""
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
    """The outcomes: meshes that fit, fastest first, then the others.

    Args:
        state_of: bytes of parameters, gradients and optimizer on each device of a mesh.
        batch_size: examples per step over all devices.
        room_bytes: memory limit of a step on a device.
        compile_one: compiles a candidate; a problem in its outcome ends the search on that mesh.
        remats: rematerialization policies, from the least to the most recomputing.
    """
    outcomes: list[Measured] = []
    left = most
    for mesh in meshes:
        candidates = list(list_candidates(mesh, batch_size, remats))
        state, compiled = state_of(mesh), False
        if state > room_bytes:
            problem = f"parameters, gradients and optimizer alone take {state / 2**30:.1f} GiB of each device"
            outcomes.append(Measured(candidate=candidates[-1], problem=problem))
            continue
        for candidate in candidates:
            if _bound(candidate, outcomes, state_of) > room_bytes:
                continue
            if left <= min(RESERVED_COMPILATIONS, most // 4):
                outcomes.append(Measured(candidate=candidate, problem=f"not tried: --most {most}", open=True))
                break
            measured = compile_one(candidate)
            outcomes, left, compiled = [*outcomes, measured], left - 1, True
            if measured.problem is not None or measured.fits(room_bytes):
                break
        else:
            if not compiled:
                outcomes.append(
                    Measured(
                        candidate=candidates[-1], problem="needs more memory than another candidate that does not fit"
                    )
                )
    best = max(
        (outcome for outcome in outcomes if outcome.fits(room_bytes)), key=lambda outcome: outcome.rate, default=None
    )
    neighbours = _list_neighbours(best.candidate, remats) if best is not None else ()
    for variants in neighbours:
        for candidate in variants:
            if left and _bound(candidate, outcomes, state_of) <= room_bytes:
                measured = compile_one(candidate)
                outcomes, left = [*outcomes, measured], left - 1
                if measured.problem is not None or measured.fits(room_bytes):
                    break
    return sorted(outcomes, key=lambda outcome: (not outcome.fits(room_bytes), -outcome.rate))


def _list_neighbours(best: Candidate, remats: Sequence[str]) -> Iterator[Iterable[Candidate]]:
    """Variants on the same mesh: one step more of recomputing; and one step less, with more and more microbatches."""
    index = remats.index(best.remat)
    if best.microbatches == 1:
        yield [replace(best, remat=remat) for remat in remats[index + 1 : index + 2]]
    if index:
        yield _cut(best.mesh, best.batch_size, best.pipelined, 2 * best.microbatches, remats[index - 1])


def _bound(candidate: Candidate, outcomes: Iterable[Measured], state_of: Callable[[MeshShape], int]) -> float:
    """Lower bound on the bytes of a candidate, from outcomes with as much recomputing or more.

    Memory beyond the state is proportional to the examples on a device, as long as only examples are split; tensor
    parallelism and a pipeline hold some of it more than once, so their outcomes are not used.
    """
    bound, index = 0.0, REMATS.index(candidate.remat)
    for outcome in outcomes:
        mesh, remat = outcome.candidate.mesh, outcome.candidate.remat
        if outcome.reserved_bytes is None or mesh.tp * mesh.pp > 1 or REMATS.index(remat) < index:
            continue
        examples = max(0.0, outcome.reserved_bytes - AT_PEAK * state_of(mesh))
        bound = max(
            bound,
            examples * min(1.0, candidate.examples_per_device / outcome.candidate.examples_per_device)
            + state_of(candidate.mesh),
        )
    return bound


def measure_candidate(
    compiler: CompilerProcess, config: TrainConfig, candidate: Candidate, cluster: Cluster, options: dict[str, Any]
) -> Measured:
    """Memory and estimated time of a candidate, compiled in another process, so that a crash does not end the search.

    Args:
        config: the config before the candidate's settings.
        options: compiler options; workarounds that were needed are added (`compile_with_remedies`).
    """
    config = override(config, candidate.settings)

    def compile_with(options: Mapping[str, Any]) -> dict[str, Any]:
        return compiler.call(measure_step, config, candidate.mesh, cluster, options)

    try:
        figures = compile_with_remedies(compile_with, options)
    except (InputError, CompilerError) as error:
        figures = {"problem": error.message, "hint": error.hint, "open": isinstance(error, CompilerError)}
    return Measured(candidate=candidate, options=dict(options), **figures)


def measure_step(
    folder: Path, config: TrainConfig, shape: MeshShape, cluster: Cluster, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Compiles a step and returns fields of `Measured`: bytes that it reserves and estimated seconds."""
    from nightjar_models.aot.compile import compile_step
    from nightjar_models.aot.estimate import estimate_step
    from nightjar_models.program.memory import reserved_bytes

    compilation = compile_step(config, shape, cluster, options, folder, spills=False)
    step = estimate_step(compilation.module, cluster)
    return {"reserved_bytes": reserved_bytes(compilation.module), **{term: getattr(step, term) for term in TERMS}}
