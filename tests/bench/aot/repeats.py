"""Are facts bit-equal where nothing changed? Five processes, each with another host name, HOME, core and checkout.

Two machines were not at hand: what differs between two is emulated (host name in a namespace of its own, one core or
two, HOME, the path of the checkout). Another processor is not.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from tests.bench.aot.compiled import ROOT, compile_one, find_python
from tests.bench.aot.faults import BASE
from tests.bench.table import Row

REPEATS = 5


def measure(quick: bool) -> list[Row]:
    """One row: how many of the repeats differ from the first."""
    python, facts = find_python(None), []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(2 if quick else REPEATS):
            home, checkout = Path(folder) / f"home{number}", Path(folder) / f"checkout{number}"
            home.mkdir()
            shutil.copytree(ROOT / "models", checkout, ignore=shutil.ignore_patterns("__pycache__"))
            cores = "0" if number % 2 else f"0-{(os.cpu_count() or 1) - 1}"
            before = ["taskset", "-c", cores]
            if os.geteuid() == 0:
                before = ["unshare", "--uts", "sh", "-c", f'hostname other{number}; exec "$@"', "sh", *before]
            variables = {"HOME": str(home), "PYTHONPATH": str(checkout)}
            made = compile_one(python, BASE, Path(folder) / f"out{number}", before=before, variables=variables)
            if made.record is None:
                raise SystemExit(f"repeat {number} does not compile: {made.said}")
            facts.append(made.record.facts)
    different = sum(one != facts[0] for one in facts)
    return [Row(name=f"facts that differ from the first of {len(facts)}", ours=different, goal=0, unit="repeats")]
