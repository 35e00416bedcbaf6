"""`nightjar-models smoke`: check that a library built on JAX works with the installed JAX."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from nightjar_models.ecosystem.table import CELLS, find_cell
from nightjar_models.measuring.result import ResultFile, dump


def smoke(
    name: Annotated[str | None, typer.Argument(help="The cell to run; without it, all cells are listed.")] = None,
    out: Annotated[Path | None, typer.Option(envvar="NIGHTJAR_OUT", help="Output folder.")] = None,
    job: Annotated[str | None, typer.Option(envvar="NIGHTJAR_JOB", help="Job id (default: smoke-NAME).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Run one ecosystem cell, or list the cells.

    Writes OUT/result.json with the checked numbers, times and versions.

    Exit code 0: every number is right; 1: the library does not import, fails, or computes a wrong number, and the
    message names the two versions; 3: it is not installed; 4: this machine lacks a part that the cell needs.

    Example: nightjar-models smoke diffrax --out /tmp/diffrax
    """
    if name is None:
        cells = CELLS.values()
        listed = {cell.name: {"packages": cell.packages, "summary": cell.summary} for cell in cells}
        print(json.dumps(listed) if as_json else "\n".join(f"{cell.name:20} {cell.summary}" for cell in cells))
        return
    cell = find_cell(name)
    file = ResultFile(out)

    from nightjar_models.ecosystem.run import run_cell

    run, environment = run_cell(cell)
    document = file.render(run, environment, job=job or f"smoke-{name}", workload=f"ecosystem.{name}")
    file.write(document)
    if as_json:
        print(dump(document))
        return
    print(run.config["versions"])
    checks = {key.removeprefix("check."): value for key, value in run.config.items() if key.startswith("check.")}
    rows = [f"{key:32} {value:14.6g}  expected {run.config[f'expected.{key}']}" for key, value in checks.items()]
    for sample in run.samples:
        rows.append(f"{sample.name:32} {sorted(sample.values)[len(sample.values) // 2]:14.6g}  {sample.unit}")
    print("\n".join([*rows, str(file.path)]))
