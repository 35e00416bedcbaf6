"""The shape of the repository: small files, workflows without logic, no index address, no dead names in documents."""

import re
import subprocess
from pathlib import Path
from typing import Any

import nox.registry
import pytest
import yaml

import noxfile

ROOT = noxfile.ROOT
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def tracked(*patterns: str) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode:
        pytest.skip(f"not a git checkout: {listing.stderr.strip()}")
    return [ROOT / line for line in listing.stdout.splitlines() if (ROOT / line).is_file()]


@pytest.mark.git
def test_no_python_file_is_longer_than_400_lines() -> None:
    files = [path for path in tracked("*.py") if not path.name.endswith("_pb2.py")]
    lengths = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in files}
    assert len(lengths) > 30
    assert {name: length for name, length in lengths.items() if length > 400} == {}


@pytest.mark.git
def test_no_file_names_a_package_index_or_an_archive_mirror() -> None:
    address = re.compile(r"https?://(?!mirror\.example|[\w.]+\.invalid|user:)[\w.:@-]+/(simple|debian|ubuntu)\b")
    assert address.search("http://deb.debian.org" + "/debian trixie main")
    named = [path for path in tracked() if address.search(path.read_text(encoding="utf-8", errors="ignore"))]
    assert [str(path.relative_to(ROOT)) for path in named] == []


def test_workflow_steps_hold_no_logic_and_pin_their_actions() -> None:
    steps: list[tuple[str, dict[str, Any]]] = []
    for path in WORKFLOWS:
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            steps += [(path.name, step) for step in job.get("steps", ())]
    assert len(steps) >= 4
    for name, step in steps:
        assert len(step.get("run", "").strip().splitlines()) <= 3, f"{name}: {step['run']}"
        if "uses" in step and not step["uses"].startswith("./"):
            assert re.search(r"@[0-9a-f]{40}$", step["uses"]), f"{name}: {step['uses']} is not pinned to a commit"


@pytest.mark.git
def test_every_session_that_a_file_names_exists() -> None:
    defined = set(nox.registry.get())
    unknown, named = {}, set()
    for path in tracked():
        text = path.read_text(encoding="utf-8", errors="ignore")
        sessions = set(re.findall(r"nox(?:file\.py)?\s+-s\s+([a-z]\w*)(?![\w*])", text))
        named |= sessions
        if sessions - defined:
            unknown[str(path.relative_to(ROOT))] = sorted(sessions - defined)
    assert {"nightly", "tests", "images", "nightjar_ci"} <= named
    assert unknown == {}


@pytest.mark.git
def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for page in tracked("*.md"):
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text()):
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)} -> {target}")
    assert broken == []
