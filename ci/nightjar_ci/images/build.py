"""Image builds: `docker buildx bake` over the image tree.

In: a checkout, the images to build and a flavour. Out: tag, id and size of each built image. If the tree's base is the
local root filesystem and the engine lacks it, it is built first; any other base is pulled.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from nightjar_ci.errors import InputError
from nightjar_ci.images.lock.commits import read_image_python
from nightjar_ci.images.lock.debian_day import PINS
from nightjar_ci.images.lock.jax_day import find_lock_day, render_labels
from nightjar_ci.images.origins import describe_base, list_patches, list_versions
from nightjar_ci.images.tree import ENGINE_HINT, BakeCommand, Image, check_engine, digest_locks, find_locks, render_bake
from nightjar_ci.tools import ToolError, run_captured, run_streamed
from nightjar_ci.untrusted.git import git_command

ROOT_FILESYSTEM = "nightjar/ground-floor:"
ROOT_FILESYSTEM_SCRIPT = "docker/ground-floor.sh"
LOCKS, PATCHES = "docker/locks", "docker/patches"
BASE_HINT = "check BASE_IMAGE, that its registry can be reached, and `docker login`"
# python-layer.sh prints this if a lock's digest differs from the checkout's
_STALE_LOCK = re.compile(r"python-layer\.sh: ([\w/-]+\.txt) of the build context is not that of the checkout")
_STEP = re.compile(r"#\d+ (\[\S+ (?!internal)[^\]]*\d+/\d+\] .*|exporting to image)")
_HINTS = (
    (
        re.compile(r"no space left on device", re.IGNORECASE),
        "free the build cache with `docker builder prune` and replaced images with `docker image prune`",
    ),
    (
        re.compile(r"hash mismatch", re.IGNORECASE),
        "the index serves another file than the locked one: check the index, and review the file before you lock it",
    ),
    (
        re.compile(r"there is no version of|no solution found|was not found in the package registry", re.IGNORECASE),
        "the index lacks a pinned version: correct it in docker/locks, or run `nightjar-ci images lock --upgrade`",
    ),
)
_REMOTE = re.compile(
    r"(?:https?://(?:[^@/]*@)?(?P<host>[^/@]+)/|ssh://(?:[^@/]*@)?(?P<secure>[^/:@]+)(?::\d+)?/|[\w.-]+@(?P<short>[^/:@]+):)"
    r"(?P<path>.+?)(?:\.git)?/?"
)
_MOUNTS = re.compile(r"( --mount=\S+)*\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltImage:
    """An image in the engine; `size_bytes` counts all its layers, uncompressed."""

    name: str
    tag: str
    id: str
    size_bytes: int
    layers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """Built images, the build's duration, and a message for each image that could not be built."""

    images: tuple[BuiltImage, ...]
    duration_s: float
    failures: tuple[str, ...] = ()


def build_images(
    checkout: Path, images: Sequence[Image], *, flavor: str, environ: Mapping[str, str], on_step: Callable[[str], None]
) -> BuildReport:
    """Builds images and their parents.

    Args:
        environ: variables that configure this machine's package index and certificates.
    """
    check_engine()
    started = time.monotonic()
    base = images[0].base
    exists = inspect_image(base) is not None
    if needs_root_filesystem(base, exists=exists, dated=bool(environ.get("DEBIAN_SNAPSHOT"))):
        on_step(f"{ROOT_FILESYSTEM_SCRIPT}: builds {base}")
        run_streamed([str(checkout / ROOT_FILESYSTEM_SCRIPT)], on_step)
    elif not exists:  # bake would pull it without a name: no digest for the labels
        on_step(f"pulling {base}")
        platform: list[str] = []
        if environ.get("IMAGE_ARCH"):
            platform = ["--platform", f"linux/{environ['IMAGE_ARCH']}"]
        run_streamed(["docker", "pull", *platform, base], on_step, hint=BASE_HINT)
    day = find_lock_day(checkout, flavor)
    texts = {name: path.read_text(encoding="utf-8") for name, path in find_locks(checkout).items()}
    versions = list_versions(texts, flavor, environ.get("IMAGE_PYTHON") or read_image_python(checkout))
    with open_secrets(environ) as secrets:
        command = render_bake(
            [image.name for image in images],
            flavor=flavor,
            revision=find_revision(checkout),
            source=find_source(checkout),
            secrets=secrets,
            options=["--progress", "plain"],
            locks=digest_locks(checkout),
            origin={
                **describe_base(base, inspect_image(base)),
                **versions,
                **list_patches(checkout / PATCHES, texts.get(f"jax-{flavor}", "")),
                **render_labels(day),
            },
        )
        _bake(checkout, command, on_step)
    return BuildReport(
        images=tuple(describe_image(image) for image in images), duration_s=round(time.monotonic() - started, 1)
    )


