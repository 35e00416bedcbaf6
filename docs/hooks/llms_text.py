"""`llms.txt`: the pages of the site for a program that reads them, with what each page is about.

In: the navigation and the markdown of the pages. Out: `llms.txt` beside the pages: a title, a summary, and per section
of the navigation the link and first sentence of each page.

Source: https://llmstxt.org, https://www.mkdocs.org/user-guide/configuration/#hooks
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SKIPPED = ("#", "![", "<", "|", "```", "- ", "* ", ">", "{", "!!!", "---", "[![")  # beginnings of what is no prose
_LINK = re.compile(r"!?\[(?P<text>[^\]]*)\]\([^)]*\)")
_MARKS = re.compile(r"[`*]")
_navigation: list[Any] = []
_about: dict[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A page: its title, its address below the site's and its first sentence."""

    title: str
    address: str
    about: str


def first_sentence(markdown: str) -> str:
    """The first sentence of a page's prose; empty if it has none.

    >>> first_sentence("# Title\\n\\n![x](y.png)\\n\\nA [night](night.md) runs\\n`jobs`. Then it ends.")
    'A night runs jobs.'
    """
    for block in re.split(r"\n\s*\n", re.sub(r"```.*?```", "", markdown, flags=re.DOTALL)):
        text = " ".join(block.split())
        if text and not text.startswith(_SKIPPED):
            plain = _MARKS.sub("", _LINK.sub(lambda link: link["text"], text))
            return re.split(r"(?<=[.:!?])\s", plain, maxsplit=1)[0].rstrip(":")
    return ""


def render_llms_text(name: str, about: str, sections: Mapping[str, Sequence[Entry]]) -> str:
    """The text of `llms.txt`."""
    lines = [f"# {name}", "", f"> {about}"]
    for section, entries in sections.items():
        lines += ["", f"## {section}", ""]
        lines += [f"- [{entry.title}]({entry.address}){f': {entry.about}' if entry.about else ''}" for entry in entries]
    return "\n".join(lines) + "\n"


def list_sections(items: Sequence[Any], about: Mapping[str, str], site: str) -> dict[str, list[Entry]]:
    """The pages of each section of the navigation.

    Args:
        items: the navigation of MkDocs.
        about: first sentence of each page, by its address below the site's.
        site: address of the site, or empty.
    """
    sections: dict[str, list[Entry]] = {}
    for item in items:
        name = item.title if item.is_section else "Start"
        for page in _pages_below(item):
            entry = Entry(title=page.title, address=f"{site}{page.url or 'index.html'}", about=about.get(page.url, ""))
            sections.setdefault(name, []).append(entry)
    return sections


def _pages_below(item: Any) -> list[Any]:
    if item.is_page:
        return [item]
    return [page for child in item.children or () for page in _pages_below(child)]


def on_nav(nav: Any, *, config: Any, files: Any) -> Any:
    """Keeps the navigation."""
    _navigation[:] = nav.items
    return nav


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Keeps the first sentence of a page."""
    _about[page.url] = first_sentence(markdown)
    return markdown


def on_post_build(*, config: Any) -> None:
    """Writes `llms.txt`."""
    text = render_llms_text(
        config.site_name, config.site_description, list_sections(_navigation, _about, config.site_url or "")
    )
    (Path(config.site_dir) / "llms.txt").write_text(text, encoding="utf-8")
