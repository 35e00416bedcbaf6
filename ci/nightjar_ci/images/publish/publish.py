"""The publication of a nightly image, once every platform is pushed and tested.

In: a repository, a name, a date and the required platforms. Out: the manifest index `NAME-DATE`, the rolling tag `NAME`
and the entry of the nightly index; or the reasons why none of them changes. The rolling tag moves last and never to an
older image, so that after an interruption it still refers to a complete, tested one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.images.publish.artifacts import NIGHT_TYPE, SBOM_TYPE, TESTS_TYPE, attach, find_documents
from nightjar_ci.images.publish.manifests import read_platforms, render_index_manifest
from nightjar_ci.images.publish.nightly_index import Layer, NightlyImage, PlatformImage
from nightjar_ci.images.publish.sbom import read_sbom_packages
from nightjar_ci.images.publish.tags import check_not_future, dated_tag, read_tag
from nightjar_ci.images.tested import CHANNELS, TestedImage
from nightjar_ci.web.registry import INDEX_TYPE, AbsentError, Repository, digest_of

_REVISION = "org.opencontainers.image.revision"


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The result of a publication.

    Attributes:
        tag: `NAME-DATE`.
        reasons: why it is not published; empty if it is.
        digest: of the manifest index; None if it is not published.
        rolling: `NAME`.
        rolling_date: date of the image that the rolling tag refers to; None if there is none.
    """

    tag: str
    reasons: tuple[str, ...]
    digest: str | None
    rolling: str
    rolling_date: str | None


def publish_image(
    repository: Repository, name: str, day: str, platforms: Sequence[str], *, channel: str = CHANNELS[0]
) -> Publication:
    """Publishes the pushed images of all platforms as one nightly image, if all are pushed and passed their tests.

    Args:
        channel: says what their tests must have shown.
    """
    tag, today = dated_tag(name, day), repository.read_date()
    check_not_future(day, today)
    manifests: dict[str, bytes] = {}
    reasons = []
    for platform in platforms:
        try:
            _, manifests[platform] = repository.read_manifest(dated_tag(name, day, platform))
        except AbsentError:
            reasons.append(f"{platform} has not been pushed")
            continue
        if reason := find_obstacle(repository, digest_of(manifests[platform]), channel):
            reasons.append(f"{platform} {reason}")
    if reasons:
        rolling_date = find_rolling_date(repository, name)
        return Publication(tag=tag, reasons=tuple(reasons), digest=None, rolling=name, rolling_date=rolling_date)
    index = render_index_manifest(manifests)
    _put_once(repository, tag, index)
    night = describe_entry(repository, name, day, index)
    attach(repository, index, INDEX_TYPE, NIGHT_TYPE, night.model_dump_json().encode(), {"nightjar.tag": tag})
    rolling_date = day
    if day < max((date for date in list_dates(repository, name) if not today or date <= today), default=day):
        rolling_date = find_rolling_date(repository, name)
    elif repository.find_digest(name) != digest_of(index):
        repository.put_manifest(name, index, INDEX_TYPE)
    return Publication(tag=tag, reasons=(), digest=digest_of(index), rolling=name, rolling_date=rolling_date)


def describe_entry(repository: Repository, name: str, day: str, index: bytes) -> NightlyImage:
    platforms: dict[str, PlatformImage] = {}
    packages: dict[str, str] = {}
    system: dict[str, str] = {}
    labels: dict[str, str] = {}
    for position, (platform, digest) in enumerate(sorted(read_platforms(json.loads(index)).items())):
        manifest, _ = repository.read_image(digest)
        python, debian = _read_packages(repository, digest)
        if position == 0:
            packages, system = python, debian
            config = json.loads(repository.read_blob(manifest["config"]["digest"]))
            labels = config.get("config", {}).get("Labels") or {}
        layers = tuple(Layer(digest=layer["digest"], size_bytes=layer["size"]) for layer in manifest["layers"])
        names = sorted(packages.keys() | python.keys())
        tested = read_report(repository, digest)
        platforms[platform] = PlatformImage(
            digest=digest,
            size_bytes=manifest["config"]["size"] + sum(layer.size_bytes for layer in layers),
            layers=layers,
            packages={name: python.get(name, "") for name in names if packages.get(name) != python.get(name)},
            ran=(tested.ran if tested else None) or (),
        )
    return NightlyImage(
        name=name,
        date=day,
        reference=f"{repository.name}@{digest_of(index)}",
        packages=packages,
        system_packages=system,
        platforms=platforms,
        revision=labels.get(_REVISION, ""),
        jax_day=labels.get("nightjar.jax.day", ""),
        patches=tuple(labels.get("nightjar.patches", "").split()),
        commits={name: commit for name in ("jax", "xla") if (commit := labels.get(f"nightjar.{name}.commit"))},
    )


def list_dates(repository: Repository, name: str) -> list[str]:
    """The dates of the published images of a name, oldest first."""
    try:
        tags = [read_tag(tag) for tag in repository.tags()]
    except AbsentError:
        return []
    return sorted(tag.date for tag in tags if tag is not None and tag.name == name and tag.platform is None)


def find_rolling_date(repository: Repository, name: str) -> str | None:
    """The newest date whose image the rolling tag refers to; None if there is none."""
    digest = repository.find_digest(name)
    if digest is None:
        return None
    dates = reversed(list_dates(repository, name))
    return next((day for day in dates if repository.find_digest(dated_tag(name, day)) == digest), None)


def _put_once(repository: Repository, tag: str, index: bytes) -> None:
    published = repository.find_digest(tag)
    if published is None:
        repository.put_manifest(tag, index, INDEX_TYPE)
    elif published != digest_of(index):
        raise InputError(
            f"{repository.name}:{tag} is already published as {published}; {digest_of(index)} cannot replace it.",
            "publish it under another --date",
        )


def find_obstacle(repository: Repository, digest: str, channel: str = CHANNELS[0]) -> str | None:
    """Why an image may not be published in a channel, from its test reports; None if it may."""
    try:
        tested = read_report(repository, digest)
    except ValidationError:
        return "has an invalid test report"
    if tested is None:
        return "has no test report"
    try:
        packages, _ = _read_packages(repository, digest)
    except NightjarError:
        packages = {}  # that it has no SBOM is a fault of its own
    return tested.find_obstacle(packages, channel)


def read_report(repository: Repository, digest: str) -> TestedImage | None:
    """The test report of an image that counts, with the proofs of all reports without a failure; None if it has none.

    Machines prove different things of one image: one without a GPU may test it after one with a GPU.
    """
    reports = [TestedImage.model_validate_json(report) for report in find_documents(repository, digest, TESTS_TYPE)]
    if not reports:
        return None
    proofs = [report.ran for report in reports if report.ok and report.ran is not None]
    ran = tuple(sorted({proof for each in proofs for proof in each})) if proofs else None
    last = max(enumerate(reports), key=lambda report: (report[1].finished, report[0]))[1]  # or the last attached
    return last.model_copy(update={"ran": ran})


def _read_packages(repository: Repository, digest: str) -> tuple[dict[str, str], dict[str, str]]:
    documents = find_documents(repository, digest, SBOM_TYPE)
    try:
        return read_sbom_packages(documents[-1])
    except (IndexError, KeyError, ValueError, TypeError):
        raise NightjarError(f"{repository.name}@{digest} has no SBOM of Nightjar's.", "push it again") from None
