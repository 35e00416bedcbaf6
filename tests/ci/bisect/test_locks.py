"""From two lock files to the release that changed a test, through the command line, uv and an index on loopback."""

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ci.bisect.test_command import answer, bisect
from tests.ci.jax_nightly.wheels import serve, write_wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two packages that move and one that does not; moving 1.3 made the level 3."""
    levels = {"moving": (1, 1, 1, 3, 3), "other": (0, 0), "steady": (0, 1, 2)}
    for major, (name, of_releases) in enumerate(levels.items(), start=1):
        for minor, level in enumerate(of_releases):
            files = {f"{name}.py": f"level = {level}\n"}
            write_wheel(tmp_path / "index", name, f"{major}.{minor}", "py3-none-any", "", files)
    with serve(tmp_path / "index") as served:
        for name in [name for name in os.environ if name.startswith(("UV_", "PIP_"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("UV_INDEX_URL", served)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
        monkeypatch.setenv("PATH", sysconfig.get_path("scripts"), prepend=os.pathsep)  # uv
        yield


def locks(tmp_path: Path, good: str, bad: str) -> tuple[str, ...]:
    """Options that name two lock files; `1.0 2.0` are the versions of what moves."""
    options: list[str] = []
    for option, versions in (("--good", good), ("--bad", bad)):
        moving, other = versions.split()
        path = tmp_path / f"{option[2:]}.txt"
        path.with_suffix(".in").write_text(f"moving=={moving} \\\n    --hash=sha256:00\n", encoding="utf-8")
        path.write_text(f"# by a resolver\n-r {path.stem}.in\nother=={other}\nsteady==3.1\n", encoding="utf-8")
        options += [option, str(path)]
    return tuple(options)


TEST = ("--", "python", "-c", "import moving, other, steady; raise SystemExit(moving.level > 2 or steady.level != 1)")


@pytest.mark.parametrize(("good", "bad", "find"), [("1.0 2.0", "1.4 2.1", "regression"), ("1.4 2.1", "1.0 2.0", "fix")])
def test_packages_that_differ_in_two_lock_files_are_bisected_and_the_others_stay(
    good: str, bad: str, find: str, index: None, tmp_path: Path
) -> None:
    text = TEST[-1].replace("moving.level > 2", f"(moving.level > 2) == {find == 'regression'}")
    found = answer(*locks(tmp_path, good, bad), "--deterministic", *TEST[:-1], text)
    assert (found["exit_code"], found["kind"], found["find"]) == (0, "culprit", find), found
    assert "moving 1.3" in found["culprits"][0]
    assert [(change["name"], change["old"], change["new"]) for change in found["changes"]] == [("moving", "1.2", "1.3")]
    made = [path.read_text(encoding="utf-8") for path in tmp_path.glob("state/bisections/*/stage0/*/requirements.txt")]
    assert len(made) == found["builds"]
    assert all("steady==3.1" in text for text in made)


def test_an_edited_file_is_another_question_and_no_other_rung(
    index: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTJAR_SANDBOX", "off")  # the test edits what it is made from
    text = "import pathlib, mylib, moving; mylib.edit(pathlib.Path(WHEEL)); raise SystemExit(moving.level > 2)"
    ends = ("--good", "moving==1.0", "--bad", "moving==1.4", "--deterministic", "--workers", "1")
    found = []
    for edit in ("path.exists()", "path.write_bytes(b'')"):
        wheel = write_wheel(tmp_path, "mylib", "1", "py3-none-any", "", {"mylib.py": f"edit = lambda path: {edit}"})
        found.append(answer(*ends, "--with", str(wheel), "--", "python", "-c", text.replace("WHEEL", repr(str(wheel)))))
    assert [each["kind"] for each in found] == ["culprit", "unbuildable"]
    assert f"{wheel} was edited since the bisection began" in str(found[1]["notes"])


def test_lock_files_that_cannot_be_bisected_are_refused(index: None, tmp_path: Path) -> None:
    same = bisect(*locks(tmp_path, "1.0 2.0", "1.0 2.0"), *TEST)
    assert same.returncode == 2
    assert "the same versions" in same.stderr
    ends = locks(tmp_path, "1.0 2.0", "1.4 2.1")
    alone = bisect(*ends[:2], *TEST)
    assert alone.returncode == 2
    assert "none of the ladders is named" in alone.stderr
    gone = bisect(*locks(tmp_path, "1.0 2.0", "1.9 2.1"), *TEST)
    assert gone.returncode in (2, 3)
    assert "moving" in gone.stderr
    Path(ends[1]).write_text("moving>=1\n", encoding="utf-8")
    loose = bisect(*ends, *TEST)
    assert loose.returncode == 2
    assert "no NAME==VERSION" in loose.stderr
