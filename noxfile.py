"""The front door: every job that a person or a workflow runs is a session here.

`python3 noxfile.py -s quick` needs Python 3.11 with venv or pip and nothing else: run as a script, this file makes a
tool environment (nox and uv, `.nox/tools`) once and hands over to nox, as `nox -s quick` and `uvx nox -s quick` do.
Everything after `--` goes to the command of the session: `python3 noxfile.py -s nightly -- --reference uv:jax==0.10.1`.
"""

from __future__ import annotations

import configparser
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent
TOOLS = ROOT / ".nox" / "tools"
LOCKS = ROOT / "docker" / "locks"
SYSTEM = str(ROOT / "docker" / "system.sh")
PACKAGES = ("ci", "models", "profiling")
QUICK, NIGHTLY = (str(ROOT / "ci" / "matrix" / f"{name}.toml") for name in ("quick-cpu", "nightly-cpu"))
SOURCES = ("ci", "models", "profiling", "meta", "tests", "docs/hooks", "noxfile.py")
OLDEST_PYTHON = (3, 11)
WORKERS = ("-n", "auto", "--maxprocesses", "8", "--dist", "worksteal")
# Python 3.11 gets JAX 0.10.2, which crashes on x86 with arrays of seven or more dimensions.
PREFERRED = ("3.13", "3.12")
QUICK_TAKES = "About four minutes on two cores, environment included; later calls three."
IMPORTED = ("nightjar_models.commands.train", "nightjar_models.training.train", "nightjar_profiling.commands.capture")
UNREACHED = "is a package index reached? PIP_INDEX_URL names a mirror, PIP_CERT its certificates (ca-certificates)"


def read_pip_settings(environ: Mapping[str, str], files: list[Path]) -> dict[str, str]:
    """What this machine tells pip, and uv is told, too, by option name (`index-url`, ...); variables win over files."""
    settings: dict[str, str] = {}
    parser = configparser.RawConfigParser()
    for file in files:
        with suppress(configparser.Error, UnicodeDecodeError):  # pip itself will say what is wrong with it
            parser.read(file, encoding="utf-8")
    for section in ("global", "install"):
        if parser.has_section(section):
            settings.update(parser.items(section))
    settings.update({k[4:].lower().replace("_", "-"): v for k, v in environ.items() if k.startswith("PIP_") and v})
    return settings


