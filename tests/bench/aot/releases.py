"""What changed between two releases of JAX, for every workload on eight H100? Every difference in words.

Prints a table: workload, seconds of CPU, what the gate says. Presets that need more devices than eight are compiled for
eight all the same: what is emitted is of interest, not whether it fits.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from nightjar_ci.judges.facts.diff import describe_changes
from nightjar_ci.judges.facts.explain import explain_changes, unexplained
from nightjar_models.presets import PRESETS
from nightjar_models.presets.config import Source
from tests.bench.aot.compiled import Compiled, compile_several, find_python
from tests.bench.aot.faults import read_policy
from tests.bench.table import Row

OLD, NEW = "0.10.1", "0.10.2"
UNTILED = ("t5_large", "vit_b16")  # XLA's default tiles of a Triton product do not fit their positions
CLOCK_S = 20 * 60
BUDGET_S = 2 * CLOCK_S  # of CPU: twenty minutes on two cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What differs between two releases for one preset.

    Attributes:
        differences: facts that differ by more than the policy allows; None where a release does not compile it.
        sentences: what they mean.
        left: those of the differences that no sentence accounts for.
        said: of a compiler that refuses it.
        cpu_s: of both.
    """

    preset: str
    differences: list[str] | None
    sentences: list[str]
    left: list[str]
    said: str
    cpu_s: float


def list_goals(quick: bool, folder: Path) -> list[str]:
    """The names of this part's goals."""
    goals = ["workloads compiled for eight H100 by both", "of them, not explained", "CPU for both releases"]
    return goals if count_kept(list_presets(quick), folder) else [*goals, "time of the clock, "]


def list_presets(quick: bool) -> list[str]:
    """The workloads that are compared."""
    locked = [name for name, preset in PRESETS.items() if preset().data == Source()]  # no lock has MNIST's digits
    return locked[: 2 if quick else None]


def measure(quick: bool, folder: Path) -> list[Row]:
    """Rows: facts that differ and that no sentence accounts for, and the CPU that it took."""
    presets = list_presets(quick)
    begin, kept = time.monotonic(), count_kept(presets, folder)
    found = compare_releases(presets, folder)
    refused = sum(one.differences is None for one in found)
    return [
        Row(
            name="workloads compiled for eight H100 by both",
            ours=len(found) - refused,
            goal=len(found),
            better="higher",
        ),
        Row(name="facts that differ", ours=sum(len(one.differences or ()) for one in found), unit="facts"),
        Row(name="of them, not explained", ours=sum(len(one.left) for one in found), goal=0, unit="facts"),
        Row(name="CPU for both releases", ours=round(sum(one.cpu_s for one in found)), goal=BUDGET_S, unit="s"),
        render_clock(time.monotonic() - begin, kept, 2 * len(presets)),
    ]


def count_kept(presets: Sequence[str], folder: Path) -> int:
    """How many of the programs are there from an earlier session."""
    return sum((folder / release / preset / "cpu_s").is_file() for release in (OLD, NEW) for preset in presets)


def render_clock(seconds: float, kept: int, programs: int) -> Row:
    """The row of the clock; it has a goal where every program was compiled in this session."""
    if kept:
        return Row(name=f"time of the clock; {kept} of {programs} programs were there", ours=round(seconds), unit="s")
    return Row(name=f"time of the clock, {programs} programs", ours=round(seconds), goal=CLOCK_S, unit="s")


def compare_releases(presets: Sequence[str], folder: Path) -> list[Compared]:
    """Compiles presets with both releases, one process for each release, and prints what differs."""
    programs = {
        preset: [
            *(preset, "--target", "h100x8", "--mesh", "dp8" if preset.endswith("_tiny") else "fsdp8"),
            *(("--xla", "xla_gpu_enable_triton_gemm=false") if preset in UNTILED else ()),
        ]
        for preset in presets
    }
    pythons = {release: find_python(release) for release in (OLD, NEW)}
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(compile_several, python, programs, folder / name) for name, python in pythons.items()]
        old, new = (future.result() for future in futures)
    found = [compare(preset, old[preset], new[preset]) for preset in presets]
    table = Table(title=f"jax {OLD} -> {NEW}, eight H100", title_justify="left", show_lines=True)
    for name in ("workload", "CPU s", "facts that differ", "not explained", "what it means"):
        table.add_column(name, justify="left" if name in ("workload", "what it means") else "right")
    for one in found:
        differ = "" if one.differences is None else str(len(one.differences))
        meaning = f"not compiled: {one.said[-300:]}" if one.differences is None else "\n".join(one.sentences)
        left = "\n".join(f"not explained: {line}" for line in one.left)
        said = "\n".join(filter(None, (meaning, left))) or "nothing differs"
        table.add_row(one.preset, f"{one.cpu_s:.0f}", differ, str(len(one.left)), said)
    Console(file=sys.stdout, width=150, soft_wrap=True).print(table)
    return found


def compare(preset: str, old: Compiled, new: Compiled) -> Compared:
    """What differs between two compilations of a preset."""
    cpu_s, said = old.cpu_s + new.cpu_s, f"{old.said}{new.said}".strip()
    if old.record is None or new.record is None:
        return Compared(preset=preset, differences=None, sentences=[], left=[], said=said, cpu_s=cpu_s)
    before, after, policy = old.record.facts[0], new.record.facts[0], read_policy()
    meanings, lines = explain_changes(before, after, policy), describe_changes(before, after, policy)
    return Compared(
        preset=preset,
        differences=list(lines.values()),
        sentences=[meaning.text for meaning in meanings],
        left=[lines[name] for name in unexplained(lines, meanings)],
        said="",
        cpu_s=cpu_s,
    )
