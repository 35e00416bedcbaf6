"""The sandbox of a job or a build on this machine, made by bubblewrap if it works.

In: a job's command, its variables and its folders. Out: the command line that runs it so that it sees only the paths of
`visible` and writes only to its output folder, the working directory, a private `/tmp`, new entries of `~/.cache` that
vanish with it, the programs that its night compiled, and the folders that `NIGHTJAR_SANDBOX_WRITES` names. It has no
network but loopback unless `NIGHTJAR_SANDBOX=network`, no privileges, and sees no other processes. A build has network,
none of the user's caches, and writes the cache and the home that its variables name. Source: bwrap(1).
"""

from __future__ import annotations

import errno
import functools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from nightjar_ci.formats.night_folder import find_programs
from nightjar_ci.sandbox import visible
from nightjar_ci.sandbox.syscalls import render_filter
from nightjar_ci.sandbox.visible import TEMPORARY, Visible
from nightjar_ci.settings import Settings

_PROBE_S = 10.0
# SIGTERM goes to the whole process group. Bubblewrap would die of it and take the job along, which may end by itself.
_IGNORING_SIGTERM = 'trap "" TERM; exec "$@" 9<"$0"'
_OWN = ("tmp", "cache")  # private to a job, in a temporary folder
_reported_lacks: set[str] = set()  # of a sandbox; a process says each once, not with every job


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """How the jobs of this process are confined.

    Attributes:
        home: the user's home folder.
        settings: where Nightjar's own folder is, which a job does not see, and what it sees and writes besides its own.
    """

    program: str
    home: Path
    settings: Settings

    @contextmanager
    def confine(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        folder: Path,
        cwd: Path,
        named: Iterable[str] = (),
        sources: Sequence[Path] | None = None,
    ) -> Iterator[tuple[tuple[str, ...], dict[str, str]]]:
        """The command line and the variables of a confined job or build, for as long as the context lives.

        Args:
            named: words besides the command, such as the matrix's variables, that may name paths.
            sources: folders that a build of packages writes; None for a job.
        """
        with ExitStack() as stack:
            for place in (cwd, *(sources or ())):
                stack.enter_context(_without_repository(place))
            if sources is not None:
                stack.callback(visible.find_parts.cache_clear)  # it installs packages
            opened = TemporaryDirectory(prefix="nightjar-job-", ignore_cleanup_errors=True)
            temporary = Path(stack.enter_context(opened))
            for own in _OWN:
                (temporary / own).mkdir()
            words = [*command, *named]
            seen = self.list_visible(words, environ, folder.resolve(), cwd.resolve(), temporary, sources)
            options = [*visible.render_system(), "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--cap-drop", "ALL"]
            if self.settings.sandbox != "network" and sources is None:
                options += ["--unshare-net", "--hostname", "localhost"]  # gloo binds to the address of the host name
            filtered = temporary / "filter"
            filtered.write_bytes(render_filter() or b"")
            if filtered.stat().st_size:
                options += ["--seccomp", "9"]
            options += ["--die-with-parent", *seen.render(), "--chdir", str(cwd), "--", "env", "--default-signal=TERM"]
            line = ("/bin/sh", "-c", _IGNORING_SIGTERM, str(filtered), self.program, *options, "--", *command)
            yield line, {**environ, "TMPDIR": TEMPORARY[0]}

    def list_visible(
        self,
        words: Sequence[str],
        environ: Mapping[str, str],
        folder: Path,
        cwd: Path,
        temporary: Path,
        sources: Sequence[Path] | None = None,
    ) -> Visible:
        """The paths that a job sees; `temporary` holds its `/tmp` and its `~/.cache`."""
        above = folder.parents[folder.parent.name == "jobs"]
        night = next((path for path in folder.parents if (path / "night.json").is_file()), above)
        hidden = [self.settings.state_dir.resolve()]
        if not cwd.is_relative_to(night) and not visible.is_too_much(night, self.home):
            hidden.append(night)
        roots = [cwd, *(path.resolve() for path in sources or ())]
        roots = [root for root in roots if not self.home.resolve().is_relative_to(root)]
        places = [*self.settings.sandbox_writes, *self._find_cache(environ, cwd, hidden), *roots]
        own = tuple(filter(None, (find_programs(folder), folder)))
        seen = Visible(self.home, (*places, *own), tuple(hidden))
        visible.show_system(seen, temporary)
        if sources is None:
            visible.show_caches(seen, temporary / "cache")
        else:
            own += (Path(environ["UV_CACHE_DIR"]), Path(environ["HOME"]))
            seen.mount("--ro-bind", Path("/etc/uv/uv.toml"))
        visible.show_named(seen, words, environ, cwd)
        for root in roots:
            visible.show_repository(seen, root)
        for path in self.settings.sandbox_reads:
            seen.show(path)
        for path in places:
            seen.mount("--bind", path)
        for root in roots:
            self._protect(seen, root, folder)
        for path in own:
            seen.mount("--bind", path)
        return seen

    def _find_cache(self, environ: Mapping[str, str], cwd: Path, hidden: Sequence[Path]) -> Iterator[Path]:
        """The folder of XLA's compiled programs, unless a matrix names one where a job must not write."""
        named = environ.get("JAX_COMPILATION_CACHE_DIR", "")
        cache = Path(named).resolve()  # the working directory is written anyway, except for what is protected
        is_below = any(path.resolve() in cache.parents for path in (self.home / ".cache", *map(Path, TEMPORARY)))
        is_protected = any(cache.is_relative_to(path) or path.is_relative_to(cache) for path in (cwd, *hidden))
        if named and (named == os.environ.get("JAX_COMPILATION_CACHE_DIR") or (is_below and not is_protected)):
            yield cache

    def _protect(self, seen: Visible, root: Path, folder: Path) -> None:
        """Hides Nightjar's folders and makes read-only what later commands run, in all that a job may write.

        A folder in which one of them lies is mounted onto itself: so it cannot be renamed and replaced.
        """
        state_dir = seen.hidden[0]
        if state_dir.is_relative_to(root):
            state_dir.mkdir(parents=True, exist_ok=True)  # a job would make one
        protected = visible.find_trusted(root)
        for path in protected:
            seen.mount("--ro-bind", path)
        for path in seen.hidden:
            seen.mount("--tmpfs", path)
        inner = [path for path in (*protected, *seen.hidden, folder) if root in path.parents]
        for parent in {parent for path in inner for parent in path.parents[: -len(root.parts)]}:
            if not any(parent.is_relative_to(path) for path in inner):
                seen.mount("--bind", parent)


