"""The documentation site: every page is in the nav, links to files of the repository lead there."""

import importlib.util
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import yaml

from nightjar_ci.night.matrix import expand, read_matrix
from tests.places import ROOT

DOCS = ROOT / "docs"


def load_hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("links", DOCS / "hooks" / "repository_links.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages_of(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_of(part)


def test_every_page_is_in_the_nav_once_and_every_entry_is_a_page() -> None:
    named = list(pages_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    written = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert sorted(named) == sorted(written), "mkdocs.yml: the nav names each page of docs/ once"


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("see [the pins](../docker/versions.json)", "see [the pins](ADDRESS/blob/main/docker/versions.json)"),
        ("[images](../docker)", "[images](ADDRESS/tree/main/docker)"),
        ("[gating](gating.md#why)", "[gating](gating.md#why)"),
        ("[JAX](https://jax.dev)", "[JAX](https://jax.dev)"),
    ],
)
def test_a_link_to_a_file_of_the_repository_leads_to_the_repository(markdown: str, expected: str) -> None:
    rewrite_links = load_hook().rewrite_links
    assert rewrite_links(markdown, DOCS / "images.md", DOCS, "ADDRESS") == (expected, [])


def test_a_link_to_nothing_is_named_and_without_an_address_only_the_text_stays() -> None:
    rewrite_links = load_hook().rewrite_links
    assert rewrite_links("[pins](../docker/pins.json)", DOCS / "images.md", DOCS, None)[1] == ["../docker/pins.json"]
    assert rewrite_links("[pins](../docker/versions.json)", DOCS / "images.md", DOCS, None) == ("pins", [])


def test_the_matrices_of_the_examples_can_be_run() -> None:
    matrices = [path for path in (ROOT / "ci" / "examples").rglob("*.toml") if "nightjar.matrix/1" in path.read_text()]
    jobs = {path.stem: expand(read_matrix(path)) for path in matrices}
    assert jobs["two-nodes"][0].resources.tasks == 16
    assert all(jobs.values())


def test_the_pictures_are_small_and_every_one_is_shown() -> None:
    pictures = sorted((DOCS / "pictures").iterdir())
    assert pictures
    assert [path.name for path in pictures if path.stat().st_size > 200_000] == []
    pages = (DOCS / "index.md").read_text()
    assert [path.name for path in pictures if f"pictures/{path.name}" not in pages] == []
