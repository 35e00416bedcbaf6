"""How is tonight's environment made once more with another version of a package? By uv, from what is installed now.

In: requirements such as `jax==0.10.1`. Out: a virtual environment of the same Python, with the version of every package
of the current environment except those required otherwise; packages installed from a folder are installed from that
folder again. It is kept under the hash of all that went in, and made once: a half-made one has no stamp and is made
anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.untrusted.inheritance import inherit_for_fetching, looks_secret
from nightjar_ci.untrusted.masking import Mask
from nightjar_ci.web.http import hide_passwords

STAMP = "nightjar-environment.json"
FOLLOWS_JAX = re.compile(r"jaxlib|jax-cuda\d+-(plugin|pjrt)")  # jax releases them together, under one version


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """What is installed: pinned packages, and packages that were installed from a folder of this machine.

    Attributes:
        pins: canonical name to requirement, `numpy==2.4.6` or `name @ url`.
        folders: canonical name to the folder and whether it was installed editable.
    """

    pins: dict[str, str]
    folders: dict[str, tuple[Path, bool]]


def parse_requirements(text: str) -> tuple[Requirement, ...]:
    """The requirements of `uv:<requirement>[,<requirement>...]`; a comma before an operator continues a specifier.

    Raises:
        ValueError: one is not valid.

    >>> [str(one) for one in parse_requirements("jax>=0.9,<0.10,flax==0.12.7")]
    ['jax<0.10,>=0.9', 'flax==0.12.7']
    """
    try:
        return tuple(Requirement(part) for part in re.split(r",(?!\s*[<>=!~])", text))
    except InvalidRequirement as error:
        raise ValueError(f"{text!r} is no list of requirements: {str(error).splitlines()[0]}") from None


def freeze(distributions: Iterable[importlib.metadata.Distribution] | None = None) -> Frozen:
    """What the current environment holds; where a package is found twice, the first is what Python imports."""
    pins: dict[str, str] = {}
    folders: dict[str, tuple[Path, bool]] = {}
    for found in importlib.metadata.distributions() if distributions is None else distributions:
        raw_name = found.metadata["Name"]
        if not raw_name or (name := canonicalize_name(raw_name)) in pins or name in folders:
            continue
        origin = json.loads(found.read_text("direct_url.json") or "{}")  # PEP 610
        url = urlsplit(origin.get("url", ""))
        if "dir_info" in origin and url.scheme == "file":
            folders[name] = Path(unquote(url.path)), bool(origin["dir_info"].get("editable"))
        elif vcs := origin.get("vcs_info"):
            pins[name] = f"{name} @ {vcs['vcs']}+{origin['url']}@{vcs['commit_id']}"
        elif origin:
            pins[name] = f"{name} @ {origin['url']}"
        else:
            pins[name] = f"{name}=={found.version}"
    return Frozen(pins=pins, folders=folders)


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
    requirements = parse_requirements(text)
    frozen = freeze()
    names = {canonicalize_name(one.name) for one in requirements}
    folders = {name: origin for name, origin in frozen.folders.items() if name not in names}
    return make_pinned(text, override(frozen.pins, requirements), folders, cache, on_line=on_line)


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

    Args:
        text: what it is called in messages, after `uv:`.
        lines: requirements, each a pin.
        folders: packages to install from a folder: name to the folder and whether editable.
        cache: the folder of all environments.
        python: interpreter or version as uv understands it; this one where None.
        resolved: the lines are all there is to install: uv need not look for dependencies.
        on_line: called with one line of progress for every step.

    Returns:
        The environment's folder.

    Raises:
        EnvironmentFailedError: uv is missing, or cannot resolve or install; the message names the package.
    """
    contents = _describe(lines, folders, python)
    prefix = cache / _digest(contents)
    try:
        prefix.mkdir(parents=True, exist_ok=True)
        with _locked(prefix.with_suffix(".lock")):
            stamp = prefix / STAMP
            if not stamp.is_file():
                _make(prefix, text, lines, folders, python or sys.executable, resolved, on_line or (lambda _: None))
                stamp.write_text(contents, encoding="utf-8")
            stamp.touch()  # says when it was last asked for
    except OSError as error:
        raise EnvironmentFailedError(f"uv:{text}: {prefix} cannot be made: {error}.") from None
    return prefix


def is_made(
    lines: Sequence[str], folders: Mapping[str, tuple[Path, bool]], cache: Path, python: str | None = None
) -> bool:
    """Whether `make_pinned` has made that environment before."""
    return (cache / _digest(_describe(lines, folders, python)) / STAMP).is_file()


def _digest(contents: str) -> str:
    return hashlib.sha256(contents.encode()).hexdigest()[:16]


def _describe(lines: Sequence[str], folders: Mapping[str, tuple[Path, bool]], python: str | None) -> str:
    """All that goes into an environment, as text: its hash names the environment."""
    sources = {
        name: {
            "folder": str(folder),
            "editable": editable,
            "project": hashlib.sha256(project.read_bytes()).hexdigest()
            if (project := folder / "pyproject.toml").is_file()
            else None,
        }
        for name, (folder, editable) in folders.items()
    }
    interpreter = {"python": sys.version, "base": sys.base_prefix} if python is None else {"python": python}
    return json.dumps({**interpreter, "requirements": lines, "folders": sources}, indent=1, sort_keys=True)


def _make(
    prefix: Path,
    text: str,
    lines: Sequence[str],
    folders: Mapping[str, tuple[Path, bool]],
    python: str,
    resolved: bool,
    say: Callable[[str], None],
) -> None:
    begin = time.monotonic()
    shutil.rmtree(prefix)
    say(f"making the environment uv:{text} (once)")
    run_uv(text, "venv", "--quiet", "--no-project", "--python", python, str(prefix))
    pins = prefix / "requirements.txt"
    pins.write_text("\n".join(lines) + "\n", encoding="utf-8")
    into = ("pip", "install", "--quiet", "--python", str(prefix / "bin" / "python"))
    variables = {"UV_COMPILE_BYTECODE": "0"}  # a job never imports most of it: it is compiled as it is imported
    run_uv(text, *into, *("--no-deps",) * resolved, "--requirements", str(pins), variables=variables)
    if folders:
        sources = [part for folder, editable in folders.values() for part in (("-e",) * editable + (str(folder),))]
        run_uv(text, *into, "--no-deps", *sources, variables=variables)
    say(f"made the environment uv:{text} in {time.monotonic() - begin:.0f} s")


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
