"""What a user of `nightjar-ci bisect` sees, on ladders that cost nothing."""

import json
import os
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from nightjar_ci.bisect.result.explain import explain, find_line
from nightjar_ci.bisect.run import is_of_numbers
from nightjar_ci.bisect.state import Question
from nightjar_ci.cli import main
from nightjar_ci.environments.current import find_current
from nightjar_ci.environments.prepare import PreparedEnvironment
from tests.called import call
from tests.ci.bisect.ladders.test_commits import commit, repository, run_git
from tests.stand_ins import write_programs

__all__ = ["repository"]


def bisect(*arguments: object) -> subprocess.CompletedProcess[str]:
    return call(main, "bisect", *arguments)


def answer(*arguments: object) -> dict[str, Any]:
    done = bisect("--json", *arguments)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "exit_code": done.returncode, "stderr": done.stderr}


def rungs(tmp_path: Path, count: int = 20) -> Path:
    path = tmp_path / "rungs.txt"
    path.write_text("".join(f"n{index:03d}\n" for index in range(count)))
    return path


def program(tmp_path: Path, text: str) -> tuple[str, ...]:
    path = tmp_path / "test.py"
    path.write_text(f"import os, sys, random\nn = int(os.environ['NIGHTJAR_RUNG'][1:])\n{text}\n")
    return ("--", sys.executable, str(path))


def test_the_first_bad_rung_of_a_list_is_named_and_both_sides_can_be_pasted(tmp_path: Path, state: Path) -> None:
    found = answer("--rungs", rungs(tmp_path), "--deterministic", *program(tmp_path, "sys.exit(n >= 13)"))
    assert (found["exit_code"], found["culprits"], found["find"]) == (0, ["n013"], "regression")
    assert found["tests"] <= 7
    page = next(state.glob("bisections/*/report.html")).read_text()
    assert "It came with n013" in page
    assert "src=" not in page.replace("data:", "").partition("<script>")[0]
    lines = [found[side]["reproduce"] for side in ("before", "after")]
    codes = [subprocess.run(["sh", "-c", line], capture_output=True, check=False).returncode for line in lines]
    assert codes == [0, 1]


def test_rungs_of_a_list_may_look_like_releases(tmp_path: Path) -> None:
    path = tmp_path / "rungs.txt"
    path.write_text("a==1\na==2\na==3\n")
    test = "import os, sys; sys.exit(os.environ['NIGHTJAR_RUNG'] > 'a==1')"
    found = answer("--rungs", path, "--good", "a==1", "--bad", "a==3", "--deterministic", "--", "python", "-c", test)
    assert found["culprits"] == ["a==2"]


def test_swapped_ends_look_for_the_fix(tmp_path: Path) -> None:
    ends = ("--good", "n019", "--bad", "n000", "--rungs", rungs(tmp_path))
    found = answer(*ends, *program(tmp_path, "sys.exit(n < 13)"))
    assert (found["exit_code"], found["culprits"], found["find"]) == (0, ["n013"], "fix")
    assert "was mended by n013" in found["title"]
    assert (found["before"]["answers"], found["after"]["answers"]) == ("bad", "good")
    assert "n019: good (" in found["stderr"]
    assert "n000: bad (exit code 1) (" in found["stderr"]


def test_an_end_that_could_not_be_prepared_is_prepared_again_by_the_next_call(tmp_path: Path) -> None:
    prepare = ("--prepare", f"test -e {tmp_path}/mended")
    arguments = ("--rungs", rungs(tmp_path), "--deterministic", *prepare, *program(tmp_path, "sys.exit(n >= 13)"))
    assert answer(*arguments)["kind"] == "unbuildable"
    (tmp_path / "mended").write_text("")
    assert answer(*arguments)["culprits"] == ["n013"]


@pytest.mark.slow
def test_a_noisy_metric_is_bisected_both_ways(tmp_path: Path) -> None:
    text = "print(f'speed={random.gauss(100 if n < 5 else 90, 1)}')"
    found = answer("--rungs", rungs(tmp_path), "--metric", "speed", "--better", "higher", *program(tmp_path, text))
    assert (found["exit_code"], found["culprits"]) == (0, ["n005"])
    text = "print(f'time={random.gauss(5 if n < 5 else 4, 0.1)}')"
    swapped = ("--good", "n019", "--bad", "n000", "--rungs", rungs(tmp_path))
    found = answer(*swapped, "--metric", "time", *program(tmp_path, text))
    assert (found["exit_code"], found["culprits"], found["find"]) == (0, ["n005"], "fix")


