"""Replays of nights that are written by hand: what a layout costs is counted, not estimated."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightjar_ci.errors import InputError
from nightjar_ci.images.layering.layers import parse_layers, read_layers
from nightjar_ci.images.layering.past_nights import PastNights, list_days, read_pylock
from nightjar_ci.images.layering.replay import (
    ResolvedNight,
    Wheel,
    count_changes,
    find_savings,
    layer_per_package,
    one_layer,
    replay,
)
from nightjar_ci.images.process import ToolError
from nightjar_ci.images.tree import find_checkout

CHECKOUT = find_checkout(Path(__file__).parent)
MB = 1_000_000
SIZES = {"nvidia-cudnn-cu12": 700 * MB, "nvidia-nccl-cu12": 300 * MB, "jaxlib": 90 * MB, "jax": 4 * MB}


def night(day: int, **versions: str) -> ResolvedNight:
    named = {name.replace("_", "-"): version for name, version in versions.items()}
    wheels = tuple(sorted(Wheel(name, version, SIZES[name]) for name, version in named.items()))
    return ResolvedNight(day=date(2026, 1, day), wheels=wheels)


NIGHTS = [
    night(1, nvidia_cudnn_cu12="9.1", nvidia_nccl_cu12="2.1", jaxlib="1", jax="1"),
    night(2, nvidia_cudnn_cu12="9.1", nvidia_nccl_cu12="2.1", jaxlib="1", jax="1"),
    night(3, nvidia_cudnn_cu12="9.2", nvidia_nccl_cu12="2.1", jaxlib="1", jax="1"),
    night(4, nvidia_cudnn_cu12="9.2", nvidia_nccl_cu12="2.1", jaxlib="2", jax="2"),
]


def test_a_quiet_night_costs_nothing_and_a_new_cudnn_costs_its_layer() -> None:
    cost = replay(NIGHTS, read_layers(CHECKOUT).layer_of)
    assert (cost.nights, cost.changed_nights) == (4, 3)
    assert cost.pulled_bytes == (1094 + 700 + 94) * MB
    assert {layer.name: layer.pulls for layer in cost.layers} == {"cudnn": 2, "nccl": 1, "jaxlib": 2, "jax": 2}
    assert replay(NIGHTS, one_layer).pulled_bytes == 3 * 1094 * MB


def test_a_package_that_comes_and_goes_is_a_change_both_times() -> None:
    nights = [night(1, jax="1"), night(2, jax="1", jaxlib="1"), night(3, jax="1")]
    assert count_changes(nights) == {"jaxlib": 2}
    assert replay(nights, one_layer).changed_nights == 3


def test_the_planner_names_the_package_that_should_stand_alone() -> None:
    savings = find_savings(NIGHTS, one_layer)
    assert next(iter(savings)) == "nvidia-cudnn-cu12"
    assert find_savings(NIGHTS, layer_per_package) == {}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 2)] * len(SIZES)), min_size=1, max_size=8))
def test_no_layout_pulls_less_than_a_layer_per_package_or_more_than_one_layer(versions: list[tuple[int, ...]]) -> None:
    nights = [
        night(day + 1, **{name.replace("-", "_"): str(one) for name, one in zip(SIZES, each, strict=True)})
        for day, each in enumerate(versions)
    ]
    least, ours, most = (
        replay(nights, layout).pulled_bytes for layout in (layer_per_package, read_layers(CHECKOUT).layer_of, one_layer)
    )
    assert least <= ours <= most


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cudnn\nrest *", "layers.txt:1: 'cudnn': expected LAYER PATTERN..."),
        ("a x\na y\nrest *", "layers.txt:2: duplicate layer 'a'."),
        ("a x # *", "layers.txt: the last layer does not match every package."),
    ],
)
def test_rules_that_leave_a_package_without_a_layer_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_layers(text, "layers.txt")
    assert caught.value.message == message


def fake_uv(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "bin" / "uv"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")


def past(folder: Path) -> PastNights:
    (folder / "jax.in").write_text("jax\n")
    return PastNights(source=folder / "jax.in", folder=folder / "cache")


def test_a_night_is_resolved_once_and_ends_at_midnight_of_utc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_uv(tmp_path, f'echo "$@" >>{tmp_path}/calls; echo "packages = []"', monkeypatch)
    days = list_days(date(2026, 3, 1), 3)
    for _ in range(2):
        assert [one.day for one in past(tmp_path).resolve(days, lambda day: None)] == list(days)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 3
    assert sum("--exclude-newer 2026-03-01T23:59:59Z" in call for call in calls) == 1


def test_a_night_that_does_not_resolve_ends_with_what_uv_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_uv(tmp_path, 'echo "no version of jax" >&2; exit 1', monkeypatch)
    with pytest.raises(ToolError, match="no version of jax") as caught:
        past(tmp_path).resolve(list_days(date(2026, 3, 1), 2), lambda day: None)
    assert caught.value.exit_code == 3
    assert "upload times" in str(caught.value.hint)


def test_resolutions_are_kept_for_the_requirements_and_not_for_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_uv(tmp_path, f'echo >>{tmp_path}/calls; echo "packages = []"', monkeypatch)
    days = list_days(date(2026, 3, 1), 1)
    more, calls = "-r more.in\njax\n", []
    for text, included in (
        *(("jax\n", ""), ("# why\njax # because\n\n", ""), ("jaxlib\n", "")),
        *((more, "flax\n"), (more, "flax # too\n"), (more, "optax\n")),
    ):
        (tmp_path / "more.in").write_text(included)
        night = past(tmp_path)
        (tmp_path / "jax.in").write_text(text)
        night.resolve(days, lambda day: None)
        calls.append(len((tmp_path / "calls").read_text().splitlines()))
    assert calls == [1, 1, 2, 3, 3, 4]


def test_a_package_without_a_wheel_counts_with_its_source() -> None:
    text = '[[packages]]\nname = "a"\nversion = "1"\nsdist = {url = "https://files.invalid/a-1.tar.gz"}\n'
    assert read_pylock(text) == [("a", "1", "https://files.invalid/a-1.tar.gz")]
