"""The command line of `nightjar-models`: train a workload, compile it for absent GPUs, try what is built on JAX."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated

import typer

from nightjar_models.commands import compile, fit, presets, smoke, train
from nightjar_models.errors import NightjarError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 110},
    rich_markup_mode=None,
)
app.command()(train.train)
app.command()(presets.presets)
app.command("compile")(compile.compile_)
app.command()(fit.fit)
app.command()(smoke.smoke)


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False,
) -> None:
    """The workloads that a JAX nightly must keep alive: small real models, trained on this machine's devices."""


def main() -> None:
    """Runs the command; an error becomes a message and an exit code, never a traceback unless `--debug` asks."""
    try:
        app()
    except NightjarError as error:
        _end(error, error.exit_code, error.hint)
    except Exception as error:  # a fault of Nightjar or the machine is 3: Python's own 1 would say "the answer is no"
        _end(f"{type(error).__name__}: {error}", 3, "nightjar-models --debug ... prints the traceback")


def _end(error: NightjarError | str, code: int, hint: str | None) -> None:
    if "--debug" in sys.argv[1:2]:
        traceback.print_exc()
    message = error.message if isinstance(error, NightjarError) else error
    print(f"error: {message}" + (f"\nHint: {hint}" if hint else ""), file=sys.stderr)
    raise SystemExit(code)
