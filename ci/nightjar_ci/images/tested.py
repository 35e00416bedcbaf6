"""Test reports of images, written by `images test --report`, read by `images push`.

In: the JUnit file of a run of tests/docker, and the tested images. Out: passed and skipped counts and the failures of
each image. If a test has no image name in its id, its failure counts for every image and its success for none: an image
passes only by tests that ran in it.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict

_STATES = {"failure": "failed", "error": "failed", "skipped": "skipped"}  # by JUnit element; the first match decides


class TestedImage(BaseModel):
    """The tests of one image.

    Attributes:
        id: the engine's id of the tested image: the digest of its configuration.
        failures: ids of the tests that failed or raised an error.
        finished: when the tests ended, in ISO 8601 and UTC; empty in reports of older releases.
        run: the run of a workflow that tested it; empty elsewhere.
    """

    __test__ = False
    model_config = ConfigDict(frozen=True, extra="forbid")

    tag: str
    id: str
    passed: int
    skipped: int
    failures: tuple[str, ...]
    finished: str = ""
    run: str = ""

    @property
    def ok(self) -> bool:
        """Whether it passed: at least one test passed and none failed."""
        return not self.failures and self.passed > 0


class TestReport(BaseModel):
    """The test results of several images."""

    __test__ = False
    model_config = ConfigDict(frozen=True, extra="forbid")

    images: tuple[TestedImage, ...]


def summarize_junit(
    junit: str, images: Mapping[str, tuple[str, str]], *, finished: datetime, run: str = ""
) -> TestReport:
    """The verdict on each image.

    Args:
        junit: text of the file that `pytest --junit-xml` wrote.
    """
    counts: dict[str, dict[str, list[str]]] = {name: {"passed": [], "skipped": [], "failed": []} for name in images}
    for case in ElementTree.fromstring(junit).iter("testcase"):
        test = f"{case.get('classname')}::{case.get('name')}"
        kinds = {child.tag for child in case}
        state = next((state for kind, state in _STATES.items() if kind in kinds), "passed")
        parameters = re.search(r"\[([^\]]*)\]$", case.get("name") or "")
        tested = [name for name in images if parameters and name in parameters[1].split("-")]
        if not tested and state != "passed":
            tested = list(images)
        for name in tested:
            counts[name][state].append(test)
    return TestReport(
        images=tuple(
            TestedImage(
                tag=tag,
                id=id_,
                passed=len(counts[name]["passed"]),
                skipped=len(counts[name]["skipped"]),
                failures=tuple(counts[name]["failed"]),
                finished=finished.astimezone(UTC).isoformat(timespec="seconds"),
                run=run,
            )
            for name, (tag, id_) in images.items()
        ),
    )
