"""Commands on images that need no engine and no registry."""

import importlib.util
import json
from pathlib import Path

import pytest

from nightjar_ci.images.tree import find_checkout
from tests.ci.images.test_choose import run

CHECKOUT = find_checkout(Path(__file__).parent)


def test_an_empty_index_is_said_to_be_empty(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    index = tmp_path / "index.json"
    index.write_text('{"schema": "nightjar.images/1", "images": []}')
    for options in ([], ["--json"]):
        code, _, err = run(["list", str(index), *options], capsys)
        assert (code, "has no nightly image yet" in err) == (0, True)


@pytest.mark.parametrize("lacking", ["pytest", "docker"])
def test_tests_of_images_say_which_package_they_lack(
    lacking: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.chdir(CHECKOUT)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name.startswith(lacking) else found(name))
    code, _, err = run(["test", "base"], capsys)
    assert (code, f"need {lacking}, which this Python lacks" in err) == (2, True)


def test_listing_and_dry_runs_need_no_docker(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(CHECKOUT)
    code, out, _ = run(["list", "--json", "--flavor", "cuda12"], capsys)
    assert code == 0
    names = [image["name"] for image in json.loads(out)]
    assert names[:3] == ["base", "cuda", "jax"]
    ours = {"base", "cuda", "jax", "te", "dali", "profiling", "models", "devel", "devcontainer", "source"}
    assert set(names) == ours | {"equinox", "levanter", "maxtext", "tunix"}
    for arguments in (
        ["build", "--dry-run"],
        ["test", "jax", "--dry-run"],
        ["push", "jax", "--to", "h.io/x", "--dry-run"],
    ):
        code, out, _ = run(arguments, capsys)
        assert (code, bool(out)) == (0, True), arguments
    monkeypatch.setenv("IMAGE_PYTHON", "3.9")
    code, _, err = run(["list"], capsys)
    assert code == 2
    assert "cpu-py3.9-amd64" in err
