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
import subprocess
import sysconfig
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
from nightjar_ci.environments.nightly_days import name_days, open_pinned_day
from nightjar_ci.environments.sources import Source, read_source
from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.settings import read_settings
from nightjar_ci.untrusted.inheritance import inherit_for_fetching, looks_secret
from nightjar_ci.untrusted.masking import Mask
from nightjar_ci.web.http import hide_passwords

STAMP = "nightjar-environment.json"
_LAYOUT = 3  # version of the description that names an environment
_ATTEMPTS = 3
# Messages of uv 0.13 if an index does not answer: "Failed to fetch", and the causes below it.
_NETWORK = re.compile(
    r"failed to (fetch|download)|request for url|client error|\bconnect(ion)?\b|\bdns\b|timed out|\btls\b|certificate"
    r"|http status|\bnetwork\b|\boffline\b",
    re.IGNORECASE,
)
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
    arguments = ["pip", "compile", "--quiet", "--format", "pylock.toml", *options]
    arguments += ["--python", python or str(find_current().executable), "-"]
    output = run_uv(text, *arguments, stdin="\n".join(lines) + "\n", pins=lines)
    return [_render_locked(package) for package in tomllib.loads(output).get("packages", [])]


def fit_lines(text: str, lines: Sequence[str], name: str, project: Path, python: str | None = None) -> list[str]:
    """These packages, at other versions if the project of this name in a folder requires them, and what it lacks."""
    folder = f"{name} @ {project.resolve().as_uri()}"
    try:
        fitted = compile_lines(text, [folder, *lines], python=python)
    except EnvironmentFailedError:  # they exclude each other: its own requirements win, and all else stays if it can
        with tempfile.TemporaryDirectory(prefix="nightjar-lock-") as own:
            lock = Path(own, "requirements.txt")  # uv prefers the versions of the file that it is to write
            lock.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            options = ("--no-header", "--no-annotate", "--output-file", str(lock))
            arguments = ["pip", "compile", "--quiet", *options, "--python", python or str(find_current().executable)]
            wanted = [folder, *(line.partition("==")[0] for line in lines)]
            run_uv(text, *arguments, "-", stdin="\n".join(wanted) + "\n", pins=lines)
            fitted = lock.read_text(encoding="utf-8").splitlines()
    return [line for line in fitted if canonicalize_name(parse_requirement(line).name) != name]


def _render_locked(package: Mapping[str, Any]) -> str:
    """A package of a `pylock.toml` as a requirement (PEP 751); paths are relative to the working directory."""
    name, origin = package["name"], package.get("directory") or package.get("archive") or package.get("vcs")
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
        folders: packages to install from a folder: name to the folder and whether editable.
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
    run_uv(text, "venv", "--quiet", "--no-project", "--python", python, str(prefix))
    pins = prefix / "requirements.txt"
    named = [f"# {package}" for package in plan_local_packages(sources)]
    pins.write_text("\n".join([*named, *lines]) + "\n", encoding="utf-8")
    into = ["pip", "install", "--quiet", "--python", str(prefix / "bin" / "python")]
    # uv caches a build of a folder until its pyproject.toml changes, and a wheel from a folder for ever.
    for name in sorted({*sources, *find_linked_names(lines)}):
        into += ["--reinstall-package", name]
    with _clean_builds(source.path for source in sources.values() if source.path.is_dir()) as variables:
        # A job never imports most of the packages: modules are compiled on import.
        variables["UV_COMPILE_BYTECODE"] = "0"
        resolution = ("--no-deps",) if resolved else ()
        run_uv(text, *into, *resolution, "--requirements", str(pins), variables=variables, pins=lines)
        if folders:
            paths: list[str] = []
            for folder, editable in folders.values():
                if editable:
                    paths.append("-e")
                paths.append(str(folder))
            run_uv(text, *into, "--no-deps", *paths, variables=variables)
    say(f"made the environment {text} in {time.monotonic() - begin:.0f} s")


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


