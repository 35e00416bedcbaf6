"""Test reports of images, written by `images test --report`, read by `images push`.

In: the JUnit file of a run of tests/docker, and the tested images. Out: passed and skipped counts and the failures of
each image. If a test has no image name in its id, its failure counts for every image and its success for none: an image
passes only by tests that ran in it. A test that proves that an image starts or computes says so by a property `ran`;
a channel demands such proofs, so that a report of skipped tests publishes nothing.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Collection, Mapping
from datetime import UTC, datetime

from nightjar_ci.formats.documents import StrictModel

# What a test of an image says that the image did, in its property `ran`.
STARTS, COMPUTES, COMPILES, GPU = "starts", "computes on a CPU", "compiles for ", "computes on NVIDIA "
CHANNELS = ("nightly", "gpu-tested")
_STATES = {"failure": "failed", "error": "failed", "skipped": "skipped"}  # by JUnit element; the first match decides


class TestedImage(StrictModel):
    """The tests of one image.

    Attributes:
        id: the engine's id of the tested image: the digest of its configuration.
        failures: ids of the tests that failed or raised an error.
        ran: what the image did in tests that passed, such as `computes on a CPU`; None: its report is older than that.
        finished: when the tests ended, in ISO 8601 and UTC; empty in reports of older releases.
        run: the run of a workflow that tested it; empty elsewhere.
    """

    __test__ = False

    tag: str
    id: str
    passed: int
    skipped: int
    failures: tuple[str, ...]
    ran: tuple[str, ...] | None = None
    finished: str = ""
    run: str = ""

    @property
    def ok(self) -> bool:
        """Whether it passed: at least one test passed and none failed."""
        return not self.failures and self.passed > 0

    def find_obstacle(self, packages: Collection[str], channel: str) -> str | None:
        """Why a channel does not take the image; None if it does.

        Args:
            packages: the Python packages of the image: with JAX it must compute, with its CUDA plugin compile.
            channel: one of `CHANNELS`.
        """
        if self.failures:
            first, *others = self.failures
            return f"failed {first}" + (f" and {len(others)} more" if others else "")
        if not self.passed:
            return "has a test report in which no test passed"
        if self.ran is None and channel == "nightly":
            return None
        wanted = [STARTS]
        if "jax" in packages:
            wanted.append(COMPUTES)
        if any(name.startswith("jax-cuda") for name in packages):
            wanted.append(COMPILES)
        if channel == "gpu-tested":
            wanted.append(GPU)
        lacking = [proof for proof in wanted if not any(done.startswith(proof) for done in self.ran or ())]
        if not lacking:
            return None
        shown = {COMPILES: "compiles for a GPU", GPU: "computes on a GPU"}
        proofs = " or ".join(f"{shown.get(proof, proof)!r}" for proof in lacking)
        return f"has a test report in which no test shows that it {proofs}, as the channel {channel} demands"


class TestReport(StrictModel):
    """The test results of several images."""

    __test__ = False

    images: tuple[TestedImage, ...]


def summarize_junit(
    junit: str, images: Mapping[str, tuple[str, str]], *, finished: datetime, run: str = ""
) -> TestReport:
    """The verdict on each image.

    Args:
        junit: text of the file that `pytest --junit-xml` wrote.
    """
    counts: dict[str, dict[str, list[str]]] = {
        name: {"passed": [], "skipped": [], "failed": [], "ran": []} for name in images
    }
    for case in ElementTree.fromstring(junit).iter("testcase"):
        test = f"{case.get('classname')}::{case.get('name')}"
        kinds = {child.tag for child in case}
        state = next((state for kind, state in _STATES.items() if kind in kinds), "passed")
        parameters = re.search(r"\[([^\]]*)\]$", case.get("name") or "")
        tested = [name for name in images if parameters and name in parameters[1].split("-")]
        if not tested and state != "passed":
            tested = list(images)
        ran = [p.get("value", "") for p in case.iter("property") if p.get("name") == "ran" and state == "passed"]
        for name in tested:
            counts[name][state].append(test)
            counts[name]["ran"] += ran
    return TestReport(
        images=tuple(
            TestedImage(
                tag=tag,
                id=id_,
                passed=len(counts[name]["passed"]),
                skipped=len(counts[name]["skipped"]),
                failures=tuple(counts[name]["failed"]),
                ran=tuple(sorted(set(counts[name]["ran"]))),
                finished=finished.astimezone(UTC).isoformat(timespec="seconds"),
                run=run,
            )
            for name, (tag, id_) in images.items()
        ),
    )
