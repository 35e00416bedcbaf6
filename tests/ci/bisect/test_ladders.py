"""Which rungs do releases, images, commits and lists give?"""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from nightjar_ci.bisect.ladders import packages
from nightjar_ci.bisect.ladders.images import make_image_ladder
from nightjar_ci.bisect.ladders.packages import Base, make_package_ladder
from nightjar_ci.bisect.ladders.rung import file_name, make_listed_ladder
from nightjar_ci.bisect.ladders.timeline import merge_timelines
from nightjar_ci.bisect.options.choose_ladder import choose_ladder
from nightjar_ci.bisect.options.options import BisectOptions
from nightjar_ci.bisect.result.answer import title
from nightjar_ci.bisect.search.types import Conclusion
from nightjar_ci.environments.lock import read_pins
from nightjar_ci.errors import EnvironmentFailedError, InputError, NightjarError
from nightjar_ci.formats.job import SAFE_ID
from nightjar_ci.settings import read_settings
from nightjar_ci.web.http import HttpError, request
from nightjar_ci.web.package_index import Release, read_releases
from nightjar_ci.web.registry import Repository
from tests.ci.servers import Answer, serve

START = datetime(2026, 1, 1, tzinfo=UTC)


def releases(**days: float | None) -> list[Release]:
    """Releases `v1_2` -> day since the start."""
    return [
        Release(version=name[1:].replace("_", "."), uploaded=None if day is None else START + timedelta(days=day))
        for name, day in days.items()
    ]


def states(steps: Any) -> list[str]:
    return [" ".join(step.pins.values()) for step in steps]


# Several packages become one timeline.


def test_packages_move_one_at_a_time_in_the_order_of_their_release() -> None:
    known = {"jax": releases(v1=0, v2=10, v3=30), "flax": releases(v7=1, v8=20)}
    steps = merge_timelines({"jax": "1", "flax": "7"}, {"jax": "3", "flax": "8"}, known)
    assert states(steps) == ["2 7", "2 8", "3 8"]
    assert [step.package for step in steps] == ["jax", "flax", "jax"]


def test_a_release_that_came_late_does_not_come_before_the_one_it_follows() -> None:
    known = {"a": releases(v1=0, v1_1=50, v2=10), "b": releases(v1=0, v2=30)}
    assert states(merge_timelines({"a": "1", "b": "1"}, {"a": "2", "b": "2"}, known)) == ["1 2", "1.1 2", "2 2"]


def test_without_dates_packages_move_evenly_in_version_order() -> None:
    known = {"a": releases(v1=None, v2=None, v3=None, v10=None), "b": releases(v1=None, v2=None, v3=None)}
    steps = merge_timelines({"a": "1", "b": "1"}, {"a": "10", "b": "3"}, known)
    assert states(steps) == ["2 1", "2 2", "3 2", "10 2", "10 3"]


def test_a_package_that_goes_back_moves_in_one_step_at_the_end() -> None:
    known = {"a": releases(v1=0, v2=10), "b": releases(v1=0, v2=1, v3=2)}
    assert states(merge_timelines({"a": "1", "b": "3"}, {"a": "2", "b": "1"}, known)) == ["2 3", "2 1"]


@given(st.data())
def test_a_timeline_ends_at_the_new_versions_and_never_goes_back(data: st.DataObject) -> None:
    names = ["a", "b", "c"][: data.draw(st.integers(1, 3))]
    known, old, new = {}, {}, {}
    for name in names:
        count = data.draw(st.integers(2, 6))
        days = data.draw(st.lists(st.floats(0, 99), min_size=count, max_size=count))
        known[name] = [Release(version=f"1.{i}", uploaded=START + timedelta(days=d)) for i, d in enumerate(days)]
        old[name], new[name] = "1.0", f"1.{count - 1}"
    steps = merge_timelines(old, new, known)
    assert len(steps) == sum(len(found) - 1 for found in known.values())
    assert dict(steps[-1].pins) == new
    before = old
    for step in steps:
        moved = [name for name in names if step.pins[name] != before[name]]
        assert moved == [step.package]
        assert Version(step.pins[step.package]) > Version(before[step.package])
        before = dict(step.pins)


# A package index says which releases there are.


def index_page(kind: str) -> tuple[str, bytes]:
    files = [
        ("demo-1.0-py3-none-any.whl", "2026-01-02T00:00:00.000000Z", False),
        ("demo-1.0.tar.gz", "2026-01-01T00:00:00.000000Z", False),
        ("demo-1.1.tar.gz", "2026-02-01T00:00:00Z", True),
        ("demo-1.1.egg", "2026-02-01T00:00:00Z", True),
        ("other-9.0.tar.gz", "2026-02-01T00:00:00Z", False),
    ]
    if kind == "json":
        listed = [{"filename": n, "upload-time": t, "yanked": y and "broken"} for n, t, y in files]
        return "application/vnd.pypi.simple.v1+json", json.dumps({"files": listed}).encode()
    yanked = ' data-yanked="broken"'
    lines = [f'<a href="../x/{n}#sha256=0" data-upload-time="{t}"{yanked * y}>{n}</a>' for n, t, y in files]
    return "text/html", "\n".join(lines).encode()


