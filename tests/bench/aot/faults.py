"""Does the gate name each kind of fault, and only where there is one?

A small Llama (two layers of the 125M sizes, bfloat16, fused attention, fsdp8 on eight H100) is compiled as it is, then
with one fault at a time. A fault is named when the first sentence that mentions what was broken is in the verdict.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from nightjar_ci.judges.facts import KnownFacts, judge_facts
from nightjar_ci.policy import FactsPolicy
from tests.bench.aot.compiled import compile_one, find_python
from tests.bench.table import Row

BASE = ["llama_125m", "--target", "h100x8", "--mesh", "fsdp8", "--set", "model.layers=2"]
POLICY = FactsPolicy(tolerance={"memory.*": 0.02, "ahead.code_bytes": 0.5, "estimate.*": 0.05})

# Fault: what changes on the command line, in the models, in XLA_FLAGS; and a phrase that names it.
FAULTS: dict[str, tuple[list[str], str | None, str, str]] = {
    "attention implementation removed": (["--set", "compute.attention=einsum"], None, "", "fused attention lost"),
    "sharding dropped": ([], "drop_a_sharding", "", "split over fewer devices"),
    "f32 accumulation in a matmul": ([], "accumulate_in_f32", "", "in a wider type"),
    "fusion pass disabled": ([], None, "--xla_disable_hlo_passes=priority-fusion,fusion", "fusions were split"),
    "remat policy changed": (["--set", "compute.remat=full"], None, "", "recomputed in the backward pass"),
}


def measure(quick: bool) -> list[Row]:
    """One row per fault."""
    python, rows = find_python(None), []
    with tempfile.TemporaryDirectory() as folder:
        good = compile_one(python, BASE, Path(folder) / "good").record
        if good is None:
            raise SystemExit("the program without a fault does not compile")
        for name, (settings, plant, flags, phrase) in FAULTS.items():
            out = Path(folder) / name.replace(" ", "-")
            made = compile_one(python, [*BASE, *settings], out, fault=plant, variables={"XLA_FLAGS": flags})
            if made.record is None:
                print(f"  {name}: does not compile: {made.said[-300:]}")
                rows.append(Row(name=name, ours=0, goal=1, better="higher", unit="named"))
                continue
            known = KnownFacts(facts=good.facts, source="the program without a fault")
            verdict = judge_facts("aot", "train_step", [made.record], known, POLICY)
            said = " | ".join([verdict.explanation, *verdict.details])
            named = verdict.status == "regressed" and phrase in said
            print(f"  {name}: {verdict.status}: {verdict.explanation}")
            rows.append(Row(name=name, ours=int(named), goal=1, better="higher", unit="named"))
    return rows
