"""The command `nightjar-ci images diff`: the bytes that users pull."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from nightjar_ci.commands.images_steps import show_steps

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Platform = Annotated[
    str, typer.Option("--platform", help="Platform, if an index has several.", show_default="this machine's")
]


def diff(
    old: Annotated[str, typer.Argument(help="engine:TAG, oci:FOLDER[:TAG], index:FILE.json:NAME, registry:NAME:TAG.")],
    new: Annotated[str, typer.Argument(help="As OLD; the prefix is optional if the kind is clear.")],
    platform: Platform = "",
    as_json: Json = False,
) -> None:
    """Print the changes between two images: packages, and the bytes to pull by layer (MB: 1,000,000 bytes).

    Sizes are compressed sizes; layers of the engine are compressed once to measure them.
    """
    from nightjar_ci.images.choose import find_architecture
    from nightjar_ci.images.content.difference import compare_images, render_difference
    from nightjar_ci.images.sources import read_image
    from nightjar_ci.settings import read_settings

    platform = platform or f"linux/{find_architecture()}"
    layer_cache = read_settings().state_dir / "layers"
    with show_steps() as on_step:
        before = read_image(old, layer_cache=layer_cache, platform=platform, on_step=on_step)
        after = read_image(new, layer_cache=layer_cache, platform=platform, on_step=on_step)
    difference = compare_images(before, after)
    if as_json:
        typer.echo(json.dumps(asdict(difference), indent=1))
    else:
        typer.echo(render_difference(difference))
