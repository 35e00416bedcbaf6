"""`images push --sign` with a real cosign and a real registry: it is verified with its key and no other."""

import base64
import json
from pathlib import Path

import pytest

from nightjar_ci.errors import InputError
from nightjar_ci.images.publish.index_store import find_image, load_index, refresh_index
from nightjar_ci.images.publish.nightly_index import NightlyImage
from nightjar_ci.images.publish.push import PREDICATE_TYPE
from nightjar_ci.images.publish.sign import PASSWORD, PROGRAM, Signer, sign_image
from nightjar_ci.images.publish.verify import find_faults
from nightjar_ci.tools import ToolError, run_captured
from nightjar_ci.web.registry import Repository
from tests.ci.images.publish.test_publish import night as publish
from tests.stand_ins import write_programs

OFFLINE = ("--insecure-ignore-tlog=true", "--key")


@pytest.fixture
def night(repository: Repository, tmp_path: Path) -> NightlyImage:
    publish(repository, tmp_path, "2026-11-20", "0.12.0")
    refresh_index(repository)
    return find_image(load_index(repository), "jax-cpu")


def make_key(folder: Path, name: str) -> Path:
    argv = [PROGRAM, "generate-key-pair", "--output-key-prefix", str(folder / name)]
    run_captured(argv, variables={PASSWORD: ""})
    return folder / f"{name}.key"


@pytest.mark.cosign
def test_a_signed_night_needs_its_own_key(repository: Repository, night: NightlyImage, tmp_path: Path) -> None:
    ours, other = make_key(tmp_path, "ours"), make_key(tmp_path, "other")
    signed = sign_image(night, str(ours), {PASSWORD: ""}, lambda step: None)
    assert set(signed) == {night.reference.rpartition("@")[2], *(one.digest for one in night.platforms.values())}
    run_captured([PROGRAM, "verify", *OFFLINE, str(ours.with_suffix(".pub")), f"{repository.name}:jax-cpu"])
    with pytest.raises(ToolError):
        run_captured([PROGRAM, "verify", *OFFLINE, str(other.with_suffix(".pub")), f"{repository.name}:jax-cpu"])
    image = f"{repository.name}@{night.platforms['linux/amd64'].digest}"
    check = [PROGRAM, "verify-attestation", "--type", "slsaprovenance1", *OFFLINE, str(ours.with_suffix(".pub")), image]
    statement = json.loads(base64.b64decode(json.loads(run_captured(check).splitlines()[0])["payload"]))
    assert statement["predicateType"] == PREDICATE_TYPE
    assert statement["subject"][0]["digest"]["sha256"] == image.rpartition(":")[2]
    assert statement["predicate"]["runDetails"]["builder"]["id"] == "urn:nightjar:test"


@pytest.mark.cosign
def test_a_signature_of_another_key_is_refused(repository: Repository, night: NightlyImage, tmp_path: Path) -> None:
    ours, other = make_key(tmp_path, "ours"), make_key(tmp_path, "other")
    signer = Signer(key=str(ours.with_suffix(".pub")))
    unsigned = find_faults(night, signer)
    assert f"{night.reference} has no signature of {signer.name}" in unsigned
    assert len(unsigned) == 1 + len(night.platforms)
    local = [PROGRAM, "sign", "--key", str(ours), "--tlog-upload=false", "--yes", "--recursive", night.reference]
    run_captured(local, variables={PASSWORD: ""})
    assert sorted(find_faults(night, signer)) == sorted(unsigned[1:])
    sign_image(night, str(ours), {PASSWORD: ""}, lambda step: None)
    assert find_faults(night, signer) == ()
    assert len(find_faults(night, Signer(key=str(other.with_suffix(".pub"))))) == 1 + len(night.platforms)


def test_without_a_key_cosign_is_not_told_of_one(
    repository: Repository, night: NightlyImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    write_programs(tmp_path / "bin", {"cosign": f'#!/bin/sh\necho "$@" $COSIGN_NEW_BUNDLE_FORMAT >> {calls}\n'})
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    sign_image(night, "", {}, lambda step: None)
    lines = calls.read_text().splitlines()
    assert lines[-1] == f"sign --yes --recursive {night.reference} false"  # which cosign 2 can verify
    assert len(lines) == 1 + 2 * len(night.platforms)
    assert not [line for line in lines if "--key" in line or "tlog" in line]


def test_a_key_that_is_not_there_and_a_password_that_is_not_set_are_said(tmp_path: Path) -> None:
    night = NightlyImage(name="jax-cpu", date="2026-11-20", reference="localhost:1/x@sha256:0")
    with pytest.raises(InputError, match="no such key file"):
        sign_image(night, str(tmp_path / "cosign.key"), {}, lambda step: None)
    (tmp_path / "cosign.key").touch()
    with pytest.raises(InputError, match="COSIGN_PASSWORD is not set"):
        sign_image(night, str(tmp_path / "cosign.key"), {}, lambda step: None)
