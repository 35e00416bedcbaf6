"""`images vulnerabilities` as a user runs it: nights of a real registry, the SBOM of another tool, JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nightjar_ci.cli import main
from nightjar_ci.images.publish.index_store import refresh_index
from nightjar_ci.images.publish.publish import publish_image
from nightjar_ci.images.publish.push import push_packed
from tests.ci.images.vulnerabilities.test_find import WHY, entry, statement, write_vex
from tests.ci.registries import SOURCE, make_image, run_registry, verdict_on


def run(command: list[str]) -> object:
    """The exit code."""
    with pytest.raises(SystemExit) as ended:
        main(command)
    return ended.value.code


@pytest.fixture
def database(tmp_path: Path) -> Path:
    folder = tmp_path / "osv"
    folder.mkdir()
    (folder / "GHSA-1.json").write_text(json.dumps(entry(aliases=["CVE-7"])))
    return folder


@pytest.mark.registry
def test_a_night_says_which_package_is_affected_and_since_which_night(
    tmp_path: Path, database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_registry(tmp_path / "registry") as registry:
        repository = registry.repository
        for day, version in (("2026-11-19", "1.22.0"), ("2026-11-20", "1.21.0"), ("2026-11-21", "1.21.0")):
            image = make_image(tmp_path / "layers", repository, python={"numpy": version}, layer=day.encode())
            push_packed(image, repository, "jax-cpu", day, tested=verdict_on(image), source=SOURCE)
            publish_image(repository, "jax-cpu", day, ["linux/amd64"])
        refresh_index(repository)
        command = ["images", "vulnerabilities", f"{repository.name}:jax-cpu", "--database", str(database)]
        assert run(command) == 1
        said = capsys.readouterr()
        assert run([*command[:2], f"{repository.name}:jax-cpu-2026-11-19", *command[3:]]) == 0
    assert said.out.startswith("numpy 1.21.0; unknown; GHSA-1 (CVE-7); Overflow; fixed in 1.22.0")
    assert said.out.endswith("in images since 2026-11-20\n")
    assert "2 packages, 1 known vulnerabilities, 0 that do not apply" in said.err


def test_the_sbom_of_another_tool_is_read_and_what_does_not_apply_is_not_red(
    tmp_path: Path, database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sbom = tmp_path / "sbom.json"
    component = {"type": "library", "name": "numpy", "version": "1.21.0", "purl": "pkg:pypi/numpy@1.21.0"}
    sbom.write_text(json.dumps({"bomFormat": "CycloneDX", "components": [component]}))
    command = ["images", "vulnerabilities", str(sbom), "--database", str(database), "--json"]
    assert run(command) == 1
    (fault,) = json.loads(capsys.readouterr().out)
    assert (fault["id"], fault["component"]["name"], fault["reason"]) == ("GHSA-1", "numpy", None)
    write_vex(tmp_path / "vex.json", statement(**WHY))
    assert run([*command, "--vex", str(tmp_path / "vex.json")]) == 0
    (fault,) = json.loads(capsys.readouterr().out)
    assert fault["reason"] == WHY["justification"]


@pytest.mark.parametrize(
    ("where", "message"), [("absent.json", "cannot be read"), ("localhost:1/x", "has no image name")]
)
def test_what_is_not_there_is_said(
    tmp_path: Path, database: Path, where: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = str(tmp_path / where) if where.endswith(".json") else where
    assert run(["images", "vulnerabilities", name, "--database", str(database)]) == 2
    assert message in capsys.readouterr().err
