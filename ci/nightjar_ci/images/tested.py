"""Did an image pass its tests? `nightjar.image-tests/1`, written by `images test --report`, read by `images push`.

In: the JUnit file of a run of tests/docker, and the images that were tested. Out: for each image how many tests passed,
failed and were skipped. A test that bears no image's name in its id can fail every image, and passes none: an image is
good by tests that ran in it.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

TESTS_SCHEMA = "nightjar.image-tests/1"


class TestedImage(BaseModel):
    """The tests of one image.

    Attributes:
        tag: what the engine calls it.
        id: the engine's id of what was tested: the digest of its configuration.
        failures: ids of the tests that failed or ended in an error.
    """

    __test__ = False
    model_config = ConfigDict(frozen=True, extra="forbid")

    tag: str
    id: str
    passed: int
    skipped: int
    failures: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether it passed: nothing failed, and something was tested."""
        return not self.failures and self.passed > 0


class TestReport(BaseModel):
    """The tests of some images: `nightjar.image-tests/1`."""

    __test__ = False
    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_: Literal["nightjar.image-tests/1"] = Field(alias="schema")
    images: tuple[TestedImage, ...]


def summarize_junit(junit: str, images: Mapping[str, tuple[str, str]]) -> TestReport:
    """The verdict on each image.

    Args:
        junit: text of the file that `pytest --junit-xml` wrote.
        images: name of each image to its tag and its id.
    """
    counts: dict[str, dict[str, list[str]]] = {name: {"passed": [], "skipped": [], "failed": []} for name in images}
    for case in ElementTree.fromstring(junit).iter("testcase"):
        test = f"{case.get('classname')}::{case.get('name')}"
        kinds = {child.tag for child in case}
        state = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        found = re.search(r"\[([^\]]*)\]$", case.get("name") or "")
        named = [name for name in images if found and name in found[1].split("-")]
        for name in named or (images if state != "passed" else ()):
            counts[name][state].append(test)
    return TestReport(
        schema=TESTS_SCHEMA,
        images=tuple(
            TestedImage(
                tag=tag,
                id=id_,
                passed=len(counts[name]["passed"]),
                skipped=len(counts[name]["skipped"]),
                failures=tuple(counts[name]["failed"]),
            )
            for name, (tag, id_) in images.items()
        ),
    )