def find_index() -> str:
    """The package index of uv: from its configuration on this machine, or its default."""
    output = run_uv("uv", "pip", "compile", "--offline", "--no-header", "--emit-index-url", "-")
    index = re.search(r"^--index-url (\S+)$", output, re.MULTILINE)
    if index is None:
        raise EnvironmentFailedError("uv has no package index.", "UV_DEFAULT_INDEX sets one")
    return index[1]


def run_uv(
    text: str,
    *arguments: str,
    stdin: str = "",
    variables: Mapping[str, str] | None = None,
    pins: Sequence[str] = (),
) -> str:
    """Runs uv and returns its stdout.

    Args:
        variables: environment variables to set, besides the ones that foreign code and a download inherit.
        pins: requirements; a nightly day of JAX needs a separate index.
    """
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    program = shutil.which("uv", path=path)
    if program is None:
        raise EnvironmentFailedError(f"{text}: uv is not on PATH.", "pip install uv")
    with open_pinned_day(pins, lambda: read_settings().index_url or find_index()) as (options, reach):
        environ = {**inherit_for_fetching(os.environ), **(variables or {}), **reach}
        argv = [program, *arguments, *options]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, input=stdin, env=environ)
    if done.returncode != 0:
        passwords = Mask(tuple(value for name, value in environ.items() if looks_secret(name)))
        stderr = passwords.text(hide_passwords(done.stderr))
        raise explain_failure(text, ("uv", *arguments), done.returncode, stderr)
    return done.stdout


def explain_failure(text: str, command: Sequence[str], exit_code: int, stderr: str) -> EnvironmentFailedError:
    """The error for a failure of uv, with the packages that do not fit together first.

    >>> stderr = "Because a==1 depends on jax<2 and you require jax==2, we can conclude that a==1 cannot be used."
    >>> explain_failure("uv:jax==2", ["uv"], 1, stderr).message.partition(chr(10))[0]
    'uv:jax==2: a==1 requires jax<2: `uv` exited with 1:'
    """
    joined = " ".join(line.strip(" │├╰─▶") for line in stderr.splitlines())
    needs = re.findall(r"(?:[Bb]ecause|and) (\S+) depends on ([^,]*?)(?:,| and |$)", joined)
    absent = re.findall(r"there (?:is|are) no versions? of (\S+)", joined)
    own_hint = re.search(r"^\s*hint: (.+)$", stderr, re.MULTILINE)
    python = re.search(r"Python version \(\S+\) does not satisfy Python(\S+) and (\S+) depends on Python", joined)
    reasons = [f"{name} requires {needed}" for name, needed in needs] + [f"there is no {name}" for name in absent]
    hint = None
    if python is not None:
        pythons, name = python.groups()
        hint = f"{name} needs Python{pythons}: run this in an environment with such a Python, or try another version"
    elif "exclude-newer" in joined:
        hint = "it is newer than `exclude-newer` of your uv.toml, or than UV_EXCLUDE_NEWER, allows"
    elif absent:
        hint = "is the version right, and is this the package index that has it?"
    elif needs:
        name = re.split("[=<>!~]", needs[0][0])[0]
        hint = f"choose a version of {name} that does not, as in {text},{name}==..."
    elif own_hint is not None:
        hint = own_hint[1]
    elif "python-build-standalone" in stderr:
        hint = "put that Python's folder on PATH, or ask for another: it is not here, and uv cannot download it"
    elif _NETWORK.search(stderr):
        hint = "can this machine reach the package index? UV_DEFAULT_INDEX sets another"
    reason = "; ".join(dict.fromkeys(reasons)) or "the environment cannot be made"
    tail = "\n".join(stderr.strip().splitlines()[-20:])
    return EnvironmentFailedError(f"{text}: {reason}: `{' '.join(command)}` exited with {exit_code}:\n{tail}\n", hint)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Locks against other processes that make the same environment; the lock ends with the process."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
