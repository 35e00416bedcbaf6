"""docs/reference/versions.md: it names every format of the code, and says what the readers do with another number."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import noxfile

ROOT = noxfile.ROOT
PAGE = (ROOT / "docs" / "reference" / "versions.md").read_text()
FORMAT = re.compile(r"\bnightjar\.[a-z-]+/\d+\b")


def test_the_page_names_every_format_of_the_packages_with_its_number() -> None:
    sources = [
        path
        for package in noxfile.PACKAGES
        for path in (ROOT / package / f"nightjar_{package}").rglob("*")
        if path.suffix in (".py", ".toml", ".j2", ".js")
    ]
    written = {name for path in sources for name in FORMAT.findall(path.read_text())}
    assert len(written) > 10
    assert set(FORMAT.findall(PAGE)) == written


def test_the_packages_have_one_version_number() -> None:
    files = [ROOT / "pyproject.toml", *(ROOT / package / "pyproject.toml" for package in (*noxfile.PACKAGES, "meta"))]
    (version,) = {tomllib.loads(path.read_text())["project"]["version"] for path in files}
    dependencies = tomllib.loads((ROOT / "meta" / "pyproject.toml").read_text())["project"]["dependencies"]
    assert dependencies == [f"nightjar-{package}=={version}" for package in noxfile.PACKAGES]


@pytest.mark.parametrize(("number", "hint"), [(0, "that wrote it"), (2, "Hint: upgrade nightjar-")])
def test_readers_refuse_an_older_and_a_newer_number_with_exit_code_2(tmp_path: Path, number: int, hint: str) -> None:
    (tmp_path / "matrix.toml").write_text(f'schema = "nightjar.matrix/{number}"\n')
    (tmp_path / "profile.json").write_text(json.dumps({"schema": f"nightjar.profile/{number}"}))
    run = ["nightjar_ci", "run", str(tmp_path / "matrix.toml"), "--dry-run"]
    for command in (run, ["nightjar_profiling", "summary", str(tmp_path)]):
        done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert hint in done.stderr
