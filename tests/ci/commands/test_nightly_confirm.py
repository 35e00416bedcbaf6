"""Nights with a history, end to end: a suspicion is run again beside the versions of an earlier night, and decided.

The workload is `pace`, a program of the environment it runs in: its version says how fast it is. The environment of the
earlier night is made by a fake uv, in one test by uv itself from the index. Times are made up by each run, so that a
loaded machine changes nothing.
"""

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from nightjar_ci.cli import main
from nightjar_ci.environments import current
from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.formats.verdict import NightVerdicts, Verdict, read_verdicts
from nightjar_ci.settings import read_settings
from nightjar_ci.store import open_store
from nightjar_ci.store.folder import import_night
from tests.called import call
from tests.ci.nights import make_night, outcome, record
from tests.stand_ins import write_programs

CELL = "pace-train-cpu"
SERIES = f"{CELL}/step_time"
IDS = [f"2026-0{1 + day // 28}-{1 + day % 28:02d}T0300-0000" for day in range(40)]
POLICIES = 'schema = "nightjar.policies/1"\n[[history]]\n[[performance]]\n'
PACE = """#!{python}
import json, os, pathlib, random
job, version = os.environ["NIGHTJAR_JOB"], "{version}"
slow = float(os.environ.get("SLOWER", "1.1")) if version == "1.1" else 1.0
slow *= float(os.environ.get("MACHINE", "1")) if job.endswith("-s0") else 1.0  # the machine, for one run
chance = random.Random(job)
result = json.loads(pathlib.Path("{template}").read_text())
result["environment"]["packages"] = {{"pace": version, **json.loads(os.environ.get("PACKAGES", "{{}}"))}}
result["samples"][0]["values"] = [0.05 * slow * (1 + chance.gauss(0, 0.003)) for _ in range(5)]
pathlib.Path(os.environ["NIGHTJAR_OUT"], "result.json").write_text(json.dumps(result))
"""
UV = """#!{python}
import os, pathlib, sys, venv
here = pathlib.Path(__file__).parent.parent
if sys.argv[1] == "venv":
    venv.create(sys.argv[-1], symlinks=True)
elif (here / "no-such-version").exists():
    sys.exit("Because there is no version of pace==1.0 and you require pace==1.0, it cannot be made")
elif "compile" in sys.argv:
    for name, version in (line.split("==") for line in sys.stdin.read().splitlines() if "==" in line):
        print("[[packages]]", f"name = '{{name}}'", f"version = '{{version}}'", sep=chr(10))
elif version := [line.split("==")[1] for line in sys.stdin.read().splitlines() if line.startswith("pace==")]:
    pace = pathlib.Path(sys.argv[sys.argv.index("--python") + 1]).with_name("pace")
    pace.write_text((here / "bin" / "pace").read_text().replace('"1.1"\\n', f'"{{version[0]}}"\\n', 1))
    pace.chmod(0o755)
"""


def result(packages: dict[str, str], seconds: float) -> RunRecord:
    made = record(0, step_times=(0.9, seconds, seconds), facts=[], values=[])
    return made.model_copy(update={"environment": made.environment.model_copy(update={"packages": packages})})


class Project:
    """A folder with a matrix, policies, and a store that remembers forty nights of pace 1.0, or of other packages."""

    def __init__(self, folder: Path, before: Mapping[str, str]) -> None:
        self.folder, self.number = folder, 0
        (folder / "policies.toml").write_text(POLICIES)
        (folder / "matrix.toml").write_text(
            'schema = "nightjar.matrix/1"\nname = "nightly-cpu"\n'
            f'[[job]]\nname = "{CELL}"\nseeds = [0]\ntimeout_s = 60\ncommand = ["pace"]\n'
            'pass_env = ["SLOWER", "MACHINE", "PACKAGES"]\n'
        )
        (folder / "template.json").write_text(result({}, 0.05).model_dump_json(by_alias=True))
        template = folder / "template.json"
        self.program("pace", PACE.format(python=sys.executable, template=template, version="1.1"))
        self.program("uv", UV.format(python=sys.executable))
        store = open_store(read_settings())
        rng = np.random.default_rng(8)
        for night in IDS:
            seconds = 0.05 * float(np.exp(rng.normal(0, 0.003)))
            left = outcome(f"{CELL}-s0"), result(dict(before), seconds)
            made = make_night(folder / "earlier" / night, [left], night)
            import_night(store, made)
        store.close()

    def program(self, name: str, text: str) -> None:
        write_programs(self.folder / "bin", {name: text})

    def call(self, *arguments: str) -> tuple[int, str, str]:
        done = call(main, *arguments, "--policies", "policies.toml", "--baselines", "baselines")
        return done.returncode, done.stdout, done.stderr

    def night(self, command: str = "nightly", *options: str) -> tuple[int, Path, Verdict]:
        self.number += 1
        folder = self.folder / "nights" / f"2026-11-{self.number:02d}T0300-0000"
        if command == "run":
            call(main, "run", "matrix.toml", "--out", folder)
            code, _, _ = self.call("gate", str(folder))
        else:
            code, _, err = self.call("nightly", "matrix.toml", "--out", str(folder), *options)
            assert (folder / "verdicts.json").exists(), err
        return code, folder, history_of(folder)


