"""Faults drawn at random, by how much people use the names that they are planted in.

In: names with their number of files, and a seed. Out: `Fault`s. A name is drawn by its weight, then one of the Python
functions behind it, or one that these call in the same module; then a kind of fault, then a place.
"""

import ast
import importlib
import inspect
import random
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.breakage.functions import find_functions
from tests.bench.breakage.mutate import find_changes, find_function
from tests.mutants.sites import Mutant

SCOPE = ("jax.numpy", "jax.nn", "jax.lax", "flax.nnx", "optax", "orbax.checkpoint", "grain")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A function of an installed library.

    Attributes:
        module: that defines it.
        function: its qualified name.
        file: its source, relative to the folder that is on the path.
        root: that folder.
    """

    module: str
    function: str
    file: Path
    root: Path

    @property
    def id(self) -> str:
        return f"{self.module}:{self.function}"

    def read_source(self) -> str:
        return (self.root / self.file).read_text(encoding="utf-8")

    @property
    def library(self) -> str:
        return self.module.partition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault: the used name by which it was drawn, where it is, and the change of the text with its statement."""

    name: str
    place: Place
    mutant: Mutant
    statement: int

    def render(self) -> str:
        return self.mutant.plant(self.place.read_source().encode()).decode()

    def __str__(self) -> str:
        return f"{self.mutant.kind} in {self.place.id}, line {self.mutant.line} (by {self.name})"


def find_object(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    module = {"grain": "grain.python"}.get(module, module)
    return getattr(importlib.import_module(module), attribute)


def find_places(name: str) -> list[Place]:
    """The functions behind a name, and those of the same module that they call by name; none for a value."""
    try:
        behind = list(find_functions(find_object(name)))
    except (ImportError, AttributeError):
        return []
    ids = dict.fromkeys(behind)
    for module, function in behind:
        ids |= dict.fromkeys(_find_called(module, function))
    places = [make_place(module, function) for module, function in ids]
    return [place for place in places if place is not None]


def make_place(module: str, function: str) -> Place | None:
    file = getattr(importlib.import_module(module), "__file__", None)
    if file is None:
        return None
    path, depth = Path(file), len(module.split(".")) + (Path(file).name == "__init__.py")
    root = path.parents[depth - 1]
    place = Place(module=module, function=function, file=path.relative_to(root), root=root)
    return place if find_function(path.read_text(encoding="utf-8"), function) is not None else None


def _find_called(module: str, function: str) -> Iterator[tuple[str, str]]:
    loaded = importlib.import_module(module)
    try:
        node = find_function(inspect.getsource(loaded), function)
    except (OSError, TypeError):
        return
    if node is None:
        return
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            for owner, called in find_functions(getattr(loaded, call.func.id, None)):
                if owner == module:
                    yield owner, called


def draw_faults(used: Mapping[str, int], usage: Mapping[str, list[str]], seed: int) -> Iterator[Fault]:
    """An endless row of different faults.

    Args:
        used: full names by weight.
        usage: names with typical calls; others are not drawn, since nobody could say whether a change is a fault.
        seed: of the draw.
    """
    source = random.Random(seed)
    names = [name for name in sorted(used) if name in usage and name.startswith(SCOPE)]
    weights, drawn = [used[name] for name in names], set[tuple[str, Mutant]]()
    places, changes_of = dict[str, list[Place]](), dict[Place, list[tuple[Mutant, int]]]()
    while names:
        name = source.choices(names, weights)[0]
        if name not in places:
            places[name] = find_places(name)
        if not places[name]:
            continue
        place = source.choice(places[name])
        if place not in changes_of:
            text = place.read_source()
            function = find_function(text, place.function)
            changes_of[place] = [] if function is None else find_changes(text, function)
        if not changes_of[place]:
            continue
        kind = source.choice(sorted({mutant.kind for mutant, _ in changes_of[place]}))
        mutant, statement = source.choice([change for change in changes_of[place] if change[0].kind == kind])
        fault = Fault(name=name, place=place, mutant=mutant, statement=statement)
        if (place.id, mutant) not in drawn and is_python(fault):
            drawn.add((place.id, mutant))
            yield fault


def is_python(fault: Fault) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # `"sqrt" is None`, where an argument is ignored
        try:
            compile(fault.render(), str(fault.place.file), "exec")
        except SyntaxError:
            return False
    return True
