"""Whether a change is a fault: the typical calls of a name with the changed function, each in a forked process.

The libraries are imported once; a fork replaces the code and the defaults of the changed function and calls it. Nothing
was computed before the fork, so that no cache holds a result of the installed function.
"""

import ast
import gc
import json
import os
import signal
import warnings
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from tests.bench.breakage.draw import Fault, find_object
from tests.bench.breakage.mutate import find_function, find_node_defaults
from tests.bench.breakage.usage import differ, evaluate, read_usage

TIMEOUT_S = 120


class Typical:
    """The typical calls of names, with the installed libraries and with changes."""

    def __init__(self) -> None:
        self._usage = read_usage()
        self._right: dict[str, Any] = {}

    def is_fault(self, fault: Fault) -> bool:
        """Whether a change gives another value in a typical call of the name by which it was drawn.

        Raises:
            ValueError: the typical calls do not even run with the installed libraries.
        """
        find_object(fault.name)
        if fault.name not in self._right:
            self._right[fault.name] = self._evaluate(fault.name, None)
        if self._right[fault.name] is None:
            raise ValueError(f"the typical calls of {fault.name} do not run with the installed libraries")
        changed = self._evaluate(fault.name, fault)
        return changed is None or differ(changed, self._right[fault.name])

    def _evaluate(self, name: str, fault: Fault | None) -> Any:
        """The values of the calls in a forked process; None where it fails or hangs."""
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX's warning of forks; nothing has started a thread of its own yet
            process = os.fork()
        if process == 0:
            os.close(reading)
            signal.alarm(TIMEOUT_S)
            try:
                if fault is not None:
                    change_function(fault)
                data = json.dumps(evaluate(self._usage[name])).encode()
                with os.fdopen(writing, "wb") as file:
                    file.write(data)
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            data = file.read()
        os.waitpid(process, 0)
        return json.loads(data) if data else None


def change_function(fault: Fault) -> None:
    """Gives the changed code and defaults to every function object of a fault's place."""
    text = fault.render()
    codes = list(_find_codes(compile(text, str(fault.place.file), "exec"), fault.place.function))
    node = find_function(text, fault.place.function)
    functions = [
        function
        for function in gc.get_objects()
        if type(function) is FunctionType
        and function.__code__.co_qualname == fault.place.function
        and function.__globals__.get("__name__") == fault.place.module
    ]
    if not codes or node is None or not functions:
        raise LookupError(f"{fault.place.id} is not in its module as its source says")
    for function in functions:
        if len(function.__code__.co_freevars) == len(codes[-1].co_freevars):
            function.__code__ = codes[-1]
        if not fault.statement:
            _change_defaults(function, node)


def _change_defaults(function: FunctionType, node: ast.FunctionDef) -> None:
    positional, keywords = find_node_defaults(node)
    if function.__defaults__ is not None:
        function.__defaults__ = tuple(
            value if new is None else new[0] for value, new in zip(function.__defaults__, positional, strict=True)
        )
    for name, new in keywords.items():
        if new is not None and function.__kwdefaults__:
            function.__kwdefaults__[name] = new[0]


def _find_codes(code: CodeType, qualified_name: str) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_qualname == qualified_name:
                yield constant
            yield from _find_codes(constant, qualified_name)
