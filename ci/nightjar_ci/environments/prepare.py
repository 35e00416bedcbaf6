"""The environments of jobs: `current`, `uv:<requirement>[,<requirement>...]` (after a lock file, if one is named),
`project:<folder>[,<requirement>...]`, `image:<reference>`, or one of these in another commit: `commit:<sha>[:...]`.

In: an environment's name in a matrix. Out: the inputs of an executor to run a command there: the folder that comes
first on `PATH` and the variables to set, or the image; and the packages under test, for the record. A uv environment is
made on first use and kept (see `uv`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Literal, Self

from nightjar_ci.environments.current import Interpreter, find_current, find_made_python
from nightjar_ci.environments.installed import Frozen, find_imported_packages, find_local_packages, freeze
from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.formats.run_record import LocalPackage
from nightjar_ci.settings import Settings, read_settings

EnvironmentKind = Literal["current", "uv", "project", "image", "commit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedEnvironment:
    """An environment that is ready to run commands.

    Attributes:
        kind: how it is entered; a commit has its environment's.
        bin_dir: folder of its commands, first on `PATH` of a job; None in an image.
        folder: working directory of its commands; default: the caller's. Images mount it read-only as `/work`.
    """

    name: str
    kind: EnvironmentKind
    bin_dir: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    image: str | None = None
    folder: Path | None = None
    interpreter: Interpreter | None = None
    local_packages: tuple[LocalPackage, ...] = ()

    def entered(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The environment variables of a process in this environment, whose parent has `environ`."""
        variables = {**environ, **self.variables}
        if self.bin_dir is not None:
            variables["PATH"] = ":".join(filter(None, (str(self.bin_dir), environ.get("PATH"))))
        return variables


def parse_environment(name: str) -> tuple[EnvironmentKind, str]:
    """The kind of an environment and the text after its colon."""
    kind, _, rest = name.partition(":")
    if name == "current":
        return "current", ""
    if not rest.strip():
        kind = ""
    if kind == "uv":
        from nightjar_ci.environments.lock import parse_lock
        from nightjar_ci.environments.uv import parse_requirements

        if parse_lock(rest) is None:
            parse_requirements(rest)
        return "uv", rest
    if kind == "project":
        from nightjar_ci.environments.project import parse_project

        parse_project(rest)
        return "project", rest
    if kind == "image":
        if not re.fullmatch(r"[A-Za-z0-9./][!-~]*", rest):
            raise ValueError(f"unknown environment {name!r}: expected image:<reference>, without spaces and options")
        return "image", rest
    if kind == "commit":
        from nightjar_ci.environments.commit import parse_commit

        parse_environment(parse_commit(rest)[1])
        return "commit", rest
    raise ValueError(
        f"unknown environment {name!r}: expected current, uv:<requirement>[,...], project:<folder>[,...], "
        "image:<reference> or commit:<sha>[:<environment>]"
    )


def with_requirements(environment: str, requirements: str) -> str:
    """The environment with other versions of some packages.

    >>> with_requirements("current", "jax==0.10.1"), with_requirements("uv:locks/a.txt", "jax==0.10.1")
    ('uv:jax==0.10.1', 'uv:locks/a.txt,jax==0.10.1')
    """
    kind, rest = parse_environment(environment)
    if kind in ("image", "commit"):
        raise ValueError(
            f"cannot replace packages in the {kind} {environment!r}: expected current, uv:... or project:..."
        )
    prefix = "project:" if kind == "project" else "uv:"
    changed = prefix + ",".join(filter(None, (rest, requirements)))
    parse_environment(changed)
    return changed


def prepare(
    environment: str, settings: Settings | None = None, on_line: Callable[[str], None] | None = None
) -> PreparedEnvironment:
    try:
        return _prepare(environment, settings or read_settings(), on_line)
    except (OSError, ValueError) as error:  # a full disk, or a name that no file can have
        raise EnvironmentFailedError(f"{environment}: {error}.") from None


def _prepare(environment: str, settings: Settings, on_line: Callable[[str], None] | None) -> PreparedEnvironment:
    from nightjar_ci.environments.lock import is_locked, make_locked
    from nightjar_ci.environments.project import make_project
    from nightjar_ci.environments.uv import make_environment

    kind, rest = parse_environment(environment)
    if kind == "image":
        return PreparedEnvironment(name=environment, kind=kind, image=rest)
    if kind == "commit":
        return _enter_commit(environment, rest, settings, on_line)
    if kind == "current":
        return _enter_current(on_line)
    make: Callable[[str, Path, Callable[[str], None] | None], Path] = make_environment
    if kind == "project":
        make = make_project
    elif is_locked(environment):
        make = make_locked
    return enter_made(environment, make(rest, settings.environments_dir, on_line))


