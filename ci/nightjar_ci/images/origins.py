"""What do an image's labels say of where it comes from? Its base by digest, and the version of what it is named after.

In: what the engine knows of the base, and the locks. Out: variables of the bake file. They stay as they are while base
and locks do, so that two builds bear the same labels.

Source: OCI image-spec, annotations.md (base.digest is that of a manifest, which an image that was never in a registry
has not: then its layers name it).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from packaging.requirements import Requirement

# what an image is named after; the others are Nightjar's own
_PACKAGES = {
    "cuda": ("jax", r"nvidia-cuda-runtime(-cu\d+)?"),
    "jax": ("jax", "jax"),
    "te": ("te", "transformer-engine"),
    "dali": ("dali", r"nvidia-dali-cuda\d+"),
}
_DIGEST = re.compile(r"@(sha256:[0-9a-f]{64})$")
_HUB = re.compile(r"^(docker\.io/)?(library/)?")


def describe_base(reference: str, inspected: Mapping[str, Any] | None) -> dict[str, str]:
    """`BASE_DIGEST`, of the manifest, and where that is unknown `BASE_LAYERS`, digests of the uncompressed layers.

    Args:
        reference: the base, such as `debian:trixie`.
        inspected: what the engine says of it; None where it has it not yet.

    >>> describe_base("a:1", {"RepoDigests": [], "RootFS": {"Layers": ["sha256:1", "sha256:2"]}})
    {'BASE_DIGEST': '', 'BASE_LAYERS': 'sha256:1 sha256:2'}
    """
    if named := _DIGEST.search(reference):
        return {"BASE_DIGEST": named[1], "BASE_LAYERS": ""}
    known = inspected or {}
    repository = _HUB.sub("", re.sub(r":[^/:]*$", "", reference))
    for digest in known.get("RepoDigests") or ():
        if _HUB.sub("", digest.partition("@")[0]) == repository:
            return {"BASE_DIGEST": digest.partition("@")[2], "BASE_LAYERS": ""}
    return {"BASE_DIGEST": "", "BASE_LAYERS": " ".join(known.get("RootFS", {}).get("Layers") or ())}


def list_versions(locks: Mapping[str, str], flavor: str, python: str) -> dict[str, str]:
    """`VERSIONS`: JSON, image name to version; the images that are not in it have Nightjar's own, under the name ``.

    Args:
        locks: text of the lock files by name, such as `jax-cpu`.
        flavor: such as `cpu`.
        python: of the images, such as `3.13`.
    """
    found = {"": version("nightjar-ci")}
    for image, (lock, package) in _PACKAGES.items():
        pin = find_pin(locks.get(f"{lock}-{flavor}", ""), package, python)
        if pin is not None:
            found[image] = pin
    return {"VERSIONS": json.dumps(found, sort_keys=True)}


def find_pin(lock: str, package: str, python: str) -> str | None:
    """The version (or commit) of a package in a lock; None where it has none.

    Args:
        lock: text of a lock.
        package: pattern of its name.
        python: such as `3.13`.

    >>> find_pin("jax==1.0 ; python_version < '3.12'\\njax==2.0 ; python_version >= '3.12'", "jax", "3.13")
    '2.0'
    """
    environment = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    for line in lock.splitlines():
        if not re.match(rf"{package}(==| @ )", line):
            continue
        requirement = Requirement(line.rstrip("\\ "))
        if requirement.marker is None or requirement.marker.evaluate(environment):
            commit = re.search(r"@([0-9a-f]{40})", requirement.url or "")
            return commit[1] if commit else str(requirement.specifier).removeprefix("==")
    return None
