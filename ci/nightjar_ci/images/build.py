"""How are images built, and what came of it? Drives `docker buildx bake` over the image tree.

In: a checkout, the images wanted and a flavour. Out: what each built image is (tag, id, size). The ground floor is made
first where the tree stands on the local one and the engine lacks it; another base is pulled.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nightjar_ci.images.access import open_secrets
from nightjar_ci.images.lock.commits import read_image_python
from nightjar_ci.images.origins import describe_base, list_versions
from nightjar_ci.images.process import ENGINE_HINT, ToolError, check_engine, run_captured, run_streamed
from nightjar_ci.images.tree import BakeCommand, Image, digest_locks, render_bake

GROUND_FLOOR = "nightjar/ground-floor:"
GROUND_FLOOR_SCRIPT = "docker/ground-floor.sh"
LOCKS = "docker/locks"
BASE_HINT = "BASE_IMAGE names it: is it spelt right, its registry reached, and `docker login` done?"
# What python-layer.sh says of a lock whose digest is not that of the checkout.
_STALE_LOCK = re.compile(r"python-layer\.sh: ([\w-]+\.txt) of the build context is not that of the checkout")
_STEP = re.compile(r"#\d+ (\[\S+ (?!internal)[^\]]*\d+/\d+\] .*|exporting to image)")
_HINTS = (
    (
        re.compile(r"no space left on device", re.IGNORECASE),
        "`docker builder prune` frees the build cache, `docker image prune` the images that builds have replaced",
    ),
    (
        re.compile(r"hash mismatch", re.IGNORECASE),
        "the index serves another file than the one that was locked: is it the right index? Never lock it anew unseen",
    ),
    (
        re.compile(r"there is no version of|no solution found|was not found in the package registry", re.IGNORECASE),
        "a pin that the index does not have: correct it in docker/locks, or run `nightjar-ci images lock --upgrade`",
    ),
)
_REMOTE = re.compile(
    r"(?:https?://(?:[^@/]*@)?(?P<host>[^/@]+)/|ssh://(?:[^@/]*@)?(?P<secure>[^/:@]+)(?::\d+)?/|[\w.-]+@(?P<short>[^/:@]+):)"
    r"(?P<path>.+?)(?:\.git)?/?"
)
_MOUNTS = re.compile(r"( --mount=\S+)*\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltImage:
    """An image that the engine holds: its size is that of all its layers, uncompressed."""

    name: str
    tag: str
    id: str
    size_bytes: int
    layers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """What a build left, how long it took, and what was not built, with the reason."""

    images: tuple[BuiltImage, ...]
    duration_s: float
    failures: tuple[str, ...] = ()


def build_images(
    checkout: Path,
    images: Sequence[Image],
    *,
    flavor: str,
    environ: Mapping[str, str],
    on_step: Callable[[str], None],
) -> BuildReport:
    """Builds images and those below them.

    Args:
        checkout: root of the checkout.
        images: what to build and tag.
        flavor: such as `cpu`.
        environ: says how this machine reaches its package index and which certificates it trusts.
        on_step: called with each step of the build as it starts.

    Raises:
        ToolError: no engine, or a step failed.
        InputError: `environ` names certificates that do not exist.
    """
    check_engine()
    started = time.monotonic()
    base = images[0].base
    if needs_ground_floor(base, exists=inspect_image(base) is not None, of_a_day=bool(environ.get("DEBIAN_SNAPSHOT"))):
        on_step(f"{GROUND_FLOOR_SCRIPT}: makes {base}")
        run_streamed([str(checkout / GROUND_FLOOR_SCRIPT)], on_step)
    elif (
        inspect_image(base) is None
    ):  # bake would pull it and keep no name of it, so that no label could say its digest
        on_step(f"pulling {base}")
        platform = ["--platform", f"linux/{environ['IMAGE_ARCH']}"] if environ.get("IMAGE_ARCH") else []
        run_streamed(["docker", "pull", *platform, base], on_step, hint=BASE_HINT)
    with open_secrets(environ) as secrets:
        names = [image.name for image in images]
        options = ["--progress", "plain"]
        locks = digest_locks(checkout)
        command = render_bake(
            names,
            flavor=flavor,
            revision=find_revision(checkout),
            source=find_source(checkout),
            secrets=secrets,
            options=options,
            locks=locks,
            origin=describe_base(base, inspect_image(base)) | _list_versions(checkout, flavor, environ),
        )
        _bake(checkout, command, on_step)
    return BuildReport(
        images=tuple(describe_image(image) for image in images), duration_s=round(time.monotonic() - started, 1)
    )


def group_images(images: Sequence[Image]) -> tuple[tuple[Image, ...], ...]:
    """What is built at once: the images of the default, then each other alone, for they are built on those."""
    trunk = tuple(image for image in images if image.by_default)
    return tuple(group for group in (trunk, *((image,) for image in images if not image.by_default)) if group)


def build_groups(
    checkout: Path,
    groups: Sequence[Sequence[Image]],
    *,
    flavor: str,
    environ: Mapping[str, str],
    on_step: Callable[[str], None],
) -> BuildReport:
    """Builds groups of images one after the other; one that fails leaves those after the first.

    Args:
        checkout: root of the checkout.
        groups: from `group_images`.
        flavor: such as `cpu`.
        environ: as `build_images` takes it.
        on_step: called with each step of the build as it starts.

    Raises:
        ToolError: no engine, or the first group was not built.
        InputError: `environ` names certificates that do not exist.
    """
    report = build_images(checkout, groups[0], flavor=flavor, environ=environ, on_step=on_step)
    images, duration_s, failures = report.images, report.duration_s, []
    for group in groups[1:]:
        try:
            report = build_images(checkout, group, flavor=flavor, environ=environ, on_step=on_step)
        except ToolError as error:
            failures.append(f"{', '.join(image.tag for image in group)}: not built: {error.message}")
        else:
            images, duration_s = (*images, *report.images), duration_s + report.duration_s
    return BuildReport(images=images, duration_s=round(duration_s, 1), failures=tuple(failures))


def _list_versions(checkout: Path, flavor: str, environ: Mapping[str, str]) -> dict[str, str]:
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (checkout / LOCKS).glob(f"*-{flavor}.txt")}
    return list_versions(texts, flavor, environ.get("IMAGE_PYTHON") or read_image_python(checkout))


def _bake(checkout: Path, command: BakeCommand, on_step: Callable[[str], None]) -> None:
    """Runs a build; once more for each lock of which the engine kept an older copy, and so was not sent the newer."""
    touched: list[Path] = []
    while True:
        try:
            return run_streamed(
                command.argv, lambda line: _report_step(line, on_step), cwd=checkout, variables=command.variables
            )
        except ToolError as error:
            stale = _STALE_LOCK.search(error.message)
            path = checkout / LOCKS / stale[1] if stale else None
            if path is None or path in touched or not os.access(path, os.W_OK):
                raise ToolError(error.message, find_hint(error.message)) from None
            on_step(
                f"{LOCKS}/{path.name}: the engine holds another one of the same size and time: touched, built again"
            )
            path.touch()
            touched.append(path)


def find_hint(said: str) -> str | None:
    """What to do about a failed build, from what it said; None where that says it all.

    >>> find_hint("write /target/x: no space left on device")
    '`docker builder prune` frees the build cache, `docker image prune` the images that builds have replaced'
    """
    return next((hint for words, hint in _HINTS if words.search(said)), None)


def needs_ground_floor(base: str, *, exists: bool, of_a_day: bool = False) -> bool:
    """Whether the tree stands on the local ground floor, and that is yet to be made, or may be of another day."""
    return base.startswith(GROUND_FLOOR) and (of_a_day or not exists)


def inspect_image(reference: str) -> dict[str, object] | None:
    """What the engine knows of an image; None where it has no such image.

    Raises:
        ToolError: the engine does not answer.
    """
    listed = run_captured(["docker", "image", "ls", "--quiet", "--no-trunc", reference], hint=ENGINE_HINT)
    if not listed.strip():
        return None
    found: list[dict[str, object]] = json.loads(run_captured(["docker", "image", "inspect", reference]))
    return found[0]


def describe_image(image: Image) -> BuiltImage:
    """What became of an image of the tree.

    Raises:
        ToolError: the engine lacks it.
    """
    found = inspect_image(image.tag)
    if found is None:
        raise ToolError(f"{image.tag}: the engine has no such image.", f"nightjar-ci images build {image.name}")
    match found:
        case {"Id": str(id_), "Size": int(size), "RootFS": {"Layers": [*layers]}}:
            return BuiltImage(name=image.name, tag=image.tag, id=id_, size_bytes=size, layers=tuple(map(str, layers)))
    raise ToolError(f"{image.tag}: `docker image inspect` answered {found!r}, expected Id, Size and RootFS.Layers.")


def find_revision(checkout: Path) -> str:
    """The git commit of a checkout, with `-dirty` where a tracked file differs; empty outside git."""
    try:
        described = run_captured(
            ["git", "-C", str(checkout), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
        )
    except ToolError:
        return ""
    return described.strip()


def find_source(checkout: Path) -> str:
    """The web address of the repository that a checkout was cloned from; empty where that is no web server."""
    try:
        remote = run_captured(["git", "-C", str(checkout), "remote", "get-url", "origin"])
    except ToolError:
        return ""
    return render_source(remote.strip())


def render_source(remote: str) -> str:
    """The web address of a remote, without user and password; empty for a folder.

    >>> render_source("git@github.com:me/nightjar.git"), render_source("https://user:word@example.org/nightjar")
    ('https://github.com/me/nightjar', 'https://example.org/nightjar')
    """
    found = _REMOTE.fullmatch(remote)
    if found is None:
        return ""
    return f"https://{found['host'] or found['secure'] or found['short']}/{found['path']}"


def _report_step(line: str, on_step: Callable[[str], None]) -> None:
    if step := _STEP.fullmatch(line):
        on_step(_MOUNTS.sub(" ", step[1]))