def test_rungs_that_cannot_be_tested_are_stepped_over(tmp_path: Path) -> None:
    text = "if n in (9, 10, 12):\n    import no_such_module_at_all\nsys.exit(n >= 13)"
    found = answer("--rungs", rungs(tmp_path), "--deterministic", *program(tmp_path, text))
    assert found["exit_code"] == 0
    assert found["culprits"][-1] == "n013"
    assert set(found["culprits"]) <= {"n012", "n013"}


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("sys.exit(1)", "good_end_is_bad", "n000, said to be good, is bad"),
        ("sys.exit(0)", "too_rare", "Cannot tell yet whether n019 is bad"),
        ("import no_such_module_at_all", "unbuildable", "An end could not be tested"),
    ],
)
def test_ends_that_are_not_what_they_are_said_to_be_end_with_four(
    text: str, kind: str, said: str, tmp_path: Path
) -> None:
    found = answer("--rungs", rungs(tmp_path), *program(tmp_path, text))
    assert (found["exit_code"], found["kind"]) == (4, kind)
    assert said in found["title"]


def test_a_test_that_needs_the_network_is_told_of_the_sandbox_and_a_preparation_of_a_shell(tmp_path: Path) -> None:
    refused = "sys.exit('urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>')"
    found = answer("--rungs", rungs(tmp_path), *program(tmp_path, refused))
    assert "a job in the sandbox has no network: NIGHTJAR_SANDBOX=network gives it one." in found["notes"]
    refused_command = bisect("--rungs", rungs(tmp_path), "--prepare", "true && true", *program(tmp_path, "pass"))
    assert refused_command.returncode == 2
    assert "'&&' is for a shell" in refused_command.stderr
    assert "sh -c 'true && true'" in refused_command.stderr


@pytest.mark.parametrize(
    ("good", "bad", "kind"), [("n000", "n019", "bad_end_is_good"), ("n019", "n000", "good_end_is_bad")]
)
def test_a_bad_end_that_fails_less_often_than_its_user_says_is_good(
    good: str, bad: str, kind: str, tmp_path: Path
) -> None:
    command = program(tmp_path, "sys.exit(0)")  # one at a time: another may be under way as the seventh ends
    ends = ("--rungs", rungs(tmp_path), "--good", good, "--bad", bad)
    found = answer(*ends, "--failure", "50%", "--workers", 1, *command)
    assert (found["exit_code"], found["kind"], found["title"]) == (4, kind, f"{bad}, said to be bad, is good.")
    assert found["message"].startswith("The bad end passes all of 7 tests")
    assert sum(probe["name"] == bad for probe in found["probes"]) == 7


@pytest.mark.parametrize("printed", ["", "print('time=nan')", "sys.exit('no luck')"])
def test_a_metric_that_is_never_there_ends_and_says_so(printed: str, tmp_path: Path) -> None:
    found = answer("--rungs", rungs(tmp_path), "--metric", "time", *program(tmp_path, printed))
    assert (found["exit_code"], found["kind"]) == (4, "unbuildable")
    assert found["tests"] <= 6
    assert "time" in found["probes"][0]["why"] or "exit code 1" in found["probes"][0]["why"]


def test_probes_run_side_by_side(tmp_path: Path) -> None:
    text = "import time; time.sleep(0.2); sys.exit(n >= 13)"
    found = answer("--rungs", rungs(tmp_path), "--workers", 4, *program(tmp_path, text))
    assert (found["exit_code"], found["culprits"]) == (0, ["n013"])
    folders = [probe["folder"] for probe in found["probes"]]
    assert len(set(folders)) == len(folders)


