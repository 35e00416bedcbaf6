"""The pages of the clouds: each command of Nightjar runs, and renders the file that its page links."""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import pytest

import noxfile
from nightjar_ci.cli import make_app
from tests.ci.executors.test_kubernetes import check
from tests.repo.test_workflows import parse

ROOT = noxfile.ROOT
PAGES = sorted((ROOT / "docs" / "clouds").glob("*.md"))
RENDERED = ROOT / "docs" / "clouds" / "rendered"


def commands_of(page: Path) -> list[tuple[dict[str, str], list[str]]]:
    found, variables = [], {}
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["export"]:
                variables = dict(word.split("=", 1) for word in words[1:])
            elif words[:1] == ["nightjar-ci"]:
                found.append((variables, words[1:]))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_is_one_and_renders_what_the_page_links(
    page: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(ROOT)
    rendered = []
    for variables, words in commands_of(page):
        if ">" not in words:
            assert parse(words)
            continue
        *command, _, name = words
        for variable in ("NIGHTJAR_SLURM_OPTIONS", "NIGHTJAR_KUBERNETES_OPTIONS", "NIGHTJAR_STATE_DIR"):
            monkeypatch.delenv(variable, raising=False)
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            make_app(command[0])(command, standalone_mode=False)
        if request.config.getoption("--update-golden"):
            (RENDERED / name).write_text(printed.getvalue())
        assert printed.getvalue() == (RENDERED / name).read_text(), f"{name}: hint: pytest {__file__} --update-golden"
        assert f"(rendered/{name})" in page.read_text()
        if name.endswith(".json"):
            check(json.loads(printed.getvalue()))
        rendered.append(name)
    assert rendered or page.stem == "index"


def test_every_rendered_file_is_one_of_a_page() -> None:
    named = [words[-1] for page in PAGES for _, words in commands_of(page) if ">" in words]
    assert sorted(path.name for path in RENDERED.iterdir()) == sorted(named)
