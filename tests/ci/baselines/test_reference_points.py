"""MLPerf's reference convergence points: what a file says, and what a wrong one is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nightjar_ci.baselines.reference_points import FILE, find_point, read_points, read_points_of, render_points
from nightjar_ci.errors import InputError


def entry(batch_size: int, times: list[float], benchmark: str = "bert", **others: Any) -> dict[str, Any]:
    return {"Benchmark": benchmark, "BS": batch_size, "Hyperparams": {}, "Epochs to converge": times, **others}


def write(folder: Path, document: object) -> Path:
    path = folder / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_a_file_gives_its_points_with_the_smallest_batch_first(tmp_path: Path) -> None:
    times = [10.0, 14, 11, 90, 12, 1]
    path = write(tmp_path, {"large": entry(512, [30.0] * 5), "small": entry(256, times)})
    small, large = read_points(path)
    assert (small.name, small.batch_size, large.batch_size) == ("small", 256, 512)
    assert small.mean == pytest.approx((10 + 14 + 11 + 12) / 4)  # without 1 and 90
    assert small.stdev == pytest.approx(np.std(times))


def test_four_runs_at_either_end_are_left_out_of_unet3d(tmp_path: Path) -> None:
    (point,) = read_points(write(tmp_path, {"u": entry(56, [1, 2, 3, 4, 10, 12, 20, 30, 40, 50], "unet3d")}))
    assert point.mean == 11.0


def test_what_is_rendered_is_read_again(tmp_path: Path) -> None:
    for benchmark in ("bert", "flux1"):
        points = read_points(write(tmp_path, {"one": entry(64, [5.5, 6, 7, 8], benchmark)}))
        text = render_points(points, {"Creator": "us"}, {"rate": 0.1})
        assert ("samples to converge" in text) is (benchmark == "flux1")  # as MLPerf's checker looks for them
        (tmp_path / "again.json").write_text(text, encoding="utf-8")
        assert read_points(tmp_path / "again.json") == points


def test_a_batch_between_two_points_is_interpolated_and_one_outside_is_not(tmp_path: Path) -> None:
    points = read_points(write(tmp_path, {"a": entry(100, [10.0, 11, 12, 13]), "b": entry(300, [20.0, 21, 22, 23])}))
    between = find_point(points, 200)
    assert between is not None
    assert between.mean == pytest.approx((11.5 + 21.5) / 2)
    assert find_point(points, 300) == points[1]
    assert find_point(points, 50) is None
    assert find_point(points, 301) is None


def test_a_cell_without_a_file_has_no_points(tmp_path: Path) -> None:
    assert read_points_of(tmp_path, "cell") == []
    write(tmp_path / "cell", {"a": entry(1, [1.0, 2, 3, 4])})
    assert [point.name for point in read_points_of(tmp_path, "cell")] == ["a"]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "expected an object of reference convergence points"),
        ({"a": 3}, "expected an object, found int"),
        ({"a": {"Benchmark": "bert", "BS": 1}}, "it has no 'Epochs to converge' or 'samples to converge'"),
        ({"a": {"Epochs to converge": [1, 2, 3, 4]}}, "it has no 'Benchmark', 'BS'"),
        ({"a": entry(1, [1, 2, 3])}, "3 runs, expected at least 4"),
        ({"a": entry(1, [1, 2, 3, -4])}, "expected a list of positive numbers"),
        ({"a": entry(1, [1, 2, 3, True])}, "expected a list of positive numbers"),
        ({"a": entry(0, [1, 2, 3, 4])}, "0 is not a batch size"),
        ({"a": entry(10**400, [1, 2, 3, 4])}, "is not a batch size"),
        ({"a": entry(1, [1, 2, 3, 10**400])}, "expected a list of positive numbers"),
    ],
)
def test_a_wrong_file_is_told_what_is_wrong(tmp_path: Path, document: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_points(write(tmp_path, document))


def test_a_file_that_nests_without_end_is_not_valid(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("[" * 100_000)
    with pytest.raises(InputError, match="not valid JSON"):
        read_points(tmp_path / FILE)
