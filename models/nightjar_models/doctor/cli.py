"""`nightjar-doctor`: is this machine, or this container, fit for JAX on GPUs, and what puts it right?"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

NO, MACHINE_FAILED, CANNOT_TELL = 1, 3, 4

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command(epilog="Example: docker run --rm --gpus all IMAGE nightjar-doctor --expect-gpu")
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: nightjar.doctor/1.")] = False,
    expect_gpu: Annotated[bool, typer.Option("--expect-gpu", help="That no GPU is seen is an error.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings end with 1, too.")] = False,
    timeout_s: Annotated[float, typer.Option(min=1, help="Seconds that JAX may take to start.")] = 120.0,
) -> None:
    """Report GPU, driver, CUDA, cuDNN, NCCL, JAX, TE and DALI on one page, with the fix of each mismatch.

    Ends with 0 where nothing is wrong, 1 where there is an error, 4 where JAX did not answer. Works without a GPU.
    """
    from nightjar_models.doctor.checks import judge_facts
    from nightjar_models.doctor.gather import gather_facts
    from nightjar_models.doctor.report import render_json, render_report

    if sys.stderr.isatty():
        print("asking JAX ...", file=sys.stderr, end="\r")
    facts = gather_facts(timeout_s)
    findings = judge_facts(facts, expect_gpu=expect_gpu)
    typer.echo(render_json(facts, findings) if as_json else render_report(facts, findings))
    levels = {finding.level for finding in findings}
    if "probe" in facts.failures:
        raise typer.Exit(CANNOT_TELL)
    raise typer.Exit(NO if "error" in levels or (strict and "warning" in levels) else 0)


def main() -> None:
    """Runs the command; a fault of ours or of the machine ends with 3."""
    try:
        app()
    except Exception as error:
        print(f"error: {type(error).__name__}: {error}\nHint: this is a fault of nightjar-doctor", file=sys.stderr)
        raise SystemExit(MACHINE_FAILED) from None