@pytest.mark.parametrize("kind", ["json", "html"])
def test_releases_are_read_from_both_forms_of_the_index(kind: str) -> None:
    content_type, body = index_page(kind)

    def answer(method: str, path: str, authorization: str | None) -> Answer:
        return (200, {"Content-Type": content_type}, body) if path == "/simple/demo/" else (404, {}, b"")

    with serve(answer) as index:
        found = read_releases("Demo", f"{index.url}/simple")
        assert [(one.version, one.uploaded, one.yanked) for one in found] == [
            ("1.0", START, False),
            ("1.1", datetime(2026, 2, 1, tzinfo=UTC), True),
        ]
        with pytest.raises(InputError, match="'demmo' is not in the package index"):
            read_releases("demmo", f"{index.url}/simple")


@pytest.mark.parametrize("name", ["", "../other", 'jax"; touch x'])
def test_what_no_package_can_be_called_is_not_asked_for(name: str) -> None:
    with pytest.raises(InputError, match="is not a valid package name"):
        read_releases(name, "http://127.0.0.1:1")


def test_a_password_of_the_index_is_sent_and_never_shown() -> None:
    with serve(lambda *_: (403, {}, b"")) as index:
        with pytest.raises(NightjarError) as caught:
            read_releases("demo", index.url.replace("http://", "http://user:s3cret@"))
        assert index.authorizations == ["Basic dXNlcjpzM2NyZXQ="]
    assert "s3cret" not in str(caught.value)


def test_only_the_web_is_asked() -> None:
    with pytest.raises(HttpError, match="not an http or https"):
        request("file:///etc/passwd", accept="*/*")


# Environments: what uv refuses is left out, with its reason.


