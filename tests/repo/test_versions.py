"""Versions: docs/reference/versions.md names every format, and a package declares all that it imports."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


# Distributions whose modules have another name.
DISTRIBUTIONS = {"PIL": "pillow", "google": "protobuf", "sklearn": "scikit-learn", "orbax": "orbax-checkpoint"}
DISTRIBUTIONS |= {"backports": "backports-zstd", "pydantic_core": "pydantic"}
ELSEWHERE = {"canaries", "conformance", "ecosystem", "hook"}  # run in another environment: of a cell, of a program


def read_imports(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


# Of Python 3.14, of whoever loads our plugin of pytest, of JAX, Grain and extras.
GIVEN = {"compression", "pytest", "absl", "array_record", "ml_dtypes", "nvidia", "transformer_engine"}


@pytest.mark.parametrize("package", noxfile.PACKAGES)
def test_a_package_imports_nothing_that_it_does_not_declare(package: str) -> None:
    project = tomllib.loads((ROOT / package / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *chain.from_iterable(project.get("optional-dependencies", {}).values())]
    declared = {canonicalize_name(Requirement(line).name) for line in lines}
    files = [path for path in (ROOT / package / f"nightjar_{package}").rglob("*.py") if not ELSEWHERE & {*path.parts}]
    imported = set().union(*map(read_imports, files)) - {"", *sys.stdlib_module_names, *GIVEN, f"nightjar_{package}"}
    assert {name for name in imported if canonicalize_name(DISTRIBUTIONS.get(name, name)) not in declared} == set()
