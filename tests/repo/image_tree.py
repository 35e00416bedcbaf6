"""Writes `docker/tree.json`, the images of the bake file: `python -m tests.repo.image_tree` (needs docker buildx)."""

from nightjar_ci.images.tree import TREE_FILE, render_tree
from tests.docker.copies import CHECKOUT

if __name__ == "__main__":
    path = CHECKOUT / TREE_FILE
    path.write_text(render_tree(CHECKOUT), encoding="utf-8")
    print(path)
