"""A difference as one small file that needs JAX alone and shows both sides.

In: a difference and the programs that it was found in. Out: the text of the file, once it has run and shown the
difference. Arrays are drawn with the scale of the program's own, or written out if those show nothing.
"""

from __future__ import annotations

import os
import re
import string
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend.core import JaxprEqn, Literal

from nightjar_models.errors import ToolError
from nightjar_models.explain.compiled import find_coarsest, measure, move
from nightjar_models.explain.environments import CRASH, HERE, Other
from nightjar_models.explain.flat import flatten
from nightjar_models.explain.judge import MOST_NUMERICS, MOST_ROUNDINGS, WINDOW, Difference, compare, find_parting
from nightjar_models.explain.program import Traced
from nightjar_models.explain.record import Record, describe_operation, record
from nightjar_models.explain.source import (
    NoSourceError,
    Step,
    is_key,
    make_key,
    wrap,
    write_function,
    write_imports,
    write_input,
)
from nightjar_models.program.interpreter import Interpreter, bind

MOST_LINES = 30
MOST_STEPS = 60  # of a side, whose values are kept
MOST_CANDIDATES = 32
DEEPEST = 6  # operations before those that differ, whose values are kept, too
DEPTHS = (1, 2, 4, 8, 16)  # how many operations are compiled together
TIMEOUT_S = 120.0
_APART = 'print(jax.__version__, "differ by", abs(x - y).max(), "of", abs(x).max())'
_SEVERAL = re.compile(r"differ by (?!0\.0 )")
_DIGEST = "print(jax.__version__, x.ravel()[:4], hashlib.sha256(x.tobytes()).hexdigest())"

