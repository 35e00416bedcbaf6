"""Known vulnerabilities: what is affected and since when, what does not apply, and databases that are damaged."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from nightjar_ci.errors import InputError
from nightjar_ci.images.publish.sbom import render_sbom
from nightjar_ci.images.vulnerabilities.components import Component, parse_purl, read_components
from nightjar_ci.images.vulnerabilities.find import EarlierNight, Vulnerability, find_vulnerabilities, is_affected
from nightjar_ci.images.vulnerabilities.osv import Affected, Entry, read_entries
from nightjar_ci.images.vulnerabilities.vex import Exceptions, read_exceptions

NUMPY = Component("PyPI", "numpy", "1.21.0", "numpy")
SSL = Component("Debian", "libssl3t64", "3.5.1-1", "openssl")


def entry(name: str = "numpy", ecosystem: str = "PyPI", **changes: Any) -> dict[str, Any]:
    events = [{"introduced": "0"}, {"fixed": "1.22.0"}]
    affected = [
        {"package": {"ecosystem": ecosystem, "name": name}, "ranges": [{"type": "ECOSYSTEM", "events": events}]}
    ]
    return {"id": "GHSA-1", "summary": "Overflow", "published": "2021-12-18T00:00:00Z", "affected": affected, **changes}


def find(
    components: Sequence[Component], *entries: Mapping[str, Any], exceptions: Exceptions | None = None, **options: Any
) -> list[Vulnerability]:
    parsed = [Entry.model_validate(text) for text in entries]
    return find_vulnerabilities(components, parsed, exceptions or Exceptions(), **options)


def ranges(*events: Mapping[str, str], kind: str = "ECOSYSTEM", versions: Sequence[str] = ()) -> Affected:
    return Affected.model_validate({"ranges": [{"type": kind, "events": events}], "versions": versions})


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ("1.0", False),
        ("1.2", True),
        ("1.2.post1", True),
        ("1.4rc1", True),
        ("1.4", False),
        ("2.0", True),
        ("2.3", True),
        ("2.4", False),
    ],
)
def test_a_version_is_affected_between_its_bounds(version: str, affected: bool) -> None:
    part = ranges({"introduced": "1.2"}, {"fixed": "1.4"}, {"introduced": "2.0"}, {"last_affected": "2.3"})
    assert is_affected(part, version, "PyPI") is affected
    shuffled = ranges({"fixed": "1.4"}, {"last_affected": "2.3"}, {"introduced": "2.0"}, {"introduced": "1.2"})
    assert is_affected(shuffled, version, "PyPI") is affected


def test_commits_say_nothing_about_versions_and_odd_versions_are_found_where_they_are_listed() -> None:
    assert not is_affected(ranges({"introduced": "0"}, kind="GIT"), "1.0", "PyPI")
    assert not is_affected(ranges({"introduced": "0"}, {"fixed": "2"}), "not-a-version", "PyPI")
    assert is_affected(ranges(versions=["not-a-version"]), "not-a-version", "PyPI")


def test_a_package_of_debian_is_looked_up_by_its_source_and_its_release() -> None:
    text = entry("openssl", "Debian:13", id="DEBIAN-CVE-1", upstream=["CVE-1"])
    text["affected"][0]["ranges"][0]["events"] = [{"introduced": "0"}, {"fixed": "3.5.1-1+deb13u1"}]
    (fault,) = find([SSL, NUMPY], text, debian="13")
    assert (fault.component, fault.fixed, fault.aliases) == (SSL, "3.5.1-1+deb13u1", ("CVE-1",))
    assert find([SSL], text, debian="12") == []


def test_since_is_the_first_night_in_a_row_with_an_affected_version() -> None:
    versions = {"2026-11-21": "1.21.0", "2026-11-20": "1.20.0", "2026-11-19": "1.22.0", "2026-11-18": "1.20.0"}
    nights = [EarlierNight(date=date, packages={"PyPI": {"numpy": version}}) for date, version in versions.items()]
    (fault,) = find([NUMPY], entry(), nights=nights)
    assert fault.since == "2026-11-20"
    assert fault.line == (
        "numpy 1.21.0; unknown; GHSA-1; Overflow; fixed in 1.22.0; published 2021-12-18; in images since 2026-11-20"
    )


def test_one_fault_with_two_ids_is_one_and_the_id_that_knows_how_bad_it_is_is_shown() -> None:
    ghsa = entry(id="GHSA-2", aliases=["CVE-7"], database_specific={"severity": "HIGH"})
    pysec = entry(id="PYSEC-1", aliases=["CVE-7"])
    (fault,) = find([NUMPY], pysec, ghsa)
    assert (fault.id, fault.level, fault.aliases) == ("GHSA-2", "high", ("CVE-7", "PYSEC-1"))


def test_a_fixed_version_is_newer_than_the_installed_one() -> None:
    text = entry()
    text["affected"][0]["ranges"] = [
        {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.19.5"}]},
        {"type": "ECOSYSTEM", "events": [{"introduced": "1.20"}, {"fixed": "1.21.3"}]},
    ]
    (fault,) = find([NUMPY], text)
    assert fault.fixed == "1.21.3"


def write_vex(path: Path, *statements: Mapping[str, Any]) -> Exceptions:
    document = {"@context": "https://openvex.dev/ns/v0.2.0", "@id": "x", "author": "we", "statements": statements}
    path.write_text(json.dumps(document))
    return read_exceptions(path)


def statement(
    status: str = "not_affected", product: str = "pkg:pypi/numpy", name: str = "CVE-7", **more: Any
) -> dict[str, Any]:
    return {"vulnerability": {"name": name}, "products": [{"@id": product}], "status": status, **more}


WHY = {"justification": "vulnerable_code_not_in_execute_path"}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ([statement(**WHY)], WHY["justification"]),
        ([statement(impact_statement="no user input reaches it", **WHY)], "no user input reaches it"),
        ([statement(product="pkg:pypi/numpy@1.21.0", **WHY)], WHY["justification"]),
        ([statement(product="pkg:oci/jax", **WHY)], None),
        ([statement(name="CVE-8", **WHY)], None),
        ([statement(status="under_investigation")], None),
        ([statement(**WHY), statement(status="affected")], None),
        (
            [{**statement(**WHY), "products": [{"@id": "pkg:oci/jax", "subcomponents": [{"@id": "pkg:pypi/numpy"}]}]}],
            WHY["justification"],
        ),
    ],
)
def test_what_a_document_excuses_does_not_apply(tmp_path: Path, said: list[dict[str, Any]], reason: str | None) -> None:
    exceptions = write_vex(tmp_path / "vex.json", *said)
    (fault,) = find([NUMPY], entry(aliases=["CVE-7"]), exceptions=exceptions)
    assert fault.reason == reason


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a valid OpenVEX document"),
        ('{"statements": [{"status": "not_affected"}]}', "not a valid OpenVEX document"),
        (json.dumps({"statements": [statement()]}), "CVE-7: not_affected without a reason"),
    ],
)
def test_a_document_that_is_wrong_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "vex.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_exceptions(tmp_path / "vex.json")


def test_a_database_is_a_zip_or_a_folder_and_what_is_withdrawn_is_left_out(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("GHSA-1.json", json.dumps(entry()))
        archive.writestr("GHSA-2.json", json.dumps(entry(id="GHSA-2", withdrawn="2022-01-01T00:00:00Z")))
        archive.writestr("GHSA-3.json", json.dumps(entry("other")))
    (tmp_path / "one.json").write_text(json.dumps(entry(id="GHSA-4")))
    packages = {("PyPI", "numpy")}
    assert [found.id for found in read_entries(tmp_path / "all.zip", packages)] == ["GHSA-1"]
    assert [found.id for found in read_entries(tmp_path, packages)] == ["GHSA-1", "GHSA-4"]


@pytest.mark.parametrize(
    ("name", "text"), [("a.json", "{"), ("a.json", "[]"), ("a.zip", "PK"), ("a.txt", "{}"), ("a.json", '{"id": 1}')]
)
def test_a_database_that_is_damaged_or_empty_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=r"not a valid entry of OSV|cannot be read|no database of OSV"):
        list(read_entries(tmp_path, {("PyPI", "numpy")}))
    with pytest.raises(InputError, match="no database of OSV"):
        list(read_entries(tmp_path / "absent", {("PyPI", "numpy")}))


def test_the_packages_of_our_own_sbom_are_found_with_their_sources() -> None:
    document = render_sbom(
        name="jax-cpu",
        digest="sha256:1",
        created=None,
        python={"numpy": "1.21.0"},
        system={"libssl3t64": "3.5.1-1", "bash": "5.2+x-1"},
        sources={"libssl3t64": "openssl"},
        hashes={},
    )
    assert read_components(json.dumps(document).encode(), "x") == [
        Component("Debian", "bash", "5.2+x-1", "bash"),
        SSL,
        NUMPY,
    ]


def test_packages_inside_of_others_are_found_and_other_kinds_passed_over() -> None:
    inner = {"purl": "pkg:pypi/Typing_Extensions@4.0"}
    document = {
        "bomFormat": "CycloneDX",
        "components": [{"purl": "pkg:npm/a@1", "components": [inner]}, {"name": "file"}],
    }
    (component,) = read_components(json.dumps(document).encode(), "x")
    assert (component.name, component.version) == ("typing-extensions", "4.0")
    assert parse_purl("pkg:deb/ubuntu/bash@5") is None


@pytest.mark.parametrize(
    "text", [b"", b"[]", b'{"spdxVersion": "2.3"}', b'{"bomFormat": "CycloneDX", "components": 3}']
)
def test_what_is_no_sbom_is_refused(text: bytes) -> None:
    with pytest.raises(InputError, match="x: not a valid SBOM"):
        read_components(text, "x")


def test_nulls_are_fields_that_are_left_out_and_no_number_is_too_long(tmp_path: Path) -> None:
    nulls: dict[str, Any] = {"aliases": None, "severity": None, "database_specific": None, "withdrawn": None}
    (tmp_path / "a.json").write_text(json.dumps(entry(**nulls)))
    assert [found.id for found in read_entries(tmp_path, {("PyPI", "numpy")})] == ["GHSA-1"]
    assert not is_affected(ranges({"introduced": "0"}, {"fixed": "1"}), "9" * 5000, "PyPI")


def test_an_encrypted_database_is_said_to_be_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("GHSA-1.json", json.dumps(entry()))
    data = bytearray(path.read_bytes())
    data[6] |= 1  # the flag of an encrypted member, in its header and in the directory
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match="cannot be read"):
        list(read_entries(path, {("PyPI", "numpy")}))
