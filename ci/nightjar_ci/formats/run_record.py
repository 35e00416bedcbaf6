"""The measures of one run: `nightjar.run/1` (docs/reference/run-result.md).

In: a `result.json` written by any workload. Out: a validated, frozen `RunRecord`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue, model_validator

from nightjar_ci.formats.documents import StrictModel, read_document
from nightjar_ci.formats.suite import Suite

Better = Literal["lower", "higher"]


def _increasing(steps: tuple[int, ...]) -> tuple[int, ...]:
    if any(b <= a for a, b in pairwise(steps)):
        raise ValueError("steps must increase")
    return steps


class Curve(StrictModel):
    """Values by step, such as a loss; `steps` and `values` have the same length."""

    name: str
    unit: str
    better: Better
    steps: Annotated[tuple[int, ...], AfterValidator(_increasing)]
    values: tuple[float, ...]

    @model_validator(mode="after")
    def _same_length(self) -> Curve:
        if len(self.steps) != len(self.values):
            raise ValueError(f"{len(self.steps)} steps but {len(self.values)} values")
        return self


class Sample(StrictModel):
    """Repeated measurements of one quantity; the first `warmup` values are ignored."""

    name: str
    unit: str
    better: Better
    values: Annotated[tuple[float, ...], Field(min_length=1)]
    warmup: Annotated[int, Field(ge=0)] = 0

    @property
    def steady(self) -> tuple[float, ...]:
        """The values after warm-up; all if none would be left."""
        return self.values[self.warmup :] or self.values

    @property
    def level(self) -> float:
        """The median after warm-up; NaN if any of those values is not finite, which a median could hide."""
        if not all(map(math.isfinite, self.steady)):
            return math.nan
        return median(self.steady)


class Tally(StrictModel):
    """The number of instructions of a kind, and the bytes of their outputs."""

    count: int
    bytes: int


class Memory(StrictModel):
    """Memory that the compiler reserved for a program, in bytes."""

    argument_bytes: int | None
    output_bytes: int | None
    alias_bytes: int | None
    temp_bytes: int | None
    generated_code_bytes: int | None
    peak_bytes: int | None


class Work(StrictModel):
    """Some instructions of a step: their number, how often they run, the bytes that they move, their FLOPs."""

    count: int
    runs: int
    bytes: int
    flops: float


class Buffer(StrictModel):
    """A value in memory at the peak, and its Python line."""

    instruction: str
    kind: str
    bytes: int
    line: str
    op_name: str


class LineWork(StrictModel):
    """The instructions of a Python line by opcode, and the digest of their computation."""

    opcodes: dict[str, Tally]
    digest: str


class Ahead(StrictModel):
    """The facts of a program that was compiled and not run, mostly for devices that this machine does not have.

    Attributes:
        target: such as `h100x8` or `cpux1`.
        fingerprint: of instructions, shapes, configurations and schedule, without names.
        kernels: work of a step by kind of kernel, loops included.
        messages: the same by collective and group size, such as `all-gather/8`.
        buffers: the largest values at peak memory.
        reserved_bytes: device memory of a step, out of the device's `device_bytes` (0 for a CPU).
        code_bytes: size of the PTX, 0 for a CPU.
        spill_bytes: None if ptxas did not run.
        estimate: seconds of a step by a model of the device, and its parts; empty for a CPU.
        lints: warnings for people, such as fused attention that was not emitted.
        computation: compiler, and digest of the computation: operands, constants, attributes; None in results
            of earlier releases.
        lines: the instructions of each Python line, including those inside fusions.
    """

    target: str
    fingerprint: str
    kernels: dict[str, Work]
    messages: dict[str, Work]
    buffers: tuple[Buffer, ...]
    reserved_bytes: int
    device_bytes: int
    code_bytes: int
    spill_bytes: int | None
    estimate: dict[str, float]
    lints: tuple[str, ...]
    computation: str | None = None
    lines: dict[str, LineWork] = Field(default_factory=dict)


class Facts(StrictModel):
    """The compiler's output for one program; deterministic."""

    program: str
    opcodes: dict[str, Tally]
    fusions: dict[str, Tally]
    custom_calls: dict[str, Tally]
    collectives: dict[str, Tally]
    flops: float | None
    memory: Memory
    ahead: Ahead | None = None


class Cpu(StrictModel):
    """The processor of the machine that ran the job.

    Attributes:
        architecture: vendor, family and model number, which a virtual machine's `model` may not tell; None in results
            of earlier releases.
        instructions: vector instruction sets, by which libraries choose their kernels; None likewise.
    """

    model: str
    cores: int
    memory_bytes: int
    architecture: str | None = None
    instructions: tuple[str, ...] | None = None


class Git(StrictModel):
    """The commit that the workload was run from."""

    sha: str
    dirty: bool


