"""The second side of a comparison of environments: a process of another Python, instruction set or compiler flags.

In: a program, and the environment. Out: the `Difference`. The process traces the same program, gets the first side's
arguments, and either follows it operation by operation or, if it traces other ones, records its own run. Presets are
those of its own environment, if that has this package: another commit's model is compared with ours.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from nightjar_models.errors import InputError, ToolError
from nightjar_models.explain.flat import flatten, run_compiled
from nightjar_models.explain.judge import Difference, explain, run_here
from nightjar_models.explain.lockstep import OtherTraceError, follow, lead, take
from nightjar_models.explain.program import trace
from nightjar_models.explain.record import Record, record, to_numpy

CRASH = "crash of the other side"
PACKAGE = Path(__file__).parents[1]
# As --xla_cpu_max_isa spells them; XLA warns of another word and goes on without a limit.
ISAS = ("SSE4_2", "AVX", "AVX2", "AVX512", "AVX512_VNNI", "AVX512_BF16", "AMX", "AMX_FP16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The program of both sides, as `program.trace` takes it."""

    program: str
    args: str | None
    settings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """The second side: the command that is its Python, and variables beyond those of this process."""

    python: tuple[str, ...]
    variables: Mapping[str, str]


HERE = Other(python=(sys.executable,), variables={})


def parse_other(text: str, environ: Mapping[str, str]) -> Other | None:
    """The environment that `--against` names; None: a program.

    It is `jax==0.9.0` or several such releases with commas, `python=PATH`, `isa=AVX2` or `flags=--xla_...`.

    >>> parse_other("isa=AVX2", {"XLA_FLAGS": "--xla_x=1"}).variables
    {'XLA_FLAGS': '--xla_x=1 --xla_cpu_max_isa=AVX2'}
    """
    if "==" in text and ":" not in text:
        return Other(python=find_releases(text.split(",")), variables={})
    name, equal, value = text.partition("=")
    if not equal or name not in ("python", "isa", "flags"):
        return None
    if name == "isa" and value not in ISAS:
        raise InputError(f"--against isa={value}: expected one of {', '.join(ISAS)}.")
    if name == "python":
        if not os.access(value, os.X_OK):
            raise InputError(f"--against python={value}: no such program.", "give the Python of another environment")
        return Other(python=(value,), variables={})
    flag = value if name == "flags" else f"--xla_cpu_max_isa={value}"
    return Other(python=(sys.executable,), variables={"XLA_FLAGS": f"{environ.get('XLA_FLAGS', '')} {flag}".strip()})


def find_releases(pins: list[str]) -> tuple[str, ...]:
    """The Python of an environment that uv makes: these releases (also `python==3.12`), and what this package needs."""
    if shutil.which("uv") is None:
        raise ToolError(f"--against {','.join(pins)}: uv is not installed.", "pip install uv, or give python=PATH")
    needed = [line for line in importlib.metadata.requires("nightjar-models") or () if "extra ==" not in line]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    version = next((pin.partition("==")[2] for pin in pins if pin.startswith("python==")), version)
    names = [
        *(pin for pin in pins if not pin.startswith("python==")),
        *(re.split(r"[^\w.-]", line)[0] for line in needed),
    ]
    return ("uv", "run", "-q", "--no-project", "-p", version, *(f"--with={name}" for name in names), "python")


def explain_environments(request: Request, other: Other, progress: Callable[[str], None]) -> Difference | None:
    """The first operation in which two environments differ; None if each operation is equal bit for bit."""
    traced = trace(request.program, request.args, request.settings)
    arguments = [to_numpy(value) for value in traced.arguments]
    names: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        begun = Path(folder, "begun")
        link_package(begun.parent, other)
        try:
            progress("running both sides, operation by operation")
            with start(request, other, "follow", begun) as pipe:
                pipe.send(arguments)
                return lead(traced, pipe, names)
        except OtherTraceError as error:
            progress(f"{error}: comparing whole runs")
        except (EOFError, OSError):
            return _describe_crash(begun, names)
        with start(request, other, "record", begun) as pipe:
            pipe.send(arguments)

            def run(keep: Collection[int]) -> Record:
                pipe.send(keep)
                answer: Record = pipe.recv()
                return answer

            return explain(run_here(traced), run, traced.results, progress)


def _describe_crash(begun: Path, names: list[str]) -> Difference:
    if not begun.exists():
        hint = "its Python needs JAX and Flax, and XLA must know the flags"
        raise ToolError("the other side ended before its first operation; its own message is above.", hint)
    number = int(begun.read_text() or 0)
    return Difference(kind=CRASH, where=names[min(number, len(names) - 1)])


def link_package(folder: Path, other: Other) -> None:
    """Puts the second side's own package into a folder, or else this one, in both cases with this `explain`."""
    find = "from importlib.util import find_spec; print(find_spec('nightjar_models').origin)"
    found = subprocess.run([*other.python, "-c", find], capture_output=True, text=True)
    package = Path(found.stdout.strip()).parent if found.stdout else PACKAGE
    linked = folder / PACKAGE.name  # alone: the folder that a package is installed in may hold another JAX
    linked.mkdir()
    for path in {path.name: path for path in (*package.iterdir(), PACKAGE / "explain")}.values():
        (linked / path.name).symlink_to(path)


@contextlib.contextmanager
def start(request: Request, other: Other, mode: str, begun: Path) -> Iterator[Connection]:
    """Starts the second side, which writes the number of the operation that it begins to `begun`."""
    paths = os.pathsep.join(filter(None, (str(begun.parent), os.environ.get("PYTHONPATH"))))
    ours, theirs = Pipe()
    number = theirs.fileno()
    command = [*other.python, "-m", __name__, str(number), mode, str(begun), json.dumps(asdict(request))]
    with ours:
        with theirs:
            environ = {**os.environ, **other.variables, "PYTHONPATH": paths}
            process = subprocess.Popen(command, env=environ, pass_fds=(number,))
        try:
            yield ours
        finally:
            process.kill()
            process.wait()


def crashes(request: Request, count: int) -> bool:
    """Whether this many operations of a program, compiled together, end their process."""
    with tempfile.TemporaryDirectory() as folder:
        begun = Path(folder, "begun")
        with start(request, HERE, "compile", begun) as pipe:
            pipe.send(count)
            try:
                return bool(pipe.recv())
            except (EOFError, OSError):
                return begun.exists()


def main(descriptor: str, mode: str, begun: str, request: str) -> None:
    """The process of the second side."""
    options = json.loads(request)
    with Connection(int(descriptor)) as pipe:
        try:
            traced = trace(options["program"], options["args"], options["settings"])
        except Exception as error:
            sys.exit(f"the other side: {type(error).__name__}: {error}")
        if mode == "compile":
            flat, count = flatten(traced), pipe.recv()
            Path(begun).touch()
            run_compiled(traced if count == len(flat.operations) else flat.cut(count), traced.arguments)
            pipe.send(False)
            return
        sent = pipe.recv()
        if [value.shape for value in sent] != [to_numpy(value).shape for value in traced.arguments]:
            sys.exit("the other side takes arguments, or has parameters, of other shapes")
        arguments = list(map(take, traced.arguments, sent))
        if mode == "follow":
            follow(traced, arguments, pipe, Path(begun))
            return
        with contextlib.suppress(EOFError):  # the first side has its answer
            while True:
                pipe.send(record(traced.jaxpr, arguments, pipe.recv()))


if __name__ == "__main__":
    main(*sys.argv[1:])
