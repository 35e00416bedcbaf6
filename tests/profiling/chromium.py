"""A headless Chromium that opens the pages of captures."""

from contextlib import AbstractContextManager
from pathlib import Path

from tests import browser


class Page(browser.Page):
    def open(self, path: Path, fragment: str = "") -> None:
        self.navigate("about:blank")
        self.navigate(f"{path.resolve().as_uri()}{fragment}")
        self.wait("location.protocol === 'file:' && document.documentElement?.dataset.ready")


def open_browser(profile: Path) -> AbstractContextManager[Page]:
    return browser.open_browser(profile, Page)
