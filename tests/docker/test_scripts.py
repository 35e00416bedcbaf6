"""The scripts of docker/ around a `docker` that answers or does not: what is there is left alone."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from tests.docker.conftest import CHECKOUT
from tests.stand_ins import write_programs

NOBODY = 65534
ANSWERS = "version buildx image"


def install(folder: Path, programs: dict[str, str]) -> None:
    write_programs(folder, {name: f"#!/bin/bash\n{text}\n" for name, text in programs.items()})


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """PATH with a `docker` that knows the subcommands of `DOCKER_ANSWERS`, and an `apt-get` that must not be called."""
    programs = {"docker": 'case "$DOCKER_ANSWERS" in *"$1"*) ;; *) exit 1 ;; esac', "apt-get": "exit 9"}
    install(tmp_path, programs)
    tmp_path.chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


def script(
    name: str, *arguments: str, environ: dict[str, str], user: int | None = None
) -> subprocess.CompletedProcess[str]:
    path = CHECKOUT / "docker" / name
    argv = [str(path), *arguments] if user is None else ["bash", "-s", *arguments]
    text = None if user is None else path.read_text()  # the checkout may be closed to others
    return subprocess.run(
        argv, env=environ, cwd="/", input=text, user=user, capture_output=True, text=True, check=False
    )


def test_an_engine_that_answers_is_left_alone(environ: dict[str, str]) -> None:
    done = script("engine.sh", environ={**environ, "DOCKER_ANSWERS": ANSWERS})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("command", "answers", "code", "said"),
    [
        (["engine.sh"], "version", 3, "Hint: install docker-buildx"),  # an engine without it is not replaced
        (["ground-floor.sh"], "", 3, "Hint: run docker/engine.sh as root"),
        (["ground-floor.sh", "--forse"], "", 2, "unknown argument '--forse': expected --force"),
    ],
)
def test_a_script_that_cannot_go_on_says_what_to_do(
    environ: dict[str, str], command: list[str], answers: str, code: int, said: str
) -> None:
    done = script(*command, environ={**environ, "DOCKER_ANSWERS": answers})
    assert done.returncode == code
    assert said in done.stderr


@pytest.mark.root
def test_without_root_the_engine_script_says_who_must_run_it(environ: dict[str, str]) -> None:
    done = script("engine.sh", environ=environ, user=NOBODY)
    assert done.returncode == 2
    assert f"uid {NOBODY} cannot install one" in done.stderr
    assert "Hint: run it as root" in done.stderr


def test_a_ground_floor_that_is_there_is_not_made_again(environ: dict[str, str]) -> None:
    done = script("ground-floor.sh", environ={**environ, "DOCKER_ANSWERS": ANSWERS})
    assert (done.returncode, done.stdout, done.stderr) == (0, "nightjar/ground-floor:trixie\n", "")


# A system with as much as the script goes on to write into.
MMDEBSTRAP = """echo "mmdebstrap $*" >>"$CALLS"
for path; do case $path in */root) mkdir -p "$path/etc/apt" && touch "$path/etc/shadow" ;; esac; done"""
ARCHIVE = {"DEBIAN_SNAPSHOT": "http://archive.example/past", "DEBIAN_DAY": "20261119T000000Z"}


def test_a_ground_floor_of_another_day_is_that_of_the_archive(environ: dict[str, str], tmp_path: Path) -> None:
    programs = {
        "docker": 'echo "$@" >>"$CALLS"; case "$*" in *inspect*) echo "$MADE" ;; load*) cat >"$LOADED" ;; esac',
        "mmdebstrap": MMDEBSTRAP,
    }
    install(tmp_path, programs)
    calls = tmp_path / "calls"
    loaded = tmp_path / "loaded.tar"
    kept = {**environ, **ARCHIVE, "CALLS": str(calls), "MADE": ARCHIVE["DEBIAN_DAY"], "LOADED": str(loaded)}
    assert script("ground-floor.sh", environ=kept).stdout == "nightjar/ground-floor:trixie\n"
    assert "mmdebstrap" not in calls.read_text()
    if os.getuid() != 0:
        pytest.skip("mmdebstrap wants root")
    done = script("ground-floor.sh", environ={**kept, "MADE": "20261101T000000Z"})
    assert done.returncode == 0, done.stderr
    past = "http://archive.example/past"
    assert f"deb {past}/debian/20261119T000000Z trixie main" in calls.read_text()
    assert f"deb {past}/debian-security/20261119T000000Z trixie-security main" in calls.read_text()
    image = read_loaded(loaded)
    assert image["config.json"]["config"]["Labels"] == {"nightjar.debian": ARCHIVE["DEBIAN_DAY"]}
    time.sleep(1.1)  # a second: as much as an image's date tells apart
    assert script("ground-floor.sh", "--force", environ=kept).returncode == 0
    assert read_loaded(loaded) == image


def read_loaded(archive: Path) -> dict[str, Any]:
    """The documents of an archive that `docker load` was given, by name; its layer must be the one that they name."""
    with tarfile.open(archive) as file:
        members = {name.removeprefix("./"): file.extractfile(name) for name in file.getnames() if name != "."}
        contents = {name: member.read() for name, member in members.items() if member is not None}
    documents = {name: json.loads(text) for name, text in contents.items() if name.endswith(".json")}
    layers = [contents[layer] for image in documents["manifest.json"] for layer in image["Layers"]]
    digests = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    assert documents["config.json"]["rootfs"] == {"type": "layers", "diff_ids": digests}
    return documents


# As it is on GitHub's runners: nobody's password is asked for, and no variable is kept but those that are named.
SUDO = """
echo "sudo $*" >>"$CALLS"
kept=(PATH="$PATH" CALLS="$CALLS" UID_NOW=0)
while [[ $1 == -* ]]; do
  if [[ $1 == --preserve-env=* ]]; then
    for name in $(tr , ' ' <<<"${1#*=}"); do [ ! -v "$name" ] || kept+=("$name=${!name}"); done
  fi
  shift
