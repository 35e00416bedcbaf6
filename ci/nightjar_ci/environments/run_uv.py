"""Runs of uv, with failures that are explained.

In: arguments of uv. Out: its stdout. A run that may build packages, and so run programs of theirs, is confined: it has
network, an empty home, the settings of the index, and a cache for each working directory, from which no other project
installs.
"""

from __future__ import annotations

import hashlib
import netrc
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote

from nightjar_ci.environments.nightly_days import open_pinned_day
from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.sandbox.confine import open_sandbox
from nightjar_ci.settings import read_settings
from nightjar_ci.untrusted.inheritance import inherit_for_fetching, looks_secret
from nightjar_ci.untrusted.masking import Mask
from nightjar_ci.web.http import hide_passwords

# Messages of uv 0.13 if an index does not answer: "Failed to fetch", and the causes below it.
_NETWORK = re.compile(
    r"failed to (fetch|download)|request for url|client error|\bconnect(ion)?\b|\bdns\b|timed out|\btls\b|certificate"
    r"|http status|\bnetwork\b|\boffline\b",
    re.IGNORECASE,
)
_PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg")
_PATH = re.compile(r"/[^\[;:]+")
_CONFINED = (
    "builds run in the sandbox, with an empty home: NIGHTJAR_SANDBOX_READS shows them more, NIGHTJAR_SANDBOX=off all"
)


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
    written: Path | None = None,
) -> str:
    """Runs uv and returns its stdout.

    Args:
        variables: environment variables to set, besides the ones that foreign code and a download inherit.
        pins: requirements; a nightly day of JAX needs a separate index.
        written: a folder for its files; None: it builds nothing, and so is not confined.
    """
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    program = shutil.which("uv", path=path)
    if program is None:
        raise EnvironmentFailedError(f"{text}: uv is not on PATH.", "pip install uv")
    settings, hint = read_settings(), None
    with ExitStack() as stack:
        options, reach = stack.enter_context(open_pinned_day(pins, lambda: settings.index_url or find_index()))
        environ = {**inherit_for_fetching(os.environ), **(variables or {}), **reach}
        argv: Sequence[str] = (program, *arguments, *options)
        if written is not None and (sandbox := open_sandbox(settings, None)) is not None:
            python = arguments[arguments.index("--python") + 1]
            words = [environ[name] for name in environ if name.startswith("UV_") and name != "UV_CACHE_DIR"]
            lines = [*pins, *arguments, *(variables or {}).values(), *" ".join(words).split()]
            cache = settings.cache_dir / "uv" / hashlib.sha256(os.fsencode(Path.cwd())).hexdigest()[:16]
            try:
                cache.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                hint = "NIGHTJAR_CACHE_DIR names a folder that can be written"
                raise EnvironmentFailedError(f"{text}: {cache}: {error.strerror}.", hint) from None
            home = stack.enter_context(TemporaryDirectory(prefix="nightjar-home-"))
            _fill_home(Path(home), " ".join(lines))
            environ = {name: value for name, value in environ.items() if not name.startswith("XDG_")}
            environ |= {"HOME": home, "UV_CACHE_DIR": str(cache), "PATH": f"{Path(python).parent}{os.pathsep}{path}"}
            sources = [path for path in _find_paths(pins) if any((path / name).is_file() for name in _PROJECT_FILES)]
            named = map(str, _find_paths(lines))
            argv, environ = stack.enter_context(sandbox.confine(argv, environ, written, Path.cwd(), named, sources))
            hint = _CONFINED
        done = subprocess.run(argv, capture_output=True, text=True, check=False, input=stdin, env=environ)
    if done.returncode != 0:
        passwords = Mask(tuple(value for name, value in environ.items() if looks_secret(name)))
        stderr = passwords.text(hide_passwords(done.stderr))
        raise explain_failure(text, ("uv", *arguments), done.returncode, stderr, hint if "build" in stderr else None)
    return done.stdout


