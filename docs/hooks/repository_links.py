"""Where do links from a page to a file of the repository lead on the site?

In: the markdown of a page, whose links are relative files as a reader of the repository wants them. Out: the same with
the repository's address in front of what is not a page, and its name for `PLACEHOLDER`; without the link where no
address is known. A target that does not exist is a warning, which `mkdocs build --strict` makes an error. GitHub's own
variables name the repository.

Source: https://www.mkdocs.org/user-guide/configuration/#hooks
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LINK = re.compile(r"(?P<bang>!?)\[(?P<text>[^\]\[]*)\]\((?P<target>(?!\w+:|#)[^)\s]+)\)")
PLACEHOLDER = "OWNER/nightjar"  # on pages, until the site is built where the repository is known
log = logging.getLogger("mkdocs.hooks.repository_links")


def find_address(environ: Mapping[str, str]) -> str | None:
    """The repository's address on the web, where GitHub builds the site.

    >>> find_address({"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "owner/nightjar"})
    'https://github.com/owner/nightjar'
    """
    server, name = environ.get("GITHUB_SERVER_URL"), environ.get("GITHUB_REPOSITORY")
    return f"{server}/{name}" if server and name else None


def rewrite_links(markdown: str, page: Path, docs: Path, address: str | None) -> tuple[str, list[str]]:
    """A page's markdown with links that work on the site.

    Args:
        markdown: the page.
        page: its file.
        docs: the folder of pages.
        address: of the repository, or None.

    Returns: the markdown, and the targets that do not exist.
    """
    missing: list[str] = []
    root = docs.parent

    def replace(link: re.Match[str]) -> str:
        path, _, _ = link["target"].partition("#")
        target = (page.parent / path).resolve()
        if target.is_relative_to(docs) and target.suffix:
            return link[0]  # a page or a picture: MkDocs checks it
        if not target.is_relative_to(root) or not target.exists():
            missing.append(link["target"])
            return link[0]
        if address is None:
            return link["text"]
        kind = "tree" if target.is_dir() else "blob"
        return f"[{link['text']}]({address}/{kind}/main/{target.relative_to(root).as_posix()})"

    return _LINK.sub(replace, markdown), missing


def on_config(config: Any) -> Any:
    """Tells the theme where the repository is."""
    config.repo_url = find_address(os.environ)
    return config


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Rewrites the links of a page."""
    here, docs = Path(page.file.abs_src_path), Path(config.docs_dir).resolve()
    text, missing = rewrite_links(markdown, here, docs, find_address(os.environ))
    if name := os.environ.get("GITHUB_REPOSITORY"):
        text = text.replace(PLACEHOLDER, name)
    for target in missing:
        log.warning("%s: the link %s leads nowhere", page.file.src_uri, target)
    return text
