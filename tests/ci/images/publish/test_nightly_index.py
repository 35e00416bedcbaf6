"""The nightly index: its order, and a reference that leads to another repository is refused."""

import pytest

from nightjar_ci.errors import InputError
from nightjar_ci.images.publish.nightly_index import (
    NightlyImage,
    check_reference,
    make_index,
    parse_index,
    read_index_file,
    render_index,
)
from tests.ci.servers import serve

DIGEST = "sha256:" + "a" * 64


def make_night(
    name: str = "jax-cpu", day: str = "2026-01-02", reference: str = f"ghcr.io/o/n@{DIGEST}"
) -> NightlyImage:
    return NightlyImage(name=name, date=day, reference=reference)


def test_images_are_sorted_by_name_then_newest_first_and_the_last_of_a_night_counts() -> None:
    first, again = make_night(reference="ghcr.io/o/n@sha256:1"), make_night(reference="ghcr.io/o/n@sha256:2")
    index = make_index([first, make_night("te"), make_night(day="2026-02-01"), make_night(day="2025-12-31"), again])
    assert [(night.name, night.date) for night in index.images] == [
        ("jax-cpu", "2026-02-01"),
        ("jax-cpu", "2026-01-02"),
        ("jax-cpu", "2025-12-31"),
        ("te", "2026-01-02"),
    ]
    assert index.images[1].reference.endswith(":2")
    assert parse_index(render_index(index).encode(), "x") == index


@pytest.mark.parametrize("repository", ["ghcr.io/o/n", "ghcr.io/O/N"])
def test_a_reference_of_the_trusted_repository_is_taken_by_digest(repository: str) -> None:
    assert check_reference(make_night(), repository) == f"ghcr.io/o/n@{DIGEST}"
    assert check_reference(make_night(reference=f"GHCR.io/o/N@{DIGEST}"), repository) == f"ghcr.io/o/n@{DIGEST}"


@pytest.mark.parametrize(
    "reference",
    [
        f"ghcr.io/other/n@{DIGEST}",
        f"ghcr.io/o/n:tag@{DIGEST}",
        "ghcr.io/o/n:latest",
        "ghcr.io/o/n@sha256:" + "a" * 63,
        "ghcr.io/o/n@sha256:" + "A" * 64,
        f"ghcr.io/o/n@{DIGEST}0",
        "ghcr.io/o/n@md5:" + "a" * 64,
    ],
)
def test_another_reference_is_refused(reference: str) -> None:
    with pytest.raises(InputError, match=r"expected ghcr\.io/o/n@sha256"):
        check_reference(make_night(reference=reference), "ghcr.io/o/n")


def test_a_name_that_makes_no_tag_is_refused() -> None:
    with pytest.raises(InputError, match="not valid in a tag"):
        check_reference(make_night(name="jax/cpu"), "ghcr.io/o/n")
    with pytest.raises(InputError, match="not valid in a tag"):
        check_reference(make_night(name="j" * 118), "ghcr.io/o/n")
    assert check_reference(make_night(name="j" * 117), "ghcr.io/o/n")  # with the date, 128 characters


@pytest.mark.parametrize("text", [b"", b"[]", b'{"schema": "nightjar.images/2", "images": []}', b'{"images": []}'])
def test_what_is_no_index_is_refused(text: bytes) -> None:
    with pytest.raises(InputError, match=r"page is not a valid nightjar\.images/1"):
        parse_index(text, "page")


def test_an_index_is_read_from_a_url_whose_password_is_not_shown() -> None:
    index = make_index([make_night()])
    bodies = {"/index.json": render_index(index).encode(), "/other.json": b"[]"}
    with serve(lambda method, path, authorization: (200, {}, bodies[path])) as served:
        address = served.url.replace("://", "://user:secret@")
        assert read_index_file(f"{address}/index.json") == index
        with pytest.raises(InputError, match=r"other\.json") as caught:
            read_index_file(f"{address}/other.json")
    assert "secret" not in str(caught.value)
