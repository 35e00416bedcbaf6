"""The commands `nightjar-ci images diff` and `plan`: the bytes that users pull."""

from __future__ import annotations

import json
import platform as machine
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from nightjar_ci.commands.images_steps import show_steps
from nightjar_ci.errors import InputError
from nightjar_ci.images.tree import find_checkout, find_flavors

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
Platform = Annotated[
    str, typer.Option("--platform", help="Platform, if an index has several.", show_default="this machine's")
]
MAX_NIGHTS = 1000


def diff(
    old: Annotated[str, typer.Argument(help="engine:TAG, oci:FOLDER[:TAG], index:FILE.json:NAME, registry:NAME:TAG.")],
    new: Annotated[str, typer.Argument(help="As OLD; the prefix is optional if the kind is clear.")],
    platform: Platform = "",
    as_json: Json = False,
) -> None:
    """Print the changes between two images: packages, and the bytes to pull by layer (MB: 1,000,000 bytes).

    Sizes are compressed sizes; layers of the engine are compressed once to measure them.
    """
    from nightjar_ci.images.content.difference import compare_images, render_difference
    from nightjar_ci.images.sources import read_image
    from nightjar_ci.settings import read_settings

    platform = platform or f"linux/{ARCHITECTURES.get(machine.machine(), machine.machine())}"
    layer_cache = read_settings().state_dir / "layers"
    with show_steps() as on_step:
        before = read_image(old, layer_cache=layer_cache, platform=platform, on_step=on_step)
        after = read_image(new, layer_cache=layer_cache, platform=platform, on_step=on_step)
    difference = compare_images(before, after)
    if as_json:
        typer.echo(json.dumps(asdict(difference), indent=1))
    else:
        typer.echo(render_difference(difference))


def plan(
    flavor: Annotated[str, typer.Option(help="Packages: docker/locks/jax-FLAVOR.in.")] = "cuda12",
    nights: Annotated[int, typer.Option(help="Number of nights.", min=1, max=MAX_NIGHTS)] = 179,
    until: Annotated[
        str, typer.Option("--until", help="The last night, YYYY-MM-DD.", show_default="yesterday, in UTC")
    ] = "",
    as_json: Json = False,
) -> None:
    """Replay past nights: the bytes pulled over all nights with the layers of docker/layers.txt and with others.

    Each night is resolved once from the package index as of that night and cached in the cache folder.
    """
    from nightjar_ci.images.layering.layers import read_layers
    from nightjar_ci.images.layering.past_nights import PastNights, list_days
    from nightjar_ci.images.layering.replay import count_changes, find_savings, layer_per_package, one_layer, replay
    from nightjar_ci.settings import read_settings

    checkout = find_checkout(Path.cwd())
    if flavor not in (flavors := find_flavors(checkout)):
        raise InputError(f"unknown flavor {flavor!r}: expected one of {', '.join(flavors)}.")
    last = _read_day(until) if until else datetime.now(UTC).date() - timedelta(days=1)
    rules = read_layers(checkout)
    past = PastNights(
        source=checkout / f"docker/locks/jax-{flavor}.in", folder=read_settings().cache_dir / "past-nights"
    )
    with show_steps() as on_step:
        resolved = past.resolve(list_days(last, nights), lambda day: on_step(f"resolved {day}"))
    layouts = {"one layer": one_layer, "docker/layers.txt": rules.layer_of, "a layer per package": layer_per_package}
    costs = {name: replay(resolved, layout) for name, layout in layouts.items()}
    changes, savings = count_changes(resolved), find_savings(resolved, rules.layer_of)
    if as_json:
        document = {"costs": {name: asdict(cost) for name, cost in costs.items()}, "changes": changes}
        typer.echo(json.dumps({**document, "savings": savings}, indent=1))
        return
    current = costs["docker/layers.txt"]
    typer.echo(f"{current.nights} nights until {last}, {current.changed_nights} with changes to pull")
    for name, cost in costs.items():
        typer.echo(f"  {name:<22} {cost.pulled_bytes / 1e9:>8.1f} GB")
    typer.echo("\nLayer            pulls     size now        pulled")
    for layer in current.layers:
        megabytes = f"{layer.size_bytes / 1e6:>9.1f} MB {layer.pulled_bytes / 1e6:>10.1f} MB"
        typer.echo(f"  {layer.name:<14} {layer.pulls:>5} {megabytes}")
    frequent = ", ".join(f"{name} {count}" for name, count in list(changes.items())[:8])
    typer.echo(f"\nMost changes: {frequent}")
    for name, saved in list(savings.items())[:5]:
        typer.echo(f"A separate layer for {name} would save {saved / 1e6:.0f} MB")


def _read_day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InputError(f"--until: {text!r} is not a valid date.", "write it like 2026-11-21") from None
