import hashlib
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.errors import InputError
from nightjar_ci.images.content.difference import ImageContent, LayerContent, compare_images, render_difference
from nightjar_ci.images.publish.layer_blob import Compression, find_compressor
from nightjar_ci.images.publish.nightly_index import Layer, NightlyImage, PlatformImage, make_index, render_index
from nightjar_ci.images.sources import find_kind, read_image

OLD = ImageContent(
    name="old",
    layers=(LayerContent(digest="sha256:os", size_bytes=50), LayerContent(digest="sha256:a", size_bytes=700)),
    python={"jax": "0.11.0", "six": "1.17.0"},
    system={"bash": "5.2"},
)
NEW = ImageContent(
    name="new",
    layers=(
        LayerContent(digest="sha256:os", size_bytes=50),
        LayerContent(digest="sha256:b", size_bytes=710, packages=("jax==0.12.0",)),
        LayerContent(digest="sha256:b", size_bytes=710),
    ),
    python={"jax": "0.12.0", "etils": "1.0"},
    system=None,
)


def test_two_nights_link_to_the_commits_of_xla_between_them() -> None:
    old, new = (replace(image, commits={"jax": "a" * 40, "xla": xla * 40}) for image, xla in ((OLD, "b"), (NEW, "c")))
    page = f"https://github.com/openxla/xla/compare/{'b' * 40}...{'c' * 40}"
    assert compare_images(old, new).commits == {"xla": page}
    assert f"Commits of xla: {page}" in render_difference(compare_images(old, new))
    assert compare_images(OLD, new).commits == {}


def test_only_layers_that_are_not_there_are_pulled_and_each_once() -> None:
    difference = compare_images(OLD, NEW)
    assert [layer.pulled for layer in difference.layers] == [False, True, False]
    assert (difference.pulled_bytes, difference.total_bytes) == (710, 760)
    assert compare_images(NEW, NEW).pulled_bytes == 0


def test_packages_that_came_went_and_changed_are_told_and_unknown_is_not_the_same() -> None:
    text = render_difference(compare_images(OLD, NEW))
    for line in ("0.11.0 -> 0.12.0", "1.17.0 -> -", "- -> 1.0", "Debian packages: unknown", "jax==0.12.0"):
        assert line in text
    assert "Python packages: the same" in render_difference(compare_images(OLD, OLD))


@given(st.lists(st.sampled_from("abcdef")), st.lists(st.sampled_from("abcdef")))
def test_pulling_never_costs_more_than_the_whole_image(old: list[str], new: list[str]) -> None:
    images = [
        ImageContent(name="x", layers=tuple(LayerContent(digest=one, size_bytes=ord(one)) for one in digests))
        for digests in (old, new)
    ]
    difference = compare_images(*images)
    assert 0 <= difference.pulled_bytes <= difference.total_bytes
    assert difference.pulled_bytes == sum(map(ord, set(new) - set(old)))


def write_layout(folder: Path, versions: dict[str, str], compression: Compression) -> Path:
    """An OCI layout with one image, tag `night`, of one layer with these distributions, compressed in two pieces."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for name, version in versions.items():
            text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
            member = tarfile.TarInfo(f"opt/nightjar/lib/python3.13/site-packages/{name}-{version}.dist-info/METADATA")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    compress, content = find_compressor(compression), tar.getvalue()
    pieces = compress(content[:700]), compress(content[700:])
    layer = put(b"".join(pieces)) | {"mediaType": f"application/vnd.oci.image.layer.v1.tar+{compression}"}
    manifest = put(json.dumps({"layers": [layer]}).encode())
    named = {**manifest, "annotations": {"org.opencontainers.image.ref.name": "night"}}
    (folder / "index.json").write_text(json.dumps({"manifests": [named]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def read(reference: str, tmp_path: Path) -> ImageContent:
    return read_image(reference, layer_cache=tmp_path / "layers", platform="linux/amd64", on_step=lambda step: None)


@pytest.mark.parametrize("compression", get_args(Compression))
def test_two_layouts_are_compared_by_what_lies_in_their_blobs(tmp_path: Path, compression: Compression) -> None:
    old, new = (
        write_layout(tmp_path / version, {"jax": version, "six": "1.17.0"}, compression) for version in ("0.11", "0.12")
    )
    difference = compare_images(read(f"oci:{old}", tmp_path), read(f"{new}:night", tmp_path))
    assert difference.python is not None
    assert [(one.name, one.before, one.after) for one in difference.python] == [("jax", "0.11", "0.12")]
    assert difference.pulled_bytes == difference.total_bytes > 0
    assert difference.layers[0].packages == ("jax==0.12", "six==1.17.0")


@pytest.mark.parametrize("compression", get_args(Compression))
def test_a_layout_without_that_tag_or_with_a_damaged_blob_is_refused(tmp_path: Path, compression: Compression) -> None:
    layout = write_layout(tmp_path / "x", {"jax": "0.11"}, compression)
    with pytest.raises(InputError, match="has no image 'nigth'; its tags: night"):
        read(f"oci:{layout}:nigth", tmp_path)
    (layer,) = (blob for blob in (layout / "blobs/sha256").iterdir() if blob.read_bytes()[:1] != b"{")
    layer.write_bytes(layer.read_bytes()[:30])
    with pytest.raises(InputError, match="cannot read a layer"):
        read(f"oci:{layout}", tmp_path)


def test_a_night_of_an_index_is_compared_without_a_registry(tmp_path: Path) -> None:
    def entry(day: str, version: str, digest: str) -> NightlyImage:
        image = PlatformImage(digest="sha256:m", size_bytes=7, layers=(Layer(digest=digest, size_bytes=7),))
        packages = {"jax": version}
        return NightlyImage(
            name="jax-cpu", date=day, reference="r@x", packages=packages, platforms={"linux/amd64": image}
        )

    index = make_index([entry("2026-11-19", "0.11", "sha256:1"), entry("2026-11-20", "0.12", "sha256:2")])
    (tmp_path / "nights.json").write_text(render_index(index))
    old, new = (read(f"{tmp_path}/nights.json:{name}", tmp_path) for name in ("jax-cpu-2026-11-19", "jax-cpu"))
    difference = compare_images(old, new)
    assert difference.pulled_bytes == 7
    assert difference.python is not None
    assert difference.python[0].after == "0.12"


def test_a_prefix_says_what_a_reference_is_and_a_name_alone_must_be_looked_up() -> None:
    assert find_kind("registry:ghcr.io/me/nightjar:jax") == ("registry", "ghcr.io/me/nightjar:jax")
    assert find_kind("nightjar/jax:cpu") == (None, "nightjar/jax:cpu")
    assert find_kind("https://nights.invalid/index.json:jax") == ("index", "https://nights.invalid/index.json:jax")
