"""The bill of materials: a component for each package, with the hashes of its lock where it is locked."""

import json
from typing import Any

from nightjar_ci.images.content.contents import Origin
from nightjar_ci.images.publish.sbom import read_locked_hashes, read_sbom_packages, render_sbom

A, B, C = ("a" * 64, "b" * 64, "c" * 64)
LOCKS = (
    f"jax==1.0 \\\n    --hash=sha256:{B} \\\n    --hash=sha256:{A}\nnumpy==2.0 ; python_version < '3.12' \\\n"
    f"    --hash=sha256:{C}\n# a comment\n",
    f"jax==1.0 --hash=sha256:{C}\nJax_Lib==1.0 \\\n    --hash=sha256:{A}\n",
)


def test_the_hashes_of_all_locks_are_those_that_a_version_may_have() -> None:
    assert read_locked_hashes(LOCKS) == {("jax", "1.0"): (A, B, C), ("numpy", "2.0"): (C,), ("jax-lib", "1.0"): (A,)}


def test_a_package_of_another_version_is_not_locked() -> None:
    document = render_sbom(
        name="jax-cpu",
        digest="sha256:1",
        created=None,
        python={"numpy": "2.1", "jax": "1.0"},
        system={"libc6": "2.41-1+b1"},
        origins={"libc6": Origin("glibc", "amd64")},
        licences={"pypi/jax": "Apache-2.0", "deb/libc6": "GPL-2, LGPL-2.1+"},
        release={"ID": "ubuntu", "VERSION_ID": "24.04", "VERSION_CODENAME": "noble"},
        hashes=read_locked_hashes(LOCKS),
    )
    jax, numpy, libc, system = document["components"]
    assert [jax["purl"], numpy["purl"], libc["purl"]] == [
        "pkg:pypi/jax@1.0",
        "pkg:pypi/numpy@2.1",
        "pkg:deb/ubuntu/libc6@2.41-1%2Bb1?arch=amd64&distro=ubuntu-24.04&upstream=glibc",
    ]
    assert [part["properties"][0]["value"] for part in (jax, numpy)] == ["true", "false"]
    (reference,) = jax["externalReferences"]
    assert [entry["content"] for entry in reference["hashes"]] == [A, B, C]
    assert "externalReferences" not in numpy
    assert "properties" not in libc
    assert (system["type"], system["name"], system["version"]) == ("operating-system", "ubuntu", "24.04")
    names = [part["licenses"][0]["license"]["name"] for part in (jax, libc)]
    assert names == ["Apache-2.0", "GPL-2, LGPL-2.1+"]
    assert "licenses" not in numpy
    assert "timestamp" not in document["metadata"]
    (tree,) = document["dependencies"]
    assert (tree["ref"], tree["dependsOn"]) == (
        "sha256:1",
        sorted([*(part["purl"] for part in (jax, numpy, libc)), "os:ubuntu-24.04"]),
    )
    assert document["metadata"]["component"]["purl"] == "pkg:oci/jax-cpu@sha256%3A1"
    read = read_sbom_packages(json.dumps(document).encode())
    assert read == ({"jax": "1.0", "numpy": "2.1"}, {"libc6": "2.41-1+b1"})


def test_the_serial_number_is_that_of_the_image() -> None:
    nothing: dict[str, Any] = {"python": {}, "system": {}, "origins": {}, "licences": {}, "release": {}, "hashes": {}}
    images = [("jax", "sha256:1"), ("jax", "sha256:1"), ("jax", "sha256:2"), ("base", "sha256:1")]
    created = "2026-01-01T00:00:00Z"
    numbers = [render_sbom(name=name, digest=digest, created=created, **nothing) for name, digest in images]
    assert numbers[0] == numbers[1]
    assert len({document["serialNumber"] for document in numbers}) == 3
    assert numbers[0]["metadata"]["timestamp"] == created
