"""Ladders of commits of several repositories: what is pinned moves right before what pins it, the rest by time."""

import sys
from pathlib import Path

import pytest

from nightjar_ci.bisect.ladders.inner import Sources, make_inner_ladder
from nightjar_ci.bisect.ladders.rung import Ladder
from nightjar_ci.bisect.ladders.several import Pin, complete_ends, make_merged_ladder, read_pin
from nightjar_ci.errors import InputError
from nightjar_ci.settings import read_settings
from tests.ci.bisect.ladders.test_commits import run_git
from tests.ci.bisect.test_command import answer, bisect
from tests.machine import asks

DAY = "2026-11-{day:02d}T00:00:00Z"


def commit(folder: Path, subject: str, day: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("GIT_COMMITTER_DATE", DAY.format(day=day))
    (folder / subject).write_text(subject)
    run_git(folder, "add", "-A")
    run_git(folder, "commit", "-q", "-m", subject)
    return run_git(folder, "rev-parse", "HEAD")


@pytest.fixture
@asks("git")
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """`app` a0..a3 of the days 2, 4, 6, 9 and `lib` b0..b4 of the days 1, 3, 5, 7, 8; a1 and a3 pin b0 and b3."""
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "protocol.file.allow")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "always")
    folders = {name: tmp_path / name for name in ("app", "lib")}
    for folder in folders.values():
        folder.mkdir()
        run_git(folder, "init", "-q", "-b", "main")
    shas = [commit(folders["lib"], f"b{number}", day, monkeypatch) for number, day in enumerate((1, 3, 5, 7, 8))]
    for number, (day, pinned) in enumerate(((2, 0), (4, 0), (6, 0), (9, 3))):
        (folders["app"] / "pin").write_text(f'LIB = "{shas[pinned]}"\nSHA256 = "{"0" * 64}"\n')
        commit(folders["app"], f"a{number}", day, monkeypatch)
        run_git(folders["app"], "tag", f"a{number}")
    return folders


def ends(folders: dict[str, Path], *pins: Pin, **revisions: str) -> dict[str, str]:
    return complete_ends(folders, pins, revisions, "--good")


def subjects(ladder: Ladder) -> list[str]:
    return [rung.name.rpartition(" ")[2] for rung in ladder.rungs]


PIN = Pin(holder="app", path="pin")


def test_without_a_pin_commits_are_in_the_order_of_their_times(folders: dict[str, Path]) -> None:
    old, new = ends(folders, app="a0", lib="main~4"), ends(folders, app="main", lib="main")
    ladder = make_merged_ladder(folders, [], old, new)
    assert subjects(ladder) == ["b0", "b1", "a1", "b2", "a2", "b3", "b4", "a3"]
    assert ladder.rungs[-1].commits == new
    assert (
        ladder.rungs[2].source
        == f"app={run_git(folders['app'], 'rev-parse', 'a1')},lib={ladder.rungs[1].commits['lib']}"
    )


def test_what_a_commit_pins_moves_right_before_it(folders: dict[str, Path]) -> None:
    old, new = ends(folders, PIN, app="a0"), ends(folders, PIN, app="main")
    ladder = make_merged_ladder(folders, [PIN], old, new)
    assert subjects(ladder) == ["b0", "a1", "a2", "b1", "b2", "b3", "a3"]
    heads = ends(folders, PIN, app="main", lib="main")
    ladder = make_merged_ladder(folders, [PIN], old, heads)
    assert subjects(ladder) == ["b0", "a1", "a2", "b1", "b2", "b3", "a3", "b4"]


