"""Runs a traced function operation by operation, and shows each to a watcher, who may change its results.

In: a function and its arguments. Out: its results. Calls, scans, and branches and while loops with concrete values are
entered, so that the watcher sees the operations inside, iteration by iteration; a layer such as `blocks.3/attention`
names the place. The body of a `shard_map` runs on all devices of a mesh axis at once and is one operation here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Literal

# Parameter that holds the called program, by operation.
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}

# Takes an operation, its operands, its results and its layer; returns the results to go on with.
Watch = Callable[[JaxprEqn, Sequence[Any], Sequence[Any], str], Sequence[Any]]
# Takes an operation, its operands and its layer; returns its results to run it as a whole, None to enter it.
Shortcut = Callable[[JaxprEqn, Sequence[Any], str], Sequence[Any] | None]

# Takes values, and those that a scan cuts of them or stacks of them, which no operation makes; and a layer.
Link = Callable[[Sequence[Any], Sequence[Any], str], None]


def is_concrete(values: Sequence[Any]) -> bool:
    """Whether no value is being traced."""
    return not any(isinstance(value, jax.core.Tracer) for value in values)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """Runs programs with a watcher.

    Attributes:
        calls: the calls and loops around the operation that runs, outermost first. A library's own jitted function
            was traced once, for whoever called it first: the call alone knows the user's line.
    """

    watch: Watch
    shortcut: Shortcut = lambda _equation, _values, _layer: None
    link: Link = lambda _values, _results, _layer: None
    calls: list[JaxprEqn] = field(default_factory=list)

    def run(self, program: Any, arguments: Sequence[Any], layer: str = "") -> list[Any]:
        """The results of a program, which may be closed or not: JAX 0.12 no longer distinguishes them."""
        constants: Sequence[Any] = getattr(program, "consts", ())
        program = getattr(program, "jaxpr", program)
        variables = dict(zip([*program.constvars, *program.invars], [*constants, *arguments], strict=True))
        last = {variable: number for number, equation in enumerate(program.eqns) for variable in _variables(equation)}
        kept = {variable for variable in program.outvars if not isinstance(variable, Literal)}

        def read(variable: Any) -> Any:
            if isinstance(variable, Literal):
                return variable.val
            return variables[variable]

        for number, equation in enumerate(program.eqns):
            results = self._step(equation, [read(variable) for variable in equation.invars], layer)
            variables.update(zip(equation.outvars, results, strict=True))
            for variable in _variables(equation):
                if last[variable] == number and variable not in kept:
                    del variables[variable]  # its memory
        return [read(variable) for variable in program.outvars]

    def _step(self, equation: JaxprEqn, values: list[Any], layer: str) -> Sequence[Any]:
        name, parameters = equation.primitive.name, equation.params
        layer = "/".join(part for part in (layer, str(equation.source_info.name_stack)) if part)
        if (whole := self.shortcut(equation, values, layer)) is not None:
            return whole
        self.calls.append(equation)
        try:
            if name in CALLS:
                return self.run(parameters[CALLS[name]], values, layer)
            if name == "scan" and parameters["length"]:
                return self._scan(parameters, values, layer)
            if name == "while" and is_concrete(values):
                return self._while(parameters, values, layer)
            if name == "cond" and is_concrete(values):
                branch = parameters["branches"][min(max(int(values[0]), 0), len(parameters["branches"]) - 1)]
                return self.run(branch, values[1:], layer)
            return self.watch(equation, values, bind(equation, values), layer)
        finally:
            self.calls.pop()

    def _scan(self, parameters: dict[str, Any], values: list[Any], layer: str) -> list[Any]:
        """A `jax.lax.scan`, iteration by iteration."""
        body, length = parameters["jaxpr"], parameters["length"]
        if "ft_in" in parameters:  # since JAX 0.12
            fixed, carried, _ = (len(list(group)) for group in parameters["ft_in"].unpack())
        else:
            fixed, carried = parameters["num_consts"], parameters["num_carry"]
        constants, carry, rows = values[:fixed], values[fixed : fixed + carried], values[fixed + carried :]
        turns = range(length - 1, -1, -1) if parameters["reverse"] else range(length)
        outputs: list[list[Any]] = []
        for turn in turns:
            cut = [row[turn] for row in rows]
            for whole, part in zip(rows, cut, strict=True):
                self.link([whole], [part], layer)
            results = self.run(body, [*constants, *carry, *cut], f"{layer}.{turn}")
            carry = results[:carried]
            outputs.append(results[carried:])
        if parameters["reverse"]:
            outputs.reverse()
        columns = list(zip(*outputs, strict=True))
        stacked = [jnp.stack(column) for column in columns]
        for column, whole in zip(columns, stacked, strict=True):
            self.link(column, [whole], layer)
        return [*carry, *stacked]

    def _while(self, parameters: dict[str, Any], values: list[Any], layer: str) -> list[Any]:
        """A `jax.lax.while_loop`, iteration by iteration."""
        condition, body = parameters["cond_jaxpr"], parameters["body_jaxpr"]
        first, second = parameters["cond_nconsts"], parameters["cond_nconsts"] + parameters["body_nconsts"]
        carry, turn = values[second:], 0
        while bool(self.run(condition, [*values[:first], *carry], layer)[0]):
            carry = self.run(body, [*values[first:second], *carry], f"{layer}.{turn}")
            turn += 1
        return carry


def _variables(equation: JaxprEqn) -> set[Any]:
    return {variable for variable in equation.invars if not isinstance(variable, Literal)}


def bind(equation: JaxprEqn, values: Sequence[Any]) -> list[Any]:
    """The results of one operation."""
    primitive: Any = equation.primitive
    bound = primitive.get_bind_params(equation.params)
    functions, options = bound if isinstance(bound, tuple) else ((), bound)  # JAX 0.10 returns no functions

    def call(*values: Any) -> list[Any]:
        results = primitive.bind(*functions, *values, **options)
        if primitive.multiple_results:
            return list(results)
        return [results]

    if primitive.name == "shard_map" and is_concrete(values):
        results: list[Any] = jax.jit(call)(*values)
        return results
    return call(*values)
