"""Nights in a real registry: whole and tested or not there at all, immutable, listed, and retired."""

import base64
import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.bisect.ladders.images import make_image_ladder
from nightjar_ci.errors import InputError
from nightjar_ci.images.publish.artifacts import PROVENANCE_TYPE, SBOM_TYPE, find_documents
from nightjar_ci.images.publish.index_store import find_image, load_index, refresh_index
from nightjar_ci.images.publish.nightly_index import render_index
from nightjar_ci.images.publish.publish import Publication, publish_image
from nightjar_ci.images.publish.push import check_immutable, push_packed
from nightjar_ci.images.publish.tags import INDEX_TAG, check_date, dated_tag, image_name, night_date
from nightjar_ci.images.tested import CHANNELS
from nightjar_ci.web.registry import RegistryError, Repository
from tests.ci.registries import SOURCE, make_image, run_registry, verdict_on

NAME = "jax-cpu"
BOTH = ("linux/amd64", "linux/arm64")


def push(repository: Repository, folder: Path, day: str, version: str, platform: str = BOTH[0], *failures: str) -> None:
    image = make_image(folder, repository, python={"jax": version}, platform=platform, layer=version.encode())
    push_packed(image, repository, NAME, day, tested=verdict_on(image, *failures), source=SOURCE)


def night(repository: Repository, folder: Path, day: str, version: str) -> Publication:
    push(repository, folder, day, version)
    published = publish_image(repository, NAME, day, BOTH[:1])
    refresh_index(repository)
    return published


def test_the_rolling_tag_moves_once_every_architecture_is_there(repository: Repository, tmp_path: Path) -> None:
    first = night(repository, tmp_path, "2026-11-20", "1.0")
    assert (first.reasons, first.rolling_date) == ((), "2026-11-20")
    push(repository, tmp_path, "2026-11-21", "1.1", BOTH[0])
    waiting = publish_image(repository, NAME, "2026-11-21", BOTH)
    assert waiting.reasons == ("linux/arm64 has not been pushed",)
    assert waiting.rolling_date == "2026-11-20"
    assert repository.find_digest(dated_tag(NAME, "2026-11-21")) is None
    assert repository.digest(NAME) == first.digest
    push(repository, tmp_path, "2026-11-21", "1.1", BOTH[1])
    whole = publish_image(repository, NAME, "2026-11-21", BOTH)
    assert (whole.reasons, whole.rolling_date) == ((), "2026-11-21")
    assert repository.digest(NAME) == repository.digest(dated_tag(NAME, "2026-11-21")) == whole.digest
    index, _ = repository.read_manifest(NAME)
    assert [one["platform"]["architecture"] for one in index["manifests"]] == ["amd64", "arm64"]


def test_one_failing_architecture_keeps_the_rolling_tag_and_says_so(repository: Repository, tmp_path: Path) -> None:
    yesterday = night(repository, tmp_path, "2026-11-20", "1.0")
    push(repository, tmp_path, "2026-11-21", "1.1", BOTH[0])
    push(repository, tmp_path, "2026-11-21", "1.1", BOTH[1], "test_jax::test_x[jax]", "test_jax::test_y[jax]")
    broken = publish_image(repository, NAME, "2026-11-21", BOTH)
    assert broken.reasons == ("linux/arm64 failed test_jax::test_x[jax] and 1 more",)
    assert broken.digest is None
    assert broken.rolling_date == "2026-11-20"
    assert repository.digest(NAME) == yesterday.digest
    push(repository, tmp_path, "2026-11-21", "1.1", BOTH[1])  # repaired and tested again
    assert publish_image(repository, NAME, "2026-11-21", BOTH).reasons == ()


def test_an_image_without_a_test_report_is_not_published(repository: Repository, tmp_path: Path) -> None:
    image = make_image(tmp_path, repository, python={})
    push_packed(image, repository, NAME, "2026-11-21", tested=None, source=SOURCE)
    assert publish_image(repository, NAME, "2026-11-21", BOTH[:1]).reasons == ("linux/amd64 has no test report",)


def test_a_channel_takes_the_proofs_of_every_testing_machine(repository: Repository, tmp_path: Path) -> None:
    image = make_image(tmp_path, repository, python={"jax": "1.0"})
    verdict = verdict_on(image)
    answers = []
    for hour, ran in enumerate([(), ("computes on NVIDIA H100", "starts"), ("computes on a CPU", "starts")]):
        report = verdict.model_copy(update={"ran": ran, "finished": f"2026-11-21T0{hour}:00:00+00:00"})
        push_packed(image, repository, NAME, "2026-11-21", tested=report, source=SOURCE)
        published = [publish_image(repository, NAME, "2026-11-21", BOTH[:1], channel=channel) for channel in CHANNELS]
        answers.append([not publication.reasons for publication in published])
    assert answers == [[False, False], [False, False], [True, True]]
    refresh_index(repository)
    (entry,) = load_index(repository).images
    assert entry.platforms["linux/amd64"].ran == ("computes on NVIDIA H100", "computes on a CPU", "starts")


