"""`nightjar-models presets`: the workloads that ship, and their expected results."""

from __future__ import annotations

import inspect
import json
from typing import Annotated

import typer

from nightjar_models.presets import PRESETS, find_preset
from nightjar_models.presets.config import flatten


def presets(
    name: Annotated[str | None, typer.Argument(help="Show one preset in full.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the configurations as JSON.")] = False,
) -> None:
    """List the presets, or show one.

    Each has its command, hardware, time, expected number and trivial baseline.

    Example: nightjar-models presets gpt_tiny
    """
    chosen = {name: find_preset(name)} if name is not None else PRESETS
    if as_json:
        print(json.dumps({key: flatten(preset()) for key, preset in chosen.items()}))
    elif name is None:
        for key, preset in chosen.items():
            print(f"{key:12} {(inspect.getdoc(preset) or '').splitlines()[0]}")
    else:
        print(inspect.getdoc(chosen[name]), end="\n\n")
        for key, value in flatten(chosen[name]()).items():
            print(f"{key:20} {value}")
