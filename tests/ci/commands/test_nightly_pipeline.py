"""The commands end to end, with a workload that trains nothing but leaves a real result."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nightjar_ci.cli import main
from tests.called import call

WORKLOAD = """
import json, math, os, random, sys, time

def option(name, default):
    return sys.argv[len(sys.argv) - 1 - sys.argv[::-1].index(name) + 1] if name in sys.argv else default

out, seed, steps = option("--out", "."), int(option("--seed", "0")), int(option("--steps", "80"))
rate = 1.0
fusions = 7
chance = random.Random(seed)
bias = chance.gauss(0, 0.01)
losses = [(2 + 3 * math.exp(-rate * step / 20)) * math.exp(bias + chance.gauss(0, 0.02)) for step in range(steps)]
if os.environ.get("FAKE_CRASH") == str(seed):
    sys.exit("the disk is on fire")
tally = {"count": fusions, "bytes": 1024 * fusions}
memory = dict.fromkeys(("argument_bytes", "output_bytes", "alias_bytes", "generated_code_bytes", "peak_bytes"))
result = {
    "schema": "nightjar.run/1", "job": os.environ["NIGHTJAR_JOB"], "workload": "fake", "status": "completed",
    "seed": seed, "started_at": "2026-11-21T03:00:00+00:00", "duration_s": 0.1,
    "config": {"rate": rate, "data_digest": "d1"},
    "environment": {
        "python": "3.11.7", "platform": "linux-x86_64", "cpu": {"model": "fake", "cores": 2, "memory_bytes": 1 << 34},
        "backend": "cpu", "devices": ["cpu"], "packages": {"jax": "0.10.2", "jaxlib": "0.10.2"}, "flags": {},
        "git": None, "image": None,
    },
    "curves": [{"name": "loss", "unit": "nats", "better": "lower", "steps": list(range(steps)), "values": losses}],
    "samples": [{"name": "step_time", "unit": "s", "better": "lower", "values": [0.05 + chance.random() / 1e3] * 9,
                 "warmup": 1}],
    "facts": [{
        "program": "train_step", "opcodes": {"dot": {"count": 4, "bytes": 4096}, "fusion": tally},
        "fusions": {"kLoop": tally}, "custom_calls": {}, "collectives": {}, "flops": 1e6,
        "memory": {**memory, "temp_bytes": 4096},
    }],
}
os.makedirs(out, exist_ok=True)
json.dump(result, open(os.path.join(out, "result.json"), "w"))
"""

POLICIES = """
schema = "nightjar.policies/1"
[[convergence]]
[[facts]]
[[performance]]
ab_args = ["--steps", "20"]
delta = 0.5
"""


def make_project(tmp_path: Path) -> Path:
    (tmp_path / "workload.py").write_text(WORKLOAD)
    (tmp_path / "policies.toml").write_text(POLICIES)
    command = json.dumps([sys.executable, str(tmp_path / "workload.py"), "--seed", "{seed}", "--out", "{out}"])
    (tmp_path / "matrix.toml").write_text(
        'schema = "nightjar.matrix/1"\nname = "fakes"\n'
        f'[[job]]\nname = "fake-train-cpu"\nseeds = [0, 1]\ntimeout_s = 60\ncommand = {command}\n'
        'pass_env = ["FAKE_*"]\n'
    )
    return tmp_path


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of baselines that the baseline command has made, with what it printed."""
    folder = make_project(tmp_path_factory.mktemp("trained"))
    made = nightjar(folder, "baseline", "matrix.toml", *OPTIONS, "--seeds", "0:10")
    assert made.returncode == 0, made.stderr
    (folder / "printed").write_text(made.stdout)
    return folder


@pytest.fixture
def based(project: Path, trained: Path) -> Path:
    shutil.copytree(trained / "baselines", project / "baselines")
    return project


def nightjar(project: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("NIGHTJAR_")}
    environ |= {"NIGHTJAR_STATE_DIR": str(project / "state"), "COLUMNS": "160", **variables}
    return call(main, *arguments, cwd=project, environ=environ)


OPTIONS = ("--policies", "policies.toml", "--baselines", "baselines")


def statuses(report: Path) -> dict[str, str]:
    verdicts = json.loads((report.parent / "verdicts.json").read_text())["verdicts"]
    return {one["judge"]: one["status"] for one in verdicts}


