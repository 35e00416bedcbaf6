"""Wheels of a package index on the engine's bridge, which holds what a test says: real builds install from it."""

from pathlib import Path

from tests.ci.jax_nightly.wheels import digest, write_wheel

# the constant is a set, which is compiled in the order of its hashes
MODULE = "def knows(name):\n    return name in {'relu', 'gelu', 'silu', 'tanh'}\n"


def fill(folder: Path, *releases: str) -> dict[str, str]:
    """Makes a wheel of each release (`NAME==VERSION`) in a folder; returns the SHA-256 of each."""
    digests = {}
    for release in releases:
        name, _, version = release.partition("==")
        files = {f"{name.replace('-', '_')}.py": MODULE}
        digests[release] = digest(write_wheel(folder, name, version, "py3-none-any", "", files))
    return digests
