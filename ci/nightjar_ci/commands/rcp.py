"""`nightjar-ci rcp`: MLPerf's reference convergence points, shown or made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    source: Annotated[str, typer.Argument(help="A file of points, or a cell with a baseline.", show_default=False)],
    runs: Annotated[
        int, typer.Option(min=4, help="Runs of a submission, for the smallest mean that MLPerf accepts.")
    ] = 10,
    target: Annotated[float | None, typer.Option(help="Of a cell: the value that its curve has to reach.")] = None,
    curve: Annotated[str, typer.Option(help="Of a cell: the curve.")] = "loss",
    benchmark: Annotated[str | None, typer.Option(help="Of a cell: the benchmark's name; default: the cell's.")] = None,
    creator: Annotated[str, typer.Option(help="Of a cell: who made the runs.")] = "unknown",
    out: Annotated[Path | None, typer.Option(help="Of a cell: the file to write; default: print it.")] = None,
    baselines: Annotated[
        Path | None, typer.Option(help="Folder of baselines; default: ci/nightjar/baselines or ci/baselines.")
    ] = None,
) -> None:
    """Show MLPerf's reference convergence points, or make them.

    Of a file: the mean without the fastest and slowest run, the standard deviation, and the smallest mean that MLPerf
    accepts. Of a cell with --target: a file that MLPerf's checker reads, with the samples that each seed of the
    baseline takes until the mean of a tenth of its curve reaches the target. A file saved as
    BASELINES/CELL/rcp.json is what the gate compares the cell's time to the target with.

    Example: nightjar-ci rcp rcps_bert.json --runs 10
    """
    from nightjar_ci.baselines.baseline import read_convergence
    from nightjar_ci.baselines.reference_points import read_points, render_points
    from nightjar_ci.errors import InputError
    from nightjar_ci.formats.documents import write_text
    from nightjar_ci.formats.project_files import find_baselines
    from nightjar_ci.judges.convergence.reference_points import least_mean, make_point

    if Path(source).is_file():
        points = read_points(Path(source))
        typer.echo(f"{'point':<32} {'batch':>7} {'runs':>5} {'mean':>12} {'sd':>10} {'smallest':>12}")
        for point in points:
            numbers = f"{point.mean:>12.6g} {point.stdev:>10.4g} {least_mean(point, runs):>12.6g}"
            typer.echo(f"{point.name:<32} {point.batch_size:>7} {len(point.times):>5} {numbers}")
        return
    if target is None:
        raise InputError(f"{source} is not a file, and of a cell --target is needed.", "nightjar-ci rcp rcps_bert.json")
    folder = find_baselines(baselines)
    baseline = read_convergence(folder, source)
    if baseline is None:
        raise InputError(f"{folder}: no baseline of {source!r}.", "nightjar-ci baseline MATRIX --seeds 0:10 makes one")
    point = make_point(baseline, curve, target, benchmark or source)
    about = {
        "Creator": creator,
        "When": baseline.made_at[:10],
        "Platform": ", ".join(dict.fromkeys(baseline.environment.devices)),
    }
    hyperparameters = {name: value for name, value in baseline.config.items() if isinstance(value, int | float)}
    text = render_points([point], about, hyperparameters)
    if out is None:
        typer.echo(text, nl=False)
        return
    write_text(out, text)
    typer.echo(out)