def lacks_wheels(error: EnvironmentFailedError) -> bool:
    """Whether uv failed since it would have to build a package, which `--no-build` forbids."""
    return re.search(r"building (from source|source distributions)\b.* is disabled", error.message, re.I) is not None


def _find_paths(lines: Iterable[str]) -> list[Path]:
    return [Path(unquote(found[0].strip())) for found in map(_PATH.search, lines) if found is not None]


def _fill_home(home: Path, named: str) -> None:
    """Copies the user's settings of uv, and the passwords of `~/.netrc` for hosts that these or the text name."""
    with suppress(OSError, netrc.NetrcParseError):
        settings = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "uv" / "uv.toml"
        if settings.is_file():
            (home / ".config" / "uv").mkdir(parents=True)
            named += shutil.copyfile(settings, home / ".config" / "uv" / "uv.toml").read_text(encoding="utf-8")
        logins = [(host, *login) for host, login in netrc.netrc().hosts.items() if host in re.split(r"[^\w.-]+", named)]
        lines = (f"machine {host} login {user} password {key}\n" for host, user, _, key in logins)
        (home / ".netrc").write_text("".join(lines), encoding="utf-8")


def explain_failure(
    text: str, command: Sequence[str], exit_code: int, stderr: str, hint: str | None = None
) -> EnvironmentFailedError:
    """The error for a failure of uv, with the packages that do not fit together first.

    >>> stderr = "Because a==1 depends on jax<2 and you require jax==2, we can conclude that a==1 cannot be used."
    >>> explain_failure("uv:jax==2", ["uv"], 1, stderr).message.partition(chr(10))[0]
    'uv:jax==2: a==1 requires jax<2: `uv` exited with 1:'
    """
    joined = " ".join(line.strip(" │├╰─▶") for line in stderr.splitlines())
    needs = re.findall(r"(?:[Bb]ecause|and) (\S+) depends on (.*?)(?:,(?![<>=!~])| and |$)", joined)
    absent = re.findall(r"there (?:is|are) no versions? of (\S+)", joined)
    own_hint = re.search(r"^\s*hint: (.+)$", stderr, re.MULTILINE)
    python = re.search(r"Python version \(\S+\) does not satisfy Python(\S+) and (\S+) depends on Python", joined)
    twice = re.search(r"you require (\S+) and (?:you require )?([^\s,]+), we can conclude", joined)
    reasons = [f"{name} requires {needed}" for name, needed in needs] + [f"there is no {name}" for name in absent]
    if python is not None:
        pythons, name = python.groups()
        hint = f"{name} needs Python{pythons}: run this in an environment with such a Python, or try another version"
    elif "exclude-newer" in joined:
        hint = "it is newer than `exclude-newer` of your uv.toml, or than UV_EXCLUDE_NEWER, allows"
    elif absent:
        hint = "is the version right, and is this the package index that has it?"
    elif needs:
        name = re.split("[=<>!~]", needs[0][0])[0]
        hint = f"if {name} is yours, change its bound; else choose a version without it, as in {text},{name}==..."
    elif twice is not None:
        hint = "both are asked for: loosen the one in the files of the project, or try another version"
    elif own_hint is not None:
        hint = own_hint[1]
    elif "flat-layout" in stderr:  # of setuptools, which takes each folder for a package
        hint = "if the project is not a package: `package = false` in [tool.uv] of its pyproject.toml"
    elif "python-build-standalone" in stderr:
        hint = "put that Python's folder on PATH, or ask for another: it is not here, and uv cannot download it"
    elif _NETWORK.search(stderr):
        hint = "can this machine reach the package index? UV_DEFAULT_INDEX sets another"
    reason = "; ".join(dict.fromkeys(reasons)) or "the environment cannot be made"
    tail = "\n".join(stderr.strip().splitlines()[-20:])
    return EnvironmentFailedError(f"{text}: {reason}: `{' '.join(command)}` exited with {exit_code}:\n{tail}\n", hint)
