"""The contents of a project that can run every night.

In: a folder. Out: a `Project`: its tests, its benchmarks, its training scripts, the environment of its tests, and its
CI. Nothing is run and nothing is written.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePath
from typing import Any

from nightjar_ci.environments.declared import read_declared
from nightjar_ci.environments.sources import get_list, get_table, read_text
from nightjar_ci.errors import InputError
from nightjar_ci.formats.documents import read_toml
from nightjar_ci.projects.pytest_config import PytestConfig, read_pytest_config
from nightjar_ci.projects.requirements import choose_environment, read_names

_TEST_FOLDERS = ("tests", "test", "testing")
_BENCHMARK_FOLDERS = ("benchmarks", "benchmark", "bench")
# Small and pure: installed for a test that imports one inside a function.
_ON_JAX = ("flax", "haiku", "equinox", "optax", "chex")
_JAX = ("jax", "jaxlib", *_ON_JAX[:-1])
_SCRIPT = re.compile(r"(?:re)?train[\w-]*\.py|[\w-]+_train\.py|(?:fine_?tune|pretrain)[\w-]*\.py")
_TESTS = re.compile(r"^\s*(?:async )?def test|^class (?:Test\w*|\w+Tests?)\b", re.MULTILINE)
_MAIN = re.compile(r"^if __name__ == ['\"]__main__['\"]", re.MULTILINE)
_FIXTURES = {"benchmark": "pytest_benchmark", "mocker": "pytest_mock"}
_MOST_SCRIPTS = 5
_PURE_BACKENDS = ("hatchling", "flit", "setuptools", "poetry", "pdm", "uv_build")
_COMPILERS = ("pybind11", "nanobind", "cython", "numpy", "mypy", "cffi")
_SKIPPED = frozenset({"build", "dist", "node_modules", "site-packages", "third_party", "vendor", "venv", "env"})
MOST_FILES = 5000  # a project that keeps data as Python has more; the rest is not read


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """The contents of a project.

    Attributes:
        name: in job ids: letters, digits, `.`, `_` and `-`.
        tests: files and folders of tests; empty if pytest's own configuration names them.
        parallel: whether its tests support pytest-xdist.
        python: whether its command is `python -m pytest`, which imports the folder itself, or `pytest`.
        cwd: the folder to run tests in, if they name files from below the project's.
        ci: `github` or `gitlab`, if the folder shows it.
    """

    folder: Path
    name: str
    tests: tuple[str, ...] = ()
    n_test_files: int = 0
    parallel: bool = False
    benchmarks: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    environment: str = "current"
    python: bool = True
    cwd: str | None = None
    uses_jax: bool = False
    ci: str = "github"
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def trainings(self) -> tuple[str, ...]:
        """The scripts, unless there are tests or benchmarks to run."""
        if self.n_test_files or self.benchmarks:
            return ()
        return self.scripts


def look_at(folder: Path, variables: Sequence[str] = (), missing: Iterable[str] = ()) -> Project:
    """Looks at a project.

    Args:
        missing: modules that its tests lacked in an earlier run.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder.", "name the folder of a project, such as .")
    path = folder / "pyproject.toml"
    document = read_toml(path) if path.is_file() else {}
    declared = read_declared(folder)
    config = read_pytest_config(folder, document)
    files = list_python_files(folder)
    benchmarks = [path for path in files if _is_benchmark(path, folder)]
    tests = [path for path in files if _is_test(path, folder, config) and path not in benchmarks]
    tested = [*tests, *benchmarks, *(path for path in files if path.name == "conftest.py")]
    imports = set().union(*(read_imports(folder / path) for path in tested))
    imports |= set().union(*(read_all_imports(folder / path) for path in tested)) & set(_ON_JAX)
    uses_jax = _uses_jax(frozenset(read_names(get_list(declared, "dependencies"))), files, folder)
    for path in tested:  # plugins of pytest whose fixtures a test takes, as if they were imported
        text = read_text(folder / path)
        taken = (name for name in _FIXTURES if re.search(rf"def test_\w+\([^)]*\b{name}\b", text))
        imports |= {_FIXTURES[name] for name in taken}
    imports |= set(missing)
    scripts = tuple(_find_scripts(folder, files))
    if not tested:  # the scripts, and the modules next to them
        folders = {Path(script).parent for script in scripts}
        imports |= set().union(*(read_all_imports(folder / path) for path in files if path.parent in folders))
    environment, packages = choose_environment(folder, document, declared, config, imports, uses_jax=uses_jax)
    return Project(
        folder=folder,
        name=re.sub(r"[^A-Za-z0-9._-]+", "-", str(declared.get("name") or folder.resolve().name)).strip("-._").lower()
        or "project",
        tests=() if config.testpaths else tuple(_group(tests)),
        n_test_files=len(tests),
        parallel="pytest-xdist" in packages and "pytest-xdist" not in config.plugins,
        benchmarks=tuple(map(str, benchmarks)) if _has_tests_beside(benchmarks, tests) else tuple(_group(benchmarks)),
        scripts=scripts,
        environment=environment,
        python=not _is_compiled(folder, get_table(document, "build-system")),
        cwd=_find_cwd(folder, tests),
        uses_jax=uses_jax,
        ci="gitlab" if (folder / ".gitlab-ci.yml").is_file() and not (folder / ".github").is_dir() else "github",
        variables=_read_variables(variables),
    )


