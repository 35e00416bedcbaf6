"""The changelog and the files that GitHub reads: fragments are rendered, and every path in them exists."""

import subprocess
import sys
import tomllib

import yaml

import noxfile

ROOT = noxfile.ROOT
FOLDER = ROOT / "changelog.d"
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]


def test_every_fragment_is_named_after_an_issue_or_a_subject_and_a_kind() -> None:
    kinds = {kind["directory"] for kind in SETTINGS["type"]}
    for path in FOLDER.iterdir():
        if path.name != "README.md":
            subject, kind, suffix = path.name.split(".")
            assert subject.isdigit() or subject.startswith("+"), path.name
            assert kind in kinds, path.name
            assert suffix == "md", path.name


def test_the_draft_of_the_changelog_holds_every_fragment() -> None:
    command = [sys.executable, "-m", "towncrier", "build", "--draft"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for path in FOLDER.glob("*.*.md"):
        assert path.read_text().splitlines()[0] in done.stdout, path.name


def test_the_changelog_has_the_line_that_releases_are_put_behind() -> None:
    assert "<!-- towncrier release notes start -->" in (ROOT / "CHANGELOG.md").read_text()


def test_every_path_with_an_owner_exists() -> None:
    lines = (ROOT / ".github" / "CODEOWNERS").read_text().splitlines()
    owned = [line.split()[0] for line in lines if line and not line.startswith("#")]
    assert owned[0] == "*"
    assert [path for path in owned[1:] if not (ROOT / path.lstrip("/")).exists()] == []


def test_dependabot_looks_where_actions_and_locks_are() -> None:
    updates = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())["updates"]
    folders = {update["package-ecosystem"]: set(update["directories"]) for update in updates}
    actions = {f"/{path.parent.relative_to(ROOT)}" for path in (ROOT / ".github" / "actions").glob("*/action.yml")}
    locks = {f"/{path.parent.relative_to(ROOT)}" for path in (ROOT / "docker" / "locks").rglob("*.txt")}
    assert folders == {"github-actions": {"/", *actions}, "pip": locks}  # "/" stands for .github/workflows
