import json
import subprocess
import sys
from pathlib import Path

import pytest

from nightjar_ci.images.tree import find_checkout
from tests.ci.registries import run_registry
from tests.stand_ins import write_programs

CHECKOUT = find_checkout(Path(__file__).parent)
LABELS = {"org.opencontainers.image.base.name": "debian:trixie", "org.opencontainers.image.description": "x"}
TREE = {
    name: {
        "tags": [f"nightjar/{name}:cpu"],
        "labels": {**LABELS, "org.opencontainers.image.title": f"nightjar/{name}"},
        "contexts": {parent: f"target:{parent}" for parent in parents},
    }
    for name, parents in {"base": [], "jax": ["base"]}.items()
}
DOCKER = """#!/bin/sh
case "$*" in
  *--print*) cat "$0.json" ;;
  "buildx version") ;;
  *) echo "no daemon" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A machine whose `docker` knows a tree of two images, and whose engine never answers."""
    write_programs(tmp_path, {"docker": DOCKER})
    (tmp_path / "docker.json").write_text(json.dumps({"target": TREE}))
    return {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}


def images(*arguments: str, environ: dict[str, str], cwd: Path = CHECKOUT) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", "from nightjar_ci.cli import main; main()", "images", *arguments]
    return subprocess.run(argv, env=environ, cwd=cwd, capture_output=True, text=True, check=False)


def test_list_prints_the_tree_as_json(environ: dict[str, str]) -> None:
    done = images("list", "--json", environ=environ)
    assert [(image["name"], image["parent"]) for image in json.loads(done.stdout)] == [("base", None), ("jax", "base")]


def test_dry_run_prints_a_command_and_builds_nothing(environ: dict[str, str]) -> None:
    done = images("build", "jax", "--flavor", "cuda12", "--dry-run", environ=environ)
    assert done.returncode == 0
    variables, _, command = done.stdout.partition(" docker ")
    assert variables == "BUILDX_NO_DEFAULT_ATTESTATIONS=1 FLAVOR=cuda12"
    assert command.startswith("buildx bake --file docker/versions.json")
    assert done.stdout.endswith(" jax\n")


@pytest.fixture
def leafy(environ: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """An engine without images, for a tree of two images by default and two leaves; the first leaf does not build."""
    leaves = {
        name: {
            "tags": [f"nightjar/{name}:cpu"],
            "labels": {**LABELS, "org.opencontainers.image.title": f"nightjar/{name}"},
            "contexts": {"jax": "target:jax"},
        }
        for name in ("leaf_a", "leaf_b")
    }
    tree = {"group": {"default": {"targets": ["base", "jax"]}}, "target": {**TREE, **leaves}}
    (tmp_path / "docker.json").write_text(json.dumps(tree))
    (tmp_path / "docker").write_text(ENGINE)
    return environ


ENGINE = """#!/bin/sh
case "$*" in
  *--print*) cat "$0.json" ;;
  *bake*" leaf_a") echo "no such wheel" >&2; exit 1 ;;
  *bake*) for name; do case "$name" in base|jax|leaf_b) touch "$0.nightjar_$name:cpu" ;; esac; done ;;
  "image ls"*) for tag; do :; done; [ ! -e "$0.$(echo "$tag" | tr / _)" ] || echo sha256:1 ;;
  "image inspect"*) echo '[{"Id": "sha256:1", "Size": 1000000, "RootFS": {"Layers": []}}]' ;;
  version*--format*) echo linux/amd64 ;;
esac
"""


def test_all_are_the_images_of_the_default_and_then_each_other(leafy: dict[str, str]) -> None:
    build, test, push = (
        images(*words.split(), "--all", "--dry-run", environ=leafy).stdout.splitlines()
        for words in ("build", "test", "push --to localhost:5000/nightjar")
    )
    assert [line.partition("docker-bake.hcl ")[2] for line in build] == ["base jax", "leaf_a", "leaf_b"]
    assert test[0].endswith(" --image base --image jax --image leaf_a --image leaf_b")
    assert [line.partition(" ")[0] for line in push] == [
        f"nightjar/{name}:cpu" for name in ("base", "jax", "leaf_a", "leaf_b")
    ]
    assert images("build", "--dry-run", environ=leafy).stdout.splitlines()[0].endswith(" base jax")


def test_a_leaf_that_does_not_build_leaves_the_others_and_is_named(leafy: dict[str, str]) -> None:
    done = images("build", "--all", environ=leafy)
    assert done.returncode == 3
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        "nightjar/base:cpu",
        "nightjar/jax:cpu",
        "nightjar/leaf_b:cpu",
    ]
    assert "nightjar/leaf_a:cpu: not built" in done.stderr
    assert "no such wheel" in done.stderr
    assert "Hint: build a single image with `nightjar-ci images build NAME`" in done.stderr


