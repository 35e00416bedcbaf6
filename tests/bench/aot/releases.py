"""What changed between two releases of JAX, for every workload on eight H100? Every difference in words.

Prints a table: workload, what the gate says, seconds of CPU. Presets that need more devices than eight are compiled for
eight all the same: what is emitted is of interest, not whether it fits.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from nightjar_ci.judges.emitted import find_meanings
from nightjar_ci.judges.facts import diff_lines
from nightjar_models.presets import PRESETS
from tests.bench.aot.compiled import compile_one, find_python
from tests.bench.aot.faults import POLICY
from tests.bench.table import Row

OLD, NEW = "0.10.1", "0.10.2"
BUDGET_S = 20 * 60 * 2  # of CPU: twenty minutes on two cores


def measure(quick: bool) -> list[Row]:
    """Rows: programs of which a difference has no sentence, and the CPU that it took."""
    pythons = {release: find_python(release) for release in (OLD, NEW)}
    unexplained, refused, spent = 0, 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        for preset in list(PRESETS)[: 2 if quick else None]:
            mesh = "dp8" if preset.endswith("_tiny") else "fsdp8"
            arguments = [preset, "--target", "h100x8", "--mesh", mesh]
            made = {
                release: compile_one(python, arguments, Path(folder) / f"{preset}-{release}")
                for release, python in pythons.items()
            }
            spent += sum(one.cpu_s for one in made.values())
            old, new = made[OLD].record, made[NEW].record
            if old is None or new is None:
                print(f"{preset:16} not compiled: {(made[OLD].said or made[NEW].said).strip()[-200:]}")
                refused += 1
                continue
            sentences = find_meanings(old.facts[0], new.facts[0], POLICY)
            lines = diff_lines(old.facts[0], new.facts[0], POLICY)
            unexplained += bool(lines and not sentences)
            said = "; ".join(sentences) or ("no difference" if not lines else f"unexplained: {'; '.join(lines[:4])}")
            print(f"{preset:16} {said} ({len(lines)} facts differ)")
    return [
        Row(name="programs with a difference that no sentence explains", ours=unexplained, goal=0, unit="programs"),
        Row(name="programs that do not compile", ours=refused, goal=0, unit="programs"),
        Row(name="CPU for both releases", ours=round(spent), goal=BUDGET_S, unit="s"),
    ]
