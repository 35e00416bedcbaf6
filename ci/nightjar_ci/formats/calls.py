"""The recorded calls of a matrix: `calls.json` (docs/reference/calls.md).

In: the functions that each cell executed. Out: a `Calls` document, and the share of a used API that it executes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from nightjar_ci.errors import InputError
from nightjar_ci.formats.documents import StrictModel, read_document, write_text
from nightjar_ci.formats.outcome import SafeId

FILE = "calls.json"


class CellCalls(StrictModel):
    """The functions that one cell executed.

    Attributes:
        state: how it ended; functions executed before a failure count.
        functions: places in `Calls.functions`.
    """

    job: SafeId
    state: str
    duration_s: float
    functions: tuple[int, ...]


class NameCalls(StrictModel):
    """The cells that executed a public name.

    Attributes:
        cells: in which code outside the name's package used it.
        own: in which the job's own code did, and not only another of the recorded packages.
    """

    cells: tuple[SafeId, ...]
    own: tuple[SafeId, ...]


class Calls(StrictModel):
    """A recording of a matrix.

    Attributes:
        functions: `module:qualified name` of each function that ran.
        names: the public names that were executed, such as `jax.numpy.where`.
        used: public names that people use, to the number of files that use them; empty without a list.
    """

    matrix: str
    recorded_at: str
    packages: tuple[str, ...]
    functions: tuple[str, ...]
    cells: dict[SafeId, CellCalls]
    names: dict[str, NameCalls]
    used: Annotated[dict[str, int], Field(default_factory=dict)]

    def cells_that_run(self, function: str) -> tuple[str, ...]:
        """The cells that executed a function, fastest first."""
        if function not in self.functions:
            return ()
        place = self.functions.index(function)
        cells = [cell for cell, calls in self.cells.items() if place in calls.functions]
        return tuple(sorted(cells, key=lambda cell: self.cells[cell].duration_s))


class Share(StrictModel):
    """How much of the used API of one library is executed.

    Attributes:
        used, executed, own: number of names: used by people, executed, executed by the jobs' own code.
        weight, executed_weight: the same, each name by the number of files that use it.
        missing: names that are used and not executed, most used first.
    """

    library: str
    used: int
    executed: int
    own: int
    weight: int
    executed_weight: int
    missing: tuple[str, ...]


def read_calls(path: Path) -> Calls:
    return read_document(path, Calls)


def keep_calls(newest: Path, night_folder: Path) -> None:
    """Copies the newest recording of a matrix into a night folder, unless it has one."""
    kept = night_folder / FILE
    if newest.is_file() and not kept.exists():
        write_text(kept, newest.read_text(encoding="utf-8"))


def find_kept(night_folder: Path) -> Calls | None:
    """The recording in a night folder, or None if none is readable."""
    path = night_folder / FILE
    try:
        return read_calls(path) if path.exists() else None
    except InputError:
        return None


def find_shares(calls: Calls) -> tuple[Share, ...]:
    """The share of each library in a recording, most used first, then the total; empty without a list.

    >>> find_shares(Calls(matrix="m", recorded_at="", packages=(), functions=(), cells={}, names={}))
    ()
    """
    libraries: dict[str, list[str]] = {}
    for name in calls.used:
        libraries.setdefault(name.rpartition(".")[0], []).append(name)
    shares = [_find_share(library, names, calls) for library, names in libraries.items()]
    shares.sort(key=lambda share: -share.weight)
    if not shares:
        return ()
    return (*shares, _find_share("all", list(calls.used), calls))


def _find_share(library: str, names: Sequence[str], calls: Calls) -> Share:
    executed = [name for name in names if name in calls.names]
    missing = sorted(set(names) - set(executed), key=lambda name: (-calls.used[name], name))
    return Share(
        library=library,
        used=len(names),
        executed=len(executed),
        own=sum(bool(calls.names[name].own) for name in executed),
        weight=_weigh(names, calls.used),
        executed_weight=_weigh(executed, calls.used),
        missing=tuple(missing),
    )


def _weigh(names: Iterable[str], weights: Mapping[str, int]) -> int:
    return sum(weights[name] for name in names)
