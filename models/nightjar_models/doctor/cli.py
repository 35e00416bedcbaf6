"""`nightjar-doctor`: check a machine or container for JAX on GPUs, and report how to fix its faults.

It and all that it imports use only the standard library, so that it works in every image, whatever packages are broken.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress

from nightjar_models.doctor.checks import judge_facts
from nightjar_models.doctor.cluster import gather_cluster
from nightjar_models.doctor.cluster_checks import judge_cluster
from nightjar_models.doctor.gather import gather_facts
from nightjar_models.doctor.report import render_json, render_report

NO, MACHINE_FAILED, CANNOT_TELL = 1, 3, 4
ABOUT = """Report GPU, driver, CUDA, cuDNN, NCCL, JAX, TE and DALI on one page, with the fix of each mismatch.

Exit code 0: nothing is wrong; 1: there is an error; 4: JAX did not answer. Works without a GPU."""


def parse_timeout(text: str) -> float:
    """A number of seconds, at least 1."""
    with suppress(ValueError):
        if float(text) >= 1:
            return float(text)
    raise argparse.ArgumentTypeError(f"expected a number of seconds, at least 1, not {text!r}")


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of a command line; invalid ones exit with 2."""
    parser = argparse.ArgumentParser(
        "nightjar-doctor",
        description=ABOUT,
        epilog="Example: docker run --rm --gpus all IMAGE nightjar-doctor --expect-gpu",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print JSON: nightjar.doctor/1")
    parser.add_argument("--expect-gpu", action="store_true", help="report a missing GPU as an error")
    parser.add_argument("--cluster", action="store_true", help="check fabric, limits, names and folders of a node, too")
    parser.add_argument("--strict", action="store_true", help="exit with 1 on warnings, too")
    parser.add_argument(
        "--timeout-s",
        type=parse_timeout,
        default=120.0,
        metavar="SECONDS",
        help="how long JAX may take to start, at least 1 (%(default)g)",
    )
    return parser.parse_args(argv)


def doctor(argv: Sequence[str] | None = None) -> int:
    """Prints the report and returns the exit code.

    Args:
        argv: options; None for the process's own.
    """
    options = read_options(argv)
    if sys.stderr is not None and sys.stderr.isatty():
        print("starting JAX ...", file=sys.stderr, end="\r")
    facts = gather_facts(options.timeout_s)
    cluster = gather_cluster() if options.cluster else None
    more = judge_cluster(facts, cluster) if cluster is not None else ()
    findings = judge_facts(facts, expect_gpu=options.expect_gpu, more=more)
    render = render_json if options.json else render_report
    print(render(facts, findings, cluster))
    levels = {finding.level for finding in findings}
    if "probe" in facts.failures:
        return CANNOT_TELL
    if "error" in levels or (options.strict and "warning" in levels):
        return NO
    return 0


def main() -> None:
    """Runs the command; an unexpected exception exits with 3."""
    try:
        code = doctor()
    except Exception as error:
        print(
            f"error: {type(error).__name__}: {error}\nHint: this is a bug in nightjar-doctor; please report it",
            file=sys.stderr,
        )
        code = MACHINE_FAILED
    raise SystemExit(code)
