"""`nightjar-ci schema`: print the JSON Schema of a file format."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Annotated

import typer

from nightjar_ci.errors import InputError

# format to the module and class of its model; only the one asked for is imported
FORMATS = {
    "run": ("nightjar_ci.formats.run_record", "RunRecord"),
    "matrix": ("nightjar_ci.night.matrix", "Matrix"),
    "night": ("nightjar_ci.formats.night_folder", "Night"),
    "verdicts": ("nightjar_ci.formats.verdict", "NightVerdicts"),
    "calls": ("nightjar_ci.formats.calls", "Calls"),
    "ledger": ("nightjar_ci.formats.ledger", "Ledger"),
    "policies": ("nightjar_ci.formats.policy", "Policies"),
    "adapter": ("nightjar_ci.formats.adapter", "AdapterFile"),
    "accepted": ("nightjar_ci.baselines.accepted", "Accepted"),
    "images": ("nightjar_ci.images.publish.nightly_index", "NightlyIndex"),
    "image-tests": ("nightjar_ci.images.tested", "TestReport"),
    "baseline": ("nightjar_ci.baselines.baseline", "ConvergenceBaseline"),
}


def command(name: Annotated[str, typer.Argument(help=f"One of {', '.join(FORMATS)}.")]) -> None:
    """Print the JSON Schema of a file format.

    Example: nightjar-ci schema run > run.schema.json
    """
    if name not in FORMATS:
        raise InputError(f"unknown format {name!r}: expected one of {', '.join(FORMATS)}.")
    module, model = FORMATS[name]
    print(json.dumps(getattr(import_module(module), model).model_json_schema(by_alias=True), indent=1))
