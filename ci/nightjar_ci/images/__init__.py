"""The images of `docker/`: the tree, building, locking, content and publishing."""
