"""Device time by module of the model and by phase of a training step.

In: ops and scopes. Out: one row per module, each with the time of all modules inside it. Times are whole nanoseconds;
rounding errors of an instruction's shares go to the largest, so that the root has all of the time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import polars as pl

from nightjar_profiling.attribution.apportion import cut_shares
from nightjar_profiling.attribution.scopes import PHASES
from nightjar_profiling.capture_folder.tables import Tables

KEY = ["program_id", "instruction"]
NO_MODULE = "(no module)"


@dataclass(slots=True)
class Module:
    """A module: its path from the root, its own time, and the time of each phase, nested modules included."""

    path: tuple[str, ...]
    self_ns: int = 0
    phases: Counter[str] = field(default_factory=Counter)

    @property
    def total_ns(self) -> int:
        """Its time, nested modules included."""
        return sum(self.phases.values())


def sum_scopes(tables: Tables) -> pl.DataFrame:
    """Device time by scope and phase.

    Returns:
        Columns: `scope` (empty: no module), `phase`, `duration_ns`, which sums to the ops' total.
    """
    spent = tables.ops.group_by(KEY).agg(total_ns=pl.col("duration_ns").sum())
    shares = spent.sort(KEY).join(
        tables.scopes.sort(*KEY, "weight"), on=KEY, how="left", nulls_equal=True, maintain_order="left_right"
    )
    return (
        cut_shares(shares, KEY)
        .group_by(pl.col("scope").fill_null(""), pl.col("phase").fill_null("other"))
        .agg(pl.col("duration_ns").sum())
        .sort("duration_ns", "scope", "phase", descending=[True, False, False])
    )


def build_modules(tables: Tables) -> list[Module]:
    """The modules, each before those inside it, the larger first; empty if no op names one and none has a phase."""
    sums = sum_scopes(tables)
    if sums.filter((pl.col("scope") != "") | (pl.col("phase") != "other")).is_empty():
        return []
    modules: dict[tuple[str, ...], Module] = {}
    for scope, phase, ns in sums.iter_rows():
        path = tuple(scope.split("/")) if scope else (NO_MODULE,)
        for depth in range(1, len(path) + 1):
            module = modules.setdefault(path[:depth], Module(path=path[:depth]))
            module.phases[phase] += ns
        modules[path].self_ns += ns
    inside: dict[tuple[str, ...], list[Module]] = defaultdict(list)
    for module in modules.values():
        inside[module.path[:-1]].append(module)
    ordered: list[Module] = []
    waiting = [*inside[()]]
    waiting.sort(key=lambda module: module.total_ns)
    while waiting:
        module = waiting.pop()
        ordered.append(module)
        waiting += sorted(inside[module.path], key=lambda inner: inner.total_ns)
    return ordered


def tabulate_modules(modules: list[Module]) -> pl.DataFrame:
    """The modules as rows.

    Returns:
        Columns: `module` (its path), `depth`, `total_ns`, `self_ns`, and one of nanoseconds for each phase.
    """
    rows = [
        {
            "module": "/".join(module.path),
            "depth": len(module.path) - 1,
            "total_ns": module.total_ns,
            "self_ns": module.self_ns,
            **{phase: module.phases[phase] for phase in PHASES},
        }
        for module in modules
    ]
    schema = {"module": pl.String, **dict.fromkeys(("depth", "total_ns", "self_ns", *PHASES), pl.Int64)}
    return pl.DataFrame(rows, schema=schema)