def test_an_extra_that_the_ends_name_is_in_every_environment() -> None:
    options = BisectOptions(good=("jax[cuda12]==0.4.38",), bad=("jax[cuda12]==0.5.0",))
    make = choose_ladder(options, read_settings(), print).make
    assert make.args[2].wanted == ("jax[cuda12]",)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two packages that are released together, and a resolver that wants them together."""
    known = {"jax": releases(v1=0, v2=10, v3=20), "jaxlib": releases(v1=0.01, v2=10.01, v3=20.01)}
    monkeypatch.setattr(packages, "read_releases", lambda name, url: known[name])

    def resolve(lines: list[str], *, python: str | None, prefer: dict[str, str], before: datetime | None) -> Any:
        pins = read_pins("\n".join(lines))
        if pins.setdefault("jaxlib", pins["jax"]) != pins["jax"]:
            raise EnvironmentFailedError(f"uv: `uv` ended with 1:\njax {pins['jax']} wants its jaxlib")
        return {"numpy": "1", **prefer, **pins}

    monkeypatch.setattr(packages, "resolve", resolve)


def ladder_of(old: dict[str, str], new: dict[str, str]) -> Any:
    return make_package_ladder(old, new, Base(), "http://index", lambda _: None)


@pytest.mark.parametrize(("old", "new"), [("1", "3"), ("1.0", "3.0.0")])  # the index has `1`, `2` and `3`
def test_what_cannot_be_installed_together_is_left_out_and_said(old: str, new: str, index: None) -> None:
    ladder = ladder_of({"jax": old, "jaxlib": old}, {"jax": new, "jaxlib": new})
    assert all(rung.when is not None for rung in ladder.rungs)
    assert [rung.name for rung in ladder.rungs] == ["jax 1, jaxlib 1", "jax 2, jaxlib 2", "jax 3, jaxlib 3"]
    assert ladder.notes[0] == "jax 2, jaxlib 1 cannot be installed: jax 2 wants its jaxlib"


def refuse(monkeypatch: pytest.MonkeyPatch, pin: str, message: str) -> None:
    whole = packages.resolve

    def resolve(lines: list[str], **options: Any) -> Any:
        if pin in lines:
            raise EnvironmentFailedError(message)
        return whole(lines, **options)

    monkeypatch.setattr(packages, "resolve", resolve)


def test_a_reason_without_a_command_is_said_whole(index: None, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, "jax==2", "uv was stopped after 600 s")
    ladder = ladder_of({"jax": "1"}, {"jax": "3"})
    assert ladder.notes == ("jax 2 cannot be installed: uv was stopped after 600 s",)
    assert [rung.note for rung in ladder.rungs] == [None, "or jax 2, which cannot be installed"]
    found = Conclusion(kind="culprit", message="", culprits=(1, 1), probability=0.99)
    assert title(found, ladder.rungs, "regression", None) == "It came with one of jax 2 to jax 3 (probability 0.990)."


@pytest.mark.parametrize("refused", ["1", "2", "3"])
def test_a_state_is_unknown_only_if_nothing_else_fits(
    refused: str, index: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, asked = packages.resolve, []

    def resolve(lines: list[str], *, before: datetime | None, **options: Any) -> Any:
        if f"jax=={refused}" in lines:
            asked.append(("numpy==1" in lines, before is not None))
            if "numpy==1" in lines or before is not None:
                raise EnvironmentFailedError("this jax wants another numpy, of a later day")
        return whole(lines, before=before, **options)

    monkeypatch.setattr(packages, "resolve", resolve)
    ladder = make_package_ladder({"jax": "1"}, {"jax": "3"}, Base(pins={"numpy": "1"}), "http://index", lambda _: None)
    assert [rung.name for rung in ladder.rungs] == ["jax 1", "jax 2", "jax 3"]
    assert list(dict.fromkeys(asked)) == [(True, True), (False, True), (False, False)]


@pytest.mark.parametrize(("old", "new"), [("9", "3"), ("1", "9")])
def test_an_end_that_was_never_released_is_bad_usage(
    index: None, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    refuse(monkeypatch, "jax==9", "uv: no:\nthere is no jax==9")
    with pytest.raises(InputError, match="the package index has no jax 9: its newest is 3"):
        ladder_of({"jax": old}, {"jax": new})


def test_a_package_that_refuses_a_release_gives_way_before_the_release_is_left_out(
    index: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = packages.resolve

    def resolve(lines: list[str], *, prefer: dict[str, str], **options: Any) -> Any:
        if {"jax==2", "equinox==9"} <= {*lines}:
            raise EnvironmentFailedError("uv: no:\nequinox 9 refuses jax 2")
        return whole(lines, prefer=prefer, **options) | {"equinox": "8" if "equinox" in lines else "9"}

    monkeypatch.setattr(packages, "resolve", resolve)
    base = Base(pins={"equinox": "9", "lib": "@ https://host/lib.whl"})
    ladder = make_package_ladder({"jax": "1"}, {"jax": "3"}, base, "http://index", lambda _: None)
    assert [(rung.pins["jax"], rung.pins["equinox"]) for rung in ladder.rungs] == [("1", "9"), ("2", "8"), ("3", "9")]
    assert {rung.pins["lib"] for rung in ladder.rungs} == {"@ https://host/lib.whl"}
    assert ladder.notes == ()


def test_what_follows_jax_is_not_kept_and_the_rest_is(index: None, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, kept = packages.resolve, []

    def resolve(lines: list[str], *, prefer: dict[str, str], **options: Any) -> Any:
        kept.append(prefer)
        return whole(lines, prefer=prefer, **options)

    monkeypatch.setattr(packages, "resolve", resolve)
    ladder_of({"jax": "1"}, {"jax": "3"})
    assert kept == [{}, {"numpy": "1"}, {"numpy": "1"}]


def test_jaxlib_follows_jax_where_only_jax_is_named(index: None) -> None:
    ladder = ladder_of({"jax": "1"}, {"jax": "3"})
    assert [rung.pins["jaxlib"] for rung in ladder.rungs] == ["1", "2", "3"]
    assert ladder.rungs[1].lock == ("jax==2", "jaxlib==2", "numpy==1")


def test_an_end_that_cannot_be_installed_is_an_error(index: None) -> None:
    with pytest.raises(EnvironmentFailedError, match="wants its jaxlib"):
        ladder_of({"jax": "1", "jaxlib": "1"}, {"jax": "3", "jaxlib": "2"})


# Images: tags of a registry.

DIGEST = "sha256:" + "0" * 63


def registry(method: str, path: str, authorization: str | None) -> Answer:
    if path.startswith("/token?"):
        return 200, {}, json.dumps({"token": "t0ken"}).encode()
    if authorization != "Bearer t0ken":
        realm = "http://127.0.0.1:PORT/token"
        return 401, {"WWW-Authenticate": f'Bearer realm="{realm}",service="s",scope="repository:x:pull"'}, b""
    if path.startswith("/v2/team/jax/tags/list?n="):
        tags = ["latest", "jax-2026-11-01", "jax-2026-11-02", "other-2026-11-02"]
        return 200, {"Link": '</v2/team/jax/tags/list?last=x>; rel="next"'}, json.dumps({"tags": tags}).encode()
    if path == "/v2/team/jax/tags/list?last=x":
        return 200, {}, json.dumps({"tags": ["jax-2026-11-03", "jax-2026-11-04"]}).encode()
    day = path[-1] if path.startswith("/v2/team/jax/manifests/jax-") and method == "HEAD" else ""
    return (200, {"Docker-Content-Digest": DIGEST + day.replace("3", "2")}, b"") if day else (404, {}, b"")


def test_nightly_images_come_from_the_registrys_tags_by_digest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    port: list[str] = []

    def answer(method: str, path: str, authorization: str | None) -> Answer:
        status, headers, body = registry(method, path, authorization)
        return status, {name: value.replace("PORT", port[0]) for name, value in headers.items()}, body

    with serve(answer) as served:
        host = served.url.removeprefix("http://")
        port.append(host.rpartition(":")[2])
        ladder = make_image_ladder(f"{host}/team/jax:jax", "2026-11-01", "2026-11-04", lambda _: None)
        assert [(rung.name, rung.source) for rung in ladder.rungs] == [
            ("2026-11-01", f"{host}/team/jax@{DIGEST}1"),
            ("2026-11-02", f"{host}/team/jax@{DIGEST}2"),
            ("2026-11-04", f"{host}/team/jax@{DIGEST}4"),
        ]
        assert ladder.notes == ("2026-11-03 is the same build as 2026-11-02.",)
        with pytest.raises(InputError, match="several images of a date: jax, other"):
            make_image_ladder(f"{host}/team/jax", "2026-11-01", "2026-11-04", lambda _: None)
        with pytest.raises(InputError, match="has no image of 2026-10-01"):
            make_image_ladder(f"{host}/team/jax:jax", "2026-10-01", "2026-11-04", lambda _: None)


def test_the_password_of_docker_login_is_used_and_a_registry_that_refuses_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with serve(lambda *_: (401, {"WWW-Authenticate": "Basic"}, b"")) as served:
        host = served.url.removeprefix("http://")
        (tmp_path / "config.json").write_text(json.dumps({"auths": {host: {"auth": "czNjcmV0"}}}))
        with pytest.raises(NightjarError, match="401") as caught:
            Repository(f"{host}/x").tags()
        assert served.authorizations == [None, "Basic czNjcmV0"]
    assert "czNjcmV0" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "host", "path"),
    [
        ("ghcr.io/nvidia/jax", "ghcr.io", "nvidia/jax"),
        ("localhost:5000/jax", "localhost:5000", "jax"),
        ("team/jax", "registry-1.docker.io", "team/jax"),
        ("python", "registry-1.docker.io", "library/python"),
    ],
)
def test_a_repository_is_found_as_docker_finds_it(name: str, host: str, path: str) -> None:
    assert (Repository(name).host, Repository(name).path) == (host, path)


def test_a_nightly_index_names_digests_and_packages(tmp_path: Path) -> None:
    images = [
        {"name": "jax", "date": f"2026-11-0{day}", "reference": f"r/jax@{DIGEST}{day}", "packages": {"jax": f"1.{day}"}}
        for day in (1, 2, 3)
    ]
    path = tmp_path / "nightly.json"
    path.write_text(json.dumps({"schema": "nightjar.images/1", "images": images}))
    ladder = make_image_ladder(str(path), "2026-11-02", "2026-11-03", lambda _: None)
    assert [rung.pins for rung in ladder.rungs] == [{"jax": "1.2"}, {"jax": "1.3"}]


# Lists, and names.


def test_a_list_is_cut_at_its_ends(tmp_path: Path) -> None:
    path = tmp_path / "rungs.txt"
    path.write_text("a\nb  # the good one\n\n# nothing\nc\nd\n")
    assert [rung.name for rung in make_listed_ladder(path, "b", "d").rungs] == ["b", "c", "d"]
    with pytest.raises(InputError, match="no rung 'e'"):
        make_listed_ladder(path, "e", None)
    with pytest.raises(InputError, match="1 rungs"):
        make_listed_ladder(path, "d", None)
    path.write_text("a\nb\na\n")
    with pytest.raises(InputError, match="'a' is listed twice"):
        make_listed_ladder(path, None, None)


def test_versions_that_share_eight_characters_have_folders_of_their_own() -> None:
    names = [file_name(index, name) for index, name in enumerate(["1.2.3.dev20261101", "1.2.3.dev20261102"])]
    assert len(set(names)) == 2


@given(st.lists(st.text(), max_size=20))
def test_any_name_is_a_safe_and_unique_file_name(names: list[str]) -> None:
    found = [file_name(index, name) for index, name in enumerate(names)]
    assert len(set(found)) == len(names)
    assert all(re.fullmatch(SAFE_ID, one) and len(one) < 64 and ".." not in one for one in found)