done
exec env -i "${kept[@]}" "$@"
"""


@pytest.mark.parametrize("password", [False, True])
def test_without_root_the_ground_floor_is_made_by_a_sudo_that_asks_for_no_password(
    environ: dict[str, str], tmp_path: Path, password: bool
) -> None:
    programs = {
        "id": 'echo "${UID_NOW:-1001}"',
        "sudo": "exit 1" if password else SUDO,
        "docker": 'echo "docker $*" >>"$CALLS"; case "$*" in *inspect*) exit 1 ;; load*) cat >"$CALLS.tar" ;; esac',
        "mmdebstrap": MMDEBSTRAP,
    }
    install(tmp_path, programs)
    calls = tmp_path / "calls"
    done = script("ground-floor.sh", "--force", environ={**environ, **ARCHIVE, "CALLS": str(calls)})
    if password:
        assert done.returncode == 2
        assert "uid 1001.\nHint: sudo docker/ground-floor.sh" in done.stderr
        assert "mmdebstrap" not in calls.read_text()
        return
    assert (done.returncode, done.stdout) == (0, "nightjar/ground-floor:trixie\n"), done.stderr
    assert "http://archive.example/past/debian/20261119T000000Z" in calls.read_text()
    labels = read_loaded(tmp_path / "calls.tar")["config.json"]["config"]["Labels"]
    assert labels == {"nightjar.debian": ARCHIVE["DEBIAN_DAY"]}


@pytest.mark.root
def test_a_ground_floor_of_another_architecture_wants_an_emulator_that_chroots_have_too(
    environ: dict[str, str], tmp_path: Path
) -> None:
    programs = {
        "docker": 'echo "$@" >>"$CALLS"; case "$*" in *inspect*) exit 1 ;; load*) cat >"$CALLS.tar" ;; esac',
        "dpkg": "echo amd64",
        "mmdebstrap": MMDEBSTRAP,
    }
    install(tmp_path, programs)
    calls, emulator = tmp_path / "calls", tmp_path / "qemu-aarch64"
    given = {**environ, **ARCHIVE, "CALLS": str(calls), "BINFMT": str(tmp_path), "IMAGE_ARCH": "arm64"}
    for flags in ("", "flags: \n", "flags: P\n"):  # one that is not held open is not found inside the new root
        emulator.write_text(flags)
        done = script("ground-floor.sh", environ=given)
        assert done.returncode == 3
        assert "Hint: apt-get install qemu-user-static binfmt-support" in done.stderr
        assert f"cat /usr/lib/binfmt.d/qemu-aarch64.conf >{tmp_path}/register;" in done.stderr
    emulator.write_text("enabled\nflags: PF\n")
    done = script("ground-floor.sh", environ=given)
    assert (done.returncode, done.stdout) == (0, "nightjar/ground-floor:trixie-arm64\n"), done.stderr
    assert "mmdebstrap --mode=root --architectures=arm64" in calls.read_text()
    assert read_loaded(tmp_path / "calls.tar")["config.json"]["architecture"] == "arm64"
    other = script("ground-floor.sh", environ={**given, "IMAGE_ARCH": "riscv64"})
    assert other.returncode == 2
    assert "IMAGE_ARCH is 'riscv64'" in other.stderr


@pytest.mark.parametrize("archive", [True, False])
def test_packages_of_the_os_are_those_of_an_archive(environ: dict[str, str], tmp_path: Path, archive: bool) -> None:
    release, sources = tmp_path / "os-release", tmp_path / "day.list"
    release.write_text("ID=debian\nVERSION_CODENAME=trixie\n")
    given = {**environ, **(ARCHIVE if archive else {}), "LIST": str(sources), "OS_RELEASE": str(release)}
    done = script("apt-day.sh", environ=given)
    assert done.returncode == 0, done.stderr
    if not archive:
        assert (done.stdout, sources.exists()) == ("", False)
        return
    assert done.stdout.splitlines() == [
        "-o",
        f"Dir::Etc::SourceList={sources}",
        "-o",
        "Dir::Etc::SourceParts=/dev/null",
    ]
    first = (
        "deb [check-valid-until=no] http://archive.example/past/debian/20261119T000000Z trixie main contrib non-free"
    )
    assert sources.read_text().splitlines()[0] == first
    release.write_text("ID=ubuntu\nVERSION_CODENAME=noble\n")
    other = script("apt-day.sh", environ=given)
    assert (other.returncode, other.stdout) == (0, "")
    assert "has no ubuntu" in other.stderr


def split(folder: Path, lock: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs the step `split` on a lock, with its three folders moved to one that is the test's own."""
    (folder / "locks").mkdir(parents=True, exist_ok=True)
    (folder / "locks/jax.txt").write_text(lock)
    text = (CHECKOUT / "docker/python-layer.sh").read_text()
    layers = CHECKOUT / "docker/layers.txt"
    text = text.replace("/usr/local/share/nightjar/layers.txt", str(layers))
    text = text.replace('"/layers', f'"{folder}/layers').replace("-p /layers", f"-p {folder}/layers")
    text = text.replace("=/locks/", f"={folder}/locks/")
    (folder / "python-layer.sh").write_text(text)
    argv = ["bash", str(folder / "python-layer.sh"), "split", "jax"]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)


