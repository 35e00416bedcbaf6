"""The table of lock files in `docker/locks/`, with the uv command for each.

In: the pyproject files of the three packages and `docker/locks/*.in`. Out: hashed locks for every platform and Python,
without index URLs or local paths. Each lock is constrained by another one, so that development, the models image and
the jax image have the same versions.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Semaphore

from nightjar_ci.tools import ToolError, run_captured

FOLDER = "docker/locks"
PACKAGES = ("ci/pyproject.toml", "models/pyproject.toml", "profiling/pyproject.toml")
OLDEST_PYTHON = "3.11"
AT_ONCE_PER_PROCESSOR = 4  # uv waits for the index most of its time


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """A lock file.

    Attributes:
        name: `dev` for `docker/locks/dev.txt`.
        sources: pyproject or `.in` files, relative to the checkout.
        constraints: name of the lock that fixes the versions of shared packages.
        no_dependencies: lock the sources only: their metadata exists only after a build.
        overrides: file of this folder with requirements that replace the packages' own.
        independent: no other lock depends on it, so that its failure does not stop the others.
    """

    name: str
    sources: tuple[str, ...]
    constraints: str | None = None
    extras: tuple[str, ...] = ()
    no_dependencies: bool = False
    overrides: str | None = None
    independent: bool = False
    python: str = OLDEST_PYTHON

    @property
    def path(self) -> str:
        return f"{FOLDER}/{self.name}.txt"


class LockError(ToolError):
    """A lock that does not resolve, and uv's message: exit code 3."""

    def __init__(self, lock: Lock, error: ToolError) -> None:
        super().__init__(error.message, error.hint)
        self.lock = lock


def list_locks(checkout: Path) -> tuple[Lock, ...]:
    flavors = sorted(path.stem.removeprefix("jax-") for path in (checkout / FOLDER).glob("jax-*.in"))
    leaves = ("dali-{}", "te-{}", "te-{}-build")

    def lock_of(name: str, constraints: str) -> Lock:
        return Lock(name=name, sources=(f"{FOLDER}/{name}.in",), constraints=constraints)

    cells = sorted(
        f"{folder}/{path.stem}"
        for folder in ("ecosystem", "upstream", "trainers")
        for path in (checkout / FOLDER / folder).glob("*.in")
    )
    aot = (PACKAGES[1], f"{FOLDER}/aot.in")
    return (
        Lock(name="dev", sources=(*PACKAGES, f"{FOLDER}/dev.in"), extras=("postgres",)),
        lock_of("tools", "dev"),
        lock_of("base", "tools"),
        lock_of("docs", "dev"),
        lock_of("devel", "dev"),
        Lock(name="models", sources=PACKAGES, constraints="dev"),
        Lock(name="profiling", sources=("profiling/pyproject.toml",), constraints="models"),
        *(lock_of(f"jax-{flavor}", "models") for flavor in flavors),
        *(lock_of(leaf.format(flavor), f"jax-{flavor}") for flavor in flavors if flavor != "cpu" for leaf in leaves),
        replace(lock_of("te-source", "te-cuda12"), no_dependencies=True),
        Lock(name="aot", sources=aot, constraints="jax-cuda12", overrides="aot.overrides.in"),
        lock_of("jax", "models"),
        *(replace(lock_of(name, "jax"), independent=True, python=_find_python(checkout, name)) for name in cells),
    )


def list_ancestry(locks: Sequence[Lock], lock: Lock) -> tuple[Lock, ...]:
    """A lock, after the locks that constrain it.

    >>> locks = list_locks(Path())
    >>> [lock.name for lock in list_ancestry(locks, locks[2])]
    ['dev', 'tools', 'base']
    """
    parents = [parent for parent in locks if parent.name == lock.constraints]
    return (*(above for parent in parents for above in list_ancestry(locks, parent)), lock)


def drop_flavors(locks: Sequence[Lock], flavors: Collection[str]) -> tuple[Lock, ...]:
    """The locks that do not depend on the lock of one of these flavors."""
    dropped = {f"jax-{flavor}" for flavor in flavors}
    return tuple(lock for lock in locks if dropped.isdisjoint(above.name for above in list_ancestry(locks, lock)))


def _find_python(checkout: Path, name: str) -> str:
    """The oldest Python of a cell, if the first lines of its `.in` file say `# Python 3.12 or newer`."""
    text = (checkout / FOLDER / f"{name}.in").read_text(encoding="utf-8")
    stated = re.search(r"^# Python (\d+\.\d+) or newer", text, re.MULTILINE)
    return OLDEST_PYTHON if stated is None else stated[1]


def render_compile(lock: Lock, *, upgrade: bool = False, options: Sequence[str] = ()) -> tuple[str, ...]:
    """The uv command that makes a lock; run it in the checkout.

    Args:
        upgrade: take the newest versions instead of the locked ones.

    >>> " ".join(render_compile(Lock(name="models", sources=("a.toml",), constraints="dev"))[-5:])
    'a.toml --constraints docker/locks/dev.txt --output-file docker/locks/models.txt'
    """
    # To resolve for another Python uv needs no such Python, but would spend minutes on downloading one.
    argv = [
        "uv",
        "pip",
        "compile",
        "--quiet",
        "--no-python-downloads",
        "--universal",
        "--python-version",
        lock.python,
        "--generate-hashes",
    ]
    argv += ["--no-emit-index-url", "--custom-compile-command", "nightjar-ci images lock"]
    if upgrade:
        argv.append("--upgrade")
    if lock.no_dependencies:
        argv.append("--no-deps")
    argv += options
    for extra in lock.extras:
        argv += ["--extra", extra]
    argv += lock.sources
    if lock.constraints:
        argv += ["--constraints", f"{FOLDER}/{lock.constraints}.txt"]
    if lock.overrides:
        argv += ["--overrides", f"{FOLDER}/{lock.overrides}"]
    return (*argv, "--output-file", lock.path)


def make_locks(
    checkout: Path,
    locks: Sequence[Lock],
    *,
    upgrade: bool,
    on_lock: Callable[[Lock], None],
    options: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> tuple[LockError, ...]:
    """Makes locks, some at once; each after the one that constrains it.

    Args:
        on_lock: called before each lock, by one thread at a time.

    Returns: the independent locks that do not resolve.
    """
    uv = str(Path(sys.executable).parent)  # nightjar-ci depends on uv
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), uv))
    slots, one_caller, stopped = Semaphore(AT_ONCE_PER_PROCESSOR * (os.cpu_count() or 1)), threading.Lock(), Event()

    def make(lock: Lock, constraint: Future[None] | None) -> None:
        if constraint is not None:
            wait([constraint])
        with slots:
            if stopped.is_set():
                return
            with one_caller:
                on_lock(lock)
            try:
                run_captured(
                    render_compile(lock, upgrade=upgrade, options=options),
                    cwd=checkout,
                    variables={"PATH": path, **(variables or {})},
                    hint="change one of the conflicting versions",
                )
            except ToolError as error:
                if not lock.independent:
                    stopped.set()
                raise LockError(lock, error) from None

    made: dict[str, Future[None]] = {}
    with ThreadPoolExecutor(len(locks)) as pool:
        try:
            for lock in locks:
                made[lock.name] = pool.submit(make, lock, made.get(lock.constraints or ""))
            wait(made.values())
        except BaseException:
            stopped.set()
            raise
    failures = []
    for future in made.values():
        try:
            future.result()
        except LockError as failure:
            if not failure.lock.independent:
                raise
            failures.append(failure)
    return tuple(failures)
