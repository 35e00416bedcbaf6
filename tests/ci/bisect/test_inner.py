"""Bisections that go on inside of what they found, and ends that are not known."""

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.bisect.ladders.inner import Sources, make_inner_ladder
from nightjar_ci.bisect.ladders.rung import Ladder, Rung
from nightjar_ci.bisect.options.choose_ladder import parse_sources
from nightjar_ci.bisect.probing.rung_run import find_good_end
from nightjar_ci.errors import InputError
from nightjar_ci.settings import read_settings
from tests.ci.bisect.ladders.test_commits import commit, repository, run_git
from tests.ci.bisect.test_command import answer, bisect, program, rungs
from tests.machine import asks

__all__ = ["repository"]


def releases(*versions: str) -> Ladder:
    return Ladder(
        rungs=tuple(
            Rung(kind="packages", name=f"demo {version}", pins={"demo": version, "other": "7"}) for version in versions
        )
    )


def test_a_release_opens_into_the_commits_between_its_tags(repository: Path) -> None:
    settings = read_settings()
    run_git(repository, "tag", "v1.0", "first")
    run_git(repository, "tag", "demo-v1.1", "main")
    lines: list[str] = []
    sources = Sources(settings=settings, repositories=parse_sources((f"Demo={repository}",)))
    inner = make_inner_ladder(releases("1.0", "1.1"), 1, sources, lines.append)
    assert isinstance(inner, Ladder)
    assert (inner.package, inner.repository) == ("demo", str(repository))
    assert [rung.name.partition(" ")[2] for rung in inner.rungs] == ["Set 1", "Set 2", "Merge side", "Set 3"]
    assert all(rung.pins == {"other": "7"} for rung in inner.rungs)
    reason = make_inner_ladder(releases("1.0", "2.0"), 1, sources, lines.append)
    assert isinstance(reason, str)
    assert "no tag of demo 2.0" in reason
    assert make_inner_ladder(releases("1.0", "1.1"), 1, Sources(settings=settings), lines.append) is None


@pytest.mark.parametrize("option", ["jax", "=x", "jax="])
def test_a_source_is_a_name_and_an_address(option: str) -> None:
    with pytest.raises(InputError, match="NAME=FOLDER_OR_ADDRESS"):
        parse_sources((option,))


@given(st.integers(2, 5000), st.integers(1, 4999), st.sets(st.integers(0, 4999)))
def test_a_good_end_is_found_wherever_it_is_or_is_not(n_rungs: int, culprit: int, broken: set[int]) -> None:
    tested: list[int] = []

    def read(rung: int) -> str:
        tested.append(rung)
        return "cannot_tell" if rung in broken else "good" if rung < culprit else "bad"

    found = find_good_end(n_rungs, read)  # type: ignore[arg-type]
    if found is None:
        assert 0 in tested
        assert not any(read(rung) == "good" for rung in list(tested))
    else:
        assert read(found) == "good"
        assert n_rungs - 1 - found <= 4 * max(1, n_rungs - culprit) + 2 * len(broken)


def test_only_the_bad_end_is_named(repository: Path, tmp_path: Path) -> None:
    for value in range(4, 40):
        commit(repository, str(value))
    test = tmp_path / "test.py"
    test.write_text("import pathlib, sys; sys.exit(int(pathlib.Path('value').read_text()) >= 30)")
    found = answer("--repo", repository, "--bad", "main", "--deterministic", "--", "python", test)
    assert (found["exit_code"], found["culprits"][0].partition(" ")[2]) == (0, "Set 30")
    assert len(found["places"]) < 20, "the ladder begins at the good end that was found"
    nowhere = answer_error("--repo", repository, "--bad", "first~0", "--", "false")
    assert "the same commit" in nowhere
    mended = ("--repo", repository, "--bad", "main", "--", "test", "-e", tmp_path / "mended")
    nothing = answer_error(*mended)
    assert "no good end was found" in nothing
    assert "/ends has logs" in nothing
    assert run_git(repository, "worktree", "list").count("\n") == 0
    (tmp_path / "mended").write_text("")
    assert bisect(*mended).returncode == 4, "the same call tests again"
    assert "--good is missing" in answer_error("--repo", repository, "--bad", "main", "--metric", "x", "--", "true")


def answer_error(*arguments: object) -> str:
    done = bisect(*arguments)
    assert done.returncode == 2, done.stderr
    return done.stderr


