"""Which images are there, and what is each built on? `docker/docker-bake.hcl`, read through `bake --print`.

In: a checkout and a flavour. Out: the images, parents first, and the command that builds some of them. The tree is
written nowhere else: whatever lists images asks here.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nightjar_ci.errors import InputError
from nightjar_ci.images.process import ENGINE_HINT, run_captured

BAKE_FILES = ("docker/versions.json", "docker/docker-bake.hcl")
DEFAULT_FLAVOR = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One image of the tree.

    Attributes:
        name: the group of the bake file that holds its chosen cell (flavour, Python, architecture).
        tag: reference of the built image, such as `nightjar/jax:cpu`.
        parent: name of the image that it is built on; None for the lowest.
        base: reference of the image below the whole tree.
        description: what is in it.
        by_default: whether it is built where no image is named; the others are asked for by name.
    """

    name: str
    tag: str
    parent: str | None
    base: str
    description: str
    by_default: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BakeCommand:
    """A `docker buildx bake` and the bake variables that it needs in its environment."""

    argv: tuple[str, ...]
    variables: Mapping[str, str]


def find_checkout(start: Path) -> Path:
    """The nearest folder at or above `start` that holds the image tree.

    Raises:
        InputError: there is none.
    """
    for folder in (start.absolute(), *start.absolute().parents):
        if (folder / BAKE_FILES[-1]).is_file():
            return folder
    raise InputError(f"{start.absolute()}: no {BAKE_FILES[-1]} here or above.", "run it in a checkout of Nightjar")


def find_flavors(checkout: Path) -> tuple[str, ...]:
    """The flavours that the tree can be built in: there is one lock of the jax image for each."""
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
        targets: names of images; empty for all.
        flavor: such as `cpu`.
        revision: git commit for the images' label.
        source: address of the repository for the images' label.
        secrets: files that `RUN` steps may mount, by id; they enter no layer.
        options: further options of bake.
        locks: SHA-256 of the lock files by name, which the build compares with what it was sent.
        origin: variables of the bake file from `nightjar_ci.images.origins`, for the labels.

    >>> " ".join(render_bake(["jax"], secrets={"ca": Path("/ca.pem")}).argv[3:])
    '--file docker/versions.json --file docker/docker-bake.hcl --set *.secrets=id=ca,src=/ca.pem jax'
    """
    argv = ["docker", "buildx", "bake"]
    for file in BAKE_FILES:
        argv += ["--file", file]
    argv += options
    for name, path in (secrets or {}).items():
        argv += ["--set", f"*.secrets=id={name},src={path}"]
    variables = {"FLAVOR": flavor, "REVISION": revision, "SOURCE": source, **(origin or {})}
    if locks:
        variables["LOCK_DIGESTS"] = json.dumps(locks, sort_keys=True)
    return BakeCommand(argv=(*argv, *targets), variables=variables)


def digest_locks(checkout: Path) -> dict[str, str]:
    """SHA-256 of each lock file by its name, such as `jax-cpu`."""
    files = sorted((checkout / "docker/locks").glob("*.txt"))
    return {path.stem: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def parse_tree(bake: str) -> tuple[Image, ...]:
    """The images in what `bake --print` wrote, parents first.

    Args:
        bake: JSON. A target without a tag is a builder stage, not an image; an image's name is the title of its label.
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
            by_default=not defaults or title in defaults,
            base=labels["org.opencontainers.image.base.name"],
            description=labels["org.opencontainers.image.description"],
        )

    for name in sorted(targets):
        if targets[name].get("tags") and name not in images:
            add(name)
    return tuple(images.values())


def read_tree(checkout: Path, flavor: str = DEFAULT_FLAVOR) -> tuple[Image, ...]:
    """The images of a checkout, parents first.

    Raises:
        InputError: the flavour is unknown.
        ToolError: there is no docker buildx, or it does not understand the bake file.
    """
    flavors = find_flavors(checkout)
    if flavor not in flavors:
        raise InputError(
            f"flavor: unknown flavor {flavor!r}: expected one of {', '.join(flavors)}.", _suggest(flavor, flavors)
        )
    run_captured(["docker", "buildx", "version"], hint=ENGINE_HINT)
    command = render_bake(["default", "tree"], flavor=flavor, options=["--print"])
    return parse_tree(run_captured(command.argv, cwd=checkout, variables=command.variables))


def select_images(tree: Sequence[Image], target: str | None, *, everything: bool = False) -> tuple[Image, ...]:
    """The image of that name; where None, those that are built by default, or `everything`.

    Raises:
        InputError: there is no such image, or one is named beside everything.
    """
    if target is None:
        return tuple(image for image in tree if image.by_default or everything)
    if everything:
        raise InputError(f"target: {target!r} and --all: expected one of them.")
    names = [image.name for image in tree]
    if target not in names:
        raise InputError(
            f"target: unknown image {target!r}: expected one of {', '.join(names)}.", _suggest(target, names)
        )
    return tuple(image for image in tree if image.name == target)


def _suggest(word: str, known: Sequence[str]) -> str | None:
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]!r}?" if near else None
