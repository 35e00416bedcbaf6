"""`nox -s rehearse`: the nightly of .github on this machine, from the bump of the pins to the page in a browser.

In: nothing but this checkout. A clone of it, a registry on loopback and a new state folder are made below --folder;
every step's command runs there, in the order of the YAML. Out: a line a step, the page's address and a picture of it.
Exit code 0: every step did its work and Chromium opened the page; 1: a step failed; 3: the machine lacks something.
"""

import argparse
import http.server
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import noxfile
from tests.browser import Page, open_browser
from tests.ci.registries import run_registry
from tests.machine import find_lack
from tests.rehearsal.runner import Done, Runner
from tests.rehearsal.stand_ins import StandIns
from tests.rehearsal.workflow import read_workflow

MACHINE_FAILED = 3
GATE_ANSWERS = (0, 1, 4)  # yes, no, cannot tell: the gate did its work


def main() -> int:
    parser = argparse.ArgumentParser(prog="nox -s rehearse --", description=__doc__, allow_abbrev=False)
    parser.add_argument("--folder", type=Path, help="where everything is left; default: a new temporary folder")
    parser.add_argument("--jobs", default="vit_tiny*", help="glob of the jobs to run, default %(default)s; '*' for all")
    parser.add_argument("--workflow", default="nightly.yml", help="a file of .github/workflows, default %(default)s")
    parser.add_argument("--event", default="schedule", help="what set it off, default %(default)s; push for docs.yml")
    asked = parser.parse_args()
    for part in ("browser", "registry"):
        if (lack := find_lack(part)) is not None:
            print(f"error: {lack}", file=sys.stderr)
            return MACHINE_FAILED
    folder = (asked.folder or Path(tempfile.mkdtemp(prefix="rehearsal-"))).absolute()
    checkout = clone(folder / "checkout")
    with run_registry(folder / "registry") as registry:
        stand_ins = StandIns(folder, checkout)
        stand_ins.artifacts.mkdir(parents=True, exist_ok=True)
        runner = Runner(checkout, stand_ins, contexts(f"{registry.host}/nightjar", asked.jobs, asked.event))
        runner.run(read_workflow(checkout / ".github" / "workflows" / asked.workflow, checkout))
    print_steps(runner.done)
    print(look_at(stand_ins.pages, folder / "page.png"))
    return 1 if failures(runner.done) else 0


def contexts(repository: str, jobs: str, event: str) -> dict[str, object]:
    """The contexts of a run, as GitHub would fill them; other nights than the CPU's only where all jobs run."""
    github = {
        "repository": "owner/nightjar",
        "server_url": "https://github.example",
        "run_id": str(int(time.time())),
        "run_attempt": "1",
        "actor": "somebody",
        "token": "none",
        "ref": "refs/heads/main",
        "event_name": event,
    }
    others = () if jobs == "*" else ("NIGHTJAR_MESHES", "NIGHTJAR_AOT_MATRIX", "NIGHTJAR_ECOSYSTEM")
    variables = {
        "NIGHTJAR_REPOSITORY": repository,
        "NIGHTJAR_JOBS": jobs,
        "NIGHTJAR_SIGN": "off",
        **dict.fromkeys(others, "off"),
    }
    return {"github": github, "vars": variables, "secrets": {}, "runner": {"os": "Linux", "environment": "self-hosted"}}


def clone(target: Path) -> Path:
    """A clone of what is committed, as actions/checkout makes one; an earlier one of the folder goes."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", str(noxfile.ROOT), str(target)], check=True)
    return target


def failures(done: Sequence[Done]) -> list[Done]:
    """The steps that did not do their work; a gate that says no has done it."""
    return [
        one
        for one in done
        if one.outcome == "failure" and not one.may_fail and not (one.step == "Gate" and one.status in GATE_ANSWERS)
    ]


def print_steps(done: Sequence[Done]) -> None:
    for one in done:
        status = "" if one.status is None else f"exit {one.status}"
        print(f"{one.outcome:<8} {status:<8} {one.duration_s:>6.0f} s  {one.job}: {one.step}")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def look_at(pages: Path, picture: Path) -> str:
    """Serves the pages on loopback and opens them in Chromium; what the status page answers, and where it is."""
    status = pages / "nightly" / "index.html"
    handler = partial(Quiet, directory=str(pages))
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        tempfile.TemporaryDirectory() as profile,
        open_browser(Path(profile) / "p", Page) as page,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        page.navigate(address)
        page.wait("document.readyState === 'complete' && document.querySelector('h1') !== null")
        page.navigate(f"{address}nightly/")
        page.wait("document.querySelector('#answer') !== null && document.readyState === 'complete'")
        answer = page.value("document.querySelector('#answer').textContent")
        nights = page.value("document.querySelectorAll('#nights + .card tbody tr').length")
        page.screenshot(picture)
        outside = [url for url in page.requests() if not url.startswith((address, "data:"))]
        server.shutdown()
        if problems := [*outside, *page.problems()]:
            raise RuntimeError(f"{status}: {problems}")
    return f"{status}: {answer}; {nights} nights; {picture}"


if __name__ == "__main__":
    raise SystemExit(main())
