"""Tags of nightly images: their name, day and platform."""

import pytest

from nightjar_ci.errors import InputError
from nightjar_ci.images.publish.tags import Tag, check_platform, dated_tag, image_name, read_tag


@pytest.mark.parametrize(
    ("tag", "name"),
    [
        ("nightjar/jax:cuda12-amd64", "jax-cuda12"),
        ("nightjar/jax:cuda12-arm64", "jax-cuda12"),
        ("nightjar/jax:cuda12-amd64-debug", "jax-cuda12-amd64-debug"),
        ("nightjar/jax:amd64", "jax-amd64"),
        ("nightjar/jax:latest", "jax"),
        ("nightjar/jax", "jax"),
        ("registry.example:5000/team/jax:cpu", "jax-cpu"),
    ],
)
def test_the_name_of_an_image_holds_no_architecture(tag: str, name: str) -> None:
    assert image_name(tag) == name


def test_the_longest_name_that_a_registry_accepts_is_accepted() -> None:
    assert image_name("x" * 81) == "x" * 81
    with pytest.raises(InputError, match="gives no valid name"):
        image_name("x" * 82)


@pytest.mark.parametrize("tag", ["jax", "jax-cpu-2026-11", "2026-11-21", "jax-2026-11-21-arm64", "JAX-2026-11-21"])
def test_a_tag_without_name_and_date_is_none_of_ours(tag: str) -> None:
    assert read_tag(tag) is None


def test_a_tag_with_two_dates_is_of_the_first() -> None:
    assert read_tag("jax-2026-11-21-2026-11-22") == Tag(name="jax", date="2026-11-21", platform="2026/11/22")


@pytest.mark.parametrize("platform", ["linux/amd64", "linux/arm/v7"])
def test_a_platform_is_part_of_the_tag(platform: str) -> None:
    assert check_platform(platform) == platform
    assert read_tag(dated_tag("jax", "2026-11-21", platform)) == Tag(name="jax", date="2026-11-21", platform=platform)


@pytest.mark.parametrize("platform", ["linux", "linux/", "linux/arm/v7/x", "Linux/amd64", "linux-amd64"])
def test_what_is_no_platform_is_refused(platform: str) -> None:
    with pytest.raises(InputError, match="is not a valid platform"):
        check_platform(platform)
