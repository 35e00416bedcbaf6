"""Copies of the current environment with other versions of some packages, made by uv.

In: requirements such as `jax==0.10.1` or `./mylib`. Out: a virtual environment of the same Python, with the versions of
the current environment unless a requirement overrides them; packages installed from a folder are installed from that
folder again. Its name is the hash of its inputs, including the contents of local folders and files, and it is made
once. An incomplete one has no stamp and is made again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from nightjar_ci.environments.current import find_current
from nightjar_ci.environments.installed import freeze, plan_local_packages
from nightjar_ci.environments.local_requirements import find_linked_names, find_locals, make_editable, parse_local
from nightjar_ci.environments.nightly_days import name_days
from nightjar_ci.environments.run_uv import find_index, lacks_wheels, run_uv
from nightjar_ci.environments.sources import Source, get_table, read_project, read_source
from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.jax_nightly.days import read_date

STAMP = "nightjar-environment.json"
_LAYOUT = 3  # version of the description that names an environment
_ATTEMPTS = 3
_FROM_INDEX = re.compile(r"^([\w.-]+)==.+\n +# from (\S+)$", re.MULTILINE)  # as uv annotates a pin
_VENV = ("venv", "--quiet", "--no-project", "--directory", "/")  # a project's settings may name where a Python is from
FOLLOWS_JAX = re.compile(r"jaxlib|jax-cuda\d+-(plugin|pjrt)")  # jax releases them together, under one version


def split_requirements(text: str) -> list[str]:
    """The parts of `<requirement>[,<requirement>...]`; a comma in brackets or before an operator does not separate.

    >>> split_requirements("jax[cuda12,k8s]>=0.9,<0.10,./mylib,-e ~/other")
    ['jax[cuda12,k8s]>=0.9,<0.10', './mylib', '-e ~/other']
    """
    return [part.strip() for part in re.split(r",(?![^\[]*\])(?!\s*(?:[<>=!]|~=))", text)]


def parse_requirement(text: str) -> Requirement:
    """One requirement; a local folder or file gets the name of its package."""
    local = parse_local(text)
    if local is None:
        return Requirement(text)
    return local.requirement


def parse_requirements(text: str) -> tuple[Requirement, ...]:
    """The requirements of `uv:<requirement>[,<requirement>...]`.

    >>> [str(requirement) for requirement in parse_requirements("jax>=0.9,<0.10,flax==0.12.7")]
    ['jax<0.10,>=0.9', 'flax==0.12.7']
    """
    try:
        return tuple(map(parse_requirement, split_requirements(text)))
    except InvalidRequirement as error:
        raise ValueError(f"{text!r} is not a list of requirements: {str(error).splitlines()[0]}") from None


def override(pins: dict[str, str], requirements: Sequence[Requirement]) -> list[str]:
    """The pins, replaced by requirements of the same name; `jax==X` stands for its jaxlib and plugins too.

    >>> override({"jax": "jax==2", "jaxlib": "jaxlib==2", "numpy": "numpy==1"}, parse_requirements("jax==1"))
    ['jax==1', 'jaxlib==1', 'numpy==1']
    """
    wanted = dict(pins)
    for requirement in requirements:
        if canonicalize_name(requirement.name) == "jax":
            versions = [f"=={clause.version}" for clause in requirement.specifier if clause.operator == "=="]
            for name in [name for name in {*pins, "jaxlib"} if FOLLOWS_JAX.fullmatch(name)]:
                wanted[name] = name + "".join(versions[:1])
    wanted.update({canonicalize_name(requirement.name): str(requirement) for requirement in requirements})
    return [wanted[name] for name in sorted(wanted)]


def make_environment(
    text: str,
    cache: Path,
    on_line: Callable[[str], None] | None = None,
    folders: Mapping[str, tuple[Path, bool]] | None = None,
) -> Path:
    """The environment of these requirements, made unless it exists already.

    Args:
        folders: packages from folders, and whether each is editable; if None, the current environment's.
    """
    text = name_days(text)
    requirements = parse_requirements(text)
    chosen = find_locals(split_requirements(text))
    frozen = freeze()
    names = {canonicalize_name(requirement.name) for requirement in requirements}
    folders = frozen.folders if folders is None else folders
    folders = {name: origin for name, origin in folders.items() if name not in names}
    lines = override(frozen.pins, requirements)
    if chosen:  # uv knows the other folders that they depend on
        lines = compile_lines(f"uv:{text}", lines)
    lines = make_editable(lines, chosen)
    return make_pinned(f"uv:{text}", lines, folders, cache, resolved=bool(chosen), on_line=on_line)


def compile_lines(text: str, lines: Sequence[str], *options: str, python: str | None = None) -> list[str]:
    """All packages of an environment that meets requirements, by uv's resolver."""
    output = resolve(text, lines, "--format", "pylock.toml", *options, python=python)
    packages = tomllib.loads(output).get("packages", [])
    elsewhere: set[str] = set()
    folders = [package["directory"].get("path") for package in packages if "directory" in package]
    folders += [option.removesuffix("/pyproject.toml") for option in options if option.endswith("/pyproject.toml")]
    if any(line.startswith("-r ") for line in lines) or any(map(_names_index, filter(None, folders))):
        annotated = resolve(text, lines, "--emit-index-annotation", *options, python=python)
        usual = re.sub(r"//[^/]*@", "//", find_index()).rstrip("/")  # uv annotates without user and password
        elsewhere = {name for name, index in _FROM_INDEX.findall(annotated) if index.rstrip("/") != usual}
    return [_render_locked(package, package["name"] in elsewhere) for package in packages]