@pytest.mark.registry
def test_what_was_not_built_is_not_tested_nor_published_and_both_say_so(leafy: dict[str, str], tmp_path: Path) -> None:
    report = tmp_path / "tests.json"
    done = images("test", "--all", "--report", str(report), environ=leafy)
    assert done.returncode == 1
    assert "nightjar/leaf_a:cpu: not tested, because it was not built." in done.stderr
    assert json.loads(report.read_text())["images"] == []
    with run_registry(tmp_path / "registry") as registry:
        to = f"{registry.host}/nightjar"
        done = images("push", "--all", "--to", to, "--date", "2026-11-21", "--tests", str(report), environ=leafy)
    assert done.returncode == 1, done.stderr
    assert [line.partition(" is not")[0] for line in done.stdout.splitlines()] == [
        f"{name}-cpu-2026-11-21" for name in ("base", "jax", "leaf_a", "leaf_b")
    ]
    assert "linux/amd64 has not been pushed. The rolling tag jax-cpu does not exist yet." in done.stdout


@pytest.mark.parametrize("command", ["build", "test"])
def test_no_engine_ends_with_3_and_the_next_step(environ: dict[str, str], command: str) -> None:
    done = images(command, environ=environ)
    assert done.returncode == 3
    assert done.stdout == ""
    assert "no daemon" in done.stderr
    assert "Hint: docker/engine.sh" in done.stderr


