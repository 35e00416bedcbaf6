"""What `verify` and `pull` find in a real registry, and the pins that come back into a checkout."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nightjar_ci.cli import main
from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.images.publish.index_store import find_image, load_index, refresh_index
from nightjar_ci.images.publish.pins import find_changes, find_pins, restore_pins
from nightjar_ci.images.publish.publish import publish_image
from nightjar_ci.images.publish.push import push_packed
from nightjar_ci.images.publish.sign import GITHUB_ISSUER, Signer
from nightjar_ci.images.publish.verify import find_faults
from nightjar_ci.web.registry import Repository
from tests.called import call
from tests.ci.registries import SOURCE, make_image, run_registry, verdict_on
from tests.machine import asks
from tests.stand_ins import write_programs

PLATFORM = "linux/amd64"
PINS = {
    "docker/versions.json": "{}\n",
    "docker/locks/jax-cpu.txt": "jax==1.0\n",
    "docker/locks/nightly.json": '{"date": "2026-11-20"}\n',
}


@pytest.fixture
@asks("registry")
def here(tmp_path: Path) -> Iterator[Repository]:
    with run_registry(tmp_path / "here") as registry:
        yield Repository(f"{registry.host}/team/nightjar")


def publish(repository: Repository, folder: Path, day: str, name: str = "jax-cpu") -> str:
    image = make_image(folder, repository, python={"jax": day}, layer=f"{name}{day}".encode())
    push_packed(image, repository, name, day, tested=verdict_on(image), source=replace(SOURCE, pins=PINS))
    digest = publish_image(repository, name, day, [PLATFORM]).digest
    refresh_index(repository)
    assert digest is not None
    return digest


@pytest.mark.parametrize(("says", "known"), [("no matching signatures: x", True), ("connection refused", False)])
def test_a_cosign_that_fails_is_not_a_missing_signature(
    says: str, known: bool, here: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(here, tmp_path, "2026-11-20")
    night = find_image(load_index(here), "jax-cpu-2026-11-20")
    answer = f'[ "$1" = version ] || {{ echo "Error: {says}" >&2; exit 1; }}'
    write_programs(tmp_path / "bin", {"cosign": f"#!/bin/sh\n{answer}\n"})
    (tmp_path / "cosign.pub").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    signer = Signer(key=str(tmp_path / "cosign.pub"))
    if known:
        image = f"{here.name}@{night.platforms[PLATFORM].digest}"
        assert find_faults(night, signer) == (
            f"{night.reference} has no signature of {signer.name}",
            f"{image} has no provenance signed by {signer.name}",
        )
    else:
        with pytest.raises(NightjarError, match="connection refused"):
            find_faults(night, signer)


@pytest.mark.parametrize(("signed", "code"), [(True, 0), (False, 1)])
def test_a_pull_with_a_key_takes_signed_nights_alone(
    signed: bool, code: int, here: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(here, tmp_path, "2026-11-20")
    answer = "exit 0" if signed else '[ "$1" = version ] || { echo "Error: no signatures found" >&2; exit 1; }'
    write_programs(tmp_path / "bin", {"cosign": f"#!/bin/sh\n{answer}\n"})
    (tmp_path / "cosign.pub").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("NIGHTJAR_PUBLIC_KEY", str(tmp_path / "cosign.pub"))
    done = call(main, "images", "pull", f"{here.name}:jax-cpu", "--dry-run")
    assert (done.returncode, "docker pull" in done.stdout) == (code, signed)
    assert ("has no signature of" in done.stderr) != signed


WORKFLOW = "https://github.com/me/nightjar/.github/workflows/nightly.yml@refs/heads/main"


@pytest.mark.parametrize("issuer", ["", "https://gitlab.com"])
def test_a_signer_without_a_key_is_whom_the_certificate_must_name(
    issuer: str, here: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(here, tmp_path, "2026-11-20")
    calls = tmp_path / "calls"
    refuse = 'case "$1" in verify-attestation) echo "Error: no matching attestations: x" >&2; exit 1 ;; esac'
    write_programs(tmp_path / "bin", {"cosign": f'#!/bin/sh\necho "$@" >> {calls}\n{refuse}\n'})
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("NIGHTJAR_SIGNER", WORKFLOW)
    monkeypatch.setenv("NIGHTJAR_SIGNER_ISSUER", issuer)
    done = call(main, "images", "pull", f"{here.name}:jax-cpu", "--dry-run")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"has no provenance signed by {WORKFLOW}" in done.stderr
    wanted = f"--certificate-identity {WORKFLOW} --certificate-oidc-issuer {issuer or GITHUB_ISSUER}"
    night = find_image(load_index(here), "jax-cpu")
    assert calls.read_text().splitlines() == [
        "version",
        f"verify {wanted} {night.reference}",
        f"verify-attestation --type slsaprovenance1 {wanted} {here.name}@{night.platforms[PLATFORM].digest}",
    ]


def test_signers_that_exclude_each_other_are_refused(
    here: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(here, tmp_path, "2026-11-20")
    monkeypatch.setenv("NIGHTJAR_PUBLIC_KEY", "a.pub")
    monkeypatch.setenv("NIGHTJAR_SIGNER", WORKFLOW)
    done = call(main, "images", "verify", f"{here.name}:jax-cpu")
    assert (done.returncode, "exclude each other" in done.stderr) == (2, True)


def test_verify_names_a_lost_blob_a_failed_test_and_missing_documents(here: Repository, tmp_path: Path) -> None:
    publish(here, tmp_path, "2026-11-20")
    night = find_image(load_index(here), "jax-cpu")
    image = night.platforms[PLATFORM]
    manifest, _ = here.read_manifest(image.digest)
    layer = manifest["layers"][0]["digest"].removeprefix("sha256:")
    for folder in (tmp_path / "here/data").rglob(layer):
        shutil.rmtree(folder)
    with pytest.raises(InputError, match="is not a file"):
        find_faults(night, Signer(key=str(tmp_path / "absent.pub")))
    (fault,) = find_faults(night, None)
    assert fault == f"linux/amd64 lacks the blob sha256:{layer}"
    other = make_image(tmp_path, here, python={}, layer=b"bare")
    push_packed(other, here, "bare", "2026-11-20", tested=verdict_on(other, "test_x"), source=SOURCE)
    bare = night.model_copy(update={"reference": f"{here.name}@sha256:{'0' * 64}"})
    assert find_faults(bare, None) == (f"{bare.reference} is not in the registry",)


def test_pins_come_back_into_a_checkout_and_name_nothing_outside_it(here: Repository, tmp_path: Path) -> None:
    publish(here, tmp_path, "2026-11-20")
    checkout = tmp_path / "checkout"
    (checkout / "docker/locks").mkdir(parents=True)
    (checkout / "docker/versions.json").write_text("{}\n")
    pins = find_pins(find_image(load_index(here), "jax-cpu"))
    assert restore_pins(checkout, pins) == ("docker/locks/jax-cpu.txt", "docker/locks/nightly.json")
    assert restore_pins(checkout, pins) == ()
    assert {path: (checkout / path).read_text() for path in PINS} == PINS
    without = {path: text for path, text in PINS.items() if "nightly" not in path}
    assert find_changes(checkout, without) == ("docker/locks/nightly.json",)
    assert restore_pins(checkout, without) == ("docker/locks/nightly.json",)
    image = make_image(tmp_path, here, python={}, layer=b"bad")
    evil = replace(SOURCE, pins={"docker/locks/../../x.txt": ""})
    push_packed(image, here, "evil", "2026-11-20", tested=verdict_on(image), source=evil)
    publish_image(here, "evil", "2026-11-20", [PLATFORM])
    with pytest.raises(InputError, match=r"docker/locks/\.\./\.\./x\.txt"):
        find_pins(find_image(refresh_index(here), "evil"))


def test_a_passing_retest_undoes_a_failed_report_in_any_order(here: Repository, tmp_path: Path) -> None:
    image = make_image(tmp_path, here, python={})

    def push(finished: str, *failures: str) -> tuple[str, ...]:
        tested = verdict_on(image, *failures).model_copy(update={"finished": finished})
        push_packed(image, here, "jax-cpu", "2026-11-20", tested=tested, source=SOURCE)
        return publish_image(here, "jax-cpu", "2026-11-20", [PLATFORM]).reasons

    assert push("2026-11-20T02:00:00+00:00", "test_x") == ("linux/amd64 failed test_x",)
    assert push("2026-11-20T01:00:00+00:00") == ("linux/amd64 failed test_x",)  # an older one that arrives late
    assert push("2026-11-20T03:00:00+00:00") == ()


def test_a_date_of_the_future_is_refused_and_freezes_nothing(here: Repository, tmp_path: Path) -> None:
    today = datetime.now(UTC).date()
    future, before = ((today + timedelta(days=days)).isoformat() for days in (3, -1))
    with pytest.raises(InputError, match=f"{future} is after {today}, the registry's date in UTC") as caught:
        publish(here, tmp_path, future)
    assert "clock" in str(caught.value)
    frozen = publish(here, tmp_path, before)
    _, index = here.read_manifest("jax-cpu")
    here.put_manifest(f"jax-cpu-{future}", index, "application/vnd.oci.image.index.v1+json")  # by an older release
    newest = publish(here, tmp_path, today.isoformat())
    assert here.digest("jax-cpu") == newest != frozen