def parts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (folder / "layers").iterdir()}


def test_a_new_cudnn_changes_one_layer_and_comments_none(environ: dict[str, str], tmp_path: Path) -> None:
    lock = (CHECKOUT / "docker/locks/jax-cuda12.txt").read_text()
    cudnn = re.search(r"^nvidia-cudnn-cu12==(\S+)", lock, re.MULTILINE)
    assert cudnn is not None
    changed = lock.replace(f"cudnn-cu12=={cudnn[1]}", "cudnn-cu12==9.99.0.1").replace("# via", "# because of")
    for name, text in {"old": lock, "new": changed}.items():
        assert split(tmp_path / name, text, environ).returncode == 0
    old, new = parts(tmp_path / "old"), parts(tmp_path / "new")
    assert [name for name in old if old[name] != new[name]] == ["cudnn.txt"]
    assert "9.99.0.1" in new["cudnn.txt"]
    entries = sum(len(re.findall(r"^[a-z]", text, re.MULTILINE)) for text in old.values())
    assert entries == len(re.findall(r"^[a-z]", lock, re.MULTILINE))


# Whether both sets become one depends on what Python read before, as here the alphabet of a codec.
SETS = 'a = 1 in {"decoding_table", "other_word"}\ndef f(): return 1 in {"decoding_table", "other_word"}\n'
SOURCES = {"first.py": SETS, "middle.py": "# coding: koi8_r\n", "zlast.py": SETS}


