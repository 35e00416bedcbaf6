"""Which packages an environment gets, and what is said where it cannot be made."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.environments.installed import freeze
from nightjar_ci.environments.prepare import Environments, parse_environment, prepare
from nightjar_ci.environments.run_uv import explain_failure, find_index
from nightjar_ci.environments.uv import fit_lines, override, parse_requirements
from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.settings import read_settings
from tests.ci.jax_nightly.wheels import serve, write_wheel
from tests.stand_ins import write_programs

SAID = """error: No solution found when resolving dependencies
  cause: Because flax==0.12.8 depends on jax>=0.10.0 and you require flax==0.12.8, we can conclude that you require
         jax>=0.10.0.
         And because you require jax==0.8.0, we can conclude that your requirements are unsatisfiable.
"""
BOUND = """  cause: Because lib==1 depends on jax>=0.4.20,<0.5.0 and you require jax==0.12.0.1, we can conclude that
         your requirements and lib==1 are incompatible."""
OTHER_PYTHON = """error: No solution found when resolving dependencies
  cause: Because the current Python version (3.11.7) does not satisfy Python>=3.12 and jax==0.12.0.1 depends on
         Python>=3.12, we can conclude that jax==0.12.0.1 cannot be used.
"""


def distribution(folder: Path, name: str, version: str, origin: object = None) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if origin is not None:
        (info / "direct_url.json").write_text(json.dumps(origin))


def test_freeze_tells_pins_folders_and_commits_apart(tmp_path: Path) -> None:
    distribution(tmp_path / "a", "Num_Py", "2.0")
    distribution(tmp_path / "a", "own", "1", {"url": "file:///src/o%20wn", "dir_info": {"editable": True}})
    distribution(
        tmp_path / "a", "forked", "3", {"url": "https://x/y.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    )
    archive = {"url": "https://x/y.zip", "subdirectory": "libs/part", "archive_info": {}}
    distribution(tmp_path / "a", "part", "1", archive)
    distribution(tmp_path / "b", "num-py", "1.0")  # shadowed
    frozen = freeze(importlib.metadata.distributions(path=[str(tmp_path / "a"), str(tmp_path / "b")]))
    part = "part @ https://x/y.zip#subdirectory=libs/part"
    assert frozen.pins == {"num-py": "num-py==2.0", "forked": "forked @ git+https://x/y.git@abc", "part": part}
    assert frozen.folders == {"own": (Path("/src/o wn"), True)}


def test_this_environment_freezes_with_the_own_packages_as_folders() -> None:
    frozen = freeze()
    assert "nightjar-ci" in frozen.folders
    assert frozen.pins["pydantic"] == f"pydantic=={importlib.metadata.version('pydantic')}"


def test_jax_takes_its_jaxlib_and_plugins_along() -> None:
    pins = {name: f"{name}==2" for name in ("jax", "jaxlib", "jax-cuda12-pjrt", "numpy")}
    assert override(pins, parse_requirements("jax==1")) == ["jax==1", "jax-cuda12-pjrt==1", "jaxlib==1", "numpy==2"]
    assert override(pins, parse_requirements("jax==1,jaxlib==1.1"))[2] == "jaxlib==1.1"
    assert override(pins, parse_requirements("jax>=1"))[1:3] == ["jax-cuda12-pjrt", "jaxlib"]


@given(st.dictionaries(st.from_regex("[a-z]{1,5}", fullmatch=True), st.integers(0, 99).map(str), min_size=1))
def test_what_is_not_named_keeps_its_version(versions: dict[str, str]) -> None:
    pins = {name: f"{name}=={version}" for name, version in versions.items()}
    named = sorted(pins)[0]
    others = [pins[name] for name in sorted(pins)[1:]]
    assert [one for one in override(pins, parse_requirements(f"{named}==100")) if one != f"{named}==100"] == [
        *others,
        *(["jaxlib==100"] if named == "jax" else []),
    ]


@pytest.mark.parametrize(
    ("said", "message", "hint"),
    [
        (
            SAID,
            "flax==0.12.8 requires jax>=0.10.0: `uv pip` exited with 1:",
            "if flax is yours, change its bound; else choose",
        ),
        ("Because there is no version of x==9 and you require x==9", "there is no x==9: ", "is the version right"),
        (BOUND, "lib==1 requires jax>=0.4.20,<0.5.0: `uv pip` exited", "if lib is yours, change its bound"),
        ("Because you require a==1 and a==2, we can conclude that", "the environment cannot", "both are asked for"),
        ("fatal error: a.h\n\nhint: you need a library with `a.h`\n", "", "you need a library with `a.h`"),
        (OTHER_PYTHON, "", "jax==0.12.0.1 needs Python>=3.12: run this in an environment with such a Python"),
        ("error: Failed to fetch: te", "", "can this machine reach the package index?"),
        ("error: Failed to download `https://x/python-build-standalone/y`", "", "put that Python's folder on PATH"),
        ("error: operation timed out", "", "can this machine reach the package index?"),
        ("error: HTTP status 503", "", "can this machine reach the package index?"),
        ("error: the build of te and networkx failed", "the environment cannot be made: ", None),
    ],
)
def test_a_failure_of_uv_is_explained(said: str, message: str, hint: str | None) -> None:
    error = explain_failure("uv:x==1", ("uv", "pip"), 1, said)
    assert error.exit_code == 3
    assert error.message.startswith(f"uv:x==1: {message}")
    assert (error.hint or "").startswith(hint or "")
    assert (error.hint is None) == (hint is None)


@pytest.mark.parametrize(
    "name", ["", "uv", "uv:", "image:", "image:--privileged", "image:a b", "currant", "uv:jax=1", "conda:x"]
)
def test_an_unknown_environment_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"expected (current|image)|not a list of requirements"):
        parse_environment(name)
    with pytest.raises(EnvironmentFailedError):
        prepare(name)


def test_the_current_environment_puts_its_commands_first() -> None:
    environment = prepare("current")
    assert environment.entered({"PATH": "/usr/bin"})["PATH"] == f"{Path(sys.executable).parent}:/usr/bin"


def test_an_image_needs_no_preparation() -> None:
    assert prepare("image:nightjar/jax:cpu").image == "nightjar/jax:cpu"


FAKE_UV = f"""#!{sys.executable}
import os, pathlib, sys, venv
with open(os.environ["UV_FAKE_LOG"], "a") as file:
    print(*sys.argv[1:], "UV_COMPILE_BYTECODE", os.environ.get("UV_COMPILE_BYTECODE"), file=file)