def group_images(images: Sequence[Image]) -> tuple[tuple[Image, ...], ...]:
    """Images to build together: the default ones, then each other one alone, since it has default ones as parents."""
    default = tuple(image for image in images if image.by_default)
    return tuple(group for group in (default, *((image,) for image in images if not image.by_default)) if group)


def build_groups(
    checkout: Path,
    groups: Sequence[Sequence[Image]],
    *,
    flavor: str,
    environ: Mapping[str, str],
    on_step: Callable[[str], None],
) -> BuildReport:
    """Builds groups of images in order; after the first group, a failure does not stop the others."""
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


def _bake(checkout: Path, command: BakeCommand, on_step: Callable[[str], None]) -> None:
    """Runs a build, and repeats it for each lock of which the engine reused a cached older copy."""
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
            lock = path.relative_to(checkout)
            on_step(f"{lock}: the engine cached an older copy of the same size and time; building again")
            path.touch()
            touched.append(path)


def find_hint(output: str) -> str | None:
    """The hint for a failed build, from its output; None if no known failure matches.

    >>> find_hint("write /target/x: no space left on device")
    'free the build cache with `docker builder prune` and replaced images with `docker image prune`'
    """
    return next((hint for pattern, hint in _HINTS if pattern.search(output)), None)


def needs_root_filesystem(base: str, *, exists: bool, dated: bool = False) -> bool:
    """Whether to build the local root filesystem: it is missing or, with `dated`, may be of another day."""
    return base.startswith(ROOT_FILESYSTEM) and (dated or not exists)


def inspect_image(reference: str) -> dict[str, object] | None:
    """The engine's description of an image; None if it has no such image."""
    listed = run_captured(["docker", "image", "ls", "--quiet", "--no-trunc", reference], hint=ENGINE_HINT)
    if not listed.strip():
        return None
    described: list[dict[str, object]] = json.loads(run_captured(["docker", "image", "inspect", reference]))
    return described[0]


def describe_image(image: Image) -> BuiltImage:
    inspected = inspect_image(image.tag)
    if inspected is None:
        raise ToolError(f"{image.tag}: the engine has no such image.", f"nightjar-ci images build {image.name}")
    match inspected:
        case {"Id": str(id_), "Size": int(size), "RootFS": {"Layers": [*layers]}}:
            return BuiltImage(name=image.name, tag=image.tag, id=id_, size_bytes=size, layers=tuple(map(str, layers)))
    raise ToolError(f"{image.tag}: `docker image inspect` printed {inspected!r}, expected Id, Size and RootFS.Layers.")


def find_revision(checkout: Path) -> str:
    """The git commit of a checkout, with `-dirty` if a tracked file differs; empty outside git.

    The pins, which `images bump` writes, do not count: labels and provenance name the locks by their digests.
    """
    try:
        commit = run_captured(git_command(checkout, "rev-parse", "HEAD")).strip()
        pins = [f":(exclude){path}" for path in (LOCKS, PINS)]
        status = ("status", "--porcelain", "--untracked-files=no", "--", ".")
        changed = run_captured(git_command(checkout, *status, *pins))
    except ToolError:
        return ""
    if changed.strip():
        return f"{commit}-dirty"
    return commit


