"""JAX and XLA from their repositories: the right commits, the patches, and JAX's own build with the right arguments.

Bazel's build takes hours and downloads what not every machine reaches; here `build/build.py` is one that writes down
how it was called. The image itself is tested where somebody has built it.
"""

import json
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from nightjar_ci.images.tree import find_flavors, read_tree, render_bake, select_images
from nightjar_ci.tools import run_captured
from tests.docker.conftest import CHECKOUT, Runner

BUILD = """
import pathlib, sys
out = next(word.partition("=")[2] for word in sys.argv if word.startswith("--output_path="))
pathlib.Path(out).mkdir(parents=True)
pathlib.Path(out, "called.txt").write_text("\\n".join(sys.argv[1:]))
"""
PATCH = "--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-{1}\n+{2}\n"


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    argv = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path, files: dict[str, str]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "--quiet")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "x")
    return git(folder, "rev-parse", "HEAD")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Two repositories, of which JAX pins the first commit of XLA; and where the script puts what it makes."""

    folder: Path
    pinned: str
    newest: str
    jax: str

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        addresses = {"JAX_REPOSITORY": f"file://{self.folder}/jax", "XLA_REPOSITORY": f"file://{self.folder}/xla"}
        folders = {"SOURCE": "source", "WHEELS": "wheels", "PATCHES": "patches"}
        environ = {"PATH": "/usr/bin:/bin", "JAX_REF": self.jax, **addresses}
        environ |= {name: str(self.folder / folder) for name, folder in folders.items()} | variables
        argv = [str(CHECKOUT / "docker/jax-build.sh"), *arguments]
        return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)


@pytest.fixture
def world(tmp_path: Path) -> World:
    pinned = commit(tmp_path / "xla", {"xla.cc": "one\n"})
    newest = commit(tmp_path / "xla", {"xla.cc": "two\n"})
    pin = f'XLA_COMMIT = "{pinned}"\nXLA_SHA256 = "{"0" * 64}"\n'
    files = {"build/build.py": BUILD, "jax.py": "one\n", "third_party/xla/revision.bzl": pin}
    return World(folder=tmp_path, pinned=pinned, newest=newest, jax=commit(tmp_path / "jax", files))


def test_xla_is_the_commit_that_jax_pins_or_the_one_that_is_named(world: World) -> None:
    assert world.run("sources").returncode == 0
    assert (world.folder / "source/xla/xla.cc").read_text() == "one\n"
    subprocess.run(["rm", "-r", str(world.folder / "source")], check=True)
    assert world.run("sources", XLA_REF=world.newest).returncode == 0
    assert (world.folder / "source/xla/xla.cc").read_text() == "two\n"


def test_patches_are_applied_in_the_order_of_their_names(world: World) -> None:
    for package, file in (("jax", "jax.py"), ("xla", "xla.cc")):
        folder = world.folder / "patches" / package
        folder.mkdir(parents=True)
        (folder / "2.patch").write_text(PATCH.format(file, "patched", "patched again"))
        (folder / "1.patch").write_text(PATCH.format(file, "one", "patched"))
    done = world.run("sources")
    assert done.returncode == 0, done.stderr
    assert (world.folder / "source/jax/jax.py").read_text() == "patched again\n"
    assert (world.folder / "source/xla/xla.cc").read_text() == "patched again\n"


def test_a_patch_that_does_not_fit_is_named(world: World) -> None:
    folder = world.folder / "patches/xla"
    folder.mkdir(parents=True)
    (folder / "old.patch").write_text(PATCH.format("xla.cc", "of last year", "patched"))
    done = world.run("sources")
    assert done.returncode == 3
    assert "jax-build.sh: the sources of xla do not take old.patch.\nHint: rebase the patch" in done.stderr


def test_a_commit_that_is_not_there_and_a_tree_without_a_pin_are_named(world: World) -> None:
    absent = world.run("sources", JAX_REF="0" * 40)
    assert absent.returncode == 3
    assert f"has no commit {'0' * 40}, or does not answer" in absent.stderr
    without = commit(world.folder / "jax", {"third_party/xla/revision.bzl": "\n"})
    subprocess.run(["rm", "-rf", str(world.folder / "source")], check=True)
    done = world.run("sources", JAX_REF=without)
    assert done.returncode == 3
    assert "JAX's tree names no commit of XLA" in done.stderr


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere the script installs a compiler first")
def test_the_wheels_of_a_flavour_are_asked_for(world: World) -> None:
    assert world.run("sources").returncode == 0
    wheels = {"cpu": "jax,jaxlib", "cuda13": "jax,jaxlib,jax-cuda-plugin,jax-cuda-pjrt"}
    for flavor, names in wheels.items():
        out = world.folder / flavor
        done = world.run("wheels", flavor, WHEELS=str(out), BAZEL_OPTIONS="--jobs=2")
        assert done.returncode == 0, done.stderr
        called = (out / "called.txt").read_text().splitlines()
        more = ["--cuda_major_version=13"] if flavor == "cuda13" else []
        source = f"--local_xla_path={world.folder}/source/xla"
        assert called == [
            "build",
            f"--wheels={names}",
            source,
            f"--output_path={out}",
            *more,
            "--bazel_options=--jobs=2",
        ]
    refused = world.run("wheels", "rocm")
    assert refused.returncode == 3
    assert "unknown flavour 'rocm': expected cpu, cuda12 or cuda13" in refused.stderr


@pytest.mark.buildx
def test_the_source_is_that_of_the_locked_jax_or_the_one_that_is_named() -> None:
    release = {"VERSIONS": '{"jax": "0.12.0.1"}'}
    refs = {"jax-v0.12.0.1": release, "a" * 40: {**release, "JAX_COMMIT": "a" * 40}, "main": {"JAX_REF": "main"}}
    for ref, variables in refs.items():
        command = render_bake(["source"], flavor="cuda13", options=["--print"])
        printed = run_captured(command.argv, cwd=CHECKOUT, variables={**command.variables, **variables})
        target = json.loads(printed)["target"]["source-cuda13-py313-amd64"]
        assert target["args"]["JAX_REF"] == ref
        assert target["args"]["FLAVOR"] == "cuda13"


@pytest.mark.parametrize("flavor", find_flavors(CHECKOUT))
def test_all_images_are_built_without_it(flavor: str) -> None:
    tree = read_tree(CHECKOUT, flavor)
    assert [image.name for image in tree if image.on_request] == ["source"]
    assert "source" not in {image.name for image in select_images(tree, None, everything=True)}
    assert [image.name for image in select_images(tree, "source")] == ["source"]


@pytest.mark.docker
def test_the_built_jax_computes(run: Runner) -> None:
    code = "import jax; print(float(jax.jit(lambda x: x @ x)(jax.numpy.ones((8, 8))).sum()))"
    assert run("python", "-c", code, environment={"JAX_PLATFORMS": "cpu"}, read_only=True).strip() == "512.0"