def _names_index(path: str) -> bool:
    """Whether a project, or the workspace that it is in, names an index of its own."""
    folder = Path(path).resolve()
    return any("index" in get_table(read_project(at), "tool", "uv") for at in (folder, *folder.parents))


def resolve(
    text: str,
    lines: Sequence[str],
    *options: str,
    python: str | None = None,
    prefer: Iterable[str] = (),
    constraints: Sequence[str] = (),
) -> str:
    """The lock that uv makes of requirements.

    Args:
        prefer: pins to keep if the requirements allow it.
    """
    with tempfile.TemporaryDirectory(prefix="nightjar-resolve-") as own:
        lock = Path(own, "requirements.txt")  # uv prefers the versions of the file that it is to write
        if python is not None and not Path(python).is_absolute():
            run_uv(text, *_VENV, "--python", python, f"{own}/python")
            python = f"{own}/python/bin/python"
        arguments = ["pip", "compile", "--quiet", "--no-header", "--no-annotate", "--no-emit-index-url", *options]
        arguments += ["--python", python or str(find_current().executable), "-"]
        if pins := "".join(f"{line}\n" for line in prefer):
            lock.write_text(pins, encoding="utf-8")
            arguments += ["--output-file", str(lock)]
        if constraints:
            Path(own, "constraints.txt").write_text("\n".join(constraints) + "\n", encoding="utf-8")
            arguments += ["--constraints", f"{own}/constraints.txt"]
        stdin = "\n".join(lines) + "\n"
        output = run_uv(text, *arguments, stdin=stdin, pins=[*lines, *constraints], written=Path(own))
        return lock.read_text(encoding="utf-8") if pins else output


def fit_lines(text: str, lines: Sequence[str], name: str, project: Path, python: str | None = None) -> list[str]:
    """These packages, at other versions if the project of this name in a folder requires them, and what it lacks."""
    folder = f"{name} @ {project.resolve().as_uri()}"
    try:
        fitted = compile_lines(text, [folder, *lines], python=python)
    except EnvironmentFailedError:  # they exclude each other: its own requirements win, and all else stays if it can
        wanted = [folder, *(line.partition("==")[0] for line in lines)]
        fitted = resolve(text, wanted, python=python, prefer=lines).splitlines()
    return [line for line in fitted if canonicalize_name(parse_requirement(line).name) != name]


