"""Device time by module of the model and by phase of a training step.

In: ops and scopes. Out: one row per module, each with the time of all modules inside it. Times are whole nanoseconds;
rounding errors of an instruction's shares go to the largest, so that the root has all of the time.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import polars as pl

from nightjar_profiling.attribution.apportion import cut_shares
from nightjar_profiling.attribution.scopes import PHASES
from nightjar_profiling.capture_folder.tables import Tables

KEY = ["program_id", "instruction"]
NO_MODULE = "(no module)"


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


def tabulate_modules(tables: Tables) -> pl.DataFrame:
    """The modules, each before those inside it, the larger first; empty if no op names one and none has a phase.

    Returns:
        Columns: `module` (its path), `depth`, `total_ns`, `self_ns`, and one of nanoseconds for each phase.
    """
    schema = {"module": pl.String, **dict.fromkeys(("depth", "total_ns", "self_ns", *PHASES), pl.Int64)}
    sums = sum_scopes(tables)
    if sums.filter((pl.col("scope") != "") | (pl.col("phase") != "other")).is_empty():
        return pl.DataFrame(schema=schema)
    own: Counter[tuple[str, ...]] = Counter()
    phases: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)  # nested modules included
    for scope, phase, ns in sums.iter_rows():
        path = tuple(scope.split("/")) if scope else (NO_MODULE,)
        own[path] += ns
        for depth in range(1, len(path) + 1):
            phases[path[:depth]][phase] += ns
    inside: dict[tuple[str, ...], list[tuple[str, ...]]] = defaultdict(list)
    for path in sorted(phases, key=lambda path: phases[path].total()):
        inside[path[:-1]].append(path)
    rows, waiting = list[dict[str, object]](), [*inside[()]]
    while waiting:
        path = waiting.pop()
        rows.append(
            {
                "module": "/".join(path),
                "depth": len(path) - 1,
                "total_ns": phases[path].total(),
                "self_ns": own[path],
                **{phase: phases[path][phase] for phase in PHASES},
            }
        )
        waiting += inside[path]
    return pl.DataFrame(rows, schema=schema)