if sys.argv[1] == "venv":
    venv.create(sys.argv[-1], symlinks=True)
elif os.environ.get("UV_FAKE_FAILS"):
    sys.exit("Because flax==1 depends on jax>=2, it fails")
elif "compile" in sys.argv:
    print("[[packages]]", "name = 'jaxlib'", "version = '0.1'", sep=chr(10))
"""


@pytest.fixture
def uv_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake uv, the only one; the file of its calls."""
    write_programs(tmp_path / "bin", {"uv": FAKE_UV})
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path / "bin"))
    monkeypatch.setenv("NIGHTJAR_SANDBOX", "off")  # it writes where uv would not
    monkeypatch.setenv("UV_FAKE_LOG", str(tmp_path / "uv.log"))
    monkeypatch.setenv("NIGHTJAR_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "uv.log"


def test_an_environment_is_made_once(uv_log: Path) -> None:
    said: list[str] = []
    first = prepare("uv:jax==0.1", on_line=said.append)
    made = uv_log.read_text()
    assert prepare("uv:jax==0.1").bin_dir == first.bin_dir
    assert uv_log.read_text() == made
    assert first.bin_dir is not None
    assert "\njaxlib==0.1\n" in (first.bin_dir.parent / "requirements.txt").read_text()
    assert said[0].startswith("making the environment uv:jax==0.1 (once)")
    assert "--no-deps" in made.splitlines()[-1]
    assert prepare("uv:jax==0.2").bin_dir != first.bin_dir


def test_only_what_is_imported_is_compiled(uv_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_COMPILE_BYTECODE", "1")
    (tmp_path / "lock.txt").write_text("# nothing\n")
    for text in (f"uv:{tmp_path}/lock.txt", "uv:jax==0.1"):
        uv_log.write_text("")
        said: list[str] = []
        prepare(text, on_line=said.append)
        calls = [line for line in uv_log.read_text().splitlines() if " install " in line]
        assert [line.endswith(" UV_COMPILE_BYTECODE 0") for line in calls] == [True, True]
        assert said[-1].startswith(f"made the environment {text} in ")


def test_an_environment_that_failed_half_way_is_made_anew(uv_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_FAKE_FAILS", "1")
    with pytest.raises(EnvironmentFailedError, match="exited with 1"):
        prepare("uv:jax==0.1")
    monkeypatch.delenv("UV_FAKE_FAILS")
    prepare("uv:jax==0.1")
    assert [line.split()[0] for line in uv_log.read_text().splitlines()] == ["venv", "pip", "venv", "pip", "pip", "pip"]


def test_a_night_does_not_try_a_failed_environment_twice(uv_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_FAKE_FAILS", "1")
    environments = Environments(read_settings())
    for _ in range(2):
        with pytest.raises(EnvironmentFailedError, match=r"uv:jax==0\.1"):
            environments.get("uv:jax==0.1")
    assert [line.split()[0] for line in uv_log.read_text().splitlines()] == ["venv", "pip"]


def test_a_machine_without_uv_is_told_so(uv_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (uv_log.parent / "bin" / "uv").unlink()
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    monkeypatch.setenv("PATH", str(uv_log.parent))
    with pytest.raises(EnvironmentFailedError, match="uv is not on PATH") as caught:
        prepare("uv:jax==0.1")
    assert caught.value.hint == "pip install uv"


def test_a_home_that_cannot_be_written_names_the_switch(uv_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTJAR_CACHE_DIR", "/proc/none")
    monkeypatch.setattr("nightjar_ci.environments.run_uv.open_sandbox", lambda *_: object())
    with pytest.raises(EnvironmentFailedError, match=r"uv:jax==0\.1: /proc/none/uv/.*: No such file") as caught:
        prepare("uv:jax==0.1")
    assert caught.value.hint == "NIGHTJAR_CACHE_DIR names a folder that can be written"


def test_uv_tells_the_index_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://packages.example/all")
    assert find_index() == "https://packages.example/all"
    monkeypatch.delenv("UV_DEFAULT_INDEX")
    assert find_index().startswith(("https://", "http://", "file://"))


@pytest.mark.slow
def test_a_real_environment_has_the_other_version_and_our_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTJAR_STATE_DIR", str(tmp_path / "state"))
    environment = prepare("uv:humanize==4.9.0")
    assert environment.bin_dir is not None
    program = (
        "import humanize, nightjar_ci, importlib.metadata as m; print(m.version('humanize'), m.version('pydantic'))"
    )
    done = subprocess.run(
        ["python", "-c", program], env=environment.entered(os.environ), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["4.9.0", importlib.metadata.version("pydantic")]


def test_the_packages_of_a_release_follow_the_project_where_it_requires_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in (("core", "1.0"), ("core", "2.0"), ("other", "1.0"), ("other", "2.0"), ("new", "1.0")):
        write_wheel(tmp_path / "index", name, version, "py3-none-any", "", {})
    project = tmp_path / "demo"
    project.mkdir()
    about = '[project]\nname = "demo"\nversion = "3"\ndependencies = [{}]\n'
    lines = ["core==1.0", "other==1.0"]
    with serve(tmp_path / "index") as index:
        monkeypatch.setenv("UV_DEFAULT_INDEX", index)
        for required, fitted in {
            '"core"': lines,
            '"core", "new"': ["core==1.0", "new==1.0", "other==1.0"],
            '"core==2.0"': ["core==2.0", "other==1.0"],  # as pydantic requires one version of pydantic-core
        }.items():
            (project / "pyproject.toml").write_text(about.format(required))
            assert fit_lines("demo", lines, "demo", project) == fitted
        (project / "pyproject.toml").write_text(about.format('"core==9"'))
        with pytest.raises(EnvironmentFailedError, match="core==9"):
            fit_lines("demo", lines, "demo", project)