def _find_cwd(folder: Path, tests: Sequence[Path]) -> str | None:
    """The top folder of tests that open `../PATH`, where PATH is in the project's folder; else None."""
    for path in tests:
        text = read_text(folder / path)
        for name in [] if "__file__" in text else re.findall(r"""["']\.\./([\w./-]+\.\w+)["']""", text):
            if len(path.parts) > 1 and (folder / name).is_file() and not (folder.resolve().parent / name).exists():
                return path.parts[0]
    return None


def _is_compiled(folder: Path, build: Mapping[str, Any]) -> bool:
    """Whether building it may compile, so its folder cannot be imported directly."""
    backend = str(build.get("build-backend", "setuptools"))
    if not backend.startswith(_PURE_BACKENDS):
        return True
    if any(name.startswith(_COMPILERS) for name in read_names(get_list(build, "requires"))):
        return True
    return "ext_modules" in read_text(folder / "setup.py")


def _read_variables(words: Sequence[str]) -> Mapping[str, str]:
    variables = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"--env: {word!r} is not NAME=VALUE.", "expected for example --env JAX_PLATFORMS=cpu")
        variables[name] = value
    return variables


def _is_test(path: Path, folder: Path, config: PytestConfig) -> bool:
    """Whether a file has tests; among the files of a package, `test_util.py` mostly has none."""
    if not any(fnmatch(path.name, pattern) for pattern in config.patterns):
        return False
    if config.testpaths:
        return any(
            fnmatch(str(above), str(PurePath(testpath)))
            for testpath in config.testpaths
            for above in (path, *path.parents)
        )
    return any(part in _TEST_FOLDERS for part in path.parts[:-1]) or bool(_TESTS.search(read_text(folder / path)))


def _is_benchmark(path: Path, folder: Path) -> bool:
    """Whether a file has benchmarks of pytest-benchmark, whose functions take the fixture `benchmark`."""
    if not path.name.startswith(("test_", "bench_")) and not path.name.endswith("_test.py"):
        return False
    named = any(part in _BENCHMARK_FOLDERS for part in path.parts[:-1]) or "bench" in path.name
    return named and re.search(r"def test_\w+\([^)]*\bbenchmark\b", read_text(folder / path)) is not None


def _has_tests_beside(benchmarks: Sequence[Path], tests: Sequence[Path]) -> bool:
    groups = set(map(Path, _group(benchmarks)))
    return any(group in path.parents for group in groups for path in tests)


def _group(files: Sequence[Path]) -> Iterator[str]:
    """The test folders that hold some files: the outermost one named for tests, else the top folder or the file."""
    groups: dict[str, None] = {}
    for path in files:
        parts = path.parts[:-1]
        depth = next((n for n, part in enumerate(parts, 1) if part in (*_TEST_FOLDERS, *_BENCHMARK_FOLDERS)), None)
        if depth is None:
            depth = 2 if parts[:1] == ("src",) else 1
        groups[str(Path(*path.parts[:depth]))] = None
    yield from sorted(groups)


def _uses_jax(dependencies: frozenset[str], files: Sequence[Path], folder: Path) -> bool:
    if not dependencies.isdisjoint(_JAX):
        return True
    return any(
        "jax" in read_text(folder / path) and not read_all_imports(folder / path).isdisjoint(_JAX) for path in files
    )


def _find_scripts(folder: Path, files: Sequence[Path]) -> Iterator[str]:
    """Training programs, recognized by their name and by running something when called."""
    named = [path for path in files if _SCRIPT.fullmatch(path.name) and len(path.parts) <= 3]
    scripts = [path for path in named if _MAIN.search(read_text(folder / path)) or len(path.parts) == 1]
    yield from map(str, scripts[:_MOST_SCRIPTS])


def list_python_files(folder: Path) -> list[Path]:
    """The Python files of a project, relative to its folder, in order."""
    files: list[Path] = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith((".", "__pycache__"))
            and name not in _SKIPPED
            and not (Path(root, name) / "pyvenv.cfg").exists()
        )
        files += (Path(root, name).relative_to(folder) for name in sorted(names) if name.endswith(".py"))
        if len(files) >= MOST_FILES:
            break
    return files[:MOST_FILES]


def read_imports(path: Path) -> frozenset[str]:
    """The top modules that a file imports unconditionally, such as `jax` for `import jax.numpy`."""
    return frozenset(name.partition(".")[0] for name in _imported(_parse(path).body))


def read_all_imports(path: Path) -> frozenset[str]:
    """The top modules that a file imports anywhere, be it in a function or under a condition."""
    return frozenset(name.partition(".")[0] for name in _imported(ast.walk(_parse(path))))


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(read_text(path))
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module(body=[], type_ignores=[])


def _imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