def render_uv_variables(environ: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """The variables that give uv pip's index and certificates; what the user set for uv stays."""
    extra = [url for url in settings.get("extra-index-url", "").split() if url.startswith(("http:", "https:"))]
    wanted = {
        "UV_DEFAULT_INDEX": settings.get("index-url"),
        "UV_INDEX": " ".join(extra) or None,
        "SSL_CERT_FILE": settings.get("cert"),
    }
    taken = {"UV_DEFAULT_INDEX": "UV_INDEX_URL", "UV_INDEX": "UV_EXTRA_INDEX_URL"}
    return {k: v for k, v in wanted.items() if v and k not in environ and taken.get(k, k) not in environ}


def pip_files(environ: Mapping[str, str]) -> list[Path]:
    """Where pip looks for its configuration on Linux and macOS, least important first."""
    home = Path(environ.get("HOME", "/"))
    config = Path(environ.get("XDG_CONFIG_HOME", home / ".config"))
    files = [Path("/etc/pip.conf"), home / ".pip" / "pip.conf", config / "pip" / "pip.conf"]
    return [*files, Path(environ["PIP_CONFIG_FILE"])] if "PIP_CONFIG_FILE" in environ else files


def make_tools() -> Path:
    """Makes `.nox/tools` with nox and uv, hashes checked, unless it is there already.

    Returns: the Python of the tool environment.
    """
    lock = LOCKS / "tools.txt"
    python = TOOLS / "bin" / "python"
    stamp = TOOLS / "stamp"
    wanted = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted and python.exists():
        return python
    print(f"Making the tool environment {TOOLS.relative_to(ROOT)} (once)", file=sys.stderr, flush=True)
    shutil.rmtree(TOOLS, ignore_errors=True)
    install = ["install", "--quiet", "--disable-pip-version-check", "--require-hashes", "-r", str(lock)]
    subprocess.run([*make_environment(TOOLS), *install], check=True, stdout=sys.stderr)
    stamp.write_text(wanted)
    return python


def make_environment(folder: Path) -> list[str]:
    """Makes an environment; returns the command of a pip that installs into it: Python's bundled one, or this Python's.

    Raises:
        FileNotFoundError: this Python has neither, as Debian's without python3-venv.
    """
    bundled = importlib.util.find_spec("ensurepip") is not None
    if not bundled and importlib.util.find_spec("pip") is None:
        raise FileNotFoundError(f"{sys.executable} has neither venv's ensurepip nor pip")
    venv.create(folder, with_pip=bundled, symlinks=True)
    python = str(folder / "bin" / "python")
    return [python, "-m", "pip"] if bundled else [sys.executable, "-m", "pip", "--python", python]


def hand_over(arguments: list[str]) -> None:
    """Replaces this process by nox of the tool environment."""
    if sys.version_info < OLDEST_PYTHON:
        found, wanted = (".".join(map(str, version[:2])) for version in (sys.version_info, OLDEST_PYTHON))
        raise SystemExit(f"error: this is Python {found}, expected {wanted} or newer. Hint: python{wanted} noxfile.py")
    if "quick" in arguments:
        print(QUICK_TAKES, file=sys.stderr, flush=True)
    try:
        python = make_tools()
    except (subprocess.CalledProcessError, OSError) as error:
        shutil.rmtree(TOOLS, ignore_errors=True)
        hint = "on Debian, apt install python3-venv" if isinstance(error, FileNotFoundError) else UNREACHED
        print(f"error: the tool environment {TOOLS} could not be made: {error}.\nHint: {hint}", file=sys.stderr)
        raise SystemExit(3) from None
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    command = [str(python), "-m", "nox", "-f", str(ROOT / "noxfile.py"), *arguments]
    os.execve(python, command, {**os.environ, "PATH": path})


if __name__ == "__main__":
    hand_over(sys.argv[1:])


# Sessions. This part is read by nox only.

import tomllib  # noqa: E402  # Python 3.11 has both; an older one is told so above
from itertools import pairwise  # noqa: E402

import nox  # noqa: E402
from nox.command import CommandFailed  # noqa: E402

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["tests"]
nox.options.error_on_missing_interpreters = True

os.environ.update(render_uv_variables(os.environ, read_pip_settings(os.environ, pip_files(os.environ))))
# JAX and Flax are 2,300 modules: to compile them anew takes four seconds of every process.
os.environ.setdefault("UV_COMPILE_BYTECODE", "1")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def find_python() -> str | None:
    """The Python of a session that trains: a newer one where this is 3.11, if PATH has one that runs."""
    if sys.version_info >= (3, 12):
        return None
    for version in PREFERRED:
        command = [f"python{version}", "-c", "import sys; print(sys.version_info[:2])"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        if answer.strip() == str(tuple(map(int, version.split(".")))):
            return version
    return None


def install(session: nox.Session, *, tools: bool = True) -> None:
    """Installs the three packages (editable) into the session's environment, once, with what they need.

    Args:
        session: whose environment.
        tools: with the tools of development, as docker/locks/dev.txt has them; else the lock of the models image.
    """
    lock = LOCKS / ("dev.txt" if tools else "models.txt")
    inputs = [lock, *(ROOT / package / "pyproject.toml" for package in PACKAGES)]
    for path in inputs:
        if not path.is_file():
            end(2, f"{path}: no such file.", "`git restore` brings it back")
    wanted = hashlib.sha256(b"".join(path.read_bytes() for path in inputs)).hexdigest()
    stamp = Path(session.virtualenv.location) / "nightjar-stamp"
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    editable = [part for package in PACKAGES for part in ("-e", str(ROOT / package))]
    options = [] if " @ git+" in lock.read_text() else ["--require-hashes"]  # a commit has no other hash
    if (LOCKS / "nightly.json").is_file():
        if not (index := os.environ.get("NIGHTJAR_NIGHTLY_INDEX")):
            end(2, "docker/locks has nightly wheels of JAX.", "set NIGHTJAR_NIGHTLY_INDEX to the index that has them")
        options += ["--index", f"nightly={index}"]
    building, environment = ["--no-build-isolation"], {}
    if not tools:  # hatchling is a tool; and 1,600 modules of 7,300 are imported: 4 s of CPU to compile, not 14
        building, environment = ["--build-constraints", str(LOCKS / "dev.txt")], {"UV_COMPILE_BYTECODE": "0"}
    try:
        session.install(*options, "-r", str(lock), env=environment)
        session.install("--no-deps", *building, *editable, env=environment)
        if not tools:
            session.run("python", "-c", f"import {', '.join(IMPORTED)}", log=False)
    except CommandFailed as error:
        end(3, f"{lock} could not be installed: {error}; its own message is above.", UNREACHED)
    stamp.write_text(wanted)


def end(code: int, message: str, hint: str) -> NoReturn:
    """Ends nox with an exit code: 2 bad input, 3 a tool or machine failed; nox itself would make a 1 of both."""
    print(f"error: {message}\nHint: {hint}", file=sys.stderr)
    raise SystemExit(code)


def run_command(session: nox.Session, *command: str) -> None:
    """Runs a command of Nightjar and keeps its exit code: 1 no, 2 input, 3 machine, 4 cannot tell."""
    path = os.pathsep.join([*(session.bin_paths or []), os.environ.get("PATH", os.defpath)])
    program = shutil.which(command[0], path=path) or command[0]
    environ = {**os.environ, "PATH": path}
    if session.bin_paths:  # jobs run here, whichever environment the caller has activated
        environ["VIRTUAL_ENV"] = session.virtualenv.location
    if code := subprocess.call([program, *command[1:]], env=environ):
        raise SystemExit(code)  # nox itself would make a 1 of every code


def run_module(session: nox.Session, module: str, *arguments: str) -> None:
    """Installs, and runs a module of tests/ with these arguments and what stands after `--`."""
    install(session)
    os.environ["PYTHONPATH"] = str(ROOT)
    run_command(session, "python", "-m", module, *arguments, *session.posargs)


PYTHON = find_python()


@nox.session(python=PYTHON)
def quick(session: nox.Session) -> None:
    """Train, gate, profile and report a part of the nightly: the first page, in four minutes on two cores."""
    install(session, tools=False)
    run_command(session, "nightjar-ci", "nightly", QUICK, *session.posargs)


@nox.session(python=PYTHON)
def nightly(session: nox.Session) -> None:
    """Train, gate, profile and report tonight's jobs on this machine: the whole nightly."""
    install(session)
    run_command(session, "nightjar-ci", "nightly", NIGHTLY, *session.posargs)


@nox.session
def nightjar_ci(session: nox.Session) -> None:
    """Run nightjar-ci with the arguments after `--`: the steps of the workflows."""
    install(session)
    run_command(session, "nightjar-ci", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Lint, types and quick tests, or `-- PATH`, `-- -k NAME` those tests; what this machine lacks is skipped."""
    install(session)
    options: tuple[str, ...] = ()
    if not selects_tests(session.posargs):
        lint(session)
        types(session)
        options = (*WORKERS, "-m", "not slow")
    session.run("pytest", *options, *session.posargs)


def selects_tests(arguments: Sequence[str]) -> bool:
    """Whether arguments of pytest name tests: by path, by node id or by `-k`; a file that is not there counts."""
    values = [value for option, value in pairwise(arguments) if option in ("-m", "-n", "-p", "-o", "-c", "-W")]
    places = [Path(argument.partition("::")[0]) for argument in arguments if argument not in values]
    return any(str(place).startswith("-k") or place.suffix == ".py" or place.exists() for place in places)


@nox.session
def check_all(session: nox.Session) -> None:
    """The gate: all but weekly tests with all that `system` installs, where a skip fails, and images of this tree."""
    with ThreadPoolExecutor() as beside:
        machine = beside.submit(system, session) if can_prepare_machine() else None
        install(session)
        checks = [beside.submit(check, session) for check in (lint, types)]
        # Every part of the machine broken: what asks for one is skipped, and nothing fails.
        checks.append(beside.submit(session.run, "python", "-m", "tests.broken", silent=True))
        if machine is not None:
            machine.result()
            run_command(session, "nightjar-ci", "images", "build")
        for check in checks:
            check.result()
    session.run("pytest", *(["--whole-machine"] if machine is not None else []), *session.posargs)


@nox.session
def weekly(session: nox.Session) -> None:
    """Run the tests that prove again, or for every model, what a test of the gate proves."""
    install(session)
    if can_prepare_machine():
        session.run(SYSTEM, external=True)
        run_command(session, "nightjar-ci", "images", "build")
    session.run("pytest", *WORKERS, "-m", "weekly", *session.posargs)


def can_prepare_machine() -> bool:
    """Whether this is root on Debian or Ubuntu."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


@nox.session
def format(session: nox.Session) -> None:
    """Rewrite the Python files: format them and apply the linter's safe fixes."""
    install(session)
    session.run("ruff", "format", *SOURCES)
    session.run("ruff", "check", "--fix", *SOURCES)


@nox.session
def types(session: nox.Session) -> None:
    """Type-check packages, tests and this file."""
    install(session)
    session.run("mypy", "--no-error-summary", *SOURCES)


@nox.session
def lint(session: nox.Session) -> None:
    """Formatting, lint, import rules and shell scripts; nothing is rewritten."""
    install(session)
    session.run("ruff", "format", "--check", "--quiet", *SOURCES)
    session.run("ruff", "check", "--quiet", *SOURCES)
    session.run("lint-imports", "--no-logo", silent=True)
    scripts = [*sorted(ROOT.glob("docker/*.sh")), ROOT / ".ci" / "run", ROOT / ".github" / "lint.sh"]
    session.run("shellcheck", *map(str, scripts))
    session.run(str(ROOT / ".github" / "lint.sh"), external=True)
    dockerfiles = sorted(path for path in ROOT.glob("docker/Dockerfile.*") if path.suffix != ".dockerignore")
    session.run("hadolint", "--config", str(ROOT / "docker" / "hadolint.yaml"), *map(str, dockerfiles), silent=True)


@nox.session(venv_backend="none")
def system(session: nox.Session) -> None:
    """Install with apt what the real-part tests use: Docker, a registry, Chromium, PostgreSQL (Debian, root)."""
    session.run(SYSTEM, external=True)


@nox.session
def slurm(session: nox.Session) -> None:
    """Run the Slurm tests on clusters of this machine, two nodes of which one fails; installs Slurm (Debian, root)."""
    run_module(session, "tests.ci.executors.slurm.lab", "2", "--", "pytest", "-m", "slurm", "tests/ci")


@nox.session
def images(session: nox.Session) -> None:
    """Build the image tree, then test the images (or `-- build` alone); docker/engine.sh makes an engine."""
    install(session)
    for step in session.posargs or ("build", "test"):
        run_command(session, "nightjar-ci", "images", step)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation site into site/; a dead link or a page outside the nav is an error."""
    session.install("--require-hashes", "-r", str(LOCKS / "docs.txt"))
    session.run("mkdocs", "build", "--quiet", "--clean", *session.posargs, env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def generate_docs(session: nox.Session) -> None:
    """Write docs/reference/cli.md from the code."""
    run_module(session, "tests.repo.cli_reference")


@nox.session(venv_backend="none")
def wheels(session: nox.Session) -> None:
    """Build the packages into dist/, or `-- publish` three of them from there (OIDC: no password)."""
    if session.posargs == ["publish"]:
        tag = os.environ.get("GITHUB_REF_NAME", "")
        built = sorted((ROOT / "dist").glob("nightjar_*"))  # without `nightjar`, another project's name on PyPI
        for path in built:
            if path.name.removesuffix(".tar.gz").split("-")[1] != tag.removeprefix("v"):
                end(2, f"{path} is not of the tag {tag!r}.", "tag the commit that has this version in pyproject.toml")
        session.run("uv", "publish", "--trusted-publishing", "always", *map(str, built), external=True)
    else:
        session.run("uv", "build", "--quiet", "--all-packages", "--out-dir", "dist", external=True)


def add_session(name: str, about: Mapping[str, Any]) -> None:
    """Adds a session of tests/sessions.toml: a command of Nightjar, or a module of tests/ with its requirements."""

    def run(session: nox.Session) -> None:
        install(session)
        if "command" in about:
            run_command(session, *about["command"], *session.posargs)
            return
        for extra in ("rivals.txt", "requirements.txt"):
            if (path := ROOT.joinpath("tests", *about["module"].split("."), extra)).is_file():
                session.install("-r", str(path))
        run_module(session, f"tests.{about['module']}")

    run.__doc__ = about["summary"]
    nox.session(name=name)(run)


for _name, _about in tomllib.loads((ROOT / "tests" / "sessions.toml").read_text()).items():
    add_session(_name, _about)
