"""The history that asv and github-action-benchmark keep becomes nights, which the next night is judged by."""

import json
import shutil
from collections import Counter
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from nightjar_ci import cli
from nightjar_ci.adapters.machine import read_machine
from nightjar_ci.adapters.past import read_past
from nightjar_ci.errors import InputError
from nightjar_ci.formats.night_folder import read_night, write_night
from nightjar_ci.settings import read_settings
from nightjar_ci.store import open_store
from tests.called import call
from tests.ci.adapters.test_adapters import ASV

MATRIX = """schema = "nightjar.matrix/1"
name = "benchmarks"
[[job]]
name = "asv"
command = ["true"]
adapter = { format = "asv", file = "*.json" }
"""
MACHINE = {"machine": "runner", "cpu": "AMD EPYC", "num_cpu": "2", "os": "Linux", "arch": "x86_64", "ram": "4GB"}
DAY_MS = 24 * 3600 * 1000


def write_asv(folder: Path, commits: int, slower_from: int = 1000) -> Path:
    """Results of asv by two versions of its format, a commit a day, twice as slow from one of them on."""
    machine = folder / "results" / "runner"
    machine.mkdir(parents=True)
    (machine / "machine.json").write_text(json.dumps(MACHINE))
    (folder / "results" / "benchmarks.json").write_text("{}")
    for day in range(commits):
        seconds = 0.1 + 1e-4 * (day % 3) + 0.1 * (day >= slower_from)
        old = {"b.time_x": {"result": [seconds, 2.0], "params": [["1", "2"]]}, "b.time_y": 3.0, "b.time_z": None}
        new = {"b.time_x": [[seconds, 2.0], [["1", "2"]]], "b.time_y": [[3.0], []], "b.time_z": [None, []]}
        document: dict[str, Any] = {"commit_hash": f"{day:040x}"[::-1], "date": 1_700_000_000_000 + day * DAY_MS}
        document |= {"python": "3.12", "requirements": {"numpy": "2.1.0", "scipy": ""}}
        document |= {"version": 1, "results": old}
        if day % 2:
            document |= {"version": 2, "result_columns": ["result", "params"], "results": new}
        (machine / f"{document['commit_hash'][:8]}-env.json").write_text(json.dumps(document))
    return folder / "results"


def test_a_past_of_asv_is_imported_and_its_last_commit_is_gated(tmp_path: Path) -> None:
    results = write_asv(tmp_path, 40, slower_from=37)
    (tmp_path / "matrix.toml").write_text(MATRIX)
    environ = {"NIGHTJAR_STATE_DIR": str(tmp_path / "state"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = call(cli.main, "store", "asv", "--import", results, cwd=tmp_path, environ=environ)
    assert done.stdout.split()[1::2] == ["name", "b.time_x(1)", "b.time_x(2)", "b.time_y"]
    assert done.stderr.startswith("imported 40 commits from 2023-11-14 to 2023-12-23, as measured on 1 x cpu; AMD EPYC")
    night = done.stderr.split()[-1]
    gated = call(cli.main, "gate", night, cwd=tmp_path, environ=environ)
    assert gated.returncode == 1
    assert "b.time_x(1)" in gated.stdout
    (machine,) = {commit.environment.measured_on for commit in read_past(results / "runner")[0]}
    assert machine == "1 x cpu; AMD EPYC, 2 cores"
    (tmp_path / "state" / "store.sqlite").unlink()
    call(cli.main, "store", "--import", night, cwd=tmp_path, environ=environ)
    with closing(open_store(read_settings(environ))) as store:
        assert store.history_verdict("asv/b.time_x(1)") is not None, "a night is imported with its verdicts"
    folder = min(Path(night).parent.iterdir())
    first = read_night(folder)
    assert first.git is not None
    old = folder.rename(f"{folder}"[:-4] + first.git.sha[:4])  # its id before ids held the matrix
    write_night(old, first.model_copy(update={"id": old.name}))
    again = call(cli.main, "store", "asv", "--import", results, "--json", cwd=tmp_path, environ=environ)
    assert len(json.loads(again.stdout)) == 3
    for cell, matrix in (("b", MATRIX), ("c", MATRIX.replace("benchmarks", "n"))):
        (tmp_path / "matrix.toml").write_text(matrix.replace('name = "asv"', f'name = "{cell}"'))
        call(cli.main, "store", cell, "--import", results, cwd=tmp_path, environ=environ)
    nights = [read_night(folder.parent) for folder in (tmp_path / "state" / "nights").glob("*/night.json")]
    jobs = Counter((night.matrix, *(job.cell for job in night.jobs)) for night in nights)
    assert jobs == {("benchmarks", "asv", "b"): 40, ("n", "c"): 40}


def test_a_past_of_github_action_benchmark_has_its_commits_suites_and_directions(tmp_path: Path) -> None:
    bench = [{"name": "steps", "value": 120, "unit": "1/s"}]
    commit = {"commit": {"id": "ab" * 20}, "date": 1_700_000_000_000, "tool": "customBiggerIsBetter", "benches": bench}
    later = {**commit, "commit": {"id": "cd" * 20}, "date": 1_700_000_000_000 + DAY_MS, "tool": "go"}
    path = tmp_path / "data.js"
    entries = {"one": [later, commit, {**commit, "benches": [{**bench[0], "value": 7}]}], "two": [commit]}
    path.write_text("window.BENCHMARK_DATA = " + json.dumps({"entries": entries}) + ";\n")
    samples = [
        [(sample.name, sample.better, sample.values) for sample in found.samples] for found in read_past(path)[0]
    ]
    both = [("one: steps", "higher", (120.0,)), ("two: steps", "higher", (120.0,))]
    assert samples == [both, [("one: steps", "lower", (120.0,))]]
    assert read_past(path)[0][0].environment.measured_on == read_machine("current", None).measured_on


@pytest.mark.parametrize("more", [0, 1])
def test_of_several_machines_of_asv_the_past_is_that_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    monkeypatch.setenv("PATH", "")  # no nvidia-smi: asv knows no GPU
    results, here = write_asv(tmp_path, 2), read_machine("current", None).cpu
    shutil.copytree(results / "runner", results / "another")
    for cores, folder in enumerate(("runner", "another"), here.cores + more):
        machine = {**MACHINE, "cpu": here.model, "num_cpu": str(cores)}
        (results / folder / "machine.json").write_text(json.dumps(machine))
    with pytest.raises(InputError, match="none of them is this one") if more else nullcontext():
        past, left_out = read_past(results)
        assert ([commit.environment.cpu.cores for commit in past], left_out) == ([here.cores] * 2, 2)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("data.js", "window.BENCHMARK_DATA = {}", "not github-action-benchmark's data.js: KeyError: 'entries'"),
        ("runner/a.json", "{}", "not a valid asv result: KeyError: 'commit_hash'"),
        ("runner/a.json", json.dumps({**ASV, "date": 0, "commit_hash": "../../x"}), "not the digest of a commit"),
        ("runner/a.txt", "", "no night and no history of benchmarks"),
    ],
)
def test_another_file_is_no_past(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_past(path if name == "data.js" else tmp_path)