@asks("git")
def test_submodules_are_as_each_commit_records_them(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("COUNT", "1"), ("KEY_0", "protocol.file.allow"), ("VALUE_0", "always")):
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    outer = tmp_path / "outer"
    outer.mkdir()
    run_git(outer, "init", "-q", "-b", "main")
    run_git(outer, "submodule", "--quiet", "add", str(repository), "inner")
    for revision in ("first", "merged", "main"):
        run_git(outer / "inner", "checkout", "-q", run_git(repository, "rev-parse", revision))
        commit(outer, revision)
    test = tmp_path / "test.py"
    test.write_text("import pathlib, sys; sys.exit(int(pathlib.Path('inner/value').read_text()) >= 2)")
    ends = ("--good", "main~2", "--bad", "main")
    found = answer("--repo", outer, *ends, "--deterministic", "--", "python", test)
    assert (found["exit_code"], found["culprits"][0].partition(" ")[2]) == (0, "Set merged")
    assert not list((tmp_path / "state").rglob("tree")), "worktrees with submodules are removed, too"
    run_git(outer, "config", "--remove-section", "submodule.inner")
    config = (outer / ".git/config").read_text()
    done = subprocess.run(["sh", "-c", found["after"]["reproduce"]], capture_output=True, check=False)
    assert (done.returncode, (outer / ".git/config").read_text()) == (1, config), done.stderr
    run_git(outer, "remote", "add", "origin", "git@github.com:someone/outer.git")
    again = answer("--repo", outer, *ends, "--deterministic", "--", "python", test)
    assert "git clone --quiet https://github.com/someone/outer " in again["after"]["reproduce"]
    assert str(outer) not in again["after"]["reproduce"]
    assert any(line.startswith("submodule inner: ") for change in found["changes"] for line in change["details"])


def test_a_fix_that_the_other_branch_lacks_is_named(repository: Path, tmp_path: Path) -> None:
    run_git(repository, "switch", "-q", "-c", "release", "first")
    for name in ("fix-1", "fix-2", "fix-3"):
        (repository / name).write_text("")
        run_git(repository, "add", "-A")
        run_git(repository, "commit", "-q", "-m", name)
    test = tmp_path / "test.py"
    test.write_text("import pathlib, sys; sys.exit(not pathlib.Path('fix-2').exists())")
    ends = ("--good", "release", "--bad", "main")
    found = answer("--repo", repository, *ends, "--deterministic", "--", "python", test)
    assert found["exit_code"] == 0
    assert "leaving out" in found["title"]
    assert found["title"].partition(", which")[0].endswith("fix-2")
    assert found["effect"].startswith("0 of 2 before, ")
    assert [change["name"].rpartition(" ")[2] for change in found["changes"]] == ["fix-2"]


def test_an_end_that_cannot_be_tested_says_why(repository: Path, tmp_path: Path) -> None:
    ends = ("--repo", repository, "--good", "first", "--bad", "main")
    found = answer(*ends, "--failure", "never", "--", "python", "-c", "import sys; sys.exit('no room')")
    assert (found["exit_code"], found["kind"]) == (4, "unbuildable")
    assert any("no output like 'never'" in note for note in found["notes"])
    found = answer(*ends, "--", "python", tmp_path / "misspelt.py")
    assert (found["exit_code"], found["kind"]) == (4, "unbuildable")
    assert any("misspelt.py" in note for note in found["notes"])
    assert {place["probability"] for place in found["places"]} == {None}


def test_another_failure_is_not_the_one_that_is_looked_for(tmp_path: Path) -> None:
    text = """
if 7 <= n < 12: sys.exit("ConnectionError: the index is down")
if n >= 12: os.abort() if n % 2 else sys.exit("ValueError: shapes differ")
"""
    test = program(tmp_path, text.replace("os.abort()", "[print('ValueError: x', flush=True), os.abort()]"))
    found = answer("--rungs", rungs(tmp_path), "--failure", "ValueError", "--deterministic", *test)
    assert found["exit_code"] == 0
    assert (found["culprits"][0], found["culprits"][-1]) == ("n007", "n012")
    skipped = [probe["why"] for probe in found["probes"] if probe["outcome"] == "cannot_tell"]
    assert skipped
    assert all(re.match(r"another failure: exit code 1, and no output like 'ValueError'", why) for why in skipped)
    assert "not a valid regular expression" in answer_error("--rungs", rungs(tmp_path), "--failure", "(", "--", "true")


def test_the_time_is_spent(tmp_path: Path) -> None:
    test = program(tmp_path, "import time; time.sleep(0.5); sys.exit(n >= 13)")
    found = answer("--rungs", rungs(tmp_path), "--workers", "1", "--max-minutes", "0.02", *test)
    assert (found["exit_code"], found["kind"]) == (4, "budget_out")
    assert found["message"].startswith("Not found within 0.02 minutes.")
    assert found["tests"] < 5
    more = answer("--rungs", rungs(tmp_path), "--workers", "1", *test)
    assert (more["exit_code"], more["culprits"]) == (0, ["n013"])
    assert more["probes"][0] == found["probes"][0], "it goes on with what was seen"
