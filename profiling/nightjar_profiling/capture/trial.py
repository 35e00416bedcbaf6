"""A trial of advice: the program as it was captured and as it is advised, run again in turn.

In: a capture, and the command that starts the program with the change: only its author can say how. Out: captures of
both, and the change of the elapsed time of a step, with a 95 % interval over the captures.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from nightjar_profiling.analyses.compare.change import Change, Mean, average_captures, rank_changes
from nightjar_profiling.analyses.gaps import measure_busy
from nightjar_profiling.capture_folder.manifest import Manifest
from nightjar_profiling.capture_folder.tables import Tables
from nightjar_profiling.errors import InputError, ToolError

ELAPSED = "elapsed time of a step"
LAST_LINES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The runs: both commands, their folder and number, and the steps to trace."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    folder: str
    steps: tuple[int, int] | None
    runs: int

    def list_captures(self, out: Path) -> Iterator[tuple[str, Path, list[str]]]:
        """The side, the folder and the command of each capture, in turn."""
        steps = [] if self.steps is None else ["--steps", f"{self.steps[0]}:{self.steps[1]}"]
        for number in range(self.runs):
            for side, program in (("before", self.before), ("after", self.after)):
                folder = out / f"{side}{number}"
                options = ["capture", "--backend", "auto", *steps, "--out", str(folder)]
                yield side, folder, [sys.executable, "-m", "nightjar_profiling", *options, "--", *program]


def plan_trial(manifest: Manifest, command: str, runs: int, where: Path) -> Trial:
    """A trial of a command against a capture's."""
    folder = manifest.environment.get("cwd")
    if not manifest.command or folder is None:
        raise InputError(f"{where}: does not say which command made it.", "capture it: nightjar-profiling capture")
    if not Path(folder).is_dir():
        raise InputError(f"{where}: was made in {folder}, which is not there.", "capture again on this machine")
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise InputError(f"--try: {command!r}: {error}.") from None
    if not words:
        raise InputError("--try: the command is empty.", "name the command that starts the program with the change")
    return Trial(before=manifest.command, after=words, folder=folder, steps=manifest.steps, runs=runs)


def run_capture(trial: Trial, command: Sequence[str]) -> None:
    """Captures one run; its output goes to stderr."""
    done = subprocess.run(
        command, cwd=trial.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-LAST_LINES:])
        program = shlex.join(command[command.index("--") + 1 :])
        raise ToolError(f"--try: {program!r} ended with exit code {done.returncode}:\n{last}\n", "run it by hand")


def measure_elapsed(tables: Tables) -> float:
    """Nanoseconds of a step, from the first op of a capture to the end of its last; the device that took longest.

    Without marked steps, a step is a run of the program that took most of the time.
    """
    span_ns = float(measure_busy(tables.ops)["span_ns"].max() or 0)  # type: ignore[arg-type]
    if not tables.steps.is_empty():
        return span_ns / tables.steps["step"].n_unique()
    main = tables.ops.group_by("program_id").agg(pl.col("duration_ns").sum()).sort("duration_ns")["program_id"][-1]
    runs = tables.executions.filter(pl.col("program_id").eq_missing(main))
    return span_ns / max(1, runs.select("execution").n_unique())


def judge_trial(before: Sequence[float], after: Sequence[float]) -> Change:
    """The change of the elapsed time of a step, by one value per capture."""
    sides = [average_captures([{ELAPSED: Mean(ns, 0.0, None)} for ns in side]) for side in (before, after)]
    return rank_changes(sides[0], sides[1], None)[0]