def _render_locked(package: Mapping[str, Any], elsewhere: bool) -> str:
    """A package of a `pylock.toml` as a requirement (PEP 751), with its address if the usual index does not have it.

    Paths are relative to the working directory.
    """
    name, origin = package["name"], package.get("directory") or package.get("archive") or package.get("vcs")
    if origin is None and elsewhere and read_date(package["version"]) is None:  # a nightly day's index is ours
        file = [*package.get("wheels", ()), package.get("sdist")][0]
        url = file.get("url") or Path(file["path"]).resolve().as_uri()
        return f"{name} @ {url}" + "".join(f"#{kind}={sha}" for kind, sha in [*file.get("hashes", {}).items()][:1])
    if origin is None:
        return f"{name}=={package['version']}"
    url = origin.get("url") or Path(origin["path"]).resolve().as_uri()
    if "commit-id" in origin:
        url = f"{origin['type']}+{url}@{origin['commit-id']}"
    return f"{name} @ {url}" + (f"#subdirectory={origin['subdirectory']}" if "subdirectory" in origin else "")


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
    """The environment with these packages, made unless it exists already.

    Local sources are identified by their contents: editing a folder makes another environment.

    Args:
        folders: packages to install from a folder: name to the folder and whether editable.
        python: interpreter or version as uv understands it; default: the current one.
        resolved: the lines are complete: uv need not resolve dependencies.
    """
    for _ in range(_ATTEMPTS):
        sources = read_sources(text, lines, folders, cache)
        contents = _describe(lines, sources, python)
        prefix = cache / _digest(contents)
        prefix.mkdir(parents=True, exist_ok=True)
        with _locked(prefix.with_suffix(".lock")):
            stamp = prefix / STAMP
            if not stamp.is_file():
                base = python or str(find_current().executable)
                _make(prefix, text, lines, folders, sources, base, resolved, on_line or (lambda _: None))
                if _describe(lines, read_sources(text, lines, folders, cache), python) != contents:
                    continue  # edited meanwhile, or its build writes into it: the installed contents are unclear
                stamp.write_text(contents, encoding="utf-8")
            stamp.touch()  # its time is the last use
        return prefix
    raise EnvironmentFailedError(
        f"{text}: its source folders changed during each of {_ATTEMPTS} installations.",
        "does a program write into them? Add its output to .gitignore",
    )


def read_sources(
    text: str, lines: Sequence[str], folders: Mapping[str, tuple[Path, bool]], cache: Path
) -> dict[str, Source]:
    """The local sources of an environment, by canonical name.

    Args:
        cache: the folder of all environments; it is ignored if it is inside a project.
    """
    try:
        paths = {name: (local.path, local.editable) for name, local in find_locals(lines).items()} | dict(folders)
        outputs = (cache, cache.parent)
        return {name: read_source(path, editable=editable, outputs=outputs) for name, (path, editable) in paths.items()}
    except ValueError as error:
        raise EnvironmentFailedError(f"{text}: {error}.") from None
    except OSError as error:
        hint = "a package of the environment is installed from it"
        raise EnvironmentFailedError(f"{text}: {error.filename} cannot be read: {error.strerror}.", hint) from None


def read_made_sources(prefix: Path) -> dict[str, Source]:
    """The local sources of an environment of `make_pinned`, by canonical name."""
    made = json.loads((prefix / STAMP).read_text(encoding="utf-8"))["sources"]
    return {name: Source(**{**source, "path": Path(source["path"])}) for name, source in made.items()}


def find_made(
    lines: Sequence[str], sources: Mapping[str, Source], cache: Path, python: str | None = None
) -> Path | None:
    """The environment of these lines and sources, or None unless `make_pinned` has made it already."""
    prefix = cache / _digest(_describe(lines, sources, python))
    if not (prefix / STAMP).is_file():
        return None
    return prefix


def _digest(contents: str) -> str:
    return hashlib.sha256(contents.encode()).hexdigest()[:16]


