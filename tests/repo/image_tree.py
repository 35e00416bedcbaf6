"""Writes `docker/tree.json`, the images of the bake file: `python -m tests.repo.image_tree` (needs docker buildx)."""

import json
from dataclasses import asdict
from pathlib import Path

from nightjar_ci.images.tree import BAKE_FILES, TREE_FILE, bake_tree, find_flavors, name_cell
from tests.docker.copies import CHECKOUT

ARCHITECTURES = ("amd64", "arm64")


def render_tree(checkout: Path) -> str:
    """The text of `docker/tree.json`: every cell of the bake file."""
    pins = json.loads((checkout / BAKE_FILES[0]).read_text(encoding="utf-8"))["variable"]
    cells = {
        name_cell(flavor, python, arch): [asdict(image) for image in bake_tree(checkout, flavor, python, arch)]
        for flavor in find_flavors(checkout)
        for python in pins["GROUND_FLOORS"]["default"]
        for arch in ARCHITECTURES
    }
    return json.dumps({"cells": cells}, indent=1) + "\n"


if __name__ == "__main__":
    path = CHECKOUT / TREE_FILE
    path.write_text(render_tree(CHECKOUT), encoding="utf-8")
    print(path)
