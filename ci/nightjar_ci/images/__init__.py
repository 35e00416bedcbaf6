"""The images of `docker/`: the tree, building, locking, layering, content and publishing."""
