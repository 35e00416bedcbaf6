"""The preparation of a rung: an environment of packages, an image, a checked-out commit, or a user's command.

In: a rung of a ladder. Out: a `PreparedEnvironment` for an executor. Prepared rungs are kept and reused. Only one
worker at a time makes a given rung.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock

from nightjar_ci.bisect.ladders.rung import Ladder, Rung, file_name
from nightjar_ci.bisect.state import Question
from nightjar_ci.environments.prepare import Environments, PreparedEnvironment, enter_made
from nightjar_ci.environments.project import is_project, move_project
from nightjar_ci.environments.sources import Source
from nightjar_ci.environments.uv import find_made, make_pinned, read_sources
from nightjar_ci.environments.worktree import add_worktree, remove_worktree
from nightjar_ci.errors import EnvironmentFailedError, NightjarError
from nightjar_ci.executors.process import STDERR, read_tail, run_process
from nightjar_ci.settings import Settings
from nightjar_ci.untrusted.inheritance import inherit
from nightjar_ci.untrusted.masking import NO_MASK, Mask

OnLine = Callable[[str], None]
PREPARE_TIMEOUT_S = 7200.0  # building jaxlib from source takes longer, and then belongs into an image
_PREPARED = "prepared"


@dataclass(slots=True)
class RungSetup:
    """Makes the rungs of one bisection.

    Attributes:
        settings: name the folder of environments.
    """

    folder: Path
    question: Question
    settings: Settings
    python: str | None = None
    mask: Mask = NO_MASK
    _environments: Environments = field(init=False, repr=False)
    _sources: dict[str, Source] | None = field(default=None, repr=False)
    _locks: defaultdict[Path, Lock] = field(default_factory=lambda: defaultdict(Lock), repr=False)

    def __post_init__(self) -> None:
        self._environments = Environments(settings=self.settings)

    def is_ready(self, ladder: Ladder, index: int, stage: int) -> bool:
        rung = ladder.rungs[index]
        if rung.kind == "packages":
            return self._find_made(ladder, rung) is not None
        return (self.folder_of(rung, index, stage) / _PREPARED).is_file()

    def prefix(self, ladder: Ladder, index: int) -> Path | None:
        """The environment of a rung of packages that was made."""
        rung = ladder.rungs[index]
        if rung.kind == "packages":
            return self._find_made(ladder, rung)
        return None

    def folder_of(self, rung: Rung, index: int, stage: int) -> Path:
        return self.folder / f"stage{stage}" / file_name(index, rung.name)

    def make(self, ladder: Ladder, index: int, stage: int, on_line: OnLine) -> PreparedEnvironment:
        rung = ladder.rungs[index]
        folder = self.folder_of(rung, index, stage)
        with self._locks[folder]:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                made = self._make(ladder, rung, folder, on_line)
            except EnvironmentFailedError:
                raise
            except (NightjarError, OSError) as error:
                raise EnvironmentFailedError(f"{rung.name}: {error}") from None
            (folder / _PREPARED).touch()
        return replace(made, variables={**made.variables, **_variables(rung, folder)})

    def clear(self, ladders: Sequence[Ladder]) -> None:
        """Removes the worktrees of commits."""
        for stage, ladder in enumerate(ladders):
            paths = [location.path for location in ladder.repositories.values()] or ["."]
            for tree in sorted(self.folder.glob(f"stage{stage}/*/tree")):
                (tree.parent / _PREPARED).unlink(missing_ok=True)
                for worktree in (tree / path for path in reversed(paths)):  # nested ones first
                    if not _is_behind_link(worktree, tree.parent) and (worktree / ".git").exists():
                        remove_worktree(worktree)
                shutil.rmtree(tree, ignore_errors=True)

    def command(self, rung: Rung, folder: Path, command: Sequence[str]) -> list[str]:
        """A command with `{rung}` and `{folder}` filled; other braces are left as they are."""
        values = {"{rung}": rung.source or rung.name, "{folder}": str(folder)}
        filled = []
        for part in command:
            for name, value in values.items():
                part = part.replace(name, value)
            filled.append(part)
        return filled

    def _find_made(self, ladder: Ladder, rung: Rung) -> Path | None:
        cache = self.settings.environments_dir
        sources = read_sources(rung.name, rung.lock, {}, cache) | self._read_folders(ladder)
        return find_made(rung.lock, sources, cache, rung.python or self.python)

    def _read_folders(self, ladder: Ladder) -> dict[str, Source]:
        """The initial contents of every rung's folders: they are many files, and needed often."""
        if self._sources is None:
            self._sources = read_sources("current", (), _folders(ladder), self.settings.environments_dir)
        return self._sources

    def _refuse_edits(self, ladder: Ladder) -> None:
        """Refuses edits of a folder between rungs: they would not compare packages."""
        first = self._read_folders(ladder)
        now = read_sources("current", (), _folders(ladder), self.settings.environments_dir)
        edited = [str(source.path) for name, source in now.items() if source.digest != first[name].digest]
        if edited:
            hint = "leave it alone while a bisection runs: a copy of the work tree can be edited"
            raise EnvironmentFailedError(f"{', '.join(edited)} was edited since the bisection began.", hint)

    def _make(self, ladder: Ladder, rung: Rung, folder: Path, on_line: OnLine) -> PreparedEnvironment:
        if rung.kind == "image":
            return PreparedEnvironment(name=f"image:{rung.source}", kind="image", image=rung.source, folder=Path.cwd())
        if rung.kind == "packages":
            cache = self.settings.environments_dir
            lines, folders = rung.lock, _folders(ladder)
            self._refuse_edits(ladder)
            python = rung.python or self.python
            made = make_pinned(rung.name, lines, folders, cache, python=python, resolved=True, on_line=on_line)
            shutil.copyfile(made / "requirements.txt", folder / "requirements.txt")
            return enter_made(f"uv:{rung.name}", made)
        if rung.kind == "commit":
            tree = folder / "tree"
            on_line(f"checking out {rung.name}")
            for checkout in ladder.checkouts(rung):
                worktree = tree / checkout.path
                if _is_behind_link(worktree, folder):
                    raise EnvironmentFailedError(f"{rung.name}: {checkout.path} is behind a link of the commit.")
                add_worktree(checkout.repository, checkout.sha, worktree, picks=checkout.picks, nested=checkout.nested)
            if ladder.package is not None:
                return self._install_commit(ladder.package, rung, tree, on_line)
            environment = replace(self._environment_of(ladder, tree, on_line), folder=tree)
        else:
            environment = self._environments.get(self.question.environment, on_line)
        if self.question.prepare and not (folder / _PREPARED).is_file():
            self._prepare(rung, folder, environment, on_line)
        return environment

    def _environment_of(self, ladder: Ladder, tree: Path, on_line: OnLine) -> PreparedEnvironment:
        """The environment of a commit; a project's contains the project at that commit."""
        name = self.question.environment
        if is_project(name) and ladder.repository is not None:
            name = move_project(name, Path(ladder.repository), tree)
        return self._environments.get(name, on_line)

    def _install_commit(self, package: str, rung: Rung, tree: Path, on_line: OnLine) -> PreparedEnvironment:
        """The rung's packages with a commit as one of them; tests run in the caller's folder."""
        cache = self.settings.environments_dir
        folders = {package: (tree, False)}
        made = make_pinned(rung.name, rung.lock, folders, cache, python=rung.python or self.python, on_line=on_line)
        return enter_made(f"uv:{rung.name}", made)

    def _prepare(self, rung: Rung, folder: Path, environment: PreparedEnvironment, on_line: OnLine) -> None:
        logs = folder / "prepare"
        logs.mkdir(exist_ok=True)
        argv = self.command(rung, folder, self.question.prepare)
        inherited = inherit(os.environ, self.question.inherited)
        environ = {**environment.entered(inherited), **_variables(rung, folder)}
        on_line(f"preparing {rung.name}")
        try:
            with self.mask.guard(logs):
                ended = run_process(
                    argv, environ, logs, PREPARE_TIMEOUT_S, on_line, cwd=environment.folder, mask=self.mask
                )
        except (OSError, ValueError) as error:
            raise EnvironmentFailedError(f"{argv[0]!r} cannot be run: {error}.") from None
        if ended.exit_code != 0:
            how = ended.signal or f"exit code {ended.exit_code}"
            raise EnvironmentFailedError(f"preparing it ended with {how}:\n{read_tail(logs / STDERR)}")


def _is_behind_link(worktree: Path, folder: Path) -> bool:
    """Whether a link that a commit or a test left leads to another place than the one below the rung's folder."""
    return worktree.resolve() != folder.resolve() / worktree.relative_to(folder)


def _folders(ladder: Ladder) -> Mapping[str, tuple[Path, bool]]:
    return {name: (Path(folder), editable) for name, (folder, editable) in ladder.folders.items()}


def _variables(rung: Rung, folder: Path) -> dict[str, str]:
    return {"NIGHTJAR_RUNG": rung.source or rung.name, "NIGHTJAR_RUNG_FOLDER": str(folder)}
