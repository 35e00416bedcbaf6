"""Manifests and their indexes: the same bytes for the same parts, and platforms read back."""

import json

from nightjar_ci.images.publish.manifests import (
    EMPTY,
    read_platforms,
    render_artifact,
    render_index_manifest,
    render_manifest,
)
from nightjar_ci.web.registry import digest_of

ARM, INTEL = b'{"arm": 1}', b'{"intel": 1}'


def test_the_order_of_keys_and_platforms_does_not_matter() -> None:
    assert render_manifest({"b": 1, "a": 2}) == render_manifest({"a": 2, "b": 1})
    images = {"linux/arm64": ARM, "linux/amd64": INTEL}
    assert render_index_manifest(images) == render_index_manifest(dict(reversed(images.items())))


def test_an_index_describes_each_image_with_its_size_and_platform() -> None:
    index = json.loads(render_index_manifest({"linux/arm/v7": ARM, "linux/amd64": INTEL}))
    intel, arm = index["manifests"]
    assert (intel["digest"], intel["size"], intel["platform"]) == (
        digest_of(INTEL),
        len(INTEL),
        {"os": "linux", "architecture": "amd64"},
    )
    assert arm["platform"] == {"os": "linux", "architecture": "arm", "variant": "v7"}
    assert index["schemaVersion"] == 2
    assert read_platforms(index) == {"linux/arm/v7": digest_of(ARM), "linux/amd64": digest_of(INTEL)}


def test_an_index_without_images_or_platforms_is_read() -> None:
    assert read_platforms({}) == {}
    assert read_platforms({"manifests": None}) == {}
    assert read_platforms({"manifests": [{"digest": "sha256:1"}]}) == {"": "sha256:1"}


def test_an_artifact_is_one_document_that_may_belong_to_an_image() -> None:
    alone = json.loads(render_artifact("application/x", b"document", annotations={"a": "b"}))
    (layer,) = alone["layers"]
    assert layer == {"mediaType": "application/x", "digest": digest_of(b"document"), "size": 8}
    assert (alone["config"]["digest"], alone["config"]["size"]) == (digest_of(EMPTY), 2)
    assert (alone["artifactType"], alone["annotations"], alone["schemaVersion"]) == ("application/x", {"a": "b"}, 2)
    assert "subject" not in alone
    attached = json.loads(render_artifact("application/x", b"", annotations={}, subject={"digest": "sha256:1"}))
    assert attached["subject"] == {"digest": "sha256:1"}
