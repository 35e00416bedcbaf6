"""Who is asked: the owners in CODEOWNERS of what changed."""

from pathlib import Path

import pytest

from nightjar_ci.causes.owners import find_asked, find_owners, read_rules
from tests.ci.bisect.ladders.test_commits import commit, run_git
from tests.machine import asks

RULES = """# comment
*              @org/all
*.md           @org/docs   # trailing
/src/          @org/src @lead
src/*          @org/top
apps/          @org/apps
/src/free
"""


@pytest.fixture
def rules_folder(tmp_path: Path) -> Path:
    (tmp_path / ".github").mkdir()
    (tmp_path / ".github" / "CODEOWNERS").write_text(RULES)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "owners"),
    [
        ("setup.py", ("@org/all",)),
        ("a/b/c.md", ("@org/docs",)),
        ("src/deep/x.py", ("@org/src", "@lead")),
        ("src/x.py", ("@org/top",)),
        ("lib/src/x.py", ("@org/all",)),
        ("lib/apps/x.py", ("@org/apps",)),
        ("src/free", ()),
    ],
)
def test_the_last_line_that_matches_decides(rules_folder: Path, path: str, owners: tuple[str, ...]) -> None:
    assert find_owners(read_rules(rules_folder), [path]) == owners


def test_without_such_a_file_nobody_is_asked(tmp_path: Path) -> None:
    assert find_asked(tmp_path, None, tmp_path / "policies.toml") == ()


@asks("git")
def test_the_owners_of_the_changed_files_are_asked_else_those_of_the_policies(rules_folder: Path) -> None:
    run_git(rules_folder, "init", "-q", "-b", "main")
    commit(rules_folder, "1")
    before = run_git(rules_folder, "rev-parse", "HEAD")
    (rules_folder / "a.md").write_text("x")
    (rules_folder / "b.md").write_text("x")
    (rules_folder / "c.py").write_text("x")
    commit(rules_folder, "1")
    after = run_git(rules_folder, "rev-parse", "HEAD")
    policies = rules_folder / "apps" / "policies.toml"
    assert find_asked(rules_folder, (before, after), policies) == ("@org/docs", "@org/all")
    assert find_asked(rules_folder, None, policies) == ("@org/apps",)
    assert find_asked(rules_folder, ("f" * 40, "e" * 40), policies) == ("@org/apps",)
    assert find_asked(rules_folder, ("--output=/tmp/x", "HEAD"), policies) == ("@org/apps",)


def test_the_three_that_own_most_of_the_files_are_asked(rules_folder: Path) -> None:
    text = "\n".join(f"/{name}/ @{name}" for name in "abcd")
    (rules_folder / ".github" / "CODEOWNERS").write_text(f"{text}\n")
    paths = [f"{name}/{number}" for count, name in enumerate("abcd", 1) for number in range(count)]
    assert find_owners(read_rules(rules_folder), paths) == ("@d", "@c", "@b")