def _describe(lines: Sequence[str], sources: Mapping[str, Source], python: str | None) -> str:
    """The inputs of an environment as text; the environment is named after its hash."""
    if python is None:
        current = find_current()
        interpreter = {"python": current.build, "base": str(current.base_prefix)}
    else:
        interpreter = {"python": python}
    described = {name: asdict(source) for name, source in sources.items()}
    contents = {**interpreter, "layout": _LAYOUT, "requirements": lines, "sources": described}
    return json.dumps(contents, indent=1, sort_keys=True, default=str)


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
    if prefix.exists():  # a prune may have removed it meanwhile
        shutil.rmtree(prefix)
    say(f"making the environment {text} (once)")
    run_uv(text, *_VENV, "--python", python, str(prefix))
    interpreter = str(prefix / "bin" / "python")
    if not resolved:
        lines = compile_lines(text, lines, python=interpreter)
    named = [f"# {package}" for package in plan_local_packages(sources)]
    (prefix / "requirements.txt").write_text("\n".join([*named, *lines]) + "\n", encoding="utf-8")
    lines = "\n".join(lines).replace("\\\n", " ").splitlines()  # one for each requirement
    into = ["pip", "install", "--quiet", "--no-deps", "--python", interpreter, "--requirements", "-"]
    # uv caches a build of a folder until its pyproject.toml changes, and a wheel from a folder for ever.
    for name in sorted({*sources, *find_linked_names(lines)}):
        into += ["--reinstall-package", name]
    variables = {"UV_COMPILE_BYTECODE": "0"}  # a job never imports most of the packages
    wheels, built = [line for line in lines if not _is_built(line)], list(filter(_is_built, lines))
    try:  # from the cache that uv shares with the user's projects, in which no build ever writes
        run_uv(text, *into, "--no-build", stdin="\n".join(wheels), variables=variables, pins=wheels)
    except EnvironmentFailedError as error:
        if not lacks_wheels(error):
            raise
        built = list(lines)
    built += [f"-e {folder.as_uri()}" if editable else folder.as_uri() for folder, editable in folders.values()]
    if built:
        built += [line for line in wheels if line.startswith("-")]  # where the wheels that a build needs may be
        with _clean_builds(source.path for source in sources.values() if source.path.is_dir()) as cleaning:
            _build(text, into, built, prefix, variables | cleaning)
    say(f"made the environment {text} in {time.monotonic() - begin:.0f} s")


def _is_built(line: str) -> bool:
    """Whether a requirement names the source of a package; of an index only uv knows what it has."""
    local = parse_local(line)
    return "git+" in line or (local is not None and local.path.suffix != ".whl")


def _build(text: str, into: Sequence[str], lines: Sequence[str], prefix: Path, variables: Mapping[str, str]) -> None:
    """Installs packages that are built, in the sandbox into a folder of their own, and moves them into an environment.

    So a build can change nothing in it that runs outside of the sandbox, nor a file that uv's cache shares with it.
    """
    own = prefix.with_suffix(".built")
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir()
    into = (*into, "--prefix", str(own))
    run_uv(text, *into, stdin="\n".join(lines), variables=variables, pins=lines, written=own)
    for folder, _, names in os.walk(own):  # which follows no link that a build left
        for path in (Path(folder, name) for name in names if Path(folder) != own):
            target = prefix / path.relative_to(own)
            is_package = target.is_relative_to(prefix / "lib") or target.is_relative_to(prefix / "lib64")
            if path.is_file() and not path.is_symlink() and (is_package or not os.path.lexists(target)):
                path.chmod(path.stat().st_mode & ~(stat.S_ISUID | stat.S_ISGID))
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)
    shutil.rmtree(own)


@contextmanager
def _clean_builds(folders: Iterable[Path]) -> Iterator[dict[str, str]]:
    """The variables that make setuptools build in temporary folders, removed afterwards.

    Its default `build` keeps files of earlier builds: they would get into the wheel though they were deleted from the
    package, or replace newer ones. Source: setuptools:setuptools/_distutils/dist.py, DIST_EXTRA_CONFIG.
    """
    builds = [folder / "build" for folder in folders]
    if not builds or "DIST_EXTRA_CONFIG" in os.environ:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="nightjar-build-") as own:
        config, name = Path(own, "setup.cfg"), Path(own).name
        config.write_text(f"[build]\nbuild_base = build/{name}\n", encoding="utf-8")
        try:
            yield {"DIST_EXTRA_CONFIG": str(config)}
        finally:
            for build in builds:
                shutil.rmtree(build / name, ignore_errors=True)
                with suppress(OSError):  # absent, or not empty
                    build.rmdir()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Locks against other processes that make the same environment; the lock ends with the process."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
