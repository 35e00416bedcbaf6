"""`nightjar-profiling why`: why a program takes its time, or why it takes more or less than another, and what to do."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nightjar_profiling.errors import InputError, NotAttributableError

if TYPE_CHECKING:
    from nightjar_profiling.analyses.compare.change import Change

ROWS = 5


def why(
    before: Annotated[Path, typer.Argument(metavar="A", help="A capture folder.")],
    after: Annotated[
        Path | None, typer.Argument(metavar="B", help="Another, to explain what it does otherwise.")
    ] = None,
    trial: Annotated[
        str | None,
        typer.Option(
            "--try",
            metavar="COMMAND",
            help="Run A's program again, and COMMAND, which starts it with a change, in turn under the profiler; say "
            "how much time a step really saves.",
        ),
    ] = None,
    runs: Annotated[int, typer.Option(min=2, help="With --try: captures of each side.")] = 3,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --try: print what would run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one line of JSON.")] = False,
) -> None:
    """Say what to do next about A, or what makes B faster or slower than A.

    Each advice has its evidence, its line and a predicted saving, as a share of the time from the first op to the last.
    Savings overlap, and are not to be added.

    With --try, the exit code is 0 if a step is certainly faster, 1 if it is certainly slower, else 4.

    Example: nightjar-profiling why capture --try "python train.py --donate"
    """
    if trial is not None and after is not None:
        raise InputError("--try: takes one capture.", "compare two with `why A B`")
    if trial is not None:
        prove(before, trial, runs, dry_run=dry_run, as_json=as_json)
        return
    captures = [before] if after is None else [before, after]
    advice = [read_advice(capture) for capture in captures]
    document: dict[str, Any] = {"captures": list(map(str, captures)), "advice": advice}
    lines: list[str] = []
    if after is not None:
        from nightjar_profiling.analyses.compare.diff import compare
        from nightjar_profiling.commands.diff import render_diff, render_document
        from nightjar_profiling.pipeline.opened import read_side

        difference = compare([read_side(before)], [read_side(after)])
        document["diff"] = render_document(difference, str(before), str(after))
        lines += [*render_diff(difference, ROWS, shutil.get_terminal_size((160, 24)).columns), ""]
    if as_json:
        print(json.dumps(document))
        return
    lines += render_advice(advice)
    print("\n".join(lines))


def prove(capture: Path, command: str, runs: int, *, dry_run: bool, as_json: bool) -> None:
    """Measures a change against its prediction, and exits with the code of the answer."""
    from nightjar_profiling.capture.trial import judge_trial, measure_elapsed, plan_trial, run_capture
    from nightjar_profiling.capture_folder.manifest import read_manifest
    from nightjar_profiling.capture_folder.tables import read_tables

    advice = read_advice(capture)
    planned = plan_trial(read_manifest(capture), command, runs, capture)
    elapsed: dict[str, list[float]] = {"before": [], "after": []}
    with tempfile.TemporaryDirectory(prefix="nightjar-try-") as name:
        for side, folder, words in planned.list_captures(Path(name)):
            print(f"nightjar-profiling: {side}: {shlex.join(words)}", file=sys.stderr, flush=True)
            if not dry_run:
                run_capture(planned, words)
                elapsed[side].append(measure_elapsed(read_tables(folder / "tables")))
    if dry_run:
        return
    change = judge_trial(elapsed["before"], elapsed["after"])
    measured = {**asdict(change), "fraction": change.fraction, "runs": runs, "command": command}
    if as_json:
        document = {"captures": [str(capture)], "advice": [advice], "trial": measured}
        print(json.dumps(document), flush=True)
    else:
        print("\n".join([*render_advice([advice]), render_trial(change, command, runs)]), flush=True)
    if not change.certain:
        raise NotAttributableError(
            f"--try: {runs} captures of each side do not tell whether a step takes less time.",
            "give more with --runs, on a quieter machine",
        )
    if change.delta_ns > 0:
        raise typer.Exit(1)


def render_trial(change: Change, command: str, runs: int) -> str:
    """The measured saving of a change, in a line."""
    before_ns, after_ns = change.before_ns or 0.0, change.after_ns or 0.0
    text = f"Measured: {command}: {before_ns / 1e6:.3f} -> {after_ns / 1e6:.3f} ms a step"
    if change.low_ns is not None and change.high_ns is not None and before_ns:
        low, high = change.low_ns / before_ns, change.high_ns / before_ns
        text += f", {change.fraction or 0.0:+.1%} (95 % interval {low:+.1%} to {high:+.1%})"
    return f"{text}, {runs} captures of each, in turn. From the first op to the end of the last."


def read_advice(capture: Path) -> list[dict[str, Any]]:
    """The advice of a capture."""
    from nightjar_profiling.capture_folder.documents import read_json
    from nightjar_profiling.capture_folder.manifest import check_finished
    from nightjar_profiling.report.analyse import SCHEMA as PROFILE

    check_finished(capture)
    advice = read_json(capture / "profile.json", PROFILE).get("advice")
    if not isinstance(advice, list):
        raise InputError(
            f"{capture / 'profile.json'}: has no advice: an older version wrote it.",
            f"make it again: nightjar-profiling report {capture}",
        )
    return advice


def render_advice(captures: list[list[dict[str, Any]]]) -> list[str]:
    """The advice about the last capture, each with its predicted saving in the capture before."""
    from nightjar_profiling.report.terminal import advice

    *earlier, last = captures
    if not last:
        return ["Nothing to advise: no cost was found that the program need not have."]
    if earlier:
        savings = {row["kind"]: row["saving_fraction"] for row in earlier[0]}
    else:
        savings = {}
    lines = []
    for rank, row in enumerate(last, start=1):
        text = advice(rank, row).plain
        if earlier:
            text += f" In A it could save {savings.get(row['kind'], 0.0):.0%}."
        lines.append(text)
    return lines
