"""Test reports of images: an image passes only by tests that ran in it, and any failure without a name counts."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from nightjar_ci.images.tested import COMPILES, COMPUTES, GPU, STARTS, TestedImage, summarize_junit

CUDA = ("jax", "jax-cuda12-plugin")
IMAGES = {"jax": ("nightjar/jax:cpu", "sha256:1"), "base": ("nightjar/base:cpu", "sha256:2")}


def summarize(*cases: str) -> dict[str, TestedImage]:
    text = f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>"
    report = summarize_junit(text, IMAGES, finished=datetime(2026, 11, 20, tzinfo=UTC))
    return {image.tag.partition("/")[2].partition(":")[0]: image for image in report.images}


def case(name: str, inner: str = "") -> str:
    return f'<testcase classname="tests.docker.test_base" name="{name}">{inner}</testcase>'


def test_each_test_counts_for_the_images_in_its_name() -> None:
    images = summarize(
        case("test_runs[jax]"),
        case("test_runs[base]"),
        case("test_user[jax-root]"),
        case("test_gpu[jax]", "<skipped/>"),
        case("test_size[base]", "<failure/>"),
    )
    assert (images["jax"].passed, images["jax"].skipped, images["jax"].failures) == (2, 1, ())
    assert (images["base"].passed, images["base"].skipped) == (1, 0)
    assert images["base"].failures == ("tests.docker.test_base::test_size[base]",)
    assert images["jax"].ok
    assert not images["base"].ok
    assert (images["jax"].tag, images["jax"].id) == IMAGES["jax"]


@pytest.mark.parametrize("inner", ["<failure/>", "<error/>", "<error/><skipped/>"])
def test_a_failure_without_an_image_counts_for_all(inner: str) -> None:
    images = summarize(case("test_runs[jax]"), case("test_runs[base]"), case("test_tree", inner))
    assert [image.failures for image in images.values()] == [("tests.docker.test_base::test_tree",)] * 2


def test_a_success_without_an_image_counts_for_none() -> None:
    images = summarize(case("test_tree"), case("test_runs[jaxlib]"), case("test_jax"), case("test_runs[jax]-x"))
    assert [image.passed for image in images.values()] == [0, 0]
    assert not any(image.ok for image in images.values())


def test_an_image_of_which_all_tests_were_skipped_is_not_tested() -> None:
    assert not summarize(case("test_runs[jax]", "<skipped/>"))["jax"].ok


def test_proofs_are_those_of_tests_that_passed_in_the_image() -> None:
    ran = '<properties><property name="ran" value="{}"/><property name="other" value="x"/></properties>'
    image = summarize(
        case("test_starts[jax]", ran.format(STARTS)),
        case("test_computes[jax]", ran.format(COMPUTES) + "<failure/>"),
        case("test_compiles[base]", ran.format(f"{COMPILES}h100")),
    )
    assert (image["jax"].ran, image["base"].ran) == ((STARTS,), (f"{COMPILES}h100",))


@pytest.mark.parametrize(
    ("ran", "packages", "channel", "lacks"),
    [
        ((STARTS,), (), "nightly", ""),
        ((), (), "nightly", "'starts'"),
        ((STARTS,), ("jax",), "nightly", f"'{COMPUTES}'"),
        ((STARTS, COMPUTES), ("jax",), "nightly", ""),
        ((STARTS, COMPUTES), CUDA, "nightly", "'compiles for a GPU'"),
        ((STARTS, COMPUTES, f"{COMPILES}h100"), CUDA, "nightly", ""),
        ((STARTS, COMPUTES, f"{COMPILES}h100"), CUDA, "gpu-tested", "'computes on a GPU'"),
        ((STARTS, COMPUTES, f"{COMPILES}h100", f"{GPU}H100"), CUDA, "gpu-tested", ""),
        ((f"{GPU}H100",), CUDA, "gpu-tested", f"'starts' or '{COMPUTES}' or 'compiles for a GPU'"),
        (None, CUDA, "nightly", ""),  # a report of before says no more than that all passed
        (None, (), "gpu-tested", "'starts' or 'computes on a GPU'"),
    ],
)
def test_a_channel_demands_proofs_of_what_is_in_the_image(
    ran: tuple[str, ...] | None, packages: tuple[str, ...], channel: str, lacks: str
) -> None:
    report = TestedImage(tag="t", id="sha256:1", passed=1, skipped=183, failures=(), ran=ran)
    demands = f"has a test report in which no test shows that it {lacks}, as the channel {channel} demands"
    assert report.find_obstacle(packages, channel) == (demands if lacks else None)


def test_the_end_of_the_tests_is_a_moment_in_utc_to_the_second() -> None:
    berlin = timezone(timedelta(hours=1))
    finished = datetime(2026, 11, 20, 0, 30, 1, 999_999, tzinfo=berlin)
    report = summarize_junit("<testsuites/>", IMAGES, finished=finished, run="7")
    assert {(image.finished, image.run) for image in report.images} == {("2026-11-19T23:30:01+00:00", "7")}
    assert not any(image.ok for image in report.images)
