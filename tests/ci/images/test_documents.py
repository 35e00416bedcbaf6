"""The documents beside an image: a CycloneDX SBOM that its schema accepts, SLSA provenance, and what a layer adds."""

from __future__ import annotations

import io
import json
import tarfile
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.images.content.contents import LayerContents, Origin, merge_contents, merge_details, scan_layer
from nightjar_ci.images.publish.push import render_provenance
from nightjar_ci.images.publish.sbom import read_locked_hashes, read_sbom_packages, render_sbom
from nightjar_ci.images.tested import summarize_junit
from nightjar_ci.images.tree import find_checkout
from tests.ci.registries import make_tar

ENDED = datetime(2026, 11, 20, 5, tzinfo=timezone(timedelta(hours=2)))
DIGEST = f"sha256:{'a' * 64}"
LOCK = f"""# header
flax==0.12.8 \\
    --hash=sha256:{"0" * 64} \\
    --hash=sha256:{"1" * 64}
    # via x
jax==0.10.2 ; python_full_version < '3.12' \\
    --hash=sha256:{"2" * 64}
"""


def sbom(python: dict[str, str], system: dict[str, str]) -> dict[str, Any]:
    hashes = read_locked_hashes([LOCK])
    return render_sbom(
        name="jax-cpu",
        digest=DIGEST,
        created="2026-11-20T00:00:00Z",
        python=python,
        system=system,
        origins={name: Origin("", "amd64") for name in system},
        licences={f"pypi/{name}": "MIT OR Apache-2.0" for name in python},
        release={"ID": "debian", "VERSION_ID": "13", "VERSION_CODENAME": "trixie"},
        hashes=hashes,
    )


