import re
import tomllib
from pathlib import Path

import pytest

from nightjar_ci.images.lock.locks import (
    PACKAGES,
    Lock,
    LockError,
    list_ancestry,
    list_locks,
    make_locks,
    render_compile,
)
from nightjar_ci.images.tree import find_checkout
from tests.stand_ins import put_on_path

CHECKOUT = find_checkout(Path(__file__).parent)
LOCKS = {lock.name: lock for lock in list_locks(CHECKOUT)}
COMMIT = re.compile(r"^[A-Za-z0-9._-]+ @ git\+https://\S+@[0-9a-f]{40}\b.*\n", re.MULTILINE)
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)(?: ; ([^\\]+))? \\$", re.MULTILINE)


def read_lock(lock: Lock) -> str:
    """A lock without its commits, which have an address and no hash but their own."""
    return COMMIT.sub("", (CHECKOUT / lock.path).read_text())


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
def test_lock_names_no_index_and_no_folder_of_a_machine(lock: Lock) -> None:
    assert re.findall(r"\w+://|--(?:extra-)?index|--find-links|(?<=\s)/\w+.*", read_lock(lock)) == []


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
def test_every_package_of_a_lock_has_hashes(lock: Lock) -> None:
    entries = re.split(r"^(?=[A-Za-z0-9])", read_lock(lock), flags=re.MULTILINE)[1:]
    assert entries
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []
    assert len(PIN.findall(read_lock(lock))) == len(entries)


@pytest.mark.parametrize("lock", [lock for lock in LOCKS.values() if lock.constraints], ids=lambda lock: lock.name)
def test_locks_never_differ_in_a_version(lock: Lock) -> None:
    outer = {(name, version) for name, version, _ in PIN.findall(read_lock(LOCKS[lock.constraints or ""]))}
    names = {name for name, _ in outer}
    mine = {(name, version) for name, version, _ in PIN.findall(read_lock(lock)) if name in names}
    assert mine <= outer


def test_an_extra_that_a_lock_asks_for_is_one_of_the_packages() -> None:
    extras = {
        extra
        for package in PACKAGES
        for extra in tomllib.loads((CHECKOUT / package).read_text())["project"].get("optional-dependencies", ())
    }
    assert {extra for lock in LOCKS.values() for extra in lock.extras} <= extras


def test_every_dependency_of_the_packages_is_locked_for_their_image() -> None:
    locked = {name for name, _, _ in PIN.findall(read_lock(LOCKS["models"]))}
    for package in PACKAGES:
        for requirement in tomllib.loads((CHECKOUT / package).read_text())["project"]["dependencies"]:
            name = re.match(r"[A-Za-z0-9._-]+", requirement)
            assert name is not None
            assert name[0].lower().replace("_", "-") in locked, (
                f"{package}: {requirement}: run `nightjar-ci images lock`"
            )


@pytest.mark.parametrize("flavor", ["cuda12", "cuda13"])
def test_transformer_engine_is_compiled_from_the_source_of_its_core(flavor: str) -> None:
    versions = {name: version for name, version, _ in PIN.findall(read_lock(LOCKS[f"te-{flavor}"]))}
    source = {name: version for name, version, _ in PIN.findall(read_lock(LOCKS["te-source"]))}
    core = versions["transformer-engine"]
    assert versions[f"transformer-engine-cu{flavor[-2:]}"] == core
    assert source == {"transformer-engine-jax": core}


def test_versions_move_only_when_asked() -> None:
    lock = Lock(name="jax-cpu", sources=("docker/locks/jax-cpu.in",), constraints="models", extras=("postgres",))
    assert "--upgrade" not in render_compile(lock)
    argv = render_compile(lock, upgrade=True)
    assert "--upgrade" in argv
    assert argv[argv.index("--constraints") + 1] == "docker/locks/models.txt"
    assert argv[argv.index("--extra") + 1] == "postgres"


UV = """#!/bin/sh
for last; do :; done  # the lock
name=$(basename "$last" .txt)
echo "begins $name" >>order
case $name in
bad) echo "no solution for $name" >&2; exit 1 ;;
side) while ! grep -q "begins jax" order; do sleep .01; done ;;
esac
echo "ends $name" >>order
"""


def make_with_stand_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch, locks: list[Lock]
) -> tuple[tuple[LockError, ...], list[str]]:
    """Makes locks with a uv that notes when each begins and ends, and in which `side` waits until `jax` has begun."""
    put_on_path(monkeypatch, folder, {"uv": UV})
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    failures = make_locks(folder, locks, upgrade=False, on_lock=lambda lock: None)
    return failures, (folder / "order").read_text().splitlines()


def name_lock(name: str, constraints: str | None = None, independent: bool = False) -> Lock:
    return Lock(name=name, sources=(f"{name}.in",), constraints=constraints, independent=independent)


@pytest.mark.timeout(60)
def test_a_lock_begins_once_the_one_that_constrains_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locks = [name_lock("dev"), name_lock("side", "dev"), name_lock("models", "dev"), name_lock("jax", "models")]
    failures, order = make_with_stand_in(tmp_path, monkeypatch, locks)
    assert failures == ()
    assert order[:2] == ["begins dev", "ends dev"]
    assert order.index("ends models") < order.index("begins jax") < order.index("ends side")


def test_an_independent_lock_that_fails_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locks = [name_lock("dev"), name_lock("bad", "dev", independent=True), name_lock("good", "dev", independent=True)]
    (failure,), order = make_with_stand_in(tmp_path, monkeypatch, locks)
    assert failure.lock.name == "bad"
    assert "no solution for bad" in failure.message
    assert "ends good" in order


def test_a_lock_on_which_others_depend_stops_them_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locks = [name_lock("dev"), name_lock("bad", "dev"), name_lock("jax", "bad"), name_lock("cell", "jax", True)]
    with pytest.raises(LockError, match="no solution for bad") as caught:
        make_with_stand_in(tmp_path, monkeypatch, locks)
    assert [lock.name for lock in list_ancestry(locks, caught.value.lock)] == ["dev", "bad"]
    assert (tmp_path / "order").read_text().splitlines() == ["begins dev", "ends dev", "begins bad"]
