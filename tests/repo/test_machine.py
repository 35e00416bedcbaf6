"""Parts of a machine that are lacking or there by half: one reason, with what brings the part, and a skip."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import machine
from tests.broken import HANGS, REFUSES
from tests.machine import PARTS, find_lack
from tests.places import ROOT
from tests.stand_ins import put_on_path, render_path, write_programs

WORKS = "#!/bin/sh\necho 1.9.3\n"


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    find_lack.cache_clear()
    machine.find_chromium.cache_clear()
    yield
    find_lack.cache_clear()
    machine.find_chromium.cache_clear()


@pytest.mark.parametrize("text", [REFUSES, HANGS, "not a program"], ids=["refuses", "hangs", "is damaged"])
@pytest.mark.parametrize("part", [name for name, part in PARTS.items() if part.programs and part.on != ("slurm",)])
def test_a_part_whose_programs_do_not_work_is_lacking_and_what_brings_it_is_named(
    part: str, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put_on_path(monkeypatch, tmp_path / "bin", dict.fromkeys(PARTS[part].programs, text))
    (tmp_path / "bin").chmod(0o755)
    if text == HANGS:
        monkeypatch.setattr(machine, "PROBE_S", 0.3)
    lack = find_lack(part)
    assert lack is not None
    if part in lack.partition(":")[0]:  # and not what it needs, which is looked at first
        assert lack.endswith(f". Hint: {PARTS[part].brought_by}")


def test_a_part_that_is_not_asked_for_is_hidden_and_what_an_asked_one_needs_is_not(tmp_path: Path) -> None:
    def hidden(*asked: str) -> set[str]:
        folders = map(Path, render_path(asked, "/usr/bin").split(os.pathsep)[:-1])
        return {program.name for folder in folders for program in folder.iterdir()}

    assert {"docker", "chromium", "initdb", "nsys", "sbatch", "skopeo"} <= hidden()
    assert hidden() - hidden("docker") == {"docker"}
    assert not {"git", "g++"} & hidden()  # Nightjar itself looks for them everywhere


TESTS = """
import subprocess
import pytest
from tests.machine import asks

def run(): return subprocess.run(["skopeo", "--version"], capture_output=True, text=True)

@pytest.fixture(scope="module")
@asks("skopeo")
def version():
    yield run().stdout
    assert run().returncode == 0, "the end of a module's fixture has what the fixture asked for"

@pytest.mark.skopeo
def test_marked(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere", prepend=":")
    assert run().returncode == 0

def test_through_a_fixture(version):
    assert version == "1.9.3\\n"

def test_unasked(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere", prepend=":")
    done = run()
    assert done.returncode == 0, done.stderr
"""


def run_tests(folder: Path, skopeo: str, *options: str) -> tuple[int, str]:
    write_programs(folder / "bin", {"skopeo": skopeo})
    (folder / "test_it.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:randomly", "-ra", *options]
    path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
    environ = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    environ = {name: value for name, value in environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_a_test_has_what_it_asks_for_and_fails_on_every_machine_where_it_does_not_ask(tmp_path: Path) -> None:
    code, said = run_tests(tmp_path, WORKS)
    assert code == 1
    assert "this test does not ask for the part 'skopeo'" in said
    assert "1 failed, 2 passed in" in said  # and no error at the end of the fixture


def test_a_skip_on_a_machine_that_is_said_to_be_whole_is_a_failure(tmp_path: Path) -> None:
    code, said = run_tests(tmp_path, REFUSES, "--whole-machine", "--deselect", "test_it.py::test_unasked")
    assert code == 1
    assert "2 errors" in said
    assert "--whole-machine says that this is there" in said
