"""`nox -s journeys`: runs every tutorial whole, the heavy blocks too (JAX, Docker)."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.journeys.pages import PAGES, run_page

for page in PAGES:
    with tempfile.TemporaryDirectory() as folder:
        print(f"{page.name}: {run_page(page, Path(folder), heavy=True)} blocks did what the page says", flush=True)