def test_a_night_without_baselines_cannot_tell_and_still_reports(project: Path) -> None:
    night = nightjar(project, "nightly", "matrix.toml", *OPTIONS)
    assert night.returncode == 4, night.stderr
    report = Path(night.stdout.splitlines()[-1])
    assert report.name == "report.html"
    assert {path.name for path in report.parent.glob("*.*")} >= {
        "junit.xml",
        "summary.md",
        "verdicts.json",
    }


def test_a_reference_environment_is_compared_pair_by_pair(based: Path) -> None:
    night = nightjar(based, "nightly", "matrix.toml", *OPTIONS, "--reference", "current")
    assert night.returncode == 0, night.stderr
    report = Path(night.stdout.splitlines()[-1])
    assert statuses(report) == {"convergence": "ok", "facts": "ok", "performance": "ok"}
    runs = sorted(path.name for path in (report.parent / "ab" / "fake-train-cpu").iterdir())
    assert runs == ["01-a", "01-b", "02-a", "02-b", "03-a", "03-b", "04-a", "04-b"]


def test_baseline_of_a_night_that_is_there_writes_facts(project: Path) -> None:
    folder = Path(nightjar(project, "nightly", "matrix.toml", *OPTIONS).stdout.splitlines()[-1]).parent
    refused = nightjar(project, "baseline", "--from", str(folder), *OPTIONS)
    assert refused.returncode == 2
    made = nightjar(project, "baseline", "--from", str(folder), *OPTIONS, "--facts-only")
    assert made.stdout.split() == ["baselines/fake-train-cpu/facts/jaxlib-0.10.2-cpu-x1.json"]


def test_a_baseline_that_lacks_a_seed_is_resumed_with_that_seed_alone(project: Path) -> None:
    made = nightjar(project, "baseline", "matrix.toml", *OPTIONS, FAKE_CRASH="3")
    assert made.returncode == 3
    assert not (project / "baselines").exists()
    night = made.stderr.rpartition("--resume ")[2].split()[0]
    planned = nightjar(project, "baseline", "matrix.toml", *OPTIONS, "--resume", night, "--dry-run")
    assert len(planned.stdout.splitlines()) == 1
    again = nightjar(project, "baseline", "matrix.toml", *OPTIONS, "--resume", night, "--workers", "2")
    assert again.returncode == 0, again.stderr
    assert "1 job of fakes, 9 done" in again.stderr
    assert len(again.stdout.splitlines()) == 2
    refused = nightjar(project, "baseline", "--from", night, *OPTIONS, "--resume", night)
    assert (refused.returncode, "needs the matrix" in refused.stderr) == (2, True)


def test_baseline_with_dry_run_names_the_jobs_and_runs_none(project: Path) -> None:
    made = nightjar(project, "baseline", "matrix.toml", *OPTIONS, "--dry-run")
    assert made.returncode == 0
    assert len(made.stdout.splitlines()) == 10
    assert not (project / "baselines").exists()


def test_baseline_prints_the_files_it_wrote_and_names_no_path_of_this_machine(trained: Path) -> None:
    assert (trained / "printed").read_text().split() == [
        "baselines/fake-train-cpu/convergence.json",
        "baselines/fake-train-cpu/facts/jaxlib-0.10.2-cpu-x1.json",
    ]
    command = json.loads((trained / "baselines" / "fake-train-cpu" / "convergence.json").read_text())["command"]
    assert command[-1] == "{out}"


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        ("policies.toml", 'schema = "nightjar.policies/1"\n[[convergence]]\nmargim = 1\n'),
        ("baselines/fake-train-cpu/convergence.json", '{"schema": "nightjar.baseline/1"'),
        ("matrix.toml", 'schema = "nightjar.matrix/1"\n'),
    ],
)
def test_a_wrong_file_ends_with_2_before_anything_runs(project: Path, broken: str, text: str) -> None:
    (project / broken).parent.mkdir(parents=True, exist_ok=True)
    (project / broken).write_text(text)
    night = nightjar(project, "nightly", "matrix.toml", *OPTIONS)
    assert night.returncode == 2
    assert Path(broken).name in night.stderr
    assert not (project / "state" / "nights").exists()