def test_a_pin_that_goes_back_for_a_while_is_not_followed(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = folders["app"]
    (app / "pin").write_text((app / "pin").read_text().replace("LIB", "OLD"))
    run_git(app, "checkout", "-q", "a0", "--", "pin")
    commit(app, "a4", 10, monkeypatch)
    run_git(app, "checkout", "-q", "a3", "--", "pin")
    commit(app, "a5", 11, monkeypatch)
    old, new = ends(folders, PIN, app="a0"), ends(folders, PIN, app="main")
    ladder = make_merged_ladder(folders, [PIN], old, new)
    assert subjects(ladder) == ["b0", "a1", "a2", "b1", "b2", "b3", "a3", "a4", "a5"]


def test_a_good_end_that_is_not_known_is_looked_for_in_all_histories(folders: dict[str, Path]) -> None:
    repositories = [word for name, folder in folders.items() for word in ("--repo", f"{name}={folder}")]
    code = "import pathlib; raise SystemExit(pathlib.Path('lib/b1').exists())"
    found = answer(*repositories, "--bad", "app=main", "--pin", "app:pin", "--", sys.executable, "-c", code)
    assert [name.split()[0::2] for name in found["culprits"]] == [["lib", "b1"]], found["stderr"]


def test_a_repository_that_goes_back_is_undone_commit_by_commit_first(folders: dict[str, Path]) -> None:
    old, new = ends(folders, app="a0", lib="main~1"), ends(folders, app="a1", lib="main~3")
    ladder = make_merged_ladder(folders, [], old, new)
    assert subjects(ladder) == ["b3", "b2", "b1", "a1"]
    assert (ladder.rungs[1].undone or "").startswith("lib ")


def test_an_end_that_is_neither_named_nor_pinned_is_said(folders: dict[str, Path]) -> None:
    with pytest.raises(InputError, match="no commit of lib is named or pinned"):
        ends(folders, app="a0")
    with pytest.raises(InputError, match=r"--pin app:pins: at .*, there is no such file"):
        ends(folders, Pin(holder="app", path="pins"), app="a0")
    assert read_pin(folders["app"], "a0", "pins") == ((), False)
    with pytest.raises(InputError, match="it names no commit of another repository"):
        ends(folders, Pin(holder="app", path="a0"), app="a0")


def test_a_pin_that_says_nothing_is_an_error_and_not_ignored(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = ends(folders, app="a0", lib="main~4"), ends(folders, app="main", lib="main")
    pins = [Pin(holder="app", path="pins")]
    with pytest.raises(InputError, match="names no commit of another repository"):
        make_merged_ladder(folders, pins, old, new)
    (folders["app"] / "pin").write_text("5" * 40)
    commit(folders["app"], "a4", 10, monkeypatch)
    with pytest.raises(InputError, match="names no commit of another repository"):
        ends(folders, PIN, app="main")


def test_pins_in_a_circle_are_refused(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    (folders["lib"] / "back").write_text(run_git(folders["app"], "rev-parse", "a0"))
    commit(folders["lib"], "b5", 10, monkeypatch)
    pins = [PIN, Pin(holder="lib", path="back")]
    old, new = ends(folders, *pins, app="a0"), ends(folders, *pins, app="main", lib="main")
    with pytest.raises(InputError, match=r"the pins go in a circle: (app -> lib -> app|lib -> app -> lib)"):
        make_merged_ladder(folders, pins, old, new)


def test_a_merge_in_one_repository_opens_into_the_commits_of_its_branch(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    lib = folders["lib"]
    run_git(lib, "switch", "-q", "-c", "side", "main~1")
    for number in (1, 2):
        commit(lib, f"s{number}", 9 + number, monkeypatch)
    run_git(lib, "switch", "-q", "main")
    run_git(lib, "merge", "-q", "--no-ff", "-m", "merge", "side")
    old, new = ends(folders, app="a2", lib="main~1"), ends(folders, app="main", lib="main")
    ladder = make_merged_ladder(folders, [], old, new)
    inner = make_inner_ladder(ladder, subjects(ladder).index("merge"), Sources(settings=read_settings()), print)
    assert isinstance(inner, Ladder)
    assert subjects(inner) == ["b3", "s1", "s2"]
    assert {rung.commits["app"] for rung in inner.rungs} == {new["app"]}


def test_the_command_names_the_repository_and_its_commit(folders: dict[str, Path]) -> None:
    code = "import pathlib; raise SystemExit(pathlib.Path('lib/b2').exists() and pathlib.Path('app/a1').exists())"
    repositories = [word for name, folder in folders.items() for word in ("--repo", f"{name}={folder}")]
    found = answer(
        *repositories, "--pin", "app:pin", "--pin", "app:pin/", "--good", "app=a0", "--bad", "app=main",
        "--deterministic", "--", sys.executable, "-c", code,
    )  # fmt: skip
    assert found["exit_code"] == 0, found["stderr"]
    assert found["culprits"] == [f"lib {run_git(folders['lib'], 'rev-parse', '--short', 'main~2')} b2"]
    assert [change["name"] for change in found["changes"]] == found["culprits"]
    for folder in folders.values():
        assert len(run_git(folder, "worktree", "list").splitlines()) == 1


def test_a_submodule_is_checked_out_at_the_commit_of_the_rung(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, lib = folders["app"], folders["lib"]
    run_git(app, "submodule", "--quiet", "add", str(lib), "deps/lib")
    for number, pinned in ((4, "main~4"), (5, "main")):
        run_git(app / "deps" / "lib", "checkout", "-q", run_git(lib, "rev-parse", pinned))
        commit(app, f"a{number}", 10 + number, monkeypatch)
    code = "import pathlib; raise SystemExit(pathlib.Path('app/deps/lib/b3').exists())"
    found = answer(
        "--repo", f"app={app}", "--repo", f"lib={lib}", "--pin", "app:deps/lib", "--good", "app=main~1",
        "--bad", "app=main", "--workers", 1, "--", sys.executable, "-c", code,
    )  # fmt: skip
    assert [name.split()[0::2] for name in found["culprits"]] == [["lib", "b3"]], found["stderr"]
    assert " submodule " not in found["before"]["reproduce"]
    assert run_git(lib, "remote") == ""


def test_nothing_is_checked_out_or_removed_behind_a_link_of_a_commit(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, lib, outside = folders["app"], folders["lib"], tmp_path / "outside"
    (outside / "lib").mkdir(parents=True)
    (outside / "lib" / "mine").write_text("kept")
    run_git(app, "submodule", "--quiet", "add", str(lib), "deps/lib")
    commit(app, "a4", 14, monkeypatch)
    run_git(app, "mv", "deps", "other")
    (app / "deps").symlink_to(outside)
    commit(app, "a5", 15, monkeypatch)
    run_git(app, "rm", "-q", "--cached", "deps")
    (app / "deps").unlink()
    run_git(app, "mv", "other", "deps")
    run_git(app / "deps" / "lib", "checkout", "-q", run_git(lib, "rev-parse", "main~1"))
    commit(app, "a6", 16, monkeypatch)
    found = answer(
        "--repo", f"app={app}", "--repo", f"lib={lib}", "--pin", "app:deps/lib", "--good", "app=main~2", "--bad",
        "app=main", "--good", "lib=main", "--bad", "lib=main", "--workers", 1, "--", sys.executable, "-c",
        "import pathlib; raise SystemExit(pathlib.Path('app/a6').exists())",
    )  # fmt: skip
    assert [file.name for file in (outside / "lib").iterdir()] == ["mine"], found["stderr"]
    assert "deps/lib is behind a link" in found["stderr"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--repo", "app", "--repo", "lib"), "'app' is not NAME=FOLDER_OR_ADDRESS"),
        (("--repo", "app=app", "--repo", "../lib=lib"), "'../lib' is not the name of a folder"),
        (("--repo", "app=app", "--repo", "app=lib"), "'app' is named twice"),
        (("--repo", "app=app", "--repo", "lib=lib", "--pin", "xla:pin"), "'xla' is not a --repo"),
        (("--repo", "app=app", "--repo", "lib=lib", "--pin", "app:../pin"), "is not a path in a repository"),
        (("--repo", "app", "--pin", "app:pin"), "--pin is for several repositories"),
        (("--images", "x/y", "--pin", "app:pin"), "--pin is for a ladder of commits"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], problem: str
) -> None:
    monkeypatch.chdir(folders["app"].parent)
    done = bisect(*options, "--good", "app=a0", "--bad", "app=main", "--", "true")
    assert (done.returncode, problem in done.stderr) == (2, True), done.stderr
