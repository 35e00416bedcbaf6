"""The documentation site: every page is in the nav, links to files of the repository lead there."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import yaml

import noxfile

ROOT = noxfile.ROOT
DOCS = ROOT / "docs"


def load_hook() -> ModuleType:
    """The hook that mkdocs loads from its file."""
    spec = importlib.util.spec_from_file_location("repository_links", DOCS / "hooks" / "repository_links.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages_of(nav: Any) -> Iterator[str]:
    """The files of a nav, wherever they stand in it."""
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
