"""Retention: what is old goes; the newest, the first of a month, and what a kept tag shares stay."""

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.errors import InputError
from nightjar_ci.images.publish.retention import find_expired
from nightjar_ci.images.publish.tags import Tag, check_platform, dated_tag, image_name, read_tag

TODAY = date(2026, 11, 25)


def expire(*tags: str, keep_days: int = 10) -> list[str]:
    return list(find_expired({tag: f"sha256:{tag}" for tag in tags}, TODAY, keep_days).tags)


def test_an_image_as_old_as_is_kept_stays_and_one_a_day_older_goes() -> None:
    first, newest = "jax-cpu-2026-11-01", "jax-cpu-2026-11-24"
    assert expire(first, "jax-cpu-2026-11-14", "jax-cpu-2026-11-15", newest) == ["jax-cpu-2026-11-14"]


def test_the_newest_image_stays_however_old_it_is() -> None:
    assert expire("jax-cpu-2020-01-01", "jax-cpu-2020-01-02", "jax-cpu-2020-01-03") == ["jax-cpu-2020-01-02"]


def test_the_first_image_of_each_month_stays() -> None:
    days = ("2025-02-03", "2025-02-04", "2025-03-01", "2025-03-31", "2026-02-02", "2026-02-05", "2026-11-24")
    expected = [f"jax-cpu-{day}" for day in ("2025-02-04", "2025-03-31", "2026-02-05")]
    assert expire(*(f"jax-cpu-{day}" for day in days)) == expected


def test_each_name_has_a_newest_image_of_its_own() -> None:
    assert expire("jax-cpu-2020-01-01", "jax-cuda12-2020-01-02") == []


def test_the_image_of_a_platform_stays_and_goes_with_its_night() -> None:
    kept, old, newest = "jax-cpu-2026-01-01", "jax-cpu-2026-01-02", "jax-cpu-2026-11-24"
    tags = [f"{night}{platform}" for night in (kept, old, newest) for platform in ("", "-linux-amd64", "-linux-arm64")]
    assert expire(*tags) == [old, f"{old}-linux-amd64", f"{old}-linux-arm64"]


def test_a_platform_that_was_never_published_is_no_newest_image() -> None:
    assert expire("jax-cpu-2026-01-01-linux-amd64", "jax-cpu-2026-11-24") == ["jax-cpu-2026-01-01-linux-amd64"]


def test_an_image_that_a_kept_tag_shares_stays_and_is_named() -> None:
    first, old, other, newest = (f"jax-cpu-2026-01-0{day}" for day in (1, 2, 3, 4))
    digests = {first: "sha256:1", old: "sha256:2", other: "sha256:3", newest: "sha256:4", "jax-cpu": "sha256:2"}
    expired = find_expired(digests, TODAY, 10)
    assert (expired.tags, expired.digests, expired.shared) == ((other,), ("sha256:3",), (old,))


@given(
    st.dictionaries(
        st.tuples(st.sampled_from("ab"), st.integers(0, 120)), st.sampled_from("uvwxyz"), min_size=1, max_size=25
    ),
    st.integers(0, 60),
)
def test_no_digest_is_deleted_that_a_kept_tag_has(images: dict[tuple[str, int], str], keep_days: int) -> None:
    digests = {f"{name}-{TODAY - timedelta(days=age)}": digest for (name, age), digest in images.items()}
    expired = find_expired(digests, TODAY, keep_days)
    kept = {tag: digest for tag, digest in digests.items() if tag not in expired.tags}
    assert set(kept.values()).isdisjoint(expired.digests)
    assert {digests[tag] for tag in expired.tags} == set(expired.digests)
    assert set(expired.shared) <= set(kept)
    for (name, age), _ in images.items():
        youngest = min(other for same, other in images if same == name)
        if age <= keep_days or age == youngest:
            assert f"{name}-{TODAY - timedelta(days=age)}" in kept


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