class LocalPackage(StrictModel):
    """A package that was installed from this machine, not from an index.

    Attributes:
        version: None if it is not installed.
        path: the folder, wheel or source archive.
        editable: the job imported the folder itself.
        sha256: of the contents; None if the folder may have changed since the installation.
        git: the commit of the folder; dirty if the folder itself has changes.
    """

    name: str
    version: str | None
    path: str
    editable: bool
    sha256: str | None
    git: Git | None

    def __str__(self) -> str:
        remarks = ["contents unknown"]
        if self.sha256 is not None:
            remarks = [f"sha256:{self.sha256[:12]}"]
        if self.git is not None:
            remarks.append(f"commit {self.git.sha[:12]}")
            if self.git.dirty:
                remarks[-1] += " with changes"
        if self.editable:
            remarks.append("editable")
        name = " ".join(filter(None, (self.name, self.version)))
        return f"{name} from {self.path} ({', '.join(remarks)})"


def describe_devices(kinds: Sequence[str]) -> str:
    """The devices as text, for people and for keys.

    >>> describe_devices(["NVIDIA H100", "NVIDIA H100"])
    '2 x NVIDIA H100'
    """
    return f"{len(kinds)} x {','.join(sorted(set(kinds))) or 'none'}"


class Environment(StrictModel):
    """Everything outside the workload's own configuration that can change a measure."""

    python: str
    platform: str
    cpu: Cpu
    backend: str
    devices: tuple[str, ...]
    packages: dict[str, str]
    flags: dict[str, str]
    git: Git | None
    image: str | None
    driver: str | None = None

    @property
    def measured_on(self) -> str:
        """The machine that a time depends on: devices, driver, processor.

        Nights of different machines are not compared. Package versions are under test, so they are not part of it.
        """
        parts = [describe_devices(self.devices), f"{self.cpu.model}, {self.cpu.cores} cores"]
        if self.driver:
            parts.insert(1, f"driver {self.driver}")
        return "; ".join(parts)

    @property
    def processor(self) -> str | None:
        """The hardware that results depend on, except the device kind; None if the record does not say.

        A CPU's vector instructions decide the order of its sums (docs/statistics.md has measurements); an accelerator's
        driver and libraries choose the kernels.
        """
        if self.backend != "cpu":
            names = sorted(name for name in self.packages if name.startswith(("nvidia-cudnn", "libtpu")))
            versions = [f"{name} {self.packages[name]}" for name in names]
            if self.driver or versions:
                return ", ".join([f"driver {self.driver}", *versions])
            return None
        if self.cpu.architecture is None or self.cpu.instructions is None:
            return None
        limit = f" up to {self.isa_limit}" if self.isa_limit else ""
        return f"{self.cpu.architecture} ({' '.join(self.cpu.instructions)}){limit}"

    @property
    def isa_limit(self) -> str | None:
        """The last instruction set that XLA may use, if its flags have a limit; the last such flag counts."""
        limits = re.findall(r"--xla_cpu_max_isa=(\S+)", self.flags.get("XLA_FLAGS", ""))
        return limits[-1] if limits else None

    @property
    def facts_key(self) -> str:
        """The key of compile facts: `jaxlib-0.10.2-cpu-x1`, or with an accelerator's device kind.

        Programs compiled ahead of time are compared across releases, so their key holds the devices alone.
        """
        kinds = sorted({kind.lower() for kind in self.devices}) or ["none"]
        if all(kind.endswith("(ahead of time)") for kind in kinds):
            return re.sub(r"[^a-z0-9._+-]+", "-", f"{'+'.join(kinds)}-x{len(self.devices)}")
        key = f"jaxlib-{self.packages.get('jaxlib', 'unknown')}-{'+'.join(kinds)}-x{len(self.devices)}"
        return re.sub(r"[^A-Za-z0-9._+-]+", "-", key)  # also a file name


class RunRecord(StrictModel):
    """One run of a workload: `nightjar.run/1`."""

    schema_: Annotated[Literal["nightjar.run/1"], Field(alias="schema")]
    job: str
    workload: str
    status: Literal["completed", "diverged"]
    seed: int
    started_at: str
    duration_s: float
    config: dict[str, JsonValue]
    environment: Environment
    curves: tuple[Curve, ...]
    samples: tuple[Sample, ...]
    facts: tuple[Facts, ...]
    tests: Suite | None = None

    def curve(self, name: str) -> Curve | None:
        return next((curve for curve in self.curves if curve.name == name), None)

    def sample(self, name: str) -> Sample | None:
        return next((sample for sample in self.samples if sample.name == name), None)


def read_run(path: Path, *, left_in: Path | None = None) -> RunRecord:
    """Reads a `result.json`.

    Args:
        left_in: folder of the job that left it (see `read_document`).
    """
    return read_document(path, RunRecord, "nightjar.run/1", left_in=left_in)
