"""`python -m tests.pictures`: what does the documentation show? Pictures of pages that Nightjar made of a real night.

In: a night folder; where none is named, a night is run first. Out: docs/pictures/*.webp, each below 200 kB.
"""

import base64
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import noxfile
from tests.browser import Page, open_browser
from tests.machine import find_lack

FOLDER = noxfile.ROOT / "docs" / "pictures"
MOST_BYTES = 200_000
WIDTH = 1240


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A part of a page: what must be there, where the part begins, and how high it is (CSS pixels)."""

    name: str
    address: str
    ready: str
    top: str
    height: int


def main(arguments: list[str]) -> None:
    if (lack := find_lack("browser")) is not None:
        raise SystemExit(f"error: {lack}")
    with tempfile.TemporaryDirectory() as temporary:
        night = Path(arguments[0]) if arguments else run_night(Path(temporary))
        command = ["nightjar-ci", "site", "--nights", str(night.parent), "--out", str(Path(temporary) / "status")]
        subprocess.run(command, check=True, stdout=sys.stderr, env=state_of(night))
        with open_browser(Path(temporary) / "profile", Page) as page:
            page.size(WIDTH, 1600)
            for picture in find_pictures(night, Path(temporary) / "status" / "index.html"):
                print(take(page, picture))


def run_night(folder: Path) -> Path:
    """Runs the nightly of a machine without a GPU."""
    night = folder / "state" / "nights" / "tonight"
    command = ["nightjar-ci", "nightly", noxfile.NIGHTLY, "--out", str(night)]
    done = subprocess.run(command, cwd=noxfile.ROOT, stdout=sys.stderr, env=state_of(night), check=False)
    if done.returncode not in (0, 1, 4):
        raise SystemExit(f"error: the night ended with exit code {done.returncode}")
    return night


def state_of(night: Path) -> dict[str, str]:
    return {**os.environ, "NIGHTJAR_STATE_DIR": str(night.absolute().parent.parent)}


def find_pictures(night: Path, status: Path) -> list[Picture]:
    """What is shown: the head of a report, its curves, a profile's lines, and the status page."""
    report = (night / "report.html").absolute().as_uri()
    capture = sorted(night.glob("jobs/*/capture/report.html"))[0].absolute().as_uri()
    drawn = "document.querySelectorAll('.figure .main-svg').length > 0"
    filled = "document.body.innerText.length > 600"
    top = "document.querySelector('header')"
    return [
        Picture(name="report", address=report, ready="document.querySelector('#verdicts')", top=top, height=620),
        Picture(name="curves", address=report, ready=drawn, top="document.querySelector('#cells')", height=640),
        Picture(name="profile", address=capture, ready=filled, top="document.body", height=780),
        Picture(name="status", address=status.as_uri(), ready="document.querySelector('#answer')", top=top, height=640),
    ]


def take(page: Page, picture: Picture) -> Path:
    """Takes a picture; one that is too large is an error, and never committed."""
    page.navigate("about:blank")
    page.navigate(picture.address)
    page.wait(f"document.readyState === 'complete' && {picture.top} !== null")
    page.value(f"{picture.top}.scrollIntoView()")
    page.wait(f"Boolean({picture.ready})")
    page.value("new Promise((done) => setTimeout(done, 1500))")  # figures are drawn when they are scrolled to
    top = page.value(f"{picture.top}.getBoundingClientRect().top + window.scrollY")
    clip = {"x": 0, "y": top, "width": WIDTH, "height": picture.height, "scale": 1}
    shot = page.call("Page.captureScreenshot", format="webp", quality=80, clip=clip, captureBeyondViewport=True)
    data = base64.b64decode(shot["data"])
    if len(data) > MOST_BYTES:
        raise SystemExit(f"error: {picture.name}: {len(data)} bytes, expected at most {MOST_BYTES}")
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{picture.name}.webp"
    path.write_bytes(data)
    return path


if __name__ == "__main__":
    main(sys.argv[1:])
