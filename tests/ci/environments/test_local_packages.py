"""Packages of this machine in uv environments: what was edited is tested, and what was tested is recorded."""

import json
import os
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nightjar_ci.cli import main
from nightjar_ci.environments.local_requirements import parse_local
from nightjar_ci.environments.prepare import PreparedEnvironment, parse_environment, prepare
from nightjar_ci.environments.uv import STAMP
from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.formats.night_folder import read_night
from tests.called import call
from tests.ci.local_project import commit_all, edit, git, imported, log_builds, write_project
from tests.places import ROOT

pytestmark = pytest.mark.sandbox


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory; the user stands in an empty virtual environment."""
    work = tmp_path / "work"
    work.mkdir()
    venv.create(tmp_path / "venv", symlinks=True)
    monkeypatch.chdir(work)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "venv"))
    log_builds(tmp_path, monkeypatch)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return work


@pytest.fixture
def mylib(here: Path) -> Path:
    return write_project(here / "mylib")


def builds(here: Path) -> int:
    return len((here.parent / "log" / "builds").read_text().splitlines())


def build_wheel(project: Path, folder: Path) -> None:
    made = "import sys; sys.path.insert(0, '.'); import backend; backend.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", made, folder], cwd=project, check=True)


def same_environment(first: PreparedEnvironment, second: PreparedEnvironment) -> bool:
    return first.bin_dir == second.bin_dir


FORMS = ("./mylib", "{here}/mylib", "mylib @ file://{here}/mylib", "mylib @ ./mylib", "-e ./mylib")
LINES = ("./mylib", "-e ./mylib", "mylib @ file://{here}/mylib", "-r inner/more.txt", "./mylib  # why")


@pytest.mark.parametrize(("form", "line"), [*((form, "") for form in FORMS), *(("lock.txt", line) for line in LINES)])
def test_a_package_that_was_edited_is_tested_as_it_is_now(here: Path, mylib: Path, form: str, line: str) -> None:
    (here / "inner").mkdir()
    (here / "inner" / "more.txt").write_text("./mylib\n")
    (here / "lock.txt").write_text(line.format(here=here) + "\n")
    environment = "uv:" + form.format(here=here)
    first = prepare(environment)
    assert imported(first) == "old"
    edit(mylib, "new")
    assert imported(prepare(environment)) == "new"
    edit(mylib, "old")
    assert same_environment(prepare(environment), first)
    assert builds(here) == 2


def test_an_untouched_package_is_not_built_again(here: Path, mylib: Path) -> None:
    first = prepare("uv:./mylib")
    (mylib / "src" / "mylib" / "__init__.py").touch()
    (mylib / "src" / "mylib" / "__pycache__").mkdir()
    (mylib / "src" / "mylib" / "__pycache__" / "x.pyc").write_text("")
    (mylib / "mylib.egg-info").mkdir()
    (mylib / "mylib.egg-info" / "PKG-INFO").write_text("")
    venv.create(mylib / "env", symlinks=True)
    assert same_environment(prepare("uv:./mylib"), first)
    assert builds(here) == 1


def test_nightjars_own_files_in_a_project_are_no_edit(here: Path, mylib: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mylib)
    monkeypatch.setenv("NIGHTJAR_STATE_DIR", "state")
    first = prepare("uv:.")
    (mylib / "night" / "jobs").mkdir(parents=True)
    (mylib / "night" / "night.json").write_text("{}")
    assert same_environment(prepare("uv:."), first)
    assert builds(here) == 1


def test_in_a_work_tree_git_says_what_counts(here: Path, mylib: Path) -> None:
    (mylib / ".gitignore").write_text("*.log\n")
    commit_all(mylib)
    first = prepare("uv:./mylib")
    (mylib / "run.log").write_text("ignored")
    commit_all(mylib)  # the same contents under another commit
    assert same_environment(prepare("uv:./mylib"), first)
    assert builds(here) == 1
    (mylib / "src" / "mylib" / "more.py").write_text("")  # neither tracked nor ignored
    second = prepare("uv:./mylib")
    (mylib / "src" / "mylib" / "more.py").chmod(0o755)
    third = prepare("uv:./mylib")
    (mylib / "src" / "mylib" / "more.py").unlink()
    assert len({one.bin_dir for one in (first, second, third)}) == 3
    assert same_environment(prepare("uv:./mylib"), first)


@pytest.mark.parametrize("how", ["submodule", "repository", "link", "ignored"])
def test_code_that_lies_in_another_tree_counts(here: Path, mylib: Path, how: str) -> None:
    other = here / "other"
    (other / "inner").mkdir(parents=True)
    (other / "inner" / "__init__.py").write_text("X = 'old'\n")
    commit_all(other)
    if how == "submodule":
        git(mylib, "init", "--quiet")
        git(mylib, "submodule", "--quiet", "add", str(other), "src/mylib/inner_tree")
        place = mylib / "src" / "mylib" / "inner_tree"
    elif how == "repository":
        place = mylib / "src" / "mylib" / "inner_tree"
        git(here, "clone", "--quiet", str(other), str(place))
    elif how == "link":
        (mylib / "src" / "mylib" / "inner_tree").symlink_to(other)
        place = other
    else:
        commit_all(here)
        (here / ".gitignore").write_text("/mylib/\n")
        git(here, "rm", "--quiet", "-r", "--cached", "mylib")
        place = mylib / "src" / "mylib"
        (place / "inner").mkdir()
    if how in ("submodule", "link"):
        commit_all(mylib)
    first = prepare("uv:./mylib")
    (place / "inner" / "__init__.py").write_text("X = 'new'\n")
    second = prepare("uv:./mylib")
    assert not same_environment(first, second)


def test_a_wheel_of_the_same_name_and_other_contents_is_installed(here: Path, mylib: Path) -> None:
    environment = "uv:./mylib-0.1-py3-none-any.whl"
    build_wheel(mylib, here)
    assert imported(prepare(environment)) == "old"
    edit(mylib, "new")
    build_wheel(mylib, here)
    made = prepare(environment)
    assert imported(made) == "new"
    assert made.local_packages[0].path == str(here / "mylib-0.1-py3-none-any.whl")


@pytest.mark.parametrize("source", ['path = "../base"', "workspace = true"])
def test_a_dependency_from_another_folder_or_of_the_same_workspace_is_tested_as_it_is_now(
    here: Path, source: str
) -> None:
    root = here / "all"
    write_project(root / "base", "base")
    write_project(root / "mylib", dependencies=("base",), extra=f"[tool.uv.sources]\nbase = {{ {source} }}\n")
    if source == "workspace = true":
        (root / "pyproject.toml").write_text('[tool.uv.workspace]\nmembers = ["base", "mylib"]\n')
    assert imported(prepare("uv:./all/mylib"), "base.X") == "old"
    edit(root / "base", "new", "base")
    made = prepare("uv:./all/mylib")
    assert imported(made, "base.X") == "new"
    assert [package.name for package in made.local_packages] == ["base", "mylib"]


def test_a_version_that_git_makes_is_made_again_after_a_commit(here: Path, mylib: Path) -> None:
    project = mylib / "pyproject.toml"
    project.write_text(project.read_text().replace('version = "0.1"', 'dynamic = ["version"]'))
    commit_all(mylib)
    first = prepare("uv:./mylib")
    assert same_environment(prepare("uv:./mylib"), first)
    commit_all(mylib)
    assert not same_environment(prepare("uv:./mylib"), first)


def test_a_folder_in_the_current_environment_is_installed_as_it_is_now(here: Path, mylib: Path) -> None:
    current = [os.environ["VIRTUAL_ENV"] + "/bin/python", str(mylib)]
    subprocess.run(["uv", "pip", "install", "--quiet", "--python", *current], check=True)
    write_project(here / "other", "other")
    assert imported(prepare("uv:./other")) == "old"
    edit(mylib, "new")
    assert imported(prepare("uv:./other")) == "new"
    assert imported(prepare("current")) == "old"
    assert [(package.name, package.sha256) for package in prepare("current").local_packages] == [("mylib", None)]


def test_processes_that_want_one_environment_build_it_once(here: Path, mylib: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from nightjar_ci.environments.prepare import *; print(prepare('uv:./mylib').bin_dir)",
    ]
    root = ROOT / "ci"

    def make(_: int) -> str:
        environ = {**os.environ, "PYTHONPATH": str(root)}
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout

    with ThreadPoolExecutor(3) as pool:
        made = set(pool.map(make, range(3)))
    assert len(made) == 1
    assert builds(here) == 1


def test_a_package_that_is_edited_while_it_is_built_is_built_again(here: Path, mylib: Path) -> None:
    backend = mylib / "backend.py"
    backend.write_text(backend.read_text() + "pathlib.Path('src/mylib/made.py').write_text('')\n")  # as hatch-vcs does
    assert imported(prepare("uv:./mylib")) == "old"
    backend.write_text(backend.read_text() + "pathlib.Path('src/mylib/made.py').write_text(os.urandom(8).hex())\n")
    with pytest.raises(EnvironmentFailedError, match="source folders changed during each of"):
        prepare("uv:./mylib")


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ("./absent", "absent does not exist"),
        ("-e ./empty", "does not say its name in pyproject.toml"),
        ("mylib @ ./absent", "Distribution not found at: file:"),
        ("./mylib-1.whl", "does not exist"),
        ("./" + "x" * 300, "is not a path"),
        ("~nobody-of-that-name/package", "is not a path"),
    ],
)
def test_a_path_without_a_package_is_told(here: Path, form: str, problem: str) -> None:
    (here / "empty").mkdir()
    with pytest.raises(EnvironmentFailedError, match=problem):
        prepare(f"uv:{form}")


def test_a_wheel_of_a_folder_that_a_lock_finds_links_in_is_installed_as_it_is_now(here: Path, mylib: Path) -> None:
    (here / "lock.txt").write_text("--no-index\n--find-links wheels\nmylib==0.1\n")
    (here / "wheels").mkdir()
    seen = []
    for value in ("old", "new"):
        edit(mylib, value)
        build_wheel(mylib, here / "wheels")
        seen.append(imported(prepare("uv:lock.txt")))
    assert seen == ["old", "new"]


def test_folders_that_link_to_each_other_are_read_once(here: Path, mylib: Path) -> None:
    (here / "data").mkdir()
    (here / "data" / "back").symlink_to(mylib)
    (mylib / "data").symlink_to(here / "data")
    (mylib / "all").symlink_to(here)
    assert same_environment(prepare("uv:./mylib"), prepare("uv:./mylib"))


def test_a_plain_name_is_a_package_of_the_index_though_a_folder_has_it(here: Path, mylib: Path) -> None:
    assert parse_environment("uv:mylib") == ("uv", "mylib")
    assert parse_local("mylib") is None


def test_the_night_records_version_contents_and_commit(here: Path, mylib: Path) -> None:
    sha = commit_all(mylib)
    edit(mylib, "new")
    matrix = here / "m.toml"
    matrix.write_text(
        'schema = "nightjar.matrix/1"\nname = "small"\n[[job]]\nname = "say"\nenvironment = "uv:./mylib"\n'
        """command = ["python", "-c", "import mylib; print(f'x={{mylib.X}} 1'); print('loss 1')"]\n"""
        """adapter = { format = "log", pattern = '(?P<name>loss) (?P<loss>\\\\d)', curve = [{ field = "loss" }] }\n"""
    )
    night = here / "night"
    done = call(main, "run", matrix, "--out", night)
    assert (night / "jobs" / "say" / "stdout.log").read_text().startswith("x=new"), done.stderr
    outcome = read_night(night).jobs[0]
    (package,) = outcome.local_packages
    assert (package.name, package.version, package.path) == ("mylib", "0.1", str(mylib))
    assert package.git is not None
    assert (package.git.sha, package.git.dirty) == (sha, True)
    assert package.sha256 is not None
    assert outcome.python is not None
    stamp = json.loads((Path(outcome.python).parents[1] / STAMP).read_text())
    assert stamp["sources"]["mylib"]["digest"] == package.sha256


@pytest.mark.slow
def test_a_deleted_module_is_not_in_the_wheel_of_setuptools(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UV_OFFLINE")
    project = here / "mylib"
    package = project / "src" / "mylib"
    package.mkdir(parents=True)
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools>=77"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "mylib"\nversion = "0.1"\n'
    )
    (package / "__init__.py").write_text("X = 'old'\n")
    (package / "gone.py").write_text("")
    assert imported(prepare("uv:./mylib")) == "old"
    (package / "gone.py").unlink()
    edit(project, "new")
    os.utime(package / "__init__.py", (0, 0))  # older than what was built, as a file that was moved here
    made = prepare("uv:./mylib")
    assert imported(made) == "new"
    assert imported(made, "importlib.util.find_spec('mylib.gone')") == "None"
    assert not (project / "build").exists()
    assert same_environment(prepare("uv:./mylib"), made)


def test_a_file_that_takes_our_own_output_is_no_part_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1"\n')
    code = (
        "import sys\nfrom pathlib import Path\nfrom nightjar_ci.environments.sources import read_source\n"
        "for _ in range(2):\n    print(read_source(Path(sys.argv[1])).digest, flush=True)"
    )
    with (tmp_path / "out.txt").open("w") as out:
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], stdout=out, check=True)
    first, second = (tmp_path / "out.txt").read_text().split()
    assert first == second