def test_a_dry_run_prints_the_ladder_and_runs_nothing(tmp_path: Path, state: Path) -> None:
    done = bisect("--dry-run", "--rungs", rungs(tmp_path), *program(tmp_path, "sys.exit(1)"))
    assert done.returncode == 0, done.stderr
    assert "n007" in done.stdout
    assert "Looking for a regression on 20 rungs, 0 of them ready." in done.stdout
    assert not state.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--", "true"], "none of the ladders is named"),
        (["--images", "x/y", "--rungs", "x", "--", "true"], "--images and --rungs"),
        (["--rungs", "no-such-file", "--", "true"], "cannot be read"),
        (["--good", "jax==1", "--bad", "jax==2"], "there is no test"),
        (["--good", "1", "--bad", "2", "--", "true"], "--good jax==0.4.31 --bad jax==0.5.0"),
        (["--good", "jax==1", "--bad", "flax==2", "--", "true"], "--good names jax, --bad flax"),
        (["--good", "jax==one", "--bad", "jax==2", "--", "true"], "'jax==one' is not NAME==VERSION"),
        (["--good", "jax==1,==2", "--bad", "jax==2", "--", "true"], "'jax==1,==2' is not NAME==VERSION"),
        (["--good", "jax==1", "--good", "Jax==2", "--bad", "jax==3", "--", "true"], "--good names a package twice"),
        (["--images", "x/y", "--good", "2026-11-01", "--bad", "today", "--", "true"], "'today' is not a valid date"),
        (
            ["--good", "a==1", "--bad", "a==2", "--repo", "../a", "--", "true"],
            "is not NAME=FOLDER_OR_ADDRESS",
        ),
        (["--rungs", "r", "--metric", "a", "--like", "a", "--", "true"], "leave one of them out"),
        (["--rungs", "r", "--failure", "a", "--like", "a", "--", "true"], "leave one of them out"),
        (["--rungs", "r", "--metric", "b", "--failure", "crash", "--", "true"], "a metric reads none"),
        (["--rungs", "r", "--failure", "a", "--failure", "b", "--", "true"], "one regular expression"),
    ],
)
def test_options_that_do_not_go_together_end_with_two(options: list[str], message: str, tmp_path: Path) -> None:
    done = bisect(*options)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr


def test_a_prepared_rung_is_prepared_once_and_one_that_cannot_be_is_stepped_over(tmp_path: Path) -> None:
    prepare = tmp_path / "prepare.py"
    prepare.write_text(
        "import pathlib, sys\n"
        "rung, folder = sys.argv[1:]\n"
        "sys.exit('broken') if rung in ('n010', 'n011') else None\n"
        "pathlib.Path(folder, 'built').write_text(rung)\n"
        f"with open({str(tmp_path / 'log')!r}, 'a') as log: print(rung, file=log)\n"
    )
    text = "n = int(open(sys.argv[1] + '/built').read()[1:]); sys.exit(n >= 13)"
    found = answer(
        "--rungs", rungs(tmp_path), "--prepare", f"{sys.executable} {prepare} {{rung}} {{folder}}",
        *program(tmp_path, text), "{folder}",
    )  # fmt: skip
    assert (found["exit_code"], found["culprits"]) == (0, ["n013"])
    prepared = (tmp_path / "log").read_text().split()
    assert len(set(prepared)) == len(prepared)


def test_commits_are_bisected_in_worktrees_and_a_merge_is_opened(repository: Path, tmp_path: Path) -> None:
    test = "import pathlib,sys;p=pathlib.Path('side');sys.exit(p.exists() and p.read_text()=='y')"
    ends = ("--repo", repository, "--good", "first", "--bad", "main")
    before = run_git(repository, "status", "--porcelain")
    found = answer(*ends, "--", sys.executable, "-c", test)
    assert found["exit_code"] == 0
    assert found["inside"] is not None
    assert found["inside"].endswith("Merge side")
    assert found["culprits"][0].split()[0] == run_git(repository, "rev-parse", "--short", "side")
    assert run_git(repository, "status", "--porcelain") == before
    assert "Set 1" in found["changes"][0]["name"]
    assert run_git(repository, "worktree", "list").count("\n") == 0


def test_a_merge_whose_sides_do_not_go_together_is_the_culprit_itself(repository: Path) -> None:
    test = "import pathlib,sys;sys.exit(pathlib.Path('side').exists() and pathlib.Path('value').read_text()!='1')"
    found = answer("--repo", repository, "--good", "first", "--bad", "main", "--", sys.executable, "-c", test)
    assert found["exit_code"] == 0
    assert found["culprits"][0].endswith("Merge side")
    assert any("do not go together" in note for note in found["notes"])


def test_the_budget_of_tests_is_that_of_all_ladders_together(repository: Path) -> None:
    test = "import pathlib,sys;p=pathlib.Path('side');sys.exit(p.exists() and p.read_text()=='y')"
    ends = ("--repo", repository, "--good", "first", "--bad", "main")
    for budget in (8, 10, 12):
        found = answer(*ends, "--max-tests", budget, "--", sys.executable, "-c", test)
        assert found["tests"] <= budget


