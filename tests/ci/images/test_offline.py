"""Commands on images that need no engine and no registry."""

import importlib.util
import json
from pathlib import Path

import pytest

from nightjar_ci.cli import main
from nightjar_ci.images.tree import find_checkout
from tests.called import call

CHECKOUT = find_checkout(Path(__file__).parent)


def test_an_empty_index_is_said_to_be_empty(tmp_path: Path) -> None:
    index = tmp_path / "index.json"
    index.write_text('{"schema": "nightjar.images/1", "images": []}')
    for options in ([], ["--json"]):
        done = call(main, "images", "list", index, *options)
        assert (done.returncode, "has no nightly image yet" in done.stderr) == (0, True)


@pytest.mark.parametrize("lacking", ["pytest", "docker"])
def test_tests_of_images_say_which_package_they_lack(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.chdir(CHECKOUT)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name.startswith(lacking) else found(name))
    done = call(main, "images", "test", "base")
    assert (done.returncode, f"need {lacking}, which this Python lacks" in done.stderr) == (2, True)


def test_listing_and_dry_runs_need_no_docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(CHECKOUT)
    listed = call(main, "images", "list", "--json", "--flavor", "cuda12")
    names = [image["name"] for image in json.loads(listed.stdout)]
    assert listed.returncode == 0
    assert names[:3] == ["base", "cuda", "jax"]
    ours = {"base", "cuda", "jax", "te", "dali", "profiling", "models", "devel", "devcontainer", "source"}
    assert set(names) == ours | {"equinox", "levanter", "maxtext", "tunix"}
    for arguments in (["build"], ["test", "jax"], ["push", "jax", "--to", "h.io/x"]):
        done = call(main, "images", *arguments, "--dry-run")
        assert (done.returncode, bool(done.stdout)) == (0, True), arguments
    monkeypatch.setenv("IMAGE_PYTHON", "3.9")
    done = call(main, "images", "list")
    assert (done.returncode, "cpu-py3.9-amd64" in done.stderr) == (2, True)