def test_a_published_night_never_changes_when_published_again(repository: Repository, tmp_path: Path) -> None:
    published = night(repository, tmp_path, "2026-11-21", "1.0")
    assert night(repository, tmp_path, "2026-11-21", "1.0") == published
    other = make_image(tmp_path, repository, python={"jax": "1.1"}, layer=b"1.1")
    with pytest.raises(InputError, match="cannot replace it") as caught:
        check_immutable(repository, NAME, "2026-11-21", other)
    assert "another --date" in str(caught.value)
    push_packed(other, repository, NAME, "2026-11-21", tested=verdict_on(other), source=SOURCE)  # behind its back
    with pytest.raises(InputError, match="cannot replace it"):
        publish_image(repository, NAME, "2026-11-21", BOTH[:1])
    assert repository.digest(dated_tag(NAME, "2026-11-21")) == repository.digest(NAME) == published.digest


def test_an_old_night_that_is_rebuilt_does_not_take_the_rolling_tag(repository: Repository, tmp_path: Path) -> None:
    newest = night(repository, tmp_path, "2026-11-21", "1.1")
    late = night(repository, tmp_path, "2026-11-20", "1.0")
    assert (late.reasons, late.rolling_date) == ((), "2026-11-21")
    assert repository.digest(NAME) == newest.digest


def test_the_same_image_on_two_nights_is_one_digest(repository: Repository, tmp_path: Path) -> None:
    first = night(repository, tmp_path, "2026-11-20", "1.0")
    second = night(repository, tmp_path, "2026-11-21", "1.0")
    assert first.digest == second.digest
    assert [one.date for one in load_index(repository).images] == ["2026-11-21", "2026-11-20"]


def test_the_nightly_index_holds_every_version_platform_and_layer(repository: Repository, tmp_path: Path) -> None:
    push(repository, tmp_path, "2026-11-21", "1.0", BOTH[0])
    push(repository, tmp_path, "2026-11-21", "1.1", BOTH[1])
    publish_image(repository, NAME, "2026-11-21", BOTH)
    (found,) = refresh_index(repository).images
    assert found == find_image(load_index(repository), NAME) == find_image(load_index(repository), f"{NAME}-2026-11-21")
    assert found.reference == f"{repository.name}@{repository.digest(NAME)}"
    assert (found.packages, found.system_packages, found.revision) == ({"jax": "1.0"}, {"bash": "5.2"}, "1" * 40)
    assert found.platforms[BOTH[1]].packages == {"jax": "1.1"}
    manifest, _ = repository.read_manifest(found.platforms[BOTH[0]].digest)
    (layer,) = found.platforms[BOTH[0]].layers
    assert (layer.digest, layer.size_bytes) == (manifest["layers"][0]["digest"], manifest["layers"][0]["size"])
    with pytest.raises(InputError, match=f"'te' is not a published nightly image; names: {NAME}"):
        find_image(load_index(repository), "te")


def test_bisection_reads_the_nights_from_the_index_and_from_the_tags(repository: Repository, tmp_path: Path) -> None:
    for day in (1, 2, 3):
        night(repository, tmp_path, f"2026-11-0{day}", f"1.{max(day, 2)}")
    path = tmp_path / "nightly.json"
    path.write_text(render_index(load_index(repository)))
    from_index = make_image_ladder(str(path), "2026-11-01", "2026-11-03", lambda _: None)
    assert [rung.pins for rung in from_index.rungs] == [{"jax": "1.2"}, {"jax": "1.3"}]
    from_tags = make_image_ladder(f"{repository.name}:{NAME}", "2026-11-01", "2026-11-03", lambda _: None)
    assert [rung.source for rung in from_tags.rungs] == [rung.source for rung in from_index.rungs]


def test_an_entry_that_a_writer_lost_is_added_by_the_next(repository: Repository, tmp_path: Path) -> None:
    for day in ("2026-11-20", "2026-11-21"):
        push(repository, tmp_path, day, "1.0")
        publish_image(repository, NAME, day, BOTH[:1])  # neither writes the index
    assert load_index(repository).images == ()
    assert len(refresh_index(repository).images) == 2
    before = repository.digest(INDEX_TAG)
    assert refresh_index(repository) == load_index(repository)
    assert repository.digest(INDEX_TAG) == before


