"""`nox -s journeys`: runs every tutorial whole, the heavy blocks too (JAX, Docker, a registry on loopback)."""

import sys
import tempfile
from pathlib import Path

from tests.ci.registries import run_registry
from tests.journeys.pages import HEAVY_PARTS, PAGES, read_parts, run_page
from tests.machine import find_lack

for part in HEAVY_PARTS:
    if (lack := find_lack(part)) is not None:
        print(f"error: {lack}", file=sys.stderr)
        sys.exit(3)
for page in PAGES:
    if (lack := next(filter(None, map(find_lack, read_parts(page.read_text()))), None)) is not None:
        print(f"{page.name}: skipped, {lack}", flush=True)
        continue
    with tempfile.TemporaryDirectory() as folder, run_registry(Path(folder, "registry")) as registry:
        count = run_page(page, Path(folder), heavy=True, registry=registry.repository.name)
        print(f"{page.name}: {count} blocks did what the page says", flush=True)
