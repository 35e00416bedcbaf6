"""The image tree of `docker/`: what it is (tree), how it is built (build, access) and what it is locked to (locks)."""
