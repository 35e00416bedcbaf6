"""Debian's order of versions, compared with dpkg's own where it is installed."""

from __future__ import annotations

import itertools
import subprocess

import pytest

from nightjar_ci.images.vulnerabilities.debian_version import compare_versions, debian_key

# oldest first
ORDERED = [
    "0~", "0", "0.9", "1.0~~", "1.0~~a", "1.0~", "1.0~rc1-1", "1.0~rc2-1", "1.0", "1.0-0.1", "1.0-1", "1.0-1+b1",
    "1.0-1+deb13u1", "1.0-1+deb13u2", "1.0-1.1", "1.0-2", "1.0-10", "1.0a-1", "1.0+dfsg-1", "1.0.1-1", "1.2", "1.10",
    "2.41-12", "20250101", "9" * 5000, "1:0.1", "1:0.1-1", "2:0~",
]  # fmt: skip


def test_versions_are_in_dpkgs_order() -> None:
    shuffled = sorted(ORDERED, key=lambda version: version[::-1])
    assert sorted(shuffled, key=debian_key) == ORDERED
    for (place, left), (other, right) in itertools.product(enumerate(ORDERED), repeat=2):
        assert compare_versions(left, right) == (place > other) - (place < other), (left, right)


@pytest.mark.parametrize(("left", "right"), [("1.0", "1.00"), ("0:1.0-1", "1.0-1"), ("1.0-0", "1.0")])
def test_versions_that_are_spelled_otherwise_are_equal(left: str, right: str) -> None:
    assert compare_versions(left, right) == 0


@pytest.mark.dpkg
def test_dpkg_says_the_same() -> None:
    for left, right in itertools.pairwise(ORDERED):
        assert subprocess.run(["dpkg", "--compare-versions", left, "lt", right], check=False).returncode == 0, (
            left,
            right,
        )
    for left, right in (("1.0", "1.00"), ("0:1.0-1", "1.0-1"), ("1.0-0", "1.0")):
        assert subprocess.run(["dpkg", "--compare-versions", left, "eq", right], check=False).returncode == 0, (
            left,
            right,
        )