@pytest.mark.parametrize("command", [["build"], ["test"]])
def test_without_buildx_it_ends_with_3_and_a_hint(environ: dict[str, str], tmp_path: Path, command: list[str]) -> None:
    says = "docker: 'buildx' is not a docker command."
    (tmp_path / "docker").write_text(f'#!/bin/sh\n[ "$1" != buildx ] || {{ echo "{says}" >&2; exit 1; }}\n')
    done = images(*command, environ=environ)
    assert done.returncode == 3
    assert done.stdout == ""
    assert says in done.stderr
    assert "Hint: docker/engine.sh installs and starts a Docker engine with buildx" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "jaxx"], "unknown image 'jaxx': expected one of base, jax."),
        (["list", "--flavor", "cuda"], "unknown flavor 'cuda': expected one of cpu, cuda12, cuda13."),
        (["build", "--fast"], "No such option"),
        (["build", "jax", "--all"], "'jax' and --all exclude each other: expected one of them"),
    ],
)
def test_wrong_use_ends_with_2_and_names_the_value(environ: dict[str, str], arguments: list[str], message: str) -> None:
    done = images(*arguments, environ=environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


DIGEST = f"sha256:{'a1' * 32}"
HOSTILE = {
    "another repository": f"attacker.example/evil@{DIGEST}",
    "a repository below": f"ghcr.io/me/nightjar/evil@{DIGEST}",
    "a tag": "ghcr.io/me/nightjar:latest",
    "another repository's tag": "attacker.example/evil:latest",
    "half a digest": "ghcr.io/me/nightjar@sha256:1",
    "an option": "--disable-content-trust=true",
    "an escape sequence": f"ghcr.io/me/nightjar@{DIGEST}\u001b]0;pwn\u0007",
}


def write_index(path: Path, reference: str, name: str = "jax-cpu") -> str:
    night = {"name": name, "date": "2026-11-24", "reference": reference}
    path.write_text(json.dumps({"schema": "nightjar.images/1", "images": [night]}))
    return f"{path}:{name}"


@pytest.mark.parametrize("kind", HOSTILE)
def test_pull_refuses_an_index_that_names_anything_but_a_digest_of_the_repository_that_is_asked(
    environ: dict[str, str], tmp_path: Path, kind: str
) -> None:
    where = write_index(tmp_path / "index.json", HOSTILE[kind])
    done = images("pull", where, "--from", "ghcr.io/me/nightjar", "--dry-run", environ=environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert "reference" in done.stderr or " for jax-cpu-2026-11-24; expected ghcr.io/me/nightjar@sha256:" in done.stderr
    assert "\x1b" not in done.stderr


def test_pull_from_a_file_wants_to_know_the_repository(environ: dict[str, str], tmp_path: Path) -> None:
    where = write_index(tmp_path / "index.json", f"ghcr.io/me/nightjar@{DIGEST}")
    done = images("pull", where, "--dry-run", environ=environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--from is missing" in done.stderr
    done = images("pull", where, "--from", "ghcr.io/Me/nightjar", "--dry-run", environ=environ)
    assert done.stdout.splitlines() == [
        f"docker pull ghcr.io/me/nightjar@{DIGEST}",
        f"docker tag ghcr.io/me/nightjar@{DIGEST} ghcr.io/me/nightjar:jax-cpu-2026-11-24",
    ]


@pytest.mark.parametrize("name", ["--help", "a b", "x;y", "../x", "\u001b[2J"])
def test_a_night_with_a_name_for_no_tag_is_not_pulled(environ: dict[str, str], tmp_path: Path, name: str) -> None:
    write_index(tmp_path / "index.json", f"ghcr.io/me/nightjar@{DIGEST}", name)
    where = f"{tmp_path / 'index.json'}:{name}"
    done = images("pull", "--from", "ghcr.io/me/nightjar", "--dry-run", "--", where, environ=environ)
    assert (done.returncode, done.stdout) == (2, "")


def test_outside_a_checkout_it_says_so(environ: dict[str, str], tmp_path: Path) -> None:
    done = images("list", environ=environ, cwd=tmp_path)
    assert done.returncode == 2
    assert "Hint: run this in a checkout of Nightjar" in done.stderr


def test_locks_can_be_rehearsed_without_uv(environ: dict[str, str]) -> None:
    done = images("lock", "--upgrade", "--dry-run", environ=environ)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].split()[-1] == "docker/locks/dev.txt"
    assert all("--upgrade" in line for line in done.stdout.splitlines())


def test_an_index_lists_its_nights_and_one_of_them(environ: dict[str, str], tmp_path: Path) -> None:
    where = write_index(tmp_path / "index.json", f"ghcr.io/me/nightjar@{DIGEST}")
    (listed,) = images("list", str(tmp_path / "index.json"), environ=environ).stdout.splitlines()
    assert listed.split()[:3] == ["jax-cpu", "2026-11-24", DIGEST[:19]]
    shown = images("list", where, environ=environ).stdout
    assert shown.splitlines()[:2] == ["jax-cpu 2026-11-24", f"ghcr.io/me/nightjar@{DIGEST}"]
    assert json.loads(images("list", where, "--json", environ=environ).stdout)["date"] == "2026-11-24"


def test_the_pins_of_a_night_need_its_registry(environ: dict[str, str], tmp_path: Path) -> None:
    where = write_index(tmp_path / "index.json", f"127.0.0.1:1/nightjar@{DIGEST}")
    done = images("lock", "--of", where, environ=environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert "has no pins in the registry" in done.stderr
