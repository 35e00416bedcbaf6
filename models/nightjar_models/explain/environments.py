"""The second side of a comparison of environments: a process of another Python, instruction set or compiler flags.

In: a program, and the environment. Out: the `Difference`. The process traces the same program, gets the first side's
arguments, and either follows it operation by operation or, if it traces other ones, records its own run.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from nightjar_models.errors import InputError, ToolError
from nightjar_models.explain.explain import explain, run_here
from nightjar_models.explain.judge import Difference
from nightjar_models.explain.lockstep import OtherTraceError, follow, lead, take
from nightjar_models.explain.program import trace
from nightjar_models.explain.record import Record, record, to_numpy

START_S = 120  # to import JAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The program of both sides, as `program.trace` takes it."""

    program: str
    args: str | None
    settings: tuple[str, ...]
    gradient: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """The second side: its Python, and variables beyond those of this process."""

    python: str
    variables: Mapping[str, str]


def parse_other(text: str, environ: Mapping[str, str]) -> Other | None:
    """The environment that `--against` names: `python=PATH`, `isa=AVX2` or `flags=--xla_...`; None: a program.

    >>> parse_other("isa=AVX2", {"XLA_FLAGS": "--xla_x=1"}).variables
    {'XLA_FLAGS': '--xla_x=1 --xla_cpu_max_isa=AVX2'}
    """
    name, equal, value = text.partition("=")
    if not equal or name not in ("python", "isa", "flags"):
        return None
    if name == "python":
        if not os.access(value, os.X_OK):
            raise InputError(f"--against python={value}: no such program.", "give the Python of another environment")
        return Other(python=value, variables={})
    flag = value if name == "flags" else f"--xla_cpu_max_isa={value}"
    return Other(python=sys.executable, variables={"XLA_FLAGS": f"{environ.get('XLA_FLAGS', '')} {flag}".strip()})


def explain_environments(request: Request, other: Other, progress: Callable[[str], None]) -> Difference | None:
    """The first operation in which two environments differ; None if each operation is equal bit for bit."""
    traced = trace(request.program, request.args, request.settings, gradient=request.gradient)
    arguments = [to_numpy(value) for value in traced.arguments]
    names: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        begun = Path(folder, "begun")
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


def _describe_crash(place: Path, names: list[str]) -> Difference:
    number = int(place.read_text() or 0) if place.exists() else 0
    where = names[number] if number < len(names) else "its start"
    return Difference(kind="crash of the other side", where=where)


@contextlib.contextmanager
def start(request: Request, other: Other, mode: str, place: Path) -> Iterator[Connection]:
    """Starts the second side, which writes the number of the operation that it begins to `place`."""
    address = str(place.with_name(mode))
    paths = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    command = [other.python, "-m", __name__, address, mode, str(place), json.dumps(asdict(request))]
    with Listener(address, "AF_UNIX") as listener:
        process = subprocess.Popen(command, env={**os.environ, **other.variables, "PYTHONPATH": paths})
        try:
            yield _accept(listener, process)
        finally:
            process.kill()
            process.wait()


def _accept(listener: Listener, process: subprocess.Popen[bytes]) -> Connection:
    socket: Any = listener._listener._socket  # type: ignore[attr-defined]  # a listener has no timeout of its own
    socket.settimeout(1.0)
    for _ in range(START_S):
        try:
            return listener.accept()
        except TimeoutError:
            if process.poll() is not None:
                break
    raise ToolError("the other side did not start; its own message is above.", "has its Python JAX and Flax?")


def main(address: str, mode: str, place: str, request: str) -> None:
    """The process of the second side."""
    options = json.loads(request)
    with Client(address, "AF_UNIX") as pipe:
        traced = trace(options["program"], options["args"], options["settings"], gradient=options["gradient"])
        arguments = [take(own, sent) for own, sent in zip(traced.arguments, pipe.recv(), strict=True)]
        if mode == "follow":
            follow(traced, arguments, pipe, Path(place))
            return
        with contextlib.suppress(EOFError):  # the first side has its answer
            while True:
                pipe.send(record(traced.jaxpr, arguments, pipe.recv()))


if __name__ == "__main__":
    main(*sys.argv[1:])
