"""How does the bench build an image of the tree with a lock of its own? In a copy of `docker/`, under tags of its own.

In: a flavour, and a lock. Out: an image of the engine, and what it is made of. Whatever it tags, it removes.
"""

import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nightjar_ci.images.build import ROOT_FILESYSTEM_SCRIPT, open_secrets
from nightjar_ci.images.publish.pack import PackedImage, Packer
from nightjar_ci.images.tree import check_engine, digest_locks, find_checkout, render_bake
from nightjar_ci.tools import run_captured, run_streamed
from nightjar_ci.web.registry import Repository
from tests.docker.copies import copy_sources

CHECKOUT = find_checkout(Path(__file__).parent)
CELL = "{image}-{flavor}-py313-amd64"
INSTALLED = "python-layer.sh install"  # in the description of a stage's record
FAMILY = re.compile(r"jax|jaxlib|jax-cuda\d+-(pjrt|plugin)")


@contextmanager
def open_workshop() -> Iterator[Path]:
    """A copy of `docker/`; what the bench tagged is removed afterwards, and parents that bake tagged beside it."""
    check_engine()
    run_streamed([str(CHECKOUT / ROOT_FILESYSTEM_SCRIPT)], lambda line: None)
    there = list_tags("nightjar/*")
    with tempfile.TemporaryDirectory(prefix="nightjar-bench-") as name:
        copy_sources(Path(name))
        try:
            yield Path(name)
        finally:
            drop_images()
            for tag in list_tags("nightjar/*") - there:
                run_captured(["docker", "image", "rm", "--force", tag])


def list_tags(pattern: str) -> set[str]:
    return set(run_captured(["docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}", pattern]).split())


def drop_images() -> None:
    for tag in list_tags("nightjar-bench/*"):
        run_captured(["docker", "image", "rm", "--force", tag])


def drop_builds() -> None:
    """Removes the images of the bench and the build cache; downloads stay."""
    drop_images()
    drop_cache()


def drop_cache() -> None:
    """Removes all layers in the engine's build cache that no image has; downloads stay."""
    run_captured(["docker", "builder", "prune", "--all", "--force", "--filter", "type=regular"])


def drop_stages() -> None:
    """Removes from the build cache the stages whose packages lie in images as well; later builds are served all the
    same, from the layers that were copied out of them."""
    listed = run_captured(["docker", "buildx", "du", "--verbose"])
    for record in listed.split("\n\n"):
        if INSTALLED in record and (found := re.match(r"ID:\s+(\w+)", record)):
            run_captured(["docker", "builder", "prune", "--all", "--force", "--filter", f"id={found[1]}"])


def build(checkout: Path, image: str | Sequence[str], flavor: str, tag: str, options: Sequence[str] = ()) -> float:
    """Builds an image, or several at once, as `nightjar-bench/IMAGE:TAG` and returns the seconds that it took."""
    images = [image] if isinstance(image, str) else list(image)
    sets = [*options, "--progress", "plain"]
    for one in images:
        sets += ["--set", f"{CELL.format(image=one, flavor=flavor)}.tags=nightjar-bench/{one}:{tag}"]
    with open_secrets(os.environ) as secrets:
        command = render_bake(images, flavor=flavor, secrets=secrets, options=sets, locks=digest_locks(checkout))
        began = time.monotonic()
        run_streamed(command.argv, lambda line: None, cwd=checkout, variables=command.variables)
        return time.monotonic() - began


def pack(tags: Sequence[str], memory: Path, repository: Repository | None = None) -> dict[str, PackedImage]:
    """Compresses the layers of images as `images push` does, and puts them in a repository where one is given."""
    memory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="nightjar-bench-") as scratch:
        if repository is None:
            return Packer(Path(scratch), memory, lambda _: True, lambda *_: None, say).pack(tags)
        return Packer(Path(scratch), memory, repository.has_blob, repository.put_blob, say).pack(tags)


def other_jax(checkout: Path, flavor: str, version: str) -> None:
    """Rewrites the lock of the jax image in a workshop: another JAX, and every other package as it is locked."""
    lock = checkout / "docker/locks" / f"jax-{flavor}.txt"
    kept = [line.rstrip(" \\") for line in lock.read_text().splitlines() if line[:1].isalnum()]
    constraints = checkout / "constraints.txt"
    kept = [line for line in kept if not FAMILY.fullmatch(line.partition("==")[0])]
    constraints.write_text("".join(f"{line}\n" for line in kept))
    wanted = checkout / "wanted.in"
    wanted.write_text(f"-r {checkout}/docker/locks/jax-{flavor}.in\njax=={version}\njaxlib=={version}\n")
    argv = ["uv", "pip", "compile", "--quiet", "--generate-hashes", "--no-emit-index-url", "--no-annotate"]
    argv += ["--python-version", "3.13", "--python-platform", "x86_64-manylinux_2_28", "--upgrade"]
    run_captured([*argv, "--constraints", str(constraints), "--output-file", str(lock), str(wanted)])


def locked_version(checkout: Path, flavor: str, package: str) -> str:
    """The version of a package that the lock of the jax image names for Python 3.13 (its last entry)."""
    text = (checkout / "docker/locks" / f"jax-{flavor}.txt").read_text()
    versions: list[str] = re.findall(rf"^{package}==(\S+)", text, re.MULTILINE)
    return versions[-1]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
