"""The environment of a result is that of the process."""

import os
import subprocess
from pathlib import Path

import jax
import pytest

from nightjar_models.doctor.gather import read_driver
from nightjar_models.measuring.environment import read_cpu, read_environment, read_git, select_flags


def test_environment_names_what_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTJAR_IMAGE", "nightjar/models:2026-11-21")
    found = read_environment()
    assert found["packages"]["jax"] == jax.__version__
    assert {"jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy"} <= found["packages"].keys()
    assert found["cpu"]["cores"] >= 1
    assert found["cpu"]["memory_bytes"] > 2**28
    assert len(found["devices"]) == jax.local_device_count()
    assert found["image"] == "nightjar/models:2026-11-21"


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build", "570.86.15"),
        ("something else", None),
    ],
)
def test_the_driver_is_named_where_one_is_loaded(tmp_path: Path, line: str, version: str | None) -> None:
    (tmp_path / "version").write_text(f"{line}\nGCC version: gcc version 12.2.0 (Debian 12.2.0-14)\n")
    assert read_driver(tmp_path / "version") == version
    assert read_driver(tmp_path / "missing") is None


def test_only_flags_that_matter_are_kept() -> None:
    kept = {
        "XLA_FLAGS": "--a",
        "JAX_ENABLE_X64": "1",
        "NCCL_DEBUG": "INFO",
        "LIBTPU_INIT_ARGS": "b",
        "MALLOC_ARENA_MAX": "1",
    }
    assert select_flags({**kept, "PATH": "/bin", "MY_XLA_FLAGS": "x"}) == kept


@pytest.mark.git
def test_git_tells_commit_and_changes(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        answer = subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True, text=True
        )
        return answer.stdout.strip()

    git("init", "--quiet")
    assert read_git(tmp_path) is None  # no commit yet
    git("commit", "--quiet", "--allow-empty", "-m", "first")
    assert read_git(tmp_path) == {"sha": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "new").write_text("")
    assert read_git(tmp_path) == {"sha": git("rev-parse", "HEAD"), "dirty": True}


def test_a_machine_without_git_has_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_git(Path.cwd()) is None


def test_the_cores_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 4, 7}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert read_cpu()["cores"] == 3
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    assert read_cpu()["cores"] == 64
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert read_cpu()["cores"] == 1