@contextmanager
def _without_repository(cwd: Path) -> Iterator[None]:
    """Moves away a repository that a job makes in the working directory: the user's next git command would believe it.

    It is kept, in a folder `.git-of-a-job-*`: the user may have made it at the same time.
    """
    repository = cwd / ".git"
    is_new = not os.path.lexists(repository)
    try:
        yield
    finally:
        if is_new and os.path.lexists(repository):
            repository.rename(Path(mkdtemp(prefix=".git-of-a-job-", dir=cwd), "git"))


def open_sandbox(settings: Settings, on_line: Callable[[str], None] | None) -> Sandbox | None:
    """The sandbox of this machine; None if it is off, or cannot be, which is said once."""
    sandbox = find_sandbox(settings, Path.home())
    if not isinstance(sandbox, str):
        return sandbox
    if on_line is not None and sandbox not in _reported_lacks:
        _reported_lacks.add(sandbox)
        on_line(f"jobs are not confined: {sandbox}. NIGHTJAR_SANDBOX=off says that this is intended")
    return None


def find_sandbox(settings: Settings, home: Path) -> Sandbox | str | None:
    """The sandbox of this machine; why jobs are not confined although nobody switched it off; None if it is off."""
    if settings.sandbox == "off":
        return None
    program = shutil.which("bwrap")
    if program is None:
        return "bubblewrap is not installed"
    if (refusal := _find_refusal(program)) is not None:
        return f"bubblewrap does not work here: {refusal}"
    return Sandbox(program=program, home=home, settings=settings)


def check_program(name: str, environ: Mapping[str, str], cwd: Path) -> None:
    """Finds the program of a command as the system would, since bubblewrap's own message says less."""
    path = str(cwd / name) if "/" in name else name
    if shutil.which(path, path=environ.get("PATH")) is None:
        number = errno.EACCES if "/" in name and Path(path).exists() else errno.ENOENT
        raise OSError(number, os.strerror(number), name)


@functools.cache
def _find_refusal(program: str) -> str | None:
    """The error of a bwrap that does not work; a system may refuse it, as containers and Ubuntu 24.04 do."""
    options = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-pid", "--unshare-net")
    command = (program, *options, "--", "env", "--default-signal=TERM", "--", "true")
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_PROBE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return (said or [f"exit status {done.returncode}"])[-1][:200]
