"""What is each lock file made from? The one table of `docker/locks/`, and the uv command for each.

In: the pyproject files of the three packages and `docker/locks/*.in`. Out: hashed locks for every platform and Python,
without index addresses or machine paths. Each lock is resolved within the one before, so that development, the models
image and the jax image never differ in a version.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nightjar_ci.images.process import ToolError, run_captured

FOLDER = "docker/locks"
PACKAGES = ("ci/pyproject.toml", "models/pyproject.toml", "profiling/pyproject.toml")
OLDEST_PYTHON = "3.11"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """A lock file.

    Attributes:
        name: `dev` for `docker/locks/dev.txt`.
        sources: pyproject or `.in` files, relative to the checkout.
        within: name of the lock whose versions it keeps to.
        extras: extras of the pyproject files.
        alone: without dependencies: a source whose metadata only its build knows.
        overrides: file of this folder with requirements that win over what packages ask for.
        apart: nothing else is resolved within it, so that the other locks can be made where this one cannot.
    """

    name: str
    sources: tuple[str, ...]
    within: str | None = None
    extras: tuple[str, ...] = ()
    alone: bool = False
    overrides: str | None = None
    apart: bool = False

    @property
    def path(self) -> str:
        """The lock file, relative to the checkout."""
        return f"{FOLDER}/{self.name}.txt"


def list_locks(checkout: Path) -> tuple[Lock, ...]:
    """Every lock, in the order in which they are made."""
    flavors = sorted(path.stem.removeprefix("jax-") for path in (checkout / FOLDER).glob("jax-*.in"))
    leaves = ("dali-{}", "te-{}", "te-{}-build")

    def lock_of(name: str, within: str) -> Lock:
        return Lock(name=name, sources=(f"{FOLDER}/{name}.in",), within=within)

    cells = sorted(f"ecosystem/{path.stem}" for path in (checkout / FOLDER / "ecosystem").glob("*.in"))
    return (
        Lock(name="dev", sources=(*PACKAGES, f"{FOLDER}/dev.in"), extras=("postgres", "arrow")),
        Lock(name="tools", sources=(f"{FOLDER}/tools.in",), within="dev"),
        Lock(name="docs", sources=(f"{FOLDER}/docs.in",), within="dev"),
        Lock(name="models", sources=PACKAGES, within="dev"),
        Lock(name="profiling", sources=("profiling/pyproject.toml",), within="models"),
        *(lock_of(f"jax-{flavor}", "models") for flavor in flavors),
        *(lock_of(leaf.format(flavor), f"jax-{flavor}") for flavor in flavors if flavor != "cpu" for leaf in leaves),
        Lock(name="te-source", sources=(f"{FOLDER}/te-source.in",), within="te-cuda12", alone=True),
        Lock(name="aot", sources=(PACKAGES[1], f"{FOLDER}/aot.in"), within="jax-cuda12", overrides="aot.overrides.in"),
        Lock(name="jax", sources=(f"{FOLDER}/jax.in",), within="models"),
        *(Lock(name=name, sources=(f"{FOLDER}/{name}.in",), within="jax", apart=True) for name in cells),
    )


def render_compile(lock: Lock, *, upgrade: bool = False, options: Sequence[str] = ()) -> tuple[str, ...]:
    """The uv command that makes a lock; to be run in the checkout.

    Args:
        lock: what to make.
        upgrade: take the newest versions instead of keeping the locked ones.
        options: further options of uv.

    >>> " ".join(render_compile(Lock(name="models", sources=("a.toml",), within="dev"))[-5:])
    'a.toml --constraints docker/locks/dev.txt --output-file docker/locks/models.txt'
    """
    return (
        *("uv", "pip", "compile", "--quiet", "--universal", "--python-version", OLDEST_PYTHON, "--generate-hashes"),
        *("--no-emit-index-url", "--custom-compile-command", "nightjar-ci images lock"),
        *(("--upgrade",) if upgrade else ()),
        *(("--no-deps",) if lock.alone else ()),
        *options,
        *(part for extra in lock.extras for part in ("--extra", extra)),
        *lock.sources,
        *(("--constraints", f"{FOLDER}/{lock.within}.txt") if lock.within else ()),
        *(("--overrides", f"{FOLDER}/{lock.overrides}") if lock.overrides else ()),
        *("--output-file", lock.path),
    )


def make_locks(
    checkout: Path,
    locks: Sequence[Lock],
    *,
    upgrade: bool,
    on_lock: Callable[[Lock], None],
    options: Sequence[str] = (),
) -> None:
    """Makes locks, one after the other.

    Args:
        checkout: root of the checkout.
        locks: from `list_locks`.
        upgrade: take the newest versions.
        on_lock: called as each begins.
        options: further options of uv.

    Raises:
        ToolError: uv is missing, or the versions do not resolve; uv's own explanation is in the message. A lock that
            stands apart stays as it was, and is told of when all others are made.
    """
    path = os.pathsep.join(
        (os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent))
    )  # nightjar-ci's own uv
    failed: list[str] = []
    for lock in locks:
        on_lock(lock)
        argv = render_compile(lock, upgrade=upgrade, options=options)
        try:
            run_captured(argv, cwd=checkout, variables={"PATH": path}, hint="which of the versions asked for conflict?")
        except ToolError as error:
            if not lock.apart:
                raise
            failed.append(f"{lock.path} stays as it was: {error.message}")
    if failed:
        raise ToolError("\n".join(failed), "the other locks are made")
