"""The origin labels of an image: the digest of its base, and the version of the package that it is named after.

In: the engine's description of the base, and the locks. Out: variables of the bake file. Two builds from the same base
and locks get the same labels.

Source: OCI image-spec, annotations.md (base.digest is a manifest's digest; an image that was never in a registry has no
manifest and is identified by its layers).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nightjar_ci.environments.lock import read_pins
from nightjar_ci.errors import InputError

# lock and package that give an image its name and version; the other images have Nightjar's version
_PACKAGES = {
    "cuda": ("jax-{flavor}", r"nvidia-cuda-runtime(-cu\d+)?"),
    "jax": ("jax-{flavor}", "jax"),
    "devel": ("jax-{flavor}", "jax"),
    "te": ("te-{flavor}", "transformer-engine"),
    "dali": ("dali-{flavor}", r"nvidia-dali-cuda\d+"),
    "equinox": ("ecosystem/diffrax", "equinox"),
    "levanter": ("ecosystem/levanter", "levanter"),
    "maxtext": ("trainers/maxtext", "maxtext"),
    "tunix": ("trainers/tunix", "google-tunix"),
}
_COMPILED = ("jaxlib", "jax-cuda", "nvidia-")
_DIGEST = re.compile(r"@(sha256:[0-9a-f]{64})$")
_COMMIT = re.compile(r"@ .*@([0-9a-f]{40})")
_HUB = re.compile(r"^(docker\.io/)?(library/)?")


def describe_base(reference: str, inspected: Mapping[str, Any] | None) -> dict[str, str]:
    """`BASE_DIGEST`, of the manifest, or if unknown `BASE_LAYERS`, the digests of the uncompressed layers.

    Args:
        reference: the base, such as `debian:trixie`.
        inspected: the engine's description of it; None if the engine does not have it yet.

    >>> describe_base("a:1", {"RepoDigests": [], "RootFS": {"Layers": ["sha256:1", "sha256:2"]}})
    {'BASE_DIGEST': '', 'BASE_LAYERS': 'sha256:1 sha256:2'}
    """
    if pinned := _DIGEST.search(reference):
        return {"BASE_DIGEST": pinned[1], "BASE_LAYERS": ""}
    description = inspected or {}
    repository = _HUB.sub("", re.sub(r":[^/:]*$", "", reference))
    for digest in description.get("RepoDigests") or ():
        if _HUB.sub("", digest.partition("@")[0]) == repository:
            return {"BASE_DIGEST": digest.partition("@")[2], "BASE_LAYERS": ""}
    return {"BASE_DIGEST": "", "BASE_LAYERS": " ".join(description.get("RootFS", {}).get("Layers") or ())}


def list_versions(locks: Mapping[str, str], flavor: str, python: str) -> dict[str, str]:
    """`VERSIONS`: JSON, image name to version; the entry "" is Nightjar's version, for all other images.

    Args:
        locks: texts of the lock files by name, such as `jax-cpu`.
    """
    versions = {"": version("nightjar-ci")}
    for image, (lock, package) in _PACKAGES.items():
        for name, pin in read_pins(locks.get(lock.format(flavor=flavor), ""), python).items():
            if re.fullmatch(package, name):
                commit = _COMMIT.search(pin)
                versions[image] = pin if commit is None else commit[1]
    return {"VERSIONS": json.dumps(versions, sort_keys=True)}


def list_patches(folder: Path, lock: str) -> dict[str, str]:
    """`PATCHES`: the files `PACKAGE/NAME.patch` of a folder, in the order of their use, with their SHA-256.

    Args:
        lock: text of the lock of the jax image; patches of what is not in it would be applied to nothing.
    """
    patches = []
    for path in sorted(folder.glob("*/*.patch")):
        package = path.parent.name
        if package != "xla" and not re.search(rf"^{re.escape(package)}(==| @ )", lock, re.MULTILINE):
            raise InputError(f"{path}: the jax image has no package {package!r}.", "name the folder as the lock does")
        if path.name.split() != [path.name]:
            raise InputError(f"{path}: expected a name without spaces.", "rename the file")
        if package.startswith(_COMPILED):
            raise InputError(f"{path}: {package} is compiled.", "patch jax or xla, and build the image source")
        patches.append(f"{package}/{path.name}@{hashlib.sha256(path.read_bytes()).hexdigest()}")
    return {"PATCHES": " ".join(patches)}
