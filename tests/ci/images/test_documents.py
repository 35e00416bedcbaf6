"""The documents beside an image: a CycloneDX SBOM that its schema accepts, and what a layer adds."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.images.content.contents import LayerContents, Origin, merge_contents, merge_details, scan_layer
from nightjar_ci.images.publish.sbom import read_locked_hashes, read_sbom_packages, render_sbom
from nightjar_ci.images.tree import find_checkout
from tests.ci.registries import make_tar

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