Functions = Mapping[str, Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Side:
    """Operations that make a value."""

    place: str
    steps: Sequence[Step]
    result: str

    def find_inputs(self) -> dict[str, Any]:
        """The values that no operation makes, by key."""
        made = {key for step in self.steps for key in step.made}
        return {key: value for step in self.steps for key, value in step.given.items() if key not in made}


def reduce_programs(left: Traced, right: Traced, difference: Difference) -> str:
    """The operations of two programs, from values that both have to one in which they differ."""
    runs = [record(traced.jaxpr, traced.arguments) for traced in (left, right)]
    parting = find_parting(*runs)
    if parting is None:
        raise ToolError("--reduce: the sides are equal now.")
    shared = runs[0].known() & runs[1].known()
    steps = [
        capture(traced, find_behind(run, [operation.place for operation in operations[:MOST_STEPS]]), by_value=True)
        for traced, run, operations in zip((left, right), runs, (parting.left, parting.right), strict=True)
    ]
    differing = [[step for step in side if step.made[0].partition("-")[2] not in shared] for side in steps]

    def is_shown(one: Any, other: Any) -> bool:
        size = compare(*map(np.asarray, (one, other)))
        if size is None or not size[0]:
            return False
        if difference.kind == "numerics":
            return size[0] <= MOST_NUMERICS
        return (size[1] <= MOST_ROUNDINGS) == (difference.kind == "rounding")

    places = [str(first or difference.where) for first in (parting.first_left, parting.first_right)]
    pairs = [
        (first, other)
        for number, first in enumerate(differing[0])
        for other in differing[1][max(0, number - WINDOW) : number + WINDOW + 1]
        if first.name == other.name or difference.kind != "fault"
        if not is_key(first.results[0]) and is_shown(first.results[0], other.results[0])
    ]
    sources = find_sources([*steps[0], *steps[1]])
    candidates = [sides for pair in pairs for sides in cut_both(places, steps, pair, shared, sources)]
    candidates = sorted(candidates, key=lambda sides: sum(len(side.steps) for side in sides))[:MOST_CANDIDATES]

    def shows(functions: Functions, inputs: Sequence[Any]) -> bool:
        return is_shown(functions["one"](*inputs), functions["other"](*inputs))

    ending = ["x, y = (np.asarray(side({})).astype(complex) for side in (one, other))", _APART]
    return choose(str(difference), candidates, ending, shows, [HERE])


def reduce_compiled(traced: Traced, difference: Difference) -> str:
    """The operations that are wrong if they are compiled together, up to the one that is named."""
    flat = flatten(traced)
    if difference.where not in flat.places:
        raise ToolError(
            "--reduce: no operation is wrong by itself.", "rounding adds up, or the mesh's program is another"
        )
    epsilon = find_coarsest(flat.operations)
    cut_program = Traced(flat.closed, traced.arguments, ())
    last = max(number for number, place in enumerate(flat.places) if place == difference.where)
    steps = capture(cut_program, range(last + 1), by_value=False, whole=True)
    whole = cut(difference.where, steps, steps[-1], (), ())
    candidates = [[cut(difference.where, whole.steps[-depth:], steps[-1], (), ())] for depth in DEPTHS]

    if difference.kind == CRASH:
        return choose(str(difference), candidates, ["print(jax.jit(one)({}).shape)"], None, [HERE])

    def shows(functions: Functions, inputs: Sequence[Any]) -> bool:
        results = [np.asarray(functions["one"](*values)) for values in (inputs, move(inputs, epsilon))]
        return (
            measure(results[:1], results[1:], [np.asarray(jax.jit(functions["one"])(*inputs))]).excess > MOST_ROUNDINGS
        )

    ending = ["x, y = (np.asarray(side({})).astype(complex) for side in (one, jax.jit(one)))", _APART]
    return choose(str(difference), candidates, ending, shows, [HERE])


def reduce_environments(traced: Traced, side: Other, difference: Difference) -> str:
    """The operation in which two environments differ."""
    steps = capture(traced, [difference.where], by_value=False)[:MOST_CANDIDATES]
    python = [word for word in side.python if not word.startswith("--with=") or "==" in word]  # JAX alone
    shown = ["python" if word == sys.executable else word for word in python]
    variables = [f"{name}='{value}'" for name, value in side.variables.items()]
    about = f"{difference}. Run it here, and as: {' '.join([*variables, *shown])} FILE"
    candidates = [[Side(difference.where, [step], made)] for step in steps for made in step.made]
    return choose(
        about, candidates, ["x = np.asarray(one({}))", _DIGEST], None, [HERE, replace(side, python=tuple(python))]
    )


def capture(traced: Traced, wanted: Collection[int | str], *, by_value: bool, whole: bool = False) -> list[Step]:
    """Runs a program and keeps some operations.

    Args:
        wanted: their numbers in a `Record`, or descriptions.
        by_value: gives equal values one key, so that two programs can be compared.
        whole: loops and branches are one operation.
    """
    steps, number = list[Step](), 0

    def note(equation: JaxprEqn, values: Sequence[Any], results: Sequence[Any], layer: str) -> Sequence[Any]:
        nonlocal number
        if number in wanted or (not whole and describe_operation(interpreter.calls, results, layer) in wanted):
            taken = tuple(
                None if isinstance(variable, Literal) else make_key(value) if by_value else str(id(variable))
                for variable, value in zip(equation.invars, values, strict=True)
            )
            made = tuple(map(make_key, results)) if by_value else tuple(str(id(name)) for name in equation.outvars)
            if not set(taken) & set(made):  # else it changes nothing
                steps.append(Step(equation, values, results, taken, made))
        number += 1
        return results

    def skip(_values: Sequence[Any], _results: Sequence[Any], _layer: str) -> None:
        nonlocal number
        number += 1

    def run(equation: JaxprEqn, values: Sequence[Any], layer: str) -> Sequence[Any] | None:
        return note(equation, values, bind(equation, values), layer) if whole else None

    interpreter = Interpreter(note, run, skip)
    interpreter.run(traced.jaxpr, traced.arguments)
    return steps


def find_behind(run: Record, places: Collection[int]) -> set[int]:
    """These operations, and those that make their operands, some steps back."""
    makers = {digest: step.place for step in reversed(run.operations) for digest in step.results}
    behind = set(places)
    for _ in range(DEEPEST):
        taken = {digest for number in behind for digest in run.operations[number].operands}
        behind |= {makers[digest] for digest in taken if digest in makers}
    return behind


def find_sources(steps: Sequence[Step]) -> dict[str, set[str]]:
    """To each value all those that it is made from."""
    sources: dict[str, set[str]] = {}
    for step in steps:
        behind = set(step.given).union(*(sources.get(key, ()) for key in step.given))
        sources.update(dict.fromkeys(step.made, behind))
    return sources


def cut_both(
    places: Sequence[str],
    steps: Sequence[Sequence[Step]],
    pair: Sequence[Step],
    known: Collection[str],
    sources: Mapping[str, set[str]],
) -> Iterator[list[Side]]:
    """The operations behind two values; then with those behind an input that is made from another: a mean, of x."""
    opened, made = set[str](), {""}
    while made:
        sides = [cut(*side, known, opened) for side in zip(places, steps, pair, strict=True)]
        inputs = {key for side in sides for key in side.find_inputs()}
        made = {key for key in inputs - opened if inputs & sources.get(key, set())}
        opened |= made
        yield sides


def cut(place: str, steps: Sequence[Step], last: Step, known: Collection[str], opened: Collection[str]) -> Side:
    """The operations among these that a value needs, up to values that are known and not opened."""
    needed, kept = {last.made[0]}, list[Step]()
    for step in reversed(steps):
        if needed.intersection(step.made):
            kept.insert(0, step)
            needed.difference_update(step.made)
            needed.update(key for key in step.given if key in opened or key.partition("-")[2] not in known)
    return Side(place, kept, last.made[0])


def choose(
    about: str,
    candidates: Sequence[Sequence[Side]],
    ending: Sequence[str],
    shows: Callable[[Functions, Sequence[Any]], bool] | None,
    environments: Sequence[Other],
) -> str:
    """The first file of the candidates that is short enough and shows the difference."""
    for literal in (False, True):
        for sides in candidates:
            try:
                head, functions, inputs = write_parts(about, sides, ending, literal=literal)
            except NoSourceError:
                continue
            if len(environments) == 1 and (flags := os.environ.get("XLA_FLAGS")):
                head = [head[0], "import os", f"os.environ['XLA_FLAGS'] = {flags!r}", *head[1:]]
            lines = [*head, *functions, *(line.format(", ".join(inputs)) for line in ending)]
            if len(lines) > MOST_LINES:
                continue
            defined: dict[str, Any] = {}
            if shows is not None:
                try:
                    exec("\n".join([*head, *functions]), defined)
                    if not shows(defined, [defined[name] for name in inputs]):
                        continue
                except Exception:  # the drawn values may lie outside of an operation's domain
                    continue
            text = "\n".join(lines) + "\n"
            if reproduces(text, environments):
                return text
    raise ToolError(
        f"--reduce: no file of {MOST_LINES} lines shows this difference.",
        "it needs more operations, a loop, or the values of the program's own arrays",
    )


def write_parts(
    about: str, sides: Sequence[Side], ending: Sequence[str], *, literal: bool
) -> tuple[list[str], list[str], list[str]]:
    """The lines before the functions, the functions, and the names of their inputs."""
    values = {key: value for side in sides for key, value in side.find_inputs().items()}
    if len(values) > len(string.ascii_lowercase):
        raise NoSourceError("too many inputs")
    names = dict(zip(values, string.ascii_lowercase, strict=False))
    functions = [
        line
        for name, side in zip(("one", "other"), sides, strict=False)
        for line in write_function(name, side.place.partition(",")[0], names, side.steps, side.result)
    ]
    drawn = [
        line for key, name in names.items() for line in wrap(f"{name} = {write_input(values[key], literal=literal)}")
    ]
    body, steps = "\n".join([*functions, *drawn, *ending]), [step for side in sides for step in side.steps]
    return [*wrap(f'"""{about}"""'), *write_imports(body, steps), *drawn], functions, list(names.values())


def reproduces(text: str, environments: Sequence[Other]) -> bool:
    """Whether the file shows the difference: on one side by itself, on two by other output or a crash of the second."""
    outputs = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "reproducer.py")
        path.write_text(text)
        for side in environments:
            command, environ = [*side.python, str(path)], {**os.environ, **side.variables}
            try:
                done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S)
            except (OSError, subprocess.TimeoutExpired):
                return False
            outputs.append((done.returncode, done.stdout.partition(" ")[2]))
    if len(environments) == 1:
        return outputs[0][0] < 0 or _SEVERAL.match(outputs[0][1]) is not None
    if outputs[0][0] != 0:
        return False
    return outputs[0] != outputs[1] and outputs[1][0] <= 0