def _enter_commit(
    name: str, rest: str, settings: Settings, on_line: Callable[[str], None] | None
) -> PreparedEnvironment:
    from nightjar_ci.environments.commit import check_out, parse_commit
    from nightjar_ci.environments.worktree import find_repository

    sha, inner = parse_commit(rest)
    repository, tree = find_repository(Path.cwd()), settings.worktrees_dir / sha
    if on_line is not None:
        on_line(f"checking out {sha[:12]}")
    check_out(repository, sha, tree)
    made = enter_tree(name, inner, repository, tree, settings, on_line) or prepare(inner, settings, on_line)
    return replace(made, name=name, folder=tree / Path.cwd().resolve().relative_to(repository.resolve()))


def enter_tree(
    name: str,
    inner: str,
    repository: Path,
    tree: Path,
    settings: Settings,
    on_line: Callable[[str], None] | None = None,
    current: Callable[[], Frozen] = freeze,
) -> PreparedEnvironment | None:
    """An environment whose parts in a repository (folders, files, a project) come from another checkout of it.

    None if it has no such parts: then it is the same one in every checkout.

    Args:
        current: the packages of the current environment, which take a third of a second to read.
    """
    from nightjar_ci.environments.commit import move_folders, move_requirements
    from nightjar_ci.environments.lock import parse_lock
    from nightjar_ci.environments.project import move_project
    from nightjar_ci.environments.uv import make_environment, make_pinned

    kind, requirements = parse_environment(inner)
    moved = inner
    if kind == "project":
        moved = move_project(inner, repository, tree)
    elif kind == "uv":
        requirements = move_requirements(requirements, repository, tree)
        moved = f"uv:{requirements}"
    if kind in ("current", "uv") and parse_lock(requirements) is None:
        frozen = current()
        folders = move_folders(frozen.folders, repository, tree)
        if folders != frozen.folders:
            cache = settings.environments_dir
            if kind == "uv":
                return enter_made(moved, make_environment(requirements, cache, on_line, folders=folders))
            lines = sorted(frozen.pins.values())
            return enter_made(moved, make_pinned(name, lines, folders, cache, on_line=on_line))
    return None if moved == inner else prepare(moved, settings, on_line)


def enter_made(name: str, prefix: Path) -> PreparedEnvironment:
    from nightjar_ci.environments.uv import read_made_sources

    interpreter = find_made_python(prefix)
    return PreparedEnvironment(
        name=name,
        kind="uv",
        bin_dir=interpreter.bin_dir,
        variables={"VIRTUAL_ENV": str(prefix)},
        interpreter=interpreter,
        local_packages=find_local_packages(read_made_sources(prefix), interpreter.path),
    )


def _enter_current(on_line: Callable[[str], None] | None) -> PreparedEnvironment:
    current = find_current()
    if on_line is not None:
        on_line(f"current is {current}")
    is_first = current.found_by == "PATH" and not current.is_virtual and not current.is_hidden
    return PreparedEnvironment(
        name="current",
        kind="current",
        bin_dir=None if is_first else current.bin_dir,
        variables={"VIRTUAL_ENV": str(current.prefix)} if current.is_virtual else {},
        interpreter=current,
        local_packages=find_imported_packages(current.path),
    )


@dataclass(slots=True)
class Environments:
    """The environments of one night: each is prepared once; a failure is not retried.

    The context removes the worktrees of commits, except ones that another process uses.
    """

    settings: Settings = field(default_factory=read_settings)
    _prepared: dict[str, PreparedEnvironment | EnvironmentFailedError] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        from nightjar_ci.environments.commit import remove_worktrees

        remove_worktrees(self.settings)

    def get(self, name: str, on_line: Callable[[str], None] | None = None) -> PreparedEnvironment:
        with self._lock:
            if name not in self._prepared:
                try:
                    self._prepared[name] = prepare(name, self.settings, on_line)
                except EnvironmentFailedError as error:
                    self._prepared[name] = error
        prepared = self._prepared[name]
        if isinstance(prepared, EnvironmentFailedError):
            raise EnvironmentFailedError(prepared.message, prepared.hint)
        return prepared
