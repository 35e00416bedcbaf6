"""The nightly index: all nightly images with their package versions, `nightjar.images/1`.

In: a file or a URL. Out: nightly images: name, date, digest, packages, platforms, layers with their sizes.
docs/reference/nightly-index.md describes the format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.formats.documents import StrictModel, read_document
from nightjar_ci.web.http import HttpError, get, hide_passwords

IMAGES_SCHEMA = "nightjar.images/1"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"  # the grammar of tags in distribution/reference


class Layer(StrictModel):
    """One layer; `size_bytes` is the compressed size."""

    digest: str
    size_bytes: int


class PlatformImage(StrictModel):
    """The image of one platform.

    Attributes:
        size_bytes: size of a first pull: configuration and layers.
        packages: packages that differ from the first platform's; an empty version: the package is absent.
        ran: what it did in its tests, such as `computes on a CPU`; empty if they do not say.
    """

    digest: str
    size_bytes: int
    layers: tuple[Layer, ...]
    packages: dict[str, str] = Field(default_factory=dict)
    ran: tuple[str, ...] = ()


class NightlyImage(StrictModel):
    """A nightly image.

    Attributes:
        reference: by digest, as `docker pull` takes it.
        packages: Python packages of the first platform, name to version.
        system_packages: Debian packages of the first platform, name to version.
        platforms: platform, such as `linux/amd64`, to its image.
        revision: the git commit that it was built from; empty if unknown.
        jax_day: the day of its nightly JAX; empty if it has a release.
        commits: `jax` and `xla` of the nightly JAX, as far as they are known.
        patches: applied to its packages, in order, as `PACKAGE/FILE@SHA-256`.
    """

    name: Annotated[str, Field(pattern=r"^([A-Za-z0-9_][!-~]*)?$")]  # printed on a terminal and passed to docker
    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    reference: Annotated[str, Field(pattern=r"^[A-Za-z0-9][!-~]*$")]
    packages: dict[str, str] = Field(default_factory=dict)
    system_packages: dict[str, str] = Field(default_factory=dict)
    platforms: dict[str, PlatformImage] = Field(default_factory=dict)
    revision: str = ""
    jax_day: str = ""
    commits: dict[str, str] = Field(default_factory=dict)
    patches: tuple[str, ...] = ()


class NightlyIndex(StrictModel):
    """All nightly images: `nightjar.images/1`."""

    schema_: Literal["nightjar.images/1"] = Field(alias="schema")
    images: tuple[NightlyImage, ...]


def make_index(nights: Iterable[NightlyImage]) -> NightlyIndex:
    """An index, sorted by name, then newest first; of two images with the same name and date, the last one counts."""
    by_key = {(night.name, night.date): night for night in nights}
    ordered = sorted(sorted(by_key.values(), key=lambda night: night.date, reverse=True), key=lambda night: night.name)
    return NightlyIndex(schema=IMAGES_SCHEMA, images=tuple(ordered))


def check_reference(night: NightlyImage, repository: str) -> str:
    source, _, digest = night.reference.rpartition("@")
    if not re.fullmatch(_TAG, f"{night.name}-{night.date}"):
        raise InputError(f"the index has an image named {night.name!r}, which is not valid in a tag.")
    if source.lower() != repository.lower() or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise InputError(
            f"the index refers to {night.reference!r} for {night.name}-{night.date}; "
            f"expected {repository}@sha256:<64 hex digits>.",
            "use an index of the same repository",
        )
    return f"{repository.lower()}@{digest}"


def parse_index(text: bytes, where: str) -> NightlyIndex:
    try:
        return NightlyIndex.model_validate(json.loads(text))
    except (ValidationError, ValueError) as error:
        raise InputError(f"{where} is not a valid {IMAGES_SCHEMA}: {str(error).splitlines()[0]}.") from None


def render_index(index: NightlyIndex) -> str:
    return index.model_dump_json(by_alias=True, exclude_defaults=False, indent=1) + "\n"


def read_index_file(source: str) -> NightlyIndex:
    """The index in a file or at an http or https URL."""
    if not source.startswith(("http://", "https://")):
        return read_document(Path(source), NightlyIndex, IMAGES_SCHEMA)
    try:
        body, _ = get(source, accept="application/json")
    except HttpError as error:
        raise NightjarError(f"{error}.") from None
    return parse_index(body, hide_passwords(source))
