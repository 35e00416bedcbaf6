"""Fifteen faults in cells of the nightly under a foreign instruction set, against the committed baselines.

In: nothing. Out: a row for each fault, 1 where a curve or the compiled program is red, and one for all. In bfloat16 a
softmax of that type moves the loss less than another way to write attention does; its compiled program tells it.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from nightjar_ci.baselines.baseline import read_convergence, read_facts
from nightjar_ci.formats.policy import read_policies
from nightjar_ci.formats.run_record import read_run
from nightjar_ci.judges.convergence.convergence import judge_convergence
from nightjar_ci.judges.facts.facts import KnownFacts, judge_facts
from nightjar_ci.night.matrix import expand, read_matrix
from tests.bench.table import Row
from tests.places import ROOT

LEVEL = "SSE4_2"
GOAL = "faults that are red"
WANTED = 14
GPT, T5, MOE, VIT = (
    "gpt_tiny-late-cpu-f32-dp1",
    "t5_tiny-late-cpu-f32-dp1",
    "moe_tiny-late-cpu-f32-dp1",
    "vit_tiny-train-cpu-f32-dp1",
)
BF16 = "gpt_tiny-train-cpu-bf16-dp1"
# (fault, cell, patch of `faulty_trainer.py` or setting)
FAULTS = (
    ("dropout of 11.8 % for 10 %", VIT, "model.dropout=0.118"),
    ("momentum of 0.89 for 0.9", VIT, "momentum"),
    ("weight decay 10 % less", VIT, "weight_decay=0.09"),
    ("bias correction stops at step 100", GPT, "bias_correction"),
    ("Adam's epsilon 1e-6 for 1e-8", GPT, "epsilon"),
    ("beta2 0.991 for 0.99", GPT, "beta2=0.991"),
    ("schedule one step late", GPT, "schedule_steps=301"),
    ("gains and biases decay", GPT, "decay"),
    ("learning rate 1 % up", T5, "learning_rate"),
    ("relative positions off by one", T5, "distances"),
    ("experts take one token less", MOE, "places"),
    ("clipping at 1.1 for 1", MOE, "clip_norm=1.1"),
    ("bfloat16: softmax in bfloat16", BF16, "softmax"),
    ("bfloat16: statistics of norms in bfloat16", BF16, "norms"),
    ("bfloat16: attention a tenth warmer", BF16, "temperature"),
)


def list_goals() -> list[str]:
    return [GOAL]


def measure() -> list[Row]:
    jobs = {job.cell: job for job in expand(read_matrix(ROOT / "ci" / "matrix" / "nightly-cpu.toml")) if job.seed == 0}
    policies = read_policies(ROOT / "ci" / "policies.toml")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        environ = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": f"{folder}/programs",
            "XLA_FLAGS": f"--xla_cpu_max_isa={LEVEL}",
            "PYTHONPATH": str(ROOT),
        }
        for number, (name, cell, fault) in enumerate(FAULTS):
            out = Path(folder, str(number))
            program = [sys.executable, str(Path(__file__).with_name("faulty_trainer.py")), fault]
            command = [part.replace("{out}", str(out)).replace("{seed}", "0") for part in jobs[cell].command[1:]]
            subprocess.run([*program, *command], env=environ, check=True, stdout=subprocess.DEVNULL)
            run = read_run(out / "result.json")
            baseline = read_convergence(ROOT / "ci" / "baselines", cell)
            assert baseline is not None
            unknown = [
                there for there in baseline.elsewhere if there.environment.processor != run.environment.processor
            ]
            baseline = baseline.model_copy(update={"elsewhere": tuple(unknown)})  # this processor, as nobody knew it
            verdicts = [
                judge_convergence(cell, curve.name, [run], baseline, policy)
                for curve in run.curves
                if (policy := policies.for_curve(cell, curve.name)) is not None
            ]
            compiled = read_facts(ROOT / "ci" / "baselines", cell, run.environment.facts_key)
            tolerance = policies.for_facts(cell, "train_step")
            if compiled is not None and tolerance is not None:
                reference = KnownFacts(facts=compiled.facts, source="the committed baseline")
                verdicts.append(judge_facts(cell, "train_step", [run], reference, tolerance))
            red = next((verdict.explanation for verdict in verdicts if verdict.status == "regressed"), "")
            print(f"{name}: {red or 'not red'}", file=sys.stderr)
            rows.append(Row(name, float(bool(red))))
    found = sum(row.ours for row in rows)
    return [*rows, Row(f"{GOAL} ({len(FAULTS)} planted under {LEVEL})", ours=found, goal=WANTED, better="higher")]
