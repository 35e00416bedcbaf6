"""Nights that somebody else made, as artifacts are: read, gated, published, imported; nothing is written elsewhere."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ci.nights import CELL, make_night, outcome, record
from tests.hostile.world import World, check_manners
from tests.places import ROOT

NIGHT = "2026-11-21T0300-1a2b"
Change = Callable[[dict[str, Any]], object]


def set_job(key: str, value: object) -> Change:
    return lambda night: night["jobs"][0].update({key: value})


NIGHTS: dict[str, Change] = {
    "an id that is a path": lambda night: night.update(id="../../../outside"),
    "an id that is absolute": lambda night: night.update(id="/outside"),
    "an id that acts": lambda night: night.update(id="\x1b[2J"),
    "an empty id": lambda night: night.update(id=""),
    "a long id": lambda night: night.update(id="x" * 100_000),
    "a matrix that is a path": lambda night: night.update(matrix="../../../outside"),
    "a matrix with markup": lambda night: night.update(matrix="<script>alert(1)</script>"),
    "a job that is a path": set_job("job", "../../../outside"),
    "a job that is absolute": set_job("job", "/etc"),
    "a cell that is a path": set_job("cell", "../../outside"),
    "a job with NUL": set_job("job", "a\0b"),
    "a state of its own": set_job("state", "excellent"),
    "a negative duration": set_job("duration_s", -1),
    "a duration of text": set_job("duration_s", "1e3"),
    "jobs that are no list": lambda night: night.update(jobs={"a": 1}),
    "a job twice": lambda night: night["jobs"].append(night["jobs"][0]),
    "a date of its own": lambda night: night.update(started_at="yesterday"),
    "an unknown key": lambda night: night.update(__proto__={"x": 1}),
    "another schema": lambda night: night.update(schema="nightjar.night/99"),
}


@pytest.mark.parametrize("name", NIGHTS)
def test_a_night_of_somebody_else_cannot_act(name: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.make()
    folder = make_night(world.work / "nights" / "night", [(outcome(f"{CELL}-s0"), record(0, values=[3.0, 2.0]))], NIGHT)
    document = json.loads((folder / "night.json").read_text())
    NIGHTS[name](document)
    (folder / "night.json").write_text(json.dumps(document))
    policies = ("--policies", ROOT / "ci" / "policies.toml", "--baselines", world.work / "baselines")
    before = {path for path in tmp_path.rglob("*") if not path.is_relative_to(world.work)}
    done = world.run_each(
        ["gate", folder, *policies],
        ["report", folder, *policies],
        ["store", "--import", folder],
        ["site", "--out", world.work / "site", "--nights", folder.parent],
    )
    for end in done:
        check_manners(end)
    assert done[0].code != 0
    assert {path for path in tmp_path.rglob("*") if not path.is_relative_to(world.work)} == before
    assert not list(world.work.rglob("outside*"))
    pages = [page.read_text(encoding="utf-8") for page in world.work.rglob("*.html")]
    assert not [page for page in pages if "<script>alert" in page]
    assert world.find_leaks(done) == []
