"""Copies of the current environment with other versions of some packages, made by uv.

In: requirements such as `jax==0.10.1` or `./mylib`. Out: a virtual environment of the same Python, with the version of
every package of the current environment except those required otherwise; packages installed from a folder are installed
from that folder again. It is kept under the hash of all that went in, the contents of folders and files of this machine
included, and made once: a half-made one has no stamp and is made anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from nightjar_ci.environments.current import find_current
from nightjar_ci.environments.git_tree import read_git
from nightjar_ci.environments.installed import freeze, plan_local_packages, read_distributions
from nightjar_ci.environments.local_requirements import find_linked_names, find_locals, make_editable, parse_local
from nightjar_ci.environments.sources import Source, read_source
from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.untrusted.inheritance import inherit_for_fetching, looks_secret
from nightjar_ci.untrusted.masking import Mask
from nightjar_ci.web.http import hide_passwords

STAMP = "nightjar-environment.json"
_LAYOUT = 2  # of the description that names an environment; 1 told folders apart by their pyproject.toml alone
_ATTEMPTS = 3
FOLLOWS_JAX = re.compile(r"jaxlib|jax-cuda\d+-(plugin|pjrt)")  # jax releases them together, under one version


def split_requirements(text: str) -> list[str]:
    """The parts of `<requirement>[,<requirement>...]`; a comma in brackets or before an operator is of one part.

    >>> split_requirements("jax[cuda12,k8s]>=0.9,<0.10,./mylib,-e ~/other")
    ['jax[cuda12,k8s]>=0.9,<0.10', './mylib', '-e ~/other']
    """
    return [part.strip() for part in re.split(r",(?![^\[]*\])(?!\s*(?:[<>=!]|~=))", text)]


def parse_requirement(text: str) -> Requirement:
    """One requirement; a folder or file of this machine gets the name of the package that it holds.

    Raises:
        ValueError: it is not valid.
    """
    local = parse_local(text)
    return Requirement(text) if local is None else local.requirement


def parse_requirements(text: str) -> tuple[Requirement, ...]:
    """The requirements of `uv:<requirement>[,<requirement>...]`.

    Raises:
        ValueError: one is not valid.

    >>> [str(requirement) for requirement in parse_requirements("jax>=0.9,<0.10,flax==0.12.7")]
    ['jax<0.10,>=0.9', 'flax==0.12.7']
    """
    try:
        return tuple(map(parse_requirement, split_requirements(text)))
    except InvalidRequirement as error:
        raise ValueError(f"{text!r} is not a list of requirements: {str(error).splitlines()[0]}") from None


def override(pins: dict[str, str], requirements: Sequence[Requirement]) -> list[str]:
    """The pins with the requirements in place of those they name; `jax==X` stands for its jaxlib and plugins too.

    >>> override({"jax": "jax==2", "jaxlib": "jaxlib==2", "numpy": "numpy==1"}, parse_requirements("jax==1"))
    ['jax==1', 'jaxlib==1', 'numpy==1']
    """
    wanted = dict(pins)
    for requirement in requirements:
        if canonicalize_name(requirement.name) == "jax":
            exact = [one.version for one in requirement.specifier if one.operator == "=="]
            for name in [name for name in {*pins, "jaxlib"} if FOLLOWS_JAX.fullmatch(name)]:
                wanted[name] = f"{name}=={exact[0]}" if exact else name
    wanted.update({canonicalize_name(requirement.name): str(requirement) for requirement in requirements})
    return [wanted[name] for name in sorted(wanted)]


def make_environment(text: str, cache: Path, on_line: Callable[[str], None] | None = None) -> Path:
    """The environment of these requirements, made unless it is there already.

    Args:
        text: requirements, separated by commas.
        cache: the folder of all environments.
        on_line: called with one line of progress for every step.

    Returns:
        The environment's folder.

    Raises:
        EnvironmentFailedError: uv is missing, or cannot resolve or install; the message names the package.
    """
    try:
        requirements = parse_requirements(text)
        editable = {name: local for name, local in find_locals(split_requirements(text)).items() if local.editable}
    except ValueError as error:
        raise EnvironmentFailedError(f"uv:{text}: {error}.") from None
    frozen = freeze()
    names = {canonicalize_name(requirement.name) for requirement in requirements}
    folders = {name: origin for name, origin in frozen.folders.items() if name not in names}
    lines = make_editable(override(frozen.pins, requirements), editable)
    return make_pinned(text, lines, folders, cache, on_line=on_line)


def make_pinned(
    text: str,
    lines: Sequence[str],
    folders: Mapping[str, tuple[Path, bool]],
    cache: Path,
    *,
    python: str | None = None,
    resolved: bool = False,
    on_line: Callable[[str], None] | None = None,
) -> Path:
    """The environment with these packages, made unless it is there already.

    What comes from this machine is told apart by its contents: a folder that was edited makes another environment.

    Args:
        text: what it is called in messages, after `uv:`.
        lines: requirements, each a pin.
        folders: packages to install from a folder: name to the folder and whether editable.
        cache: the folder of all environments.
        python: interpreter or version as uv understands it; the current one where None.
        resolved: the lines are all there is to install: uv need not look for dependencies.
        on_line: called with one line of progress for every step.

    Returns:
        The environment's folder.

    Raises:
        EnvironmentFailedError: uv is missing, or cannot resolve or install; the message names the package.
    """
    for _ in range(_ATTEMPTS):
        sources = read_sources(text, lines, folders, cache)
        contents = _describe(lines, sources, python)
        prefix = cache / _digest(contents)
        try:
            prefix.mkdir(parents=True, exist_ok=True)
            with _locked(prefix.with_suffix(".lock")):
                stamp = prefix / STAMP
                if not stamp.is_file():
                    base = python or str(find_current().executable)
                    _make(prefix, text, lines, folders, sources, base, resolved, on_line or (lambda _: None))
                    if _digests(read_sources(text, lines, folders, cache)) != _digests(sources):
                        continue  # edited meanwhile, or its build writes into it: what was installed is not certain
                    stamp.write_text(contents, encoding="utf-8")
                stamp.touch()  # says when it was last asked for
        except OSError as error:
            raise EnvironmentFailedError(f"uv:{text}: {prefix} cannot be made: {error}.") from None
        return prefix
    raise EnvironmentFailedError(
        f"uv:{text}: the folders that it is installed from changed while it was made, {_ATTEMPTS} times.",
        "does a program write into them? git-ignore what it writes",
    )


def read_sources(
    text: str, lines: Sequence[str], folders: Mapping[str, tuple[Path, bool]], cache: Path
) -> dict[str, Source]:
    """What an environment takes from this machine, by canonical name.

    Args:
        text: what the environment is called in messages, after `uv:`.
        lines: requirements.
        folders: packages to install from a folder: name to the folder and whether editable.
        cache: the folder of all environments; it is no part of a project that it lies in.

    Raises:
        EnvironmentFailedError: a folder or a file is not there, or cannot be read.
    """
    try:
        places = {name: (local.path, local.editable) for name, local in find_locals(lines).items()} | dict(folders)
        outputs = (cache, cache.parent)
        return {
            name: read_source(path, editable=editable, outputs=outputs) for name, (path, editable) in places.items()
        }
    except ValueError as error:
        raise EnvironmentFailedError(f"uv:{text}: {error}.") from None
    except OSError as error:
        hint = "a package is installed from there"
        raise EnvironmentFailedError(f"uv:{text}: {error.filename} cannot be read: {error.strerror}.", hint) from None


def read_made_sources(prefix: Path) -> dict[str, Source]:
    """What an environment that `make_pinned` made took from this machine, by canonical name."""
    made = json.loads((prefix / STAMP).read_text(encoding="utf-8"))["sources"]
    return {
        name: Source(
            path=(path := Path(source["path"])),
            editable=source["editable"],
            digest=source["sha256"],
            git=read_git(path, (".",)) if path.is_dir() else None,
        )
        for name, source in made.items()
    }


def find_made(
    lines: Sequence[str], sources: Mapping[str, Source], cache: Path, python: str | None = None
) -> Path | None:
    """The environment of these lines and sources, where `make_pinned` has made it already."""
    prefix = cache / _digest(_describe(lines, sources, python))
    return prefix if (prefix / STAMP).is_file() else None


def _digest(contents: str) -> str:
    return hashlib.sha256(contents.encode()).hexdigest()[:16]


def _digests(sources: Mapping[str, Source]) -> dict[str, str]:
    return {name: source.digest for name, source in sources.items()}


def _describe(lines: Sequence[str], sources: Mapping[str, Source], python: str | None) -> str:
    """All that goes into an environment, as text: its hash names the environment."""
    described = {
        name: {
            "path": str(source.path),
            "editable": source.editable,
            "sha256": source.digest,
            "describes": source.describes,
        }
        for name, source in sources.items()
    }
    if python is None:
        current = find_current()
        interpreter = {"python": current.build, "base": str(current.base_prefix)}
    else:
        interpreter = {"python": python}
    contents = {**interpreter, "layout": _LAYOUT, "requirements": lines, "sources": described}
    return json.dumps(contents, indent=1, sort_keys=True)


def _make(
    prefix: Path,
    text: str,
    lines: Sequence[str],
    folders: Mapping[str, tuple[Path, bool]],
    sources: Mapping[str, Source],
    python: str,
    resolved: bool,
    say: Callable[[str], None],
) -> None:
    begin = time.monotonic()
    if prefix.exists():  # a prune may have been quicker
        shutil.rmtree(prefix)
    say(f"making the environment uv:{text} (once)")
    run_uv(text, "venv", "--quiet", "--no-project", "--python", python, str(prefix))
    pins = prefix / "requirements.txt"
    named = [f"# {package}" for package in plan_local_packages(sources)]
    pins.write_text("\n".join([*named, *lines]) + "\n", encoding="utf-8")
    into = ["pip", "install", "--quiet", "--python", str(prefix / "bin" / "python")]
    # uv keeps what it built of a folder until its pyproject.toml changes, and a wheel that it found in one for ever.
    for name in sorted({*sources, *find_linked_names(lines)}):
        into += ["--reinstall-package", name]
    with _clean_builds(source.path for source in sources.values() if source.path.is_dir()) as variables:
        # A job never imports most of it: it is compiled as it is imported.
        variables["UV_COMPILE_BYTECODE"] = "0"
        run_uv(text, *into, *("--no-deps",) * resolved, "--requirements", str(pins), variables=variables)
        if folders:
            paths = [part for folder, editable in folders.values() for part in (("-e",) * editable + (str(folder),))]
            run_uv(text, *into, "--no-deps", *paths, variables=variables)
    _check_origins(text, prefix, sources)
    say(f"made the environment uv:{text} in {time.monotonic() - begin:.0f} s")


@contextmanager
def _clean_builds(folders: Iterable[Path]) -> Iterator[dict[str, str]]:
    """The variables under which setuptools builds in folders of its own, removed afterwards.

    In its own `build`, files of earlier builds stay: they get into the wheel though they were deleted from the package,
    and win over older files that took their place. Source: setuptools:setuptools/_distutils/dist.py, DIST_EXTRA_CONFIG.
    """
    places = [folder / "build" for folder in folders]
    if not places or "DIST_EXTRA_CONFIG" in os.environ:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="nightjar-build-") as own:
        config, name = Path(own, "setup.cfg"), Path(own).name
        config.write_text(f"[build]\nbuild_base = build/{name}\n", encoding="utf-8")
        try:
            yield {"DIST_EXTRA_CONFIG": str(config)}
        finally:
            for place in places:
                shutil.rmtree(place / name, ignore_errors=True)
                with suppress(OSError):  # not there, or not empty
                    place.rmdir()


def _check_origins(text: str, prefix: Path, sources: Mapping[str, Source]) -> None:
    """Refuses what was installed from a folder that is not known, for its edits would not be seen."""
    installed = freeze(read_distributions(prefix))
    places = [f"{name} @ {path.as_uri()}" for name, (path, _) in installed.folders.items() if name not in sources]
    if places:
        hint = f"name it too: uv:{text},{places[0]}"
        raise EnvironmentFailedError(f"uv:{text}: a dependency is installed from a folder: {places[0]}.", hint)


def find_index() -> str:
    """The package index that uv asks: of its own configuration on this machine, or the one that it knows itself.

    Raises:
        EnvironmentFailedError: uv is missing, or knows none.
    """
    said = run_uv("", "pip", "compile", "--offline", "--no-header", "--emit-index-url", "-")
    found = re.search(r"^--index-url (\S+)$", said, re.MULTILINE)
    if found is None:
        raise EnvironmentFailedError("uv knows no package index.", "UV_DEFAULT_INDEX names one")
    return found[1]


def run_uv(text: str, *arguments: str, stdin: str = "", variables: Mapping[str, str] | None = None) -> str:
    """Runs uv to its end and returns its stdout.

    Args:
        text: the requirements asked for, as a message names them.
        arguments: of uv.
        stdin: what it reads there.
        variables: environment variables to set, besides those that foreign code and a download inherit.

    Raises:
        EnvironmentFailedError: uv is missing or failed; the message names the package that blocks.
    """
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    program = shutil.which("uv", path=path)
    if program is None:
        raise EnvironmentFailedError(f"uv:{text}: there is no uv command on PATH.", "pip install uv")
    environ = {**inherit_for_fetching(os.environ), **(variables or {})}
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, input=stdin, env=environ)
    if done.returncode != 0:
        passwords = Mask(tuple(value for name, value in environ.items() if looks_secret(name)))
        said = passwords.text(hide_passwords(done.stderr))
        raise explain_failure(text, ("uv", *arguments), done.returncode, said)
    return done.stdout


def explain_failure(text: str, command: Sequence[str], exit_code: int, stderr: str) -> EnvironmentFailedError:
    """What uv's failure means: which package blocks, and uv's own words.

    Args:
        text: the requirements asked for.
        command: what was run.
        exit_code: its exit code.
        stderr: what uv wrote.
    """
    said = " ".join(line.strip(" │├╰─▶") for line in stderr.splitlines())
    blocker = re.search(r"(?:Because|And because) (\S+?)(?:==\S+)? depends on ([^,]*?)(?:,| and |$)", said)
    absent = re.search(r"(?:there is no version of|there are no versions of) (\S+)", said)
    tail = "\n".join(stderr.strip().splitlines()[-20:])
    what = f"uv:{text}: the environment cannot be made: `{' '.join(command)}` ended with {exit_code}:\n{tail}\n"
    if absent is not None:
        return EnvironmentFailedError(what, f"{absent[1]} is not in the package index: is the version right?")
    if blocker is not None:
        name, needs = blocker[1], blocker[2]
        return EnvironmentFailedError(
            what, f"{name} blocks it, for it needs {needs}: name a version that does not, as in uv:{text},{name}==..."
        )
    own = re.search(r"^\s*hint: (.+)$", stderr, re.MULTILINE)
    return EnvironmentFailedError(
        what, own[1] if own else "is the package index reached? UV_DEFAULT_INDEX names another"
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a lock that dies with its process, so that two processes do not make one environment at once."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
