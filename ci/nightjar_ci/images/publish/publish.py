"""When does a night become one that people pull? When each of its architectures is there and has passed its tests.

In: a repository, a name, a date and the platforms that the night must have. Out: the manifest index `NAME-DATE`, the
rolling tag `NAME`, the night's entry in the nightly index; or the reasons why all of them stay as they are. The
rolling tag moves last and never to an older night, so that whatever is interrupted leaves it at a whole and tested
one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.images.publish.artifacts import NIGHT_TYPE, SBOM_TYPE, TESTS_TYPE, attach, find_documents
from nightjar_ci.images.publish.manifests import read_platforms, render_index_manifest
from nightjar_ci.images.publish.nightly_index import Layer, Night, PlatformImage
from nightjar_ci.images.publish.sbom import read_sbom_packages
from nightjar_ci.images.publish.tags import dated_tag, read_tag
from nightjar_ci.images.tested import TestedImage
from nightjar_ci.web.registry import INDEX_TYPE, AbsentError, Repository, digest_of

_REVISION = "org.opencontainers.image.revision"


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What became of a night.

    Attributes:
        tag: `NAME-DATE`.
        reasons: why it is not published; empty where it is.
        digest: of the night's index; None where it is not published.
        rolling: `NAME`.
        rolling_date: the night that the rolling tag names now; None where it names none.
    """

    tag: str
    reasons: tuple[str, ...]
    digest: str | None
    rolling: str
    rolling_date: str | None


def publish_night(repository: Repository, name: str, day: str, platforms: Sequence[str]) -> Publication:
    """Makes a night of what its architectures have pushed, if all of it is there and good.

    Raises:
        InputError: the night is published with other images.
        NightjarError: the registry does not answer or refuses.
    """
    tag = dated_tag(name, day)
    manifests: dict[str, bytes] = {}
    reasons = []
    for platform in platforms:
        try:
            _, manifests[platform] = repository.read_manifest(dated_tag(name, day, platform))
        except AbsentError:
            reasons.append(f"{platform} has not been pushed")
            continue
        if reason := _why_not_good(repository, digest_of(manifests[platform])):
            reasons.append(f"{platform} {reason}")
    if reasons:
        return Publication(
            tag=tag, reasons=tuple(reasons), digest=None, rolling=name, rolling_date=find_rolling_date(repository, name)
        )
    index = render_index_manifest(manifests)
    _put_once(repository, tag, index)
    night = describe_night(repository, name, day, index)
    attach(repository, index, INDEX_TYPE, NIGHT_TYPE, night.model_dump_json().encode(), {"nightjar.tag": tag})
    newest = max((other for other in list_dates(repository, name)), default=day)
    if day >= newest and repository.find_digest(name) != digest_of(index):
        repository.put_manifest(name, index, INDEX_TYPE)
    return Publication(
        tag=tag,
        reasons=(),
        digest=digest_of(index),
        rolling=name,
        rolling_date=day if day >= newest else find_rolling_date(repository, name),
    )


def describe_night(repository: Repository, name: str, day: str, index: bytes) -> Night:
    """A night's entry in the nightly index, from what the registry has beside its images.

    Raises:
        NightjarError: a bill of materials or a configuration is missing or unreadable.
    """
    platforms: dict[str, PlatformImage] = {}
    packages: dict[str, str] = {}
    system: dict[str, str] = {}
    revision = ""
    for position, (platform, digest) in enumerate(sorted(read_platforms(json.loads(index)).items())):
        manifest, _ = repository.read_manifest(digest)
        mine, others = _read_packages(repository, digest)
        if position == 0:
            packages, system = mine, others
            config = json.loads(repository.read_blob(manifest["config"]["digest"]))
            revision = (config.get("config", {}).get("Labels") or {}).get(_REVISION, "")
        layers = tuple(Layer(digest=one["digest"], size_bytes=one["size"]) for one in manifest["layers"])
        differing = {one for one in packages.keys() | mine.keys() if packages.get(one) != mine.get(one)}
        platforms[platform] = PlatformImage(
            digest=digest,
            size_bytes=manifest["config"]["size"] + sum(layer.size_bytes for layer in layers),
            layers=layers,
            packages={one: mine.get(one, "") for one in sorted(differing)},
        )
    return Night(
        name=name,
        date=day,
        reference=f"{repository.name}@{digest_of(index)}",
        packages=packages,
        system_packages=system,
        platforms=platforms,
        revision=revision,
    )


def list_dates(repository: Repository, name: str) -> list[str]:
    """The dates of the published nights of a name, oldest first."""
    try:
        tags = [read_tag(tag) for tag in repository.tags()]
    except AbsentError:
        return []
    return sorted(tag.date for tag in tags if tag is not None and tag.name == name and tag.platform is None)


def find_rolling_date(repository: Repository, name: str) -> str | None:
    """The newest night whose image is behind the rolling tag; None where there is none."""
    digest = repository.find_digest(name)
    dates = reversed(list_dates(repository, name)) if digest is not None else ()
    return next((day for day in dates if repository.find_digest(dated_tag(name, day)) == digest), None)


def _put_once(repository: Repository, tag: str, index: bytes) -> None:
    there = repository.find_digest(tag)
    if there is None:
        repository.put_manifest(tag, index, INDEX_TYPE)
    elif there != digest_of(index):
        raise InputError(
            f"{repository.name}:{tag} is published as {there}, this is {digest_of(index)}: a night never changes.",
            "publish it under another --date",
        )


def _why_not_good(repository: Repository, digest: str) -> str | None:
    verdicts = find_documents(repository, digest, TESTS_TYPE)
    if not verdicts:
        return "has no test report"
    try:
        tested = TestedImage.model_validate_json(verdicts[-1])  # of several, the last
    except ValidationError:
        return "has a test report that cannot be read"
    if tested.ok:
        return None
    if not tested.failures:
        return "has a test report without a test that passed"
    more = f" and {len(tested.failures) - 1} more" if len(tested.failures) > 1 else ""
    return f"failed {tested.failures[0]}{more}"


def _read_packages(repository: Repository, digest: str) -> tuple[dict[str, str], dict[str, str]]:
    documents = find_documents(repository, digest, SBOM_TYPE)
    try:
        return read_sbom_packages(documents[-1])
    except (IndexError, KeyError, ValueError, TypeError):
        raise NightjarError(f"{repository.name}@{digest} has no bill of materials of ours.", "push it again") from None