def find_source(checkout: Path) -> str:
    """The web address of the repository that a checkout was cloned from; empty if it is not on a web server."""
    try:
        remote = run_captured(git_command(checkout, "remote", "get-url", "origin"))
    except ToolError:
        return ""
    return render_source(remote.strip())


def render_source(remote: str) -> str:
    """The web address of a git remote, without user and password; empty for a folder.

    >>> render_source("git@github.com:me/nightjar.git"), render_source("https://user:word@example.org/nightjar")
    ('https://github.com/me/nightjar', 'https://example.org/nightjar')
    """
    match = _REMOTE.fullmatch(remote)
    if match is None:
        return ""
    return f"https://{match['host'] or match['secure'] or match['short']}/{match['path']}"


def _report_step(line: str, on_step: Callable[[str], None]) -> None:
    if step := _STEP.fullmatch(line):
        on_step(_MOUNTS.sub(" ", step[1]))


CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
CERTIFICATES_IN_BUILD = "/run/secrets/ca"
PASSED = re.compile(
    r"UV_(DEFAULT_INDEX|INDEX|INDEX_\w+|EXTRA_INDEX_URL|INSECURE_HOST|HTTP_TIMEOUT)"
    r"|NIGHTJAR_NIGHTLY_INDEX|PIP_(INDEX_URL|EXTRA_INDEX_URL|TRUSTED_HOST|DEFAULT_TIMEOUT)|(?i:https?_proxy|no_proxy|all_proxy)"
)
# names of the same setting in uv and pip
SYNONYMS = (
    ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"),
    ("UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL"),
)


def find_certificates(environ: Mapping[str, str]) -> Path | None:
    """The CA bundle that this machine is configured to use; None for the image's own."""
    for name in CERTIFICATE_VARIABLES:
        if value := environ.get(name):
            if not Path(value).is_file():
                raise InputError(f"{name}: {value!r} is not a file; expected a CA bundle.", f"correct or unset {name}")
            return Path(value)
    return None


def render_access(environ: Mapping[str, str], *, certificates: bool) -> str:
    """Shell exports that point uv and pip in a build at this machine's index.

    Args:
        environ: variables of this machine. Indexes in local folders are dropped, since no build step can read them.
        certificates: whether a CA bundle is mounted, too.

    >>> print(render_access({"PIP_INDEX_URL": "https://index.example/root"}, certificates=False), end="")
    export PIP_INDEX_URL=https://index.example/root
    export UV_DEFAULT_INDEX=https://index.example/root
    """
    exports = {
        name: urls for name, value in environ.items() if PASSED.fullmatch(name) and (urls := _without_folders(value))
    }
    for names in SYNONYMS:
        setting = next((exports[name] for name in names if name in exports), None)
        if setting is not None:
            exports.setdefault(names[0], setting)
            exports.setdefault(names[-1], setting)
    if certificates:
        exports |= dict.fromkeys(("SSL_CERT_FILE", "PIP_CERT"), CERTIFICATES_IN_BUILD)
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(exports.items()))


@contextmanager
def open_secrets(environ: Mapping[str, str]) -> Iterator[dict[str, Path]]:
    """The build secrets by id, as temporary files that only this user can read."""
    certificates = find_certificates(environ)
    with TemporaryDirectory(prefix="nightjar-secrets-") as folder:
        index = Path(folder, "index")
        index.touch(mode=0o600)
        index.write_text(render_access(environ, certificates=certificates is not None), encoding="utf-8")
        secrets = {"index": index}
        if certificates is not None:
            secrets["ca"] = certificates
        yield secrets


def _without_folders(value: str) -> str:
    return " ".join(part for part in value.split() if not part.startswith(("file:", "/", ".")))