def compile_layer(folder: Path, listing: str, *, unsorted: bool = False) -> dict[str, bytes]:
    """The compiled files of a layer, where `find` lists its files in an order of the test's choice."""
    library = folder / "root/opt/nightjar/lib"
    library.mkdir(parents=True)
    for name, text in SOURCES.items():
        (library / name).write_text(text)
    write_programs(folder / "bin", {"find": f'#!/bin/sh\n/usr/bin/find "$@" | {listing}\n'})
    text = (CHECKOUT / "docker/python-layer.sh").read_text().partition("\ncase $1 in\ntools)")[0]
    if unsorted:
        text = text.replace("| LC_ALL=C sort -z ", "")
    path = f"{folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["bash", "-c", f'{text}\ncompile_files "$1"', "bash", str(folder / "root")]
    subprocess.run(command, env={"PATH": path}, check=True)
    return {file.name: file.read_bytes() for file in library.rglob("*.pyc")}


def test_compiled_files_are_the_same_bytes_in_whichever_order_the_file_system_lists_them(tmp_path: Path) -> None:
    orders = {"up": "sort -z", "down": "sort -z --reverse"}
    compiled = [compile_layer(tmp_path / name, listing) for name, listing in orders.items()]
    assert len(compiled[0]) == len(SOURCES)
    assert compiled[0] == compiled[1]
    as_listed = [compile_layer(tmp_path / f"{name} unsorted", orders[name], unsorted=True) for name in orders]
    assert as_listed[0] != as_listed[1]  # so the order matters, for these files


CHANGE = "--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-{1}\n+{2}\n"
NEW = "--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n+{1}\n"


