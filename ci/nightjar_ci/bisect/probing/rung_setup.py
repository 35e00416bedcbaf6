"""The preparation of a rung: an environment of packages, an image, a checked-out commit, or a user's command.

In: a rung of a ladder. Out: a `PreparedEnvironment` for an executor. Prepared rungs are kept and reused. Only one
worker at a time makes a given rung.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock

from nightjar_ci.bisect.ladders.commits import find_place
from nightjar_ci.bisect.ladders.rung import Ladder, OnLine, Rung, file_name
from nightjar_ci.bisect.state import Question
from nightjar_ci.environments.installed import Frozen, freeze
from nightjar_ci.environments.prepare import Environments, PreparedEnvironment, enter_made, enter_tree
from nightjar_ci.environments.project import is_project
from nightjar_ci.environments.sources import Source
from nightjar_ci.environments.uv import find_made, fit_lines, make_pinned, read_sources
from nightjar_ci.environments.worktree import add_worktree, remove_worktree
from nightjar_ci.errors import EnvironmentFailedError, NightjarError
from nightjar_ci.executors.process import STDERR, read_tail, run_process
from nightjar_ci.formats.documents import write_text
from nightjar_ci.settings import Settings
from nightjar_ci.untrusted.inheritance import inherit
from nightjar_ci.untrusted.masking import NO_MASK, Mask

PREPARE_TIMEOUT_S = 7200.0  # building jaxlib from source takes longer, and then belongs into an image
_PREPARED = "prepared"
LOCK = "requirements.txt"  # of a rung: what was installed


@dataclass(slots=True)
class RungSetup:
    """Makes the rungs of one ladder of a bisection.

    Attributes:
        folder: of the bisection.
        settings: name the folder of environments.
        stage: number of the ladder.
    """

    folder: Path
    question: Question
    settings: Settings
    ladder: Ladder
    on_line: OnLine
    stage: int = 0
    mask: Mask = NO_MASK
    _environments: Environments = field(init=False, repr=False)
    _freeze: Callable[[], Frozen] = field(default_factory=lambda: functools.cache(freeze), repr=False)
    _sources: dict[str, Source] | None = field(default=None, repr=False)
    _locks: defaultdict[Path, Lock] = field(default_factory=lambda: defaultdict(Lock), repr=False)

    def __post_init__(self) -> None:
        self._environments = Environments(settings=self.settings)

    def is_ready(self, index: int) -> bool:
        if self.ladder.rungs[index].kind == "packages":
            return self.prefix(index) is not None
        return (self.folder_of(index) / _PREPARED).is_file()

    def prefix(self, index: int) -> Path | None:
        """The environment of a rung of packages that was made."""
        rung = self.ladder.rungs[index]
        if rung.kind != "packages":
            return None
        cache = self.settings.environments_dir
        sources = read_sources(rung.name, rung.lock, {}, cache) | self._first_sources()
        return find_made(rung.lock, sources, cache, self._python_of(rung))

    def folder_of(self, index: int) -> Path:
        return self.folder / f"stage{self.stage}" / file_name(index, self.ladder.rungs[index].name)

    def make(self, index: int) -> PreparedEnvironment:
        rung, folder = self.ladder.rungs[index], self.folder_of(index)
        with self._locks[folder]:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                made = self._make(rung, folder)
            except EnvironmentFailedError:
                raise
            except (NightjarError, OSError) as error:
                raise EnvironmentFailedError(f"{rung.name}: {error}") from None
            (folder / _PREPARED).touch()
        seed = {"NIGHTJAR_SEED": str(self.question.replicate or 0)}
        return replace(made, variables={**made.variables, **_variables(rung, folder), **seed})

    def clear(self) -> None:
        """Removes the worktrees of commits."""
        paths = [location.path for location in self.ladder.repositories.values()] or ["."]
        for tree in sorted(self.folder.glob(f"stage{self.stage}/*/tree")):
            (tree.parent / _PREPARED).unlink(missing_ok=True)
            for worktree in (tree / path for path in reversed(paths)):  # nested ones first
                if not _is_behind_link(worktree, tree.parent) and (worktree / ".git").exists():
                    remove_worktree(worktree)
            shutil.rmtree(tree, ignore_errors=True)

    def _python_of(self, rung: Rung) -> str | None:
        return rung.python or self.question.python

    def _first_sources(self) -> dict[str, Source]:
        """The initial contents of what every rung is installed from: they are many files, and needed often."""
        if self._sources is None:
            self._sources = self._read_sources()
        return self._sources

    def _read_sources(self) -> dict[str, Source]:
        common = set[str].intersection(*(set(rung.lock) for rung in self.ladder.rungs))
        return read_sources("current", sorted(common), self.ladder.folders, self.settings.environments_dir)

    def _refuse_edits(self) -> None:
        """Refuses edits of a folder or file between rungs: they would not compare packages."""
        first, now = self._first_sources(), self._read_sources()
        edited = [str(source.path) for name, source in now.items() if source.digest != first[name].digest]
        if edited:
            hint = "leave it alone while a bisection runs: a copy of the work tree can be edited"
            raise EnvironmentFailedError(f"{', '.join(edited)} was edited since the bisection began.", hint)

    def _make(self, rung: Rung, folder: Path) -> PreparedEnvironment:
        if rung.kind == "image":
            return PreparedEnvironment(name=f"image:{rung.source}", kind="image", image=rung.source, folder=Path.cwd())
        if rung.kind == "packages":
            self._refuse_edits()
            environment = self._install(rung, rung.lock, self.ladder.folders)
            shutil.copyfile(Path(environment.variables["VIRTUAL_ENV"], LOCK), folder / LOCK)
            return environment
        if rung.kind == "commit":
            tree = folder / "tree"
            self._check_out(rung, tree)
            if self.ladder.package is not None:  # tests run in the caller's folder
                lines = self._fit_lines(rung, self.ladder.package, tree)
                write_text(folder / LOCK, "".join(f"{line}\n" for line in lines))
                return self._install(rung, lines, {self.ladder.package: (tree, False)})
            place = find_place(self.ladder.repository)
            if not (tree / place).is_dir():
                hint = "start in the repository's top folder if the test does not need this one"
                raise EnvironmentFailedError(f"{rung.name}: the commit has no folder {place}.", hint)
            environment = replace(self._environment_of(rung, tree), folder=tree / place)
        else:
            environment = self._environments.get(self.question.environment, self.on_line)
        if self.question.prepare and not (folder / _PREPARED).is_file():
            self._prepare(rung, folder, environment)
        return environment

    def _install(
        self, rung: Rung, lines: Sequence[str], folders: Mapping[str, tuple[Path, bool]]
    ) -> PreparedEnvironment:
        cache, python = self.settings.environments_dir, self._python_of(rung)
        made = make_pinned(rung.name, lines, folders, cache, python=python, resolved=True, on_line=self.on_line)
        return enter_made(f"uv:{rung.name}", made)

    def _fit_lines(self, rung: Rung, package: str, tree: Path) -> Sequence[str]:
        """The packages of a commit: those of the release, at other versions if the commit requires them."""
        try:
            return fit_lines(rung.name, rung.lock, package, tree, self._python_of(rung))
        except EnvironmentFailedError as error:
            reason = error.message.splitlines()[-1].strip()
            self.on_line(f"{rung.name} is tested with the packages of the release: {reason}")
            return rung.lock

    def _check_out(self, rung: Rung, tree: Path) -> None:
        self.on_line(f"checking out {rung.name}")
        for checkout in self.ladder.checkouts(rung):
            worktree = tree / checkout.path
            if _is_behind_link(worktree, tree.parent):
                raise EnvironmentFailedError(f"{rung.name}: {checkout.path} is behind a link of the commit.")
            add_worktree(checkout.repository, checkout.sha, worktree, picks=checkout.picks, nested=checkout.nested)

    def _environment_of(self, rung: Rung, tree: Path) -> PreparedEnvironment:
        """The environment of a commit, with its own packages; where there is a `--prepare`, that installs them."""
        name = self.question.environment
        own = None
        if self.ladder.repository is not None and (not self.question.prepare or is_project(name)):
            repository = Path(self.ladder.repository)
            own = enter_tree(rung.name, name, repository, tree, self.settings, self.on_line, self._freeze)
        return own or self._environments.get(name, self.on_line)

    def _prepare(self, rung: Rung, folder: Path, environment: PreparedEnvironment) -> None:
        logs = folder / "prepare"
        logs.mkdir(exist_ok=True)
        argv = rung.fill(self.question.prepare, folder)
        inherited = inherit(os.environ, self.question.inherited)
        environ = {**environment.entered(inherited), **_variables(rung, folder)}
        self.on_line(f"preparing {rung.name}")
        try:
            with self.mask.guard(logs):
                ended = run_process(
                    argv, environ, logs, PREPARE_TIMEOUT_S, self.on_line, cwd=environment.folder, mask=self.mask
                )
        except (OSError, ValueError) as error:
            raise EnvironmentFailedError(f"{argv[0]!r} cannot be run: {error}.") from None
        if ended.exit_code != 0:
            how = ended.signal or f"exit code {ended.exit_code}"
            raise EnvironmentFailedError(f"preparing it ended with {how}:\n{read_tail(logs / STDERR)}")


def _is_behind_link(worktree: Path, folder: Path) -> bool:
    """Whether a link that a commit or a test left leads to another place than the one below the rung's folder."""
    return worktree.resolve() != folder.resolve() / worktree.relative_to(folder)


def _variables(rung: Rung, folder: Path) -> dict[str, str]:
    return {"NIGHTJAR_RUNG": rung.argument, "NIGHTJAR_RUNG_FOLDER": str(folder)}
