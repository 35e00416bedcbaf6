"""The image tree: `docker/docker-bake.hcl`, read through `bake --print`.

In: a checkout and a flavour. Out: the images, parents first, and the command that builds some of them. The bake file is
the only definition of the tree; all lists of images come from here. `docker/tree.json` is generated from it, so that
listing images and dry runs work on a machine without buildx.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nightjar_ci.errors import InputError
from nightjar_ci.tools import ToolError, run_captured

BAKE_FILES = ("docker/versions.json", "docker/docker-bake.hcl")
TREE_FILE = "docker/tree.json"
ON_REQUEST = ("source",)  # images that are neither in the group `default` nor in `tree`
ENGINE_HINT = "docker/engine.sh installs and starts a Docker engine with buildx (Debian or Ubuntu, root)"
DEFAULT_FLAVOR = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One image of the tree.

    Attributes:
        name: the bake group of its selected target (flavour, Python, architecture).
        tag: reference of the built image, such as `nightjar/jax:cpu`.
        parent: name of its parent image; None for the lowest.
        by_default: whether it is built without being named.
        on_request: whether it is built only by name: not even with `--all`.
    """

    name: str
    tag: str
    parent: str | None
    base: str
    description: str
    by_default: bool = True
    on_request: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BakeCommand:
    """A `docker buildx bake` command and the bake variables for its environment."""

    argv: tuple[str, ...]
    variables: Mapping[str, str]


def find_checkout(start: Path) -> Path:
    """The nearest folder at or above `start` that contains the image tree."""
    for folder in (start.absolute(), *start.absolute().parents):
        if (folder / BAKE_FILES[-1]).is_file():
            return folder
    raise InputError(f"{start.absolute()}: no {BAKE_FILES[-1]} here or above.", "run this in a checkout of Nightjar")


def find_flavors(checkout: Path) -> tuple[str, ...]:
    """The flavours of the tree: each has a lock of the jax image."""
    return tuple(sorted(path.stem.removeprefix("jax-") for path in (checkout / "docker/locks").glob("jax-*.txt")))


def render_bake(
    targets: Sequence[str] = (),
    *,
    flavor: str = DEFAULT_FLAVOR,
    revision: str = "",
    source: str = "",
    secrets: Mapping[str, Path] | None = None,
    options: Sequence[str] = (),
    locks: Mapping[str, str] | None = None,
    origin: Mapping[str, str] | None = None,
) -> BakeCommand:
    """The command that builds (or, with `options=["--print"]`, describes) images; run it in the checkout.

    Args:
        revision: git commit for the images' label.
        source: URL of the repository for the images' label.
        secrets: files that `RUN` steps may mount, by id; no layer contains them.
        locks: SHA-256 of the lock files by name; the build compares them with its copies.
        origin: bake variables for the labels, from `nightjar_ci.images.origins`.

    >>> " ".join(render_bake(["jax"], secrets={"ca": Path("/ca.pem")}).argv[3:])
    '--file docker/versions.json --file docker/docker-bake.hcl --set *.secrets=id=ca,src=/ca.pem jax'
    """
    argv = ["docker", "buildx", "bake"]
    for file in BAKE_FILES:
        argv += ["--file", file]
    argv += options
    for name, path in (secrets or {}).items():
        argv += ["--set", f"*.secrets=id={name},src={path}"]
    # containerd's image store would keep an attestation with the time of the build, and the same image get a new id
    variables = {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1", "FLAVOR": flavor, "REVISION": revision, "SOURCE": source}
    variables |= origin or {}
    if locks:
        variables["LOCK_DIGESTS"] = json.dumps(locks, sort_keys=True)
    return BakeCommand(argv=(*argv, *targets), variables=variables)


def digest_locks(checkout: Path) -> dict[str, str]:
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in find_locks(checkout).items()}


def find_locks(checkout: Path) -> dict[str, Path]:
    folder = checkout / "docker/locks"
    return {str(path.relative_to(folder).with_suffix("")): path for path in sorted(folder.rglob("*.txt"))}