def test_sbom_and_provenance_are_beside_the_image(repository: Repository, tmp_path: Path) -> None:
    night(repository, tmp_path, "2026-11-21", "1.0")
    digest = repository.digest(dated_tag(NAME, "2026-11-21", BOTH[0]))
    (sbom,), (provenance,) = (find_documents(repository, digest, kind) for kind in (SBOM_TYPE, PROVENANCE_TYPE))
    assert {one["purl"] for one in json.loads(sbom)["components"]} == {"pkg:pypi/jax@1.0", "pkg:deb/debian/bash@5.2"}
    statement = json.loads(provenance)
    assert statement["subject"][0]["digest"]["sha256"] == digest.removeprefix("sha256:")
    (source, *_) = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert source["digest"] == {"gitCommit": "1" * 40}


@pytest.mark.registry
def test_wrong_credentials_and_none_end_with_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    # user:right, bcrypt of cost 4, the only hash that this registry takes
    (tmp_path / "htpasswd").write_text("user:$2b$04$/GcvowFKGBrDrFL0qRrmqOiDtm9Jg1hpNTQ7S8AmDBZF83YypkDS2\n")
    options = {"REGISTRY_AUTH": "htpasswd", "REGISTRY_AUTH_HTPASSWD_REALM": "test"}
    options["REGISTRY_AUTH_HTPASSWD_PATH"] = str(tmp_path / "htpasswd")
    with run_registry(tmp_path / "registry", options=options) as registry:
        for password, works in (("", False), ("mistaken", False), ("right", True)):
            auth = base64.b64encode(f"user:{password}".encode()).decode()
            known = {registry.host: {"auth": auth}} if password else {}
            (tmp_path / "config.json").write_text(json.dumps({"auths": known}))
            if works:
                assert night(registry.repository, tmp_path, "2026-11-21", "1.0").reasons == ()
                continue
            with pytest.raises(RegistryError, match="401") as caught:
                registry.repository.find_digest("x")
            assert "docker login" in str(caught.value)
            refused = f"lacks this permission; log in again with `docker login {registry.host}`"
            assert (refused in str(caught.value)) is bool(password)
            assert password not in str(caught.value) or not password


def test_no_registry_ends_with_3_and_the_next_step() -> None:
    with pytest.raises(RegistryError, match="cannot reach") as caught:
        Repository("127.0.0.1:1/x").find_digest("y")
    assert caught.value.exit_code == 3
    assert "Hint" in str(caught.value)


def test_an_interrupted_push_leaves_no_tag_and_goes_on(repository: Repository, tmp_path: Path) -> None:
    image = make_image(tmp_path, repository, python={}, layer=b"interrupted")
    # every blob is there, the manifest is not: what a killed push leaves
    assert repository.find_digest(dated_tag(NAME, "2026-11-21", BOTH[0])) is None
    assert repository.put_blob(image.layers[0].digest, b"not sent") is False
    push_packed(image, repository, NAME, "2026-11-21", tested=verdict_on(image), source=SOURCE)
    assert publish_image(repository, NAME, "2026-11-21", BOTH[:1]).reasons == ()


def test_an_owner_with_capitals_names_the_repository_in_lower_case(repository: Repository, tmp_path: Path) -> None:
    push(Repository(repository.name.upper()), tmp_path / "a", "2026-11-20", "0.12.0")
    assert "jax-cpu-2026-11-20-linux-amd64" in repository.tags()


# Dates and tags.


@given(
    st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)),
    st.integers(-14 * 60, 14 * 60),
    st.integers(-14 * 60, 14 * 60),
)
def test_one_instant_has_one_date_in_every_zone(naive: datetime, here: int, there: int) -> None:
    instant = naive.replace(tzinfo=timezone(timedelta(minutes=here)))
    elsewhere = instant.astimezone(timezone(timedelta(minutes=there)))
    assert night_date(instant) == night_date(elsewhere)


def test_an_instant_without_a_time_zone_has_no_date() -> None:
    with pytest.raises(InputError, match="has no time zone"):
        night_date(datetime(2026, 11, 21, 23, 59))


@pytest.mark.parametrize("text", ["", "2026-11", "2026-13-01", "20261121", "tonight"])
def test_what_is_no_date_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected YYYY-MM-DD"):
        check_date(text)


@pytest.mark.parametrize("tag", ["nightjar/Jax:cpu", "nightjar/jax:2026-11-21", "x/:cpu"])
def test_a_tag_that_gives_no_name_is_refused(tag: str) -> None:
    with pytest.raises(InputError, match="no valid name of a nightly image"):
        image_name(tag)