def validate(document: dict[str, Any]) -> Any:
    """What the schema of CycloneDX has against a document, or None."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator  # three seconds, and all workers read this file

    return JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document))


def test_the_sbom_is_valid_and_bears_the_hashes_of_the_lock() -> None:
    document = sbom({"flax": "0.12.8", "jax": "0.10.2", "mine": "1"}, {"bash": "5.2.15-2+b7", "libc6": "1:2.41"})
    assert validate(document) is None
    by_name = {one["name"]: one for one in document["components"]}
    assert [one["content"][0] for one in by_name["flax"]["externalReferences"][0]["hashes"]] == ["0", "1"]
    assert by_name["mine"]["properties"] == [{"name": "nightjar:locked", "value": "false"}]
    assert by_name["libc6"]["purl"] == "pkg:deb/debian/libc6@1%3A2.41?arch=amd64&distro=debian-13"
    assert document == sbom(
        {"mine": "1", "jax": "0.10.2", "flax": "0.12.8"}, {"libc6": "1:2.41", "bash": "5.2.15-2+b7"}
    )


def test_the_schema_refuses_what_is_no_sbom() -> None:
    document = sbom({"jax": "0.10.2"}, {})
    document["components"][0]["version"] = 3
    assert validate(document) is not None


NAMES = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True), st.text("0123456789.+~:-a", min_size=1, max_size=9)
)


@given(NAMES, NAMES)
def test_the_packages_of_an_sbom_are_read_back(python: dict[str, str], system: dict[str, str]) -> None:
    assert read_sbom_packages(json.dumps(sbom(python, system)).encode()) == (python, system)


def test_every_entry_of_the_lock_files_is_read_with_its_hashes() -> None:
    for path in sorted(find_checkout(Path(__file__).parent).glob("docker/locks/jax-*.txt")):
        found = read_locked_hashes([path.read_text()])
        assert len(found) == len(
            {tuple(line.split()[0].split("==")) for line in path.read_text().splitlines() if line[:1].isalnum()}
        )
        assert all(found.values())


def test_provenance_names_commit_locks_base_and_builder() -> None:
    labels = {
        "org.opencontainers.image.revision": f"{'1' * 40}-dirty",
        "org.opencontainers.image.source": "https://example.invalid/nightjar",
        "org.opencontainers.image.base.name": "debian:trixie",
        "org.opencontainers.image.base.digest": DIGEST,
    }
    statement = render_provenance(
        subject="r/nightjar:jax-cpu-2026-11-21",
        digest=DIGEST,
        target="nightjar/jax:cpu",
        platform="linux/amd64",
        labels=labels,
        locks={"docker/locks/jax-cpu.txt": "b" * 64},
        builder="https://example.invalid/run",
        invocation="17",
    )
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["subject"][0]["digest"] == {"sha256": "a" * 64}
    build = statement["predicate"]["buildDefinition"]
    assert build["externalParameters"]["workingTreeChanged"] is True
    assert build["resolvedDependencies"] == [
        {"uri": "git+https://example.invalid/nightjar", "digest": {"gitCommit": "1" * 40}},
        {"uri": "docker/locks/jax-cpu.txt", "digest": {"sha256": "b" * 64}},
        {"uri": "pkg:docker/debian:trixie", "digest": {"sha256": "a" * 64}},
    ]
    assert statement["predicate"]["runDetails"]["metadata"] == {"invocationId": "17"}


def test_provenance_names_a_base_without_a_manifest_by_its_layers() -> None:
    labels = {"org.opencontainers.image.base.name": "nightjar/ground-floor:trixie", "nightjar.base.layers": DIGEST}
    build = render_provenance(
        subject="r/x:y", digest=DIGEST, target="x", platform="linux/amd64", labels=labels, locks={}, builder="b",
        invocation=None,
    )["predicate"]["buildDefinition"]  # fmt: skip
    assert build["resolvedDependencies"] == [
        {"uri": "pkg:docker/nightjar/ground-floor:trixie", "annotations": {"layers": [DIGEST]}}
    ]


def scan(files: dict[str, str]) -> LayerContents:
    with tarfile.open(fileobj=io.BytesIO(make_tar(files))) as tar:
        return scan_layer((tar, member) for member in tar)


def test_a_later_layer_replaces_and_removes_packages() -> None:
    old = "lib/site-packages/jax-1.0.dist-info"
    lower = scan({f"./{old}/METADATA": "Name: Jax\nVersion: 1.0\n", "var/lib/dpkg/status": ""})
    upper = scan(
        {
            "lib/site-packages/.wh.jax-1.0.dist-info": "",
            "lib/site-packages/jax-1.1.dist-info/METADATA": "Name: jax\nVersion: 1.1\n\nName: other\n",
        }
    )
    assert merge_contents([lower]) == ({"jax": "1.0"}, {})
    assert merge_contents([lower, upper]) == ({"jax": "1.1"}, {})
    assert merge_contents([]) == ({}, {})


def test_a_layer_names_its_system_the_sources_of_its_packages_and_their_licences() -> None:
    dist = "lib/site-packages/{}.dist-info/METADATA"
    status = (
        "Package: libssl3\nSource: openssl (3.5)\nStatus: install ok installed\nVersion: 3.5\nArchitecture: amd64\n"
    )
    lower = scan(
        {
            "usr/lib/os-release": 'NAME="Debian GNU/Linux"\nID=debian\nVERSION_ID="13"\nVERSION_CODENAME=trixie\n',
            "var/lib/dpkg/status": status,
            "usr/share/doc/libssl3/copyright": "License: Apache-2.0\n\nLicense:\tBSD\n text\n\nLicense: BSD\n",
        }
    )
    upper = scan(
        {
            dist.format("a-1"): "Name: A\nVersion: 1\nLicense-Expression: MIT OR Apache-2.0\nLicense: MIT\n",
            dist.format("b-1"): f"Name: b\nVersion: 1\nLicense: {80 * 'x'}\n",
            dist.format("c-1"): f"Name: c\nVersion: 1\nLicense: {81 * 'x'}\n",
            dist.format("d-1"): "Name: d\nVersion: 1\n\nLicense: of the description\n",
        }
    )
    origins, licences, release = merge_details([lower, upper])
    assert origins == {"libssl3": ("openssl", "amd64")}
    assert licences == {"deb/libssl3": "Apache-2.0, BSD", "pypi/a": "MIT OR Apache-2.0", "pypi/b": 80 * "x"}
    assert release == {"ID": "debian", "VERSION_ID": "13", "VERSION_CODENAME": "trixie"}


JUNIT = """<testsuites><testsuite>
<testcase classname="tests.docker.test_base" name="test_user[jax]"/>
<testcase classname="tests.docker.test_base" name="test_user[te]"><failure/></testcase>
<testcase classname="tests.docker.test_jax" name="test_x[jax-1]"><skipped/></testcase>
<testcase classname="tests.docker.test_layers" name="test_layers"/>
</testsuite></testsuites>"""


def test_a_test_counts_for_the_image_in_its_id_and_can_fail_all_where_it_has_none() -> None:
    report = summarize_junit(
        JUNIT, {"jax": ("nightjar/jax:cpu", "sha256:1"), "te": ("nightjar/te:cpu", "sha256:2")}, finished=ENDED, run="7"
    )
    jax, te = report.images
    assert (jax.passed, jax.skipped, jax.failures, jax.ok) == (1, 1, (), True)
    assert (jax.finished, jax.run) == ("2026-11-20T03:00:00+00:00", "7")
    assert (te.passed, te.failures, te.ok) == (0, ("tests.docker.test_base::test_user[te]",), False)
    failed = JUNIT.replace('name="test_layers"/>', 'name="test_layers"><failure/></testcase>')
    (layers,) = summarize_junit(failed, {"jax": ("nightjar/jax:cpu", "sha256:1")}, finished=ENDED).images
    assert layers.failures == ("tests.docker.test_base::test_user[te]", "tests.docker.test_layers::test_layers")


@pytest.mark.parametrize(
    "junit",
    [
        "<testsuites/>",
        '<testsuites><testcase name="t"><skipped/></testcase></testsuites>',
        '<testsuites><testcase name="test_of_the_checkout"/></testsuites>',
    ],
)
def test_an_image_that_nothing_tested_has_not_passed(junit: str) -> None:
    assert not summarize_junit(junit, {"jax": ("nightjar/jax:cpu", "sha256:1")}, finished=ENDED).images[0].ok