def parse_tree(bake: str) -> tuple[Image, ...]:
    """The images in the output of `bake --print`, parents first.

    Args:
        bake: JSON. A target without a tag is a builder stage, not an image; an image's name is in its title label.
    """
    printed = json.loads(bake)
    targets = printed["target"]
    defaults = printed.get("group", {}).get("default", {}).get("targets", [])
    images: dict[str, Image] = {}

    def add(name: str) -> None:
        target = targets[name]
        contexts = [context.removeprefix("target:") for context in target.get("contexts", {}).values()]
        parents = [context for context in contexts if targets.get(context, {}).get("tags")]
        for parent in parents:
            if parent not in images:
                add(parent)
        labels = target["labels"]
        title = labels["org.opencontainers.image.title"].removeprefix("nightjar/")
        images[name] = Image(
            name=title,
            tag=target["tags"][0],
            parent=images[parents[0]].name if parents else None,
            by_default=title not in ON_REQUEST and (not defaults or title in defaults),
            on_request=title in ON_REQUEST,
            base=labels["org.opencontainers.image.base.name"],
            description=labels["org.opencontainers.image.description"],
        )

    for name in sorted(targets):
        if targets[name].get("tags") and name not in images:
            add(name)
    return tuple(images.values())


def read_tree(checkout: Path, flavor: str = DEFAULT_FLAVOR) -> tuple[Image, ...]:
    """The images of a checkout, parents first.

    The variables `IMAGE_PYTHON` and `IMAGE_ARCH` choose the cell of the bake file, `BASE_IMAGE` replaces the base.
    """
    flavors = find_flavors(checkout)
    if flavor not in flavors:
        raise InputError(f"unknown flavor {flavor!r}: expected one of {', '.join(flavors)}.", _suggest(flavor, flavors))
    pins = json.loads((checkout / BAKE_FILES[0]).read_text(encoding="utf-8"))["variable"]
    python = os.environ.get("IMAGE_PYTHON") or pins["DEFAULT_PYTHON"]["default"]
    arch = os.environ.get("IMAGE_ARCH") or pins["DEFAULT_ARCH"]["default"]
    try:
        run_captured(["docker", "buildx", "version"], hint=ENGINE_HINT)
    except ToolError:
        images = _read_listed(checkout, name_cell(flavor, python, arch))
    else:
        images = bake_tree(checkout, flavor, python, arch)
    base = os.environ.get("BASE_IMAGE")
    if base:
        return tuple(replace(image, base=base) for image in images)
    return images


def _read_listed(checkout: Path, cell: str) -> tuple[Image, ...]:
    cells: dict[str, list[dict[str, Any]]] = json.loads((checkout / TREE_FILE).read_text(encoding="utf-8"))["cells"]
    if cell not in cells:
        raise InputError(
            f"the tree has no cell {cell}: expected one of {', '.join(cells)}.", "correct IMAGE_PYTHON or IMAGE_ARCH"
        )
    return tuple(Image(**image) for image in cells[cell])


def name_cell(flavor: str, python: str, arch: str) -> str:
    """The name of a cell of the tree.

    >>> name_cell("cpu", "3.13", "amd64")
    'cpu-py3.13-amd64'
    """
    return f"{flavor}-py{python}-{arch}"


def bake_tree(checkout: Path, flavor: str, python: str, arch: str) -> tuple[Image, ...]:
    command = render_bake(["default", "tree", *ON_REQUEST], flavor=flavor, options=["--print"])
    variables = {**command.variables, "IMAGE_PYTHON": python, "IMAGE_ARCH": arch, "BASE_IMAGE": ""}
    return parse_tree(run_captured(command.argv, cwd=checkout, variables=variables))


def select_images(tree: Sequence[Image], target: str | None, *, everything: bool = False) -> tuple[Image, ...]:
    """The image named `target`; without a target, the default images, or with `everything` all except `ON_REQUEST`."""
    if target is None:
        return tuple(image for image in tree if image.by_default or (everything and not image.on_request))
    if everything:
        raise InputError(f"{target!r} and --all exclude each other: expected one of them.")
    names = [image.name for image in tree]
    if target not in names:
        raise InputError(f"unknown image {target!r}: expected one of {', '.join(names)}.", _suggest(target, names))
    return tuple(image for image in tree if image.name == target)


def _suggest(word: str, names: Sequence[str]) -> str | None:
    similar = difflib.get_close_matches(word, names, n=1)
    if similar:
        return f"did you mean {similar[0]!r}?"
    return None


def find_architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def check_engine() -> None:
    run_captured(["docker", "buildx", "version"], hint=ENGINE_HINT)
    run_captured(["docker", "version", "--format", "{{.Server.Version}}"], hint=ENGINE_HINT)