def judged(folder: Path) -> NightVerdicts:
    return read_verdicts(folder / "verdicts.json")


def history_of(folder: Path) -> Verdict:
    (found,) = [one for one in judged(folder).verdicts if one.judge == "history"]
    return found


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site" / "pace-1.1.dist-info").mkdir(parents=True)
    (tmp_path / "site" / "pace-1.1.dist-info" / "METADATA").write_text("Name: pace\nVersion: 1.1\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    current._inspect.cache_clear()
    monkeypatch.setenv("NIGHTJAR_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path / "bin"))  # of uv
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)  # of pace
    monkeypatch.setenv("PACKAGES", '{"made-up": "2.0"}')  # the job says so
    yield Project(tmp_path, {"pace": "1.0", "made-up": "1.0"})
    current._inspect.cache_clear()


def pairs_of(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "confirm" / CELL).glob("*"))


def test_a_slower_release_is_confirmed_by_pairs_with_the_earlier_one(project: Project) -> None:
    code, folder, verdict = project.night()
    assert (code, verdict.status) == (1, "regressed")
    assert verdict.policy["reference"] == "uv:pace==1.0"
    assert verdict.effect is not None
    assert verdict.effect.value == pytest.approx(0.1, abs=0.01)
    assert pairs_of(folder) == [f"{pair:02d}-{side}" for pair in range(1, 5) for side in "ab"]
    left = [json.loads((folder / "confirm" / CELL / f"01-{side}" / "outcome.json").read_text()) for side in "ab"]
    assert [one["environment"] for one in left] == ["current", "uv:pace==1.0"]  # nothing of a package made up by a job


@pytest.mark.slow
def test_a_slow_night_of_the_machine_ends_as_ok(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOWER", "1.0")
    monkeypatch.setenv("MACHINE", "1.1")
    code, folder, verdict = project.night()
    assert (code, verdict.status) == (0, "ok")
    assert len(pairs_of(folder)) >= 8
    assert "History suggested a regression; paired re-runs do not confirm it" in verdict.explanation


def test_a_night_that_only_ran_keeps_the_doubt_and_names_the_command_that_settles_it(project: Project) -> None:
    code, folder, verdict = project.night("run")
    assert (code, verdict.status) == (4, "cannot_tell")
    assert not (folder / "confirm").exists()
    (told,) = [line for line in verdict.details if "would tell" in line]
    assert any("run again by" in note and SERIES in note for note in judged(folder).notes)
    assert call(main, *shlex.split(told.split("`")[1])[1:]).returncode == 1
    assert history_of(folder).status == "regressed"


@pytest.mark.slow
def test_a_confirmed_regression_stands_until_its_level_returns(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, first = project.night()
    for _ in range(14):
        code, folder, verdict = project.night()
        assert (code, verdict.status, pairs_of(folder)) == (1, "regressed", [])
        assert verdict.effect == first.effect
    monkeypatch.setenv("SLOWER", "1.0")
    _, folder, verdict = project.night()
    assert pairs_of(folder)  # it looks mended: pairs with the good release say so at once
    assert verdict.status == "ok"
    assert [project.night()[2].status for _ in range(2)] == ["ok", "ok"]


def test_an_environment_that_cannot_be_made_again_is_a_note_and_ends_with_3(project: Project) -> None:
    (project.folder / "no-such-version").touch()
    code, folder, verdict = project.night()
    assert (code, verdict.status) == (3, "cannot_tell")
    (note,) = [note for note in judged(folder).notes if note.startswith(f"confirm/{CELL}/01-b")]
    assert "uv:pace==1.0" in note


def test_a_change_of_the_code_alone_is_a_note_in_the_verdicts(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKAGES", '{"pace": "1.0"}')
    code, folder, verdict = project.night()
    assert (code, verdict.status) == (4, "cannot_tell")
    (note,) = [note for note in judged(folder).notes if "cannot be run again" in note]
    assert "so the code or the machine changed" in note
    assert SERIES in note


@pytest.mark.slow
def test_uv_makes_the_earlier_environment_from_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NIGHTJAR_STATE_DIR", str(tmp_path / "state"))
    project = Project(tmp_path, {"humanize": "4.9.0"})
    (tmp_path / "bin" / "uv").unlink()
    pace = (tmp_path / "bin" / "pace").read_text()
    pace = pace.replace('"1.1"', 'importlib.metadata.version("humanize")', 1).replace('== "1.1"', '== "4.10.0"')
    pace = pace.replace('{"pace": version', '{"humanize": version').replace(
        "import json", "import importlib.metadata, json"
    )
    (tmp_path / "pace.py").write_text(pace)
    matrix = (tmp_path / "matrix.toml").read_text()
    job = f'["python", "{tmp_path}/pace.py"]\nenvironment = "uv:humanize==4.10.0"'
    (tmp_path / "matrix.toml").write_text(matrix.replace('["pace"]', job))
    code, folder, verdict = project.night()
    assert (code, verdict.status) == (1, "regressed"), judged(folder).notes
    assert verdict.policy["reference"] == "uv:humanize==4.9.0"
    assert pairs_of(folder) == [f"{pair:02d}-{side}" for pair in range(1, 5) for side in "ab"]
