"""Does the gate name each kind of fault, and only where there is one?

A small Llama (two layers of the 125M sizes, bfloat16, fused attention, fsdp8 on eight H100) is compiled as it is, then
with one fault at a time; two faults have a program of their own to break. A fault is named when the verdict is
`regressed` and holds the phrase that mentions what was broken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nightjar_ci.formats.policy import FactsPolicy, read_policies
from nightjar_ci.judges.facts.facts import KnownFacts, judge_facts
from tests.bench.aot.compiled import Compiled, compile_one, find_python, run_two_at_a_time
from tests.bench.table import Row
from tests.places import ROOT

BASE = ("llama_125m", "--target", "h100x8", "--mesh", "fsdp8", "--set", "model.layers=2")
FP8 = (*BASE, "--set", "compute.products=fp8")
GOOD = {"plain": BASE, "fp8": (*FP8, "--xla", "xla_gpu_enable_triton_gemm=false")}
SOURCE = "the program without a fault"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    phrase: str
    good: str = "plain"
    bad: tuple[str, ...] | None = None
    plant: str | None = None
    flags: str = ""


FAULTS = {
    "attention implementation removed": Fault(
        phrase="fused attention lost", bad=(*BASE, "--set", "compute.attention=xla")
    ),
    "sharding dropped": Fault(phrase="split over fewer devices", plant="drop_a_sharding"),
    "sharding constraint dropped": Fault(phrase="a new all-gather among 8 devices", plant="drop_a_constraint"),
    "f32 accumulation in a matmul": Fault(phrase="in a wider type", plant="accumulate_in_f32"),
    "fusion pass disabled": Fault(phrase="fusions were split", flags="--xla_disable_hlo_passes=priority-fusion,fusion"),
    "remat policy changed": Fault(phrase="recomputed in the backward pass", bad=(*BASE, "--set", "compute.remat=full")),
    "fp8 matmul fell back": Fault(phrase="fp8 matmul fell back", good="fp8", bad=FP8),
}


def read_policy() -> FactsPolicy:
    policy = read_policies(ROOT / "ci" / "policies.toml").for_facts("llama_125m-compile-h100x8-fsdp8", "train_step")
    assert policy is not None
    return policy


def list_goals(quick: bool, folder: Path) -> list[str]:
    return list(FAULTS)[: 2 if quick else None]


def measure(quick: bool, folder: Path) -> list[Row]:
    chosen = list(FAULTS)[: 2 if quick else None]
    made = compile_programs(chosen, folder)
    return [Row(name, int(ask(name, made)), goal=1, better="higher", unit="named") for name in chosen]


def compile_programs(chosen: Sequence[str], folder: Path) -> dict[str, Compiled]:
    python = find_python()
    calls = {
        good: partial(compile_one, python, GOOD[good], folder / good)
        for good in sorted({FAULTS[name].good for name in chosen})
    }
    for name in chosen:
        fault = FAULTS[name]
        out = folder / name.replace(" ", "-")
        arguments, variables = fault.bad or GOOD[fault.good], {"XLA_FLAGS": fault.flags}
        calls[name] = partial(compile_one, python, arguments, out, fault=fault.plant, variables=variables)
    return dict(zip(calls, run_two_at_a_time(list(calls.values())), strict=True))


def ask(name: str, made: Mapping[str, Compiled]) -> bool:
    fault, bad = FAULTS[name], made[name]
    good = made[fault.good]
    if good.record is None:
        raise SystemExit(f"the program without a fault does not compile: {good.said}")
    if bad.record is None:
        print(f"  {name}: does not compile: {bad.said[-300:]}", flush=True)
        return False
    known = KnownFacts(facts=good.record.facts, source=SOURCE)
    verdict = judge_facts("aot", "train_step", [bad.record], known, read_policy())
    print(f"  {name}: {verdict.status}: {verdict.explanation}", flush=True)
    return verdict.status == "regressed" and fault.phrase in " | ".join([verdict.explanation, *verdict.details])
