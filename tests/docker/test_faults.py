"""Faults of an image: variable names, modes of files and folders, size."""

import tarfile

import pytest

from tests.docker.faults import find_bad_modes, find_bad_variables, find_oversize


def judge(path: str, mode: int, kind: bytes = tarfile.REGTYPE) -> str:
    """The reason of the one fault of an entry; empty where it has none."""
    member = tarfile.TarInfo(path)
    member.mode, member.type = mode, kind
    faults = find_bad_modes([member])
    return faults[0].partition("): ")[2] if faults else ""


@pytest.mark.parametrize(
    ("path", "mode", "reason"),
    [
        ("usr/bin/tool", 0o755, ""),
        ("usr/bin/tool", 0o4755, "setuid or setgid"),
        ("usr/bin/tool", 0o2755, "setuid or setgid"),
        ("usr/bin/su", 0o4755, ""),
        ("usr/local/bin/su", 0o4755, "setuid or setgid"),
        ("usr/bin/su", 0o4757, "world-writable"),
        ("opt/data", 0o646, "world-writable"),
        ("opt/data", 0o640, "others cannot read it"),
        ("etc/shadow", 0o640, ""),
        ("etc/shadows", 0o640, "others cannot read it"),
        ("usr/bin/ssh-agent", 0o2750, ""),
        ("opt/", 0o757, "world-writable without the sticky bit"),
        ("tmp/", 0o1777, ""),
        ("opt/", 0o751, "others cannot enter or list it"),
        ("root/", 0o700, ""),
        ("opt/", 0o2755, ""),  # new files get the group of the folder
    ],
)
def test_what_all_may_read_and_none_may_change_is_right(path: str, mode: int, reason: str) -> None:
    kind = tarfile.DIRTYPE if path.endswith("/") else tarfile.REGTYPE
    assert judge(path, mode, kind) == reason


def test_a_fault_names_path_and_mode() -> None:
    member = tarfile.TarInfo("./")
    member.mode, member.type = 0o700, tarfile.DIRTYPE
    assert find_bad_modes([member]) == ["/ (0700): others cannot enter or list it"]


def test_a_name_that_a_shell_does_not_take_is_a_fault() -> None:
    bad = ("1A", "a-b", "a.b", "", "é")
    faults = find_bad_variables([f"{name}=x-y" for name in ("A", "_", "a1", "A_B", *bad)])
    assert [fault.partition(": ")[0] for fault in faults] == [f"variable {name!r}" for name in bad]


@pytest.mark.parametrize(("size", "faults"), [(1_200_000_000, 0), (1_200_000_001, 1)])
def test_an_image_may_be_as_large_as_its_budget(size: int, faults: int) -> None:
    assert len(find_oversize(size, {"jax-cpu": 1200}, "jax", "cpu")) == faults
