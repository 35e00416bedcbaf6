"""A program without calls, which runs operation by operation, compiled, or cut in two.

In: a traced function. Out: a `Flat`, which knows the line of each of its operations. Loops and branches stay whole,
since the compiler sees them whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax.extend.core import JaxprEqn, Literal

from nightjar_models.explain.program import Traced
from nightjar_models.explain.record import describe_layer, find_line, to_numpy
from nightjar_models.program.interpreter import CALLS, Interpreter, bind


@dataclass(frozen=True, slots=True)
class Flat:
    """A program without calls, and the line, operation and layer of each operation."""

    closed: Any
    places: list[str]

    @property
    def operations(self) -> Sequence[JaxprEqn]:
        operations: Sequence[JaxprEqn] = self.closed.jaxpr.eqns
        return operations

    def cut(self, count: int) -> Traced:
        """The program of the first operations, whose results are all values that the rest of the program takes."""
        program = self.closed.jaxpr
        made = {variable for operation in self.operations[:count] for variable in operation.outvars}
        taken = [variable for operation in self.operations[count:] for variable in operation.invars]
        variables = [variable for variable in (*taken, *program.outvars) if not isinstance(variable, Literal)]
        results = list(dict.fromkeys(variable for variable in variables if variable in made))
        if count == len(self.operations):
            results = program.outvars
        cut = self.closed.replace(jaxpr=program.replace(eqns=self.operations[:count], outvars=results))
        return Traced(cut, [], ())


def flatten(traced: Traced) -> Flat:
    """The same program with its calls inlined; the shardings that a `jax.jit` was given stay as constraints."""
    names: list[str] = []

    def do(name: str, layer: str, operation: Callable[[], Any]) -> Any:
        names.append(f"{find_line(interpreter.calls)}, {name}{describe_layer(layer)}")
        with jax.named_scope(str(len(names) - 1)):  # JAX leaves out operations of constants: a count would not do
            return operation()

    def constrain(values: Sequence[Any], shardings: Sequence[Any], layer: str) -> list[Any]:
        constrained = list(values)
        for number, (value, sharding) in enumerate(zip(values, shardings, strict=True)):
            if isinstance(sharding, jax.sharding.Sharding):
                keep: Any = partial(jax.lax.with_sharding_constraint, value, sharding)
                constrained[number] = do("a sharding of jax.jit", layer, keep)
        return constrained

    def enter(equation: JaxprEqn, values: Sequence[Any], layer: str) -> Sequence[Any] | None:
        name, parameters = equation.primitive.name, equation.params
        if name in CALLS and "in_shardings" not in parameters:
            return None
        interpreter.calls.append(equation)
        try:
            if name not in CALLS:
                kind = "".join(f" in {variable.aval.dtype}" for variable in equation.outvars[:1])  # type: ignore[attr-defined]
                results: Sequence[Any] = do(name + kind, layer, partial(bind, equation, values))
                return results
            values = constrain(values, parameters["in_shardings"], layer)
            return constrain(interpreter.run(parameters["jaxpr"], values, layer), parameters["out_shardings"], layer)
        finally:
            interpreter.calls.pop()

    interpreter = Interpreter(lambda _equation, _values, results, _layer: results, enter)
    closed = jax.make_jaxpr(lambda *arguments: interpreter.run(traced.jaxpr, arguments))(*traced.arguments)
    places = [names[int(str(operation.source_info.name_stack).rpartition("/")[2])] for operation in closed.jaxpr.eqns]
    return Flat(closed, places)


def evaluate(
    closed: Any, arguments: Sequence[Any], see: Callable[[Sequence[Any]], None] = lambda _results: None
) -> list[Any]:
    """The results of a flat program; outside of `jax.jit` each operation is compiled alone, and so is each loop.

    Args:
        see: takes the results of each operation.
    """

    def run(equation: JaxprEqn, values: Sequence[Any], _layer: str) -> Sequence[Any]:
        results = bind(equation, values)
        see(results)
        return results

    return Interpreter(lambda _equation, _values, results, _layer: results, run).run(closed, arguments)


def run_compiled(traced: Traced, arguments: Sequence[Any]) -> list[Any]:
    """The results of the whole program as it was traced, compiled, as NumPy arrays."""
    interpreter = Interpreter(lambda _e, _v, results, _l: results, lambda equation, values, _l: bind(equation, values))
    compiled = jax.jit(lambda *values: interpreter.run(traced.jaxpr, values))
    return list(map(to_numpy, compiled(*arguments)))