def patch(folder: Path, patches: dict[str, str]) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Applies patches of a package `a-b` to an installed one of one module; and the folder of installed packages."""
    site = folder / "target/opt/nightjar/lib/python3.13/site-packages"
    files = {"a_b/core.py": "one\n", "a_b-1.0.dist-info/RECORD": "a_b/core.py,sha256=x,4\na_b-1.0.dist-info/RECORD,,\n"}
    for name, text in {**files, **{f"{folder}/patches/a-b/{name}": text for name, text in patches.items()}}.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    (folder / "list.txt").write_text("a-b==1.0 \\\n    --hash=sha256:00\n")
    text = (CHECKOUT / "docker/python-layer.sh").read_text().partition("\ncase $1 in\ntools)")[0]
    text = text.replace("/target", str(folder / "target"))
    command = ["bash", "-c", f'{text}\npatch_packages "$1"', "bash", str(folder / "list.txt")]
    environ = {"PATH": os.environ["PATH"], "PATCHES": str(folder / "patches")}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False), site


def test_a_pull_request_changes_the_installed_modules_and_leaves_its_tests_out(tmp_path: Path) -> None:
    first = CHANGE.format("a_b/core.py", "one", "two") + CHANGE.format("tests/core_test.py", "old", "new")
    second = CHANGE.format("a_b/core.py", "two", "three") + NEW.format("a_b/added.py", "new")
    done, site = patch(tmp_path, {"2.patch": second, "1.patch": first})
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in site.iterdir()) == ["a_b", "a_b-1.0.dist-info"]
    assert (site / "a_b/core.py").read_text() == "three\n"
    record = (site / "a_b-1.0.dist-info/RECORD").read_text().splitlines()
    assert sorted(record) == ["a_b-1.0.dist-info/RECORD,,", "a_b/added.py,,", "a_b/core.py,,"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CHANGE.format("a_b/core.py", "of last year", "two"), "a-b does not take 1.patch."),
        (CHANGE.format("docs/core.md", "old", "new"), "1.patch changes no file that a-b has installed."),
    ],
)
def test_a_patch_that_an_installed_package_does_not_take_ends_the_build(
    tmp_path: Path, text: str, message: str
) -> None:
    done, _ = patch(tmp_path, {"1.patch": text})
    assert done.returncode == 3
    assert f"error: python-layer.sh: {message}\nHint: " in done.stderr


def test_the_first_line_that_matches_a_package_is_its_layer(environ: dict[str, str], tmp_path: Path) -> None:
    split(tmp_path, (CHECKOUT / "docker/locks/te-cuda12.txt").read_text(), environ)
    lines = (CHECKOUT / "docker/layers.txt").read_text().splitlines()
    rules = [line.partition("#")[0].split() for line in lines if not line.startswith("#") and line]
    for name, text in parts(tmp_path).items():
        for package in re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE):
            layer = next(rule[0] for rule in rules if any(fnmatchcase(package, pattern) for pattern in rule[1:]))
            assert f"{layer}.txt" == name


def test_a_lock_that_is_not_the_one_of_the_checkout_is_not_built(environ: dict[str, str], tmp_path: Path) -> None:
    stale = {**environ, "EXPECTED_SHA256": "0" * 64}
    done = split(tmp_path, "six==1.17.0 \\\n    --hash=sha256:00\n", stale)
    assert done.returncode == 3
    assert "jax.txt of the build context is not that of the checkout" in done.stderr


def test_a_toolkit_of_links_has_the_files_of_all_wheels_also_where_two_have_one_of_a_name(
    environ: dict[str, str], tmp_path: Path
) -> None:
    wheels = tmp_path / "opt/nightjar/lib/python3.13/site-packages/nvidia"
    for wheel, names in {"cublas": ["include/__init__.py"], "nvcc": ["include/__init__.py", "bin/ptxas"]}.items():
        for name in [*names, f"include/{wheel}.h", f"lib/lib{wheel}.so.12"]:
            (wheels / wheel / name).parent.mkdir(parents=True, exist_ok=True)
            (wheels / wheel / name).touch()
    (tmp_path / "usr/local").mkdir(parents=True)
    (tmp_path / "etc/ld.so.conf.d").mkdir(parents=True)
    (tmp_path / "etc/ld.so.cache").touch()
    install(tmp_path, {"ldconfig": "exit 0"})
    text = (CHECKOUT / "docker/cuda-links.sh").read_text()
    (tmp_path / "links.sh").write_text(re.sub(r"(?<![\w}$])/(target|opt|etc|usr)\b", rf"{tmp_path}/\1", text))
    subprocess.run(["bash", str(tmp_path / "links.sh")], env={**environ, "SOURCE_DATE_EPOCH": "0"}, check=True)
    made = tmp_path / f"target{tmp_path}/usr/local/cuda"
    assert {path.name for path in (made / "include").iterdir()} == {"__init__.py", "cublas.h", "nvcc.h"}
    assert (made / "lib/libnvcc.so").resolve() == wheels / "nvcc/lib/libnvcc.so.12"
    assert (tmp_path / "target/usr/local/bin/ptxas").stat().st_mode & 0o777 == 0o755