@pytest.mark.parametrize("environment", ["current", "project:."])  # of a folder that is not a package
def test_both_sides_can_be_run_again_by_copy_and_paste(
    environment: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(repository, "4")
    monkeypatch.chdir(repository)
    monkeypatch.setenv("PATH", sysconfig.get_path("scripts"), prepend=os.pathsep)  # uv
    test = "import pathlib,sys;sys.exit(pathlib.Path('value').read_text()>='4')"
    ends = ("--repo", ".", "--good", "first", "--bad", "main", "--environment", environment)
    found = answer(*ends, "--", sys.executable, "-c", test)
    for side in (found["before"], found["after"]):
        for _ in range(2):
            variables = {**os.environ, "TMPDIR": str(tmp_path)}
            done = subprocess.run(["sh", "-c", side["reproduce"]], capture_output=True, env=variables, check=False)
            assert done.returncode == (0 if side["answers"] == "good" else 1), done.stderr
    assert run_git(repository, "worktree", "list").count("\n") == 0
    assert not list(tmp_path.glob("tmp.*"))


def test_a_metric_is_measured_beside_the_good_end(tmp_path: Path) -> None:
    counter = tmp_path / "count"
    text = (  # the machine becomes slower and slower
        f"import pathlib; p = pathlib.Path({str(counter)!r})\n"
        "runs = int(p.read_text()) if p.exists() else 0; p.write_text(str(runs + 1))\n"
        "print(f'time={1.05 ** runs * (1.5 if n >= 13 else 1) * random.gauss(1, 0.01)}')"
    )
    found = answer("--rungs", rungs(tmp_path), "--metric", "time", *program(tmp_path, text))
    assert (found["exit_code"], found["culprits"]) == (0, ["n013"])
    assert all(0.8 < probe["value"] / probe["beside"] < 1.7 for probe in found["probes"])
    assert {probe["against"] for probe in found["probes"]} == {0, 12}  # the good end, then the rung before the culprit
    drawn = {place["name"]: median(place["values"]) for place in found["places"] if place["values"]}
    assert drawn["n019"] / drawn["n000"] == pytest.approx(1.5, abs=0.15)


@pytest.mark.slow
def test_a_machine_too_loud_ends_with_four(tmp_path: Path) -> None:
    test = program(tmp_path, "print(f'time={random.lognormvariate(0, 1) * (1.1 if n >= 13 else 1)}')")
    options = ("--rungs", rungs(tmp_path), "--metric", "time")
    answers = [answer(*options, "--max-tests", most, *test) for most in (80, 81)]  # each may err once in a hundred
    found = min(answers, key=lambda found: found["probability"])
    assert found["exit_code"] == 4
    assert found["kind"] in ("too_loud", "budget_out")
    assert found["probability"] < 0.99


@pytest.mark.parametrize(("failing", "end"), [("n == 0", "good"), ("n == 19", "bad")])
def test_an_end_that_is_never_measured_is_named_though_it_runs_beside_the_other(
    failing: str, end: str, tmp_path: Path
) -> None:
    test = program(tmp_path, f"print('' if {failing} else 'time=1')")
    found = answer("--rungs", rungs(tmp_path), "--metric", "time", *test)
    assert (found["exit_code"], found["kind"]) == (4, "unbuildable")
    assert f"The {end} end cannot be tested" in found["message"]


STEP = "import jax, jax.numpy as np; jax.jit(lambda x: {formula})(np.ones((64, 64))).block_until_ready()"


@pytest.mark.slow
def test_explaining_compares_captures_of_both_sides_or_sums_up_the_only_one(tmp_path: Path) -> None:
    here = PreparedEnvironment(name="current", kind="current")
    programs = [[sys.executable, "-c", STEP.format(formula=formula)] for formula in ("x + 1", "x @ x + 1")]
    sides = [(name, here, program) for name, program in zip(("old", "new"), programs, strict=True)]
    compared, hlo = explain(sides, tmp_path / "both", 120, print)
    assert compared.startswith("nightjar-profiling diff ")
    assert "<string>:1" in compared
    assert "&lt;string&gt;" in (tmp_path / "both" / "diff" / "difference.html").read_text()
    assert "1 dot f32[64,64]" in hlo
    told, summed, _ = explain([("old", here, [sys.executable, "-c", ""]), sides[1]], tmp_path / "one", 120, print)
    assert told.startswith("old was not captured: exit code 4:")
    assert summed.startswith("nightjar-profiling summary ")


def test_a_training_of_a_preset_is_explained_by_its_first_line_that_differs(tmp_path: Path) -> None:
    explains = '#!/bin/sh\n[ "$1" = explain ] && echo "{\\"text\\": \\"layers.py:70 $*\\"}" && exit 1; exit 0\n'
    write_programs(tmp_path, {"nightjar-models": explains})
    here = PreparedEnvironment(name="uv:a", kind="uv", bin_dir=tmp_path, interpreter=find_current())
    before = replace(here, interpreter=replace(find_current(), executable=tmp_path / "python"))
    command = ["nightjar-models", "train", "gpt_tiny", "--set", "model.layers=1", "--out", "{out}"]
    sides = [("old", before, command), ("new", here, command)]
    (line,) = find_line(sides, tmp_path / "both", print)
    assert line == f"layers.py:70 explain gpt_tiny --set model.layers=1 --against python={tmp_path}/python --json"
    write_programs(tmp_path, {"nightjar-models": "#!/bin/sh\nexit 3\n"})
    (none,) = find_line(sides, tmp_path / "none", print)
    assert none.startswith("No line was found: exit code 3")
    assert find_line([sides[1], sides[1]], tmp_path / "same", print) == []


def test_a_line_is_looked_for_unasked_if_the_numbers_of_a_preset_decide() -> None:
    question = Question(
        ladder={}, command=("nightjar-models", "train", "gpt_tiny"), classifier={"like": "cell/convergence"}, files={},
        environment="current", executor="local", timeout_s=9.0,
    )  # fmt: skip
    assert is_of_numbers(question)
    assert is_of_numbers(question.model_copy(update={"classifier": {"metric": "loss"}}))
    for classifier in ({"like": "cell/facts"}, {"metric": "step_time"}, {"exit_code": ""}):
        assert not is_of_numbers(question.model_copy(update={"classifier": classifier}))
    for changes in ({"command": ("python", "train.py")}, {"executor": "slurm"}):
        assert not is_of_numbers(question.model_copy(update=changes))


@pytest.mark.slow
def test_two_changes_are_said_to_be_two_and_each_is_explained_with_its_page(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiler = (  # captures nothing, and says what it was asked
        '#!/bin/sh\n[ "$1" = capture ] && { mkdir -p "$3"; echo "$NIGHTJAR_RUNG" > "$3/rung"; exit; }\n'
        'echo "from $(cat "$2/rung") to $(cat "$3/rung")"; echo page > "$5"\n'
    )
    write_programs(tmp_path, {"nightjar-profiling": profiler})
    monkeypatch.setattr("nightjar_ci.bisect.result.explain.find_profiler", lambda: f"{tmp_path}/nightjar-profiling")
    text = "print(f'time={random.gauss(1 if n < 5 else 9 if n < 14 else 3, 0.01)}')"
    options = ("--metric", "time", "--explain", "--rungs", rungs(tmp_path))
    found = answer(*options, *program(tmp_path, text))
    assert (found["exit_code"], found["kind"]) == (0, "two_changes")
    assert (found["culprits"], found["second"]) == (["n005"], ["n014"])
    assert [round(float(level)) for level in found["effect"].partition(",")[0].split(" -> ")] == [1, 9, 3]
    sides = [found[side]["name"] for side in ("before", "after", "second_before", "second_after")]
    assert sides[1::2] == [*found["culprits"], *found["second"]]
    assert all(found[f"second_{side}"]["name"] in found[f"second_{side}"]["reproduce"] for side in ("before", "after"))
    told = "\n".join(found["explained"])
    assert "Change 1, from n004 to n005:" in told
    assert "Change 2, from n013 to n014:" in told
    assert told.index("from n004 to n005\n") < told.index("Change 2") < told.index("from n013 to n014\n")
    page = next(state.glob("bisections/*/report.html"))
    assert found["pages"] == ["explain/diff/difference.html", "explain-2/diff/difference.html"]
    assert all((page.parent / one).is_file() and f'href="{one}"' in page.read_text() for one in found["pages"])


@pytest.mark.slow
def test_what_a_bisection_says_of_its_work_counts_both_sides_of_a_pair(tmp_path: Path) -> None:
    test = program(tmp_path, "print(f'x={1 + (n >= 13)}')")
    found = answer("--rungs", rungs(tmp_path), "--prepare", "true", "--metric", "x", *test)
    touched = {probe["rung"] for probe in found["probes"]} | {probe["against"] for probe in found["probes"]}
    assert found["builds"] == len(touched)
    assert all(probe["test_s"] > 0 and (probe["build_s"] > 0) == bool(probe["builds"]) for probe in found["probes"])
