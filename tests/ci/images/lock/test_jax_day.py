"""Locks of a nightly day of JAX, resolved by uv from loopback indexes."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightjar_ci.cli import main
from nightjar_ci.images.lock.jax_day import FILE, NightlyDay, find_lock_day, read_nightly_day, render_labels
from tests.called import call
from tests.ci.images.lock.test_bump import FILES
from tests.ci.jax_nightly.wheels import digest, fill_day, fill_jax, serve, write_wheel

COMMIT = "c" * 40
EXTRAS = {
    "docker/locks/jax-cuda12.in": "-r jax-cpu.in\njax[cuda12]\n",
    "docker/locks/jax-cuda13.in": "-r jax-cpu.in\njax[cuda13]\n",
    **{
        f"docker/locks/{name}": "other\n"
        for cuda in ("12", "13")
        for name in (f"te-cuda{cuda}.in", f"te-cuda{cuda}-build.in", f"dali-cuda{cuda}.in")
    },
    "docker/versions.json": json.dumps(
        {
            "variable": {
                "DEBIAN_DAY": {"default": "20200101T000000Z"},
                "DEFAULT_PYTHON": {"default": "3.13"},
                "GROUND_FLOORS": {"default": {"3.12": "a", "3.13": "b"}},
            }
        }
    ),
    "docker/repositories.toml": 'schema = "nightjar.repositories/1"\nrepository = []\n',
    "docker/docker-bake.hcl": "",
}


class Machine:
    """A checkout locked to jax 1.0, a default index, and one of nightly wheels."""

    def __init__(self, root: Path, default: str, nightly: str, environ: dict[str, str]) -> None:
        self.root, self.default = root, default
        self.environ = {**environ, "UV_DEFAULT_INDEX": default, "NIGHTJAR_NIGHTLY_INDEX": nightly}

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return call(main, "images", *arguments, cwd=self.root, environ={**self.environ, **variables})

    def read_lock(self, name: str) -> str:
        return (self.root / f"docker/locks/{name}.txt").read_text()

    def read_files(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    default, nightly, root = (folder / name for name in ("default", "nightly", "checkout"))
    fill_jax(default, "1.0", "f" * 40, ("3.11", "3.12", "3.13"))
    for name in ("flax", "other"):
        write_wheel(default, name, "1.0", "py3-none-any", "Requires-Dist: jax\n" if name == "flax" else "", {})
    fill_day(nightly, "2026-11-19", "b" * 40)
    fill_day(nightly, "2026-11-20", COMMIT)
    for path, text in {**FILES, **EXTRAS}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for name in ("te-cuda12", "jax-cuda12"):
        (root / f"docker/locks/{name}.txt").unlink()
    with serve(default) as releases:
        done = Machine(root, releases, "", make_environ(folder)).run("bump")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def machine(template: Path, tmp_path: Path) -> Iterator[Machine]:
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    with serve(tmp_path / "default") as releases, serve(tmp_path / "nightly") as days:
        yield Machine(tmp_path / "checkout", releases, days, make_environ(tmp_path))


def make_environ(folder: Path) -> dict[str, str]:
    environ = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(folder)}
    # no commit is to be looked up on GitHub
    return {**environ, "UV_CACHE_DIR": str(folder / "cache"), "HTTPS_PROXY": "http://127.0.0.1:9"}


def test_one_day_of_every_package_is_locked_with_hashes_and_no_address(machine: Machine, tmp_path: Path) -> None:
    done = machine.run("bump", "--nightly", "jax")
    assert done.returncode == 0, done.stderr
    lock = machine.read_lock("jax-cuda12")
    version = "2.0.0.dev20261120"
    for name in ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda12-pjrt"):
        wheel = next((tmp_path / f"nightly/{name}").glob(f"*{version}*"))
        entry = re.split(r"\n(?=\S)", lock[lock.index(f"{name}=={version}") :])[0]
        assert f"--hash=sha256:{digest(wheel)}" in entry
    assert f"jax=={version} ; python_full_version >= '3.12'" in lock
    assert "jax==1.0 ; python_full_version < '3.12'" in lock
    assert "jax-cuda13-pjrt==2.0.0.dev20261120" in machine.read_lock("jax-cuda13")
    assert "127.0.0.1" not in "".join(path.read_text() for path in (machine.root / "docker/locks").iterdir())
    day = read_nightly_day(machine.root)
    assert day is not None
    assert (day.date, day.commits) == ("2026-11-20", {"jax": COMMIT})


def test_a_day_without_jaxlib_is_named_and_the_day_before_is_locked(machine: Machine, tmp_path: Path) -> None:
    fill_day(tmp_path / "nightly", "2026-11-21", lacking="jaxlib")
    for path in (tmp_path / "nightly/jaxlib").glob("*dev20261121*"):
        path.unlink()
    with serve(tmp_path / "nightly") as index:
        done = machine.run("bump", "--nightly", NIGHTJAR_NIGHTLY_INDEX=index)
        assert done.returncode == 0, done.stderr
        assert "JAX of 2026-11-21 is incomplete: no wheel of jaxlib for Python 3.12 on x86_64" in done.stderr
        assert "jax==2.0.0.dev20261120" in machine.read_lock("jax-cpu")
        before = machine.read_files()
        refused = machine.run("bump", "--nightly", "--date", "2026-11-21", NIGHTJAR_NIGHTLY_INDEX=index)
    assert refused.returncode == 2
    assert "JAX of 2026-11-21 is incomplete" in refused.stderr
    assert machine.read_files() == before


def test_a_day_without_a_plugin_is_locked_for_the_images_that_do_not_need_it(machine: Machine, tmp_path: Path) -> None:
    assert machine.run("bump", "--nightly", "jax").returncode == 0
    before = machine.read_lock("jax-cuda13")
    fill_day(tmp_path / "nightly", "2026-11-21")
    for path in (tmp_path / "nightly/jax-cuda13-plugin").glob("*dev20261121*aarch64*"):
        path.unlink()
    with serve(tmp_path / "nightly") as index:
        given = ("bump", "--nightly", "jax", "--for", "cpu-*", "--for", "cuda12-*-amd64")
        done = machine.run(*given, NIGHTJAR_NIGHTLY_INDEX=index)
        kept = machine.run("bump", "other==1.0", NIGHTJAR_NIGHTLY_INDEX=index)
    assert done.returncode == 0, done.stderr
    assert "jax-cuda13.txt and what is locked on it are unchanged: no wheel of jax-cuda13-plugin for" in done.stderr
    assert kept.returncode == 0, kept.stderr
    for name in ("jax-cpu", "jax-cuda12"):
        assert "jax==2.0.0.dev20261121" in machine.read_lock(name)
    assert machine.read_lock("jax-cuda13") == before
    days = {flavor: find_lock_day(machine.root, flavor) for flavor in ("cpu", "cuda13")}
    assert (days["cpu"] and days["cpu"].date, days["cuda13"]) == ("2026-11-21", None)
    refused = machine.run("bump", "--nightly", "--for", "rocm-*")
    assert (refused.returncode, "--for: no image is 'rocm-*'" in refused.stderr) == (2, True)


@pytest.mark.slow
def test_the_nightly_index_answers_for_no_other_package(machine: Machine, tmp_path: Path) -> None:
    write_wheel(tmp_path / "nightly", "other", "9.0", "py3-none-any", "", {})
    with serve(tmp_path / "nightly") as index:
        assert machine.run("bump", "--nightly", NIGHTJAR_NIGHTLY_INDEX=index).returncode == 0
    assert "other==1.0" in machine.read_lock("dev")


@pytest.mark.slow
def test_other_packages_move_and_the_day_stays_and_releases_end_it(machine: Machine, tmp_path: Path) -> None:
    assert machine.run("bump", "--nightly", "jax").returncode == 0
    write_wheel(tmp_path / "default", "other", "1.1", "py3-none-any", "", {})
    with serve(tmp_path / "default") as default:
        done = machine.run("bump", "other==1.1", UV_DEFAULT_INDEX=default)
        assert done.returncode == 0, done.stderr
        assert "other==1.1" in machine.read_lock("dev")
        assert "jax==2.0.0.dev20261120" in machine.read_lock("jax-cpu")
        assert machine.run("lock", UV_DEFAULT_INDEX=default).returncode == 0
        assert "jax==2.0.0.dev20261120" in machine.read_lock("jax-cpu")
        assert machine.run("bump", UV_DEFAULT_INDEX=default).returncode == 0
    assert "dev2026" not in machine.read_lock("jax-cpu")
    assert not (machine.root / FILE).exists()


def test_a_dry_run_writes_nothing_and_options_without_nightly_are_refused(machine: Machine, tmp_path: Path) -> None:
    before = machine.read_files()
    done = machine.run("bump", "--nightly", "--dry-run", "--json")
    document = json.loads(done.stdout)
    assert document["jax_day"] == "2026-11-20"
    assert {change["package"] for change in document["changes"]} >= {"jax", "jaxlib", "jax-cuda12-plugin"}
    for pins, is_refused in (((), True), (("--nightly", "other"), True), (("--nightly", "jax", "other"), False)):
        done = machine.run("bump", *pins, "--date", "2026-11-20")
        assert ("--date and --for belong to a nightly of JAX" in done.stderr) == is_refused
        assert done.returncode == 2
    assert machine.read_files() == before


def test_images_of_a_day_bear_its_first_second_of_utc_wherever_they_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        labels = render_labels(NightlyDay(date="2026-11-20", versions={}, commits={"jax": COMMIT}))
    time.tzset()
    wanted = {"JAX_DAY": "2026-11-20", "JAX_EPOCH": "1795132800", "JAX_COMMIT": COMMIT, "XLA_COMMIT": ""}
    assert (labels, set(render_labels(None).values())) == (wanted, {""})
